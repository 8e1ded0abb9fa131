"""``fedkad bench run``: train and evaluate, do the studies, write the report."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import typer

from fedkad.cli.failures import note, warn
from fedkad.cli.output import AsJson, shown_progress
from fedkad_bench.cli.arguments import (
    DataFolder,
    Datasets,
    Methods,
    OutFolder,
    Workers,
    check_data_folder,
    check_out_folder,
    dataset_names,
    integers,
    method_names,
    study_names,
)
from fedkad_bench.cli.finish import finish, note_missing_report, warn_of_failures, write_results
from fedkad_bench.cli.libraries import lacking
from fedkad_bench.cli.steps import shown_steps
from fedkad_bench.data.datasets import KNOWN
from fedkad_bench.data.sources import Facts
from fedkad_bench.methods.registry import INSTALL, METHODS, MissingLibraryError, Options, check_device, require
from fedkad_bench.running.runner import DATASETS, SEEDS, RunPlan, keep_traceback
from fedkad_bench.running.runner import run as run_plan
from fedkad_bench.studies import STUDIES, StudyRequest
from fedkad_bench.studies import perform as perform_study


def run(
    study: Annotated[Literal["paper"], typer.Argument(metavar="STUDY", help="What to run: paper.")],
    out: OutFolder,
    data: DataFolder = None,
    datasets: Datasets = None,
    methods: Methods = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="N,…", help="Seeds.", show_default="0,1,2; with --quick 0")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few clients, rows and rounds: shows that everything works, not how well.")
    ] = False,
    clients: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only N clients of each dataset.", show_default="all")
    ] = None,
    workers: Workers = None,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Where networks train.")] = "cpu",
    proximal: Annotated[float, typer.Option(min=0.0, metavar="MU", help="Weight of FedProx; 0 is FedAvg.")] = 0.0,
    reuse: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Reuse the cells of another folder of results.")
    ] = None,
    redo: Annotated[bool, typer.Option("--redo", help="Train everything again.")] = False,
    studies: Annotated[
        str | None, typer.Option(metavar="NAME,…", help="Studies to do after the table, or none.", show_default="all")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train and evaluate all methods on all datasets, do the studies, and write the report.

    Cells that are already in DIR are kept, so that an interrupted run can be resumed.
    """
    chosen_studies = study_names(studies)
    named = dataset_names(datasets)
    plan = RunPlan(
        named or DATASETS,
        method_names(methods) or tuple(METHODS),
        integers(seeds, 0, "--seeds") if seeds is not None else (0,) if quick else SEEDS,
        clients,
        Options(device, proximal, quick=quick),
    )
    if reuse is not None and not reuse.is_dir():
        raise ValueError(f"{reuse}: there is no such folder to reuse results of.")
    require(plan.methods)
    check_device(device)
    check_data_folder(data)
    check_out_folder(out, data, named)
    facts = _available(plan, data, optional=named is None)
    if quick:
        note("a quick run shows that everything works; its numbers say nothing about the methods.")
    if clients is not None and chosen_studies:
        note("--clients applies to the table; studies choose their own clients.")
    note_missing_report()
    with shown_steps() as report:
        outcome = run_plan(plan, data, out, workers=workers, reuse=reuse, redo=redo, report=report, facts=facts)
    warn_of_failures(outcome)
    write_results(out)  # before the studies, which take long and may fail
    public = tuple(found.source.dataset for found in facts if found.source.dataset in KNOWN)
    failed = _do_studies(chosen_studies, StudyRequest(data, quick, plan.seeds, public), out, redo=redo)
    finish(out, outcome, as_json, failed)


def _available(plan: RunPlan, data: Path | None, *, optional: bool) -> list[Facts]:
    """Look at the datasets; one that was not requested by name may be absent."""
    found, reasons = [], []
    for name in plan.datasets:
        try:
            facts = plan.look(name, data)
        except ValueError as error:
            if not optional:
                raise
            reasons.append(str(error))
            note(f"left out: {error}")
            continue
        for sentence in facts.notes:
            note(f"{facts.label}: {sentence}")
        found.append(facts)
    if not found:
        raise ValueError(reasons[0])
    return found


def _do_studies(names: Sequence[str], request: StudyRequest, out: Path, *, redo: bool) -> dict[str, str]:
    """Do one study after the other, since some measure time, and return a sentence for each that failed.

    Studies without their dataset or library are left out.
    """
    failed = {}
    for name in names:
        missing = _missing(name, request)
        if missing:
            note(f"left out: the study {name} needs {missing}")
            continue
        try:
            with shown_progress() as progress:
                perform_study(STUDIES[name], replace(request, progress=progress), out, redo=redo)
        except (MissingLibraryError, ModuleNotFoundError) as error:
            note(f"left out: the study {name}: {error}")
        except Exception as error:
            known = isinstance(error, ValueError | OSError)
            failed[name] = " ".join(str(error).split()) if known else f"{type(error).__name__}: {error}"
            keep_traceback(out, f"study-{name}", traceback.format_exc())
            warn(f"the study {name} failed: {failed[name]}")
        else:
            keep_traceback(out, f"study-{name}", None)
    return failed


def _missing(name: str, request: StudyRequest) -> str:
    """Name the datasets or libraries that a study lacks; empty if it can be done."""
    datasets = STUDIES[name].datasets
    if not request.datasets or (datasets and not set(datasets) & set(request.datasets)):
        return f"{' or '.join(datasets or tuple(KNOWN))}."
    libraries = lacking(STUDIES[name].needs)
    return f"{libraries}: {INSTALL}" if libraries else ""
