"""``fedkad bench``: run the benchmark, list what it knows, evaluate scores again, choose settings without labels."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fedkad.bench.cells import Cell
from fedkad.bench.data.datasets import KNOWN, PAPER_TABLE, data_folder
from fedkad.bench.data.sources import Facts, fetch, look
from fedkad.bench.evaluation import METRICS
from fedkad.bench.methods.registry import GROUPS, METHODS, MissingExtraError, Options, check_device, require
from fedkad.bench.protocols import PROTOCOLS, Choices
from fedkad.bench.results import Results, macro_table, write_tables
from fedkad.bench.running.runner import DATASETS, SEEDS, Outcome, Plan, Report, Step, evaluate_again, keep_traceback
from fedkad.bench.running.runner import run as run_plan
from fedkad.bench.studies import STUDIES, Request
from fedkad.bench.studies import perform as perform_study
from fedkad.bench.sweep import CRITERION, Candidate, Sweep, candidates
from fedkad.bench.sweep import sweep as sweep_fleet
from fedkad.cli.failures import note, one_sentence, warn
from fedkad.cli.output import AsJson, print_json, print_line, print_table
from fedkad.cli.progress import shown_progress
from fedkad.cli.targets import check_folder_target
from fedkad.report.benchmark import write_report
from fedkad.report.wording import counted, significant

FAILED = 1

REPORT_NEEDS = ("matplotlib", "scipy")
LIBRARIES = {"torch": "PyTorch", "sklearn": "scikit-learn"}
EXTRA = "pip install 'fedkad[bench]'"

app = typer.Typer(no_args_is_help=True, help="Run the benchmark, or evaluate again what it left.")


# -- options --------------------------------------------------------------------------------------------------


def _listed(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(dict.fromkeys(part for part in text.split(",") if part))


def _numbers(text: str, least: int, option: str) -> tuple[int, ...]:
    parts = _listed(text) or ()
    if not parts or not all(part.isdecimal() and int(part) >= least for part in parts):
        expected = f"{text!r} must be whole numbers, {least} or above, separated by commas."
        raise typer.BadParameter(expected, param_hint=f"'{option}'")
    return tuple(map(int, parts))


def _dataset_names(text: str | None) -> tuple[str, ...] | None:
    """Public names in their letter case, or folders that are there."""
    names = _listed(text)
    if names == ():
        raise typer.BadParameter(
            f"{text!r} names no dataset; choose among {', '.join(KNOWN)}, or name a folder.", param_hint="'--datasets'"
        )
    for name in names or ():
        if name.upper() not in KNOWN and not Path(name).is_dir():
            raise typer.BadParameter(
                f"{name} is no dataset; choose among {', '.join(KNOWN)}, or name a folder.", param_hint="'--datasets'"
            )
    return names and tuple(name.upper() if name.upper() in KNOWN else name for name in names)


def _method_names(text: str | None) -> tuple[str, ...] | None:
    names = _listed(text)
    if names == ():
        raise typer.BadParameter(
            f"{text!r} names no method; choose among {', '.join(METHODS)}.", param_hint="'--methods'"
        )
    for name in names or ():
        if name not in METHODS:
            raise typer.BadParameter(
                f"{name} is no method; choose among {', '.join(METHODS)}.", param_hint="'--methods'"
            )
    return names


def _study_names(text: str | None) -> tuple[str, ...]:
    """Names of studies; all of them unless some are named, none if that is what is named."""
    names = tuple(STUDIES) if text is None else () if text == "none" else _listed(text) or ()
    for name in names:
        if name not in STUDIES:
            raise typer.BadParameter(
                f"{name} is no study; choose among {', '.join(STUDIES)}, or none.", param_hint="'--studies'"
            )
    return names


DataFolder = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="The folder of the public datasets.",
        show_default="FEDKAD_DATA, or ../shared/data",
    ),
]
Datasets = Annotated[
    str | None,
    typer.Option(metavar="NAME,…", help="Datasets, by name or folder.", show_default="all that are there"),
]
Workers = Annotated[
    int | None,
    typer.Option(
        min=0, metavar="N", help="Processes; 0 works in this one.", show_default="as many as there are processors"
    ),
]


# -- commands -------------------------------------------------------------------------------------------------


@app.command()
@one_sentence
def run(
    study: Annotated[Literal["paper"], typer.Argument(metavar="STUDY", help="What to run: paper.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The folder of the results.")],
    data: DataFolder = None,
    datasets: Datasets = None,
    methods: Annotated[str | None, typer.Option(metavar="NAME,…", help="Methods.", show_default="all")] = None,
    seeds: Annotated[
        str | None, typer.Option(metavar="N,…", help="Seeds.", show_default="0,1,2; with --quick 0")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few clients, rows and rounds: shows that all works, not how well.")
    ] = False,
    clients: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="So many clients of each dataset.", show_default="all")
    ] = None,
    workers: Workers = None,
    device: Annotated[Literal["cpu", "cuda"], typer.Option(help="Where networks train.")] = "cpu",
    proximal: Annotated[float, typer.Option(min=0.0, metavar="MU", help="Weight of FedProx; 0 is FedAvg.")] = 0.0,
    reuse: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Take over the cells of another folder of results.")
    ] = None,
    redo: Annotated[bool, typer.Option("--redo", help="Train everything again.")] = False,
    studies: Annotated[
        str | None, typer.Option(metavar="NAME,…", help="Studies beside the table, or none.", show_default="all")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train and evaluate all methods on all datasets, do the studies, and write the report.

    What DIR holds already is kept, so that a killed run goes on.
    """
    asked = _study_names(studies)
    named = _dataset_names(datasets)
    plan = Plan(
        named or DATASETS,
        _method_names(methods) or tuple(METHODS),
        _numbers(seeds, 0, "--seeds") if seeds is not None else (0,) if quick else SEEDS,
        clients,
        Options(device, proximal, quick=quick),
    )
    if reuse is not None and not reuse.is_dir():
        raise ValueError(f"{reuse}: there is no such folder to reuse results of.")
    require(plan.methods)
    check_device(device)
    _check_data(data)
    _check_out(out, data, named)
    facts = _look(plan, data, optional=named is None)
    if quick:
        note("a quick run shows that everything works; its numbers say nothing about the methods.")
    if clients is not None and asked:
        note("--clients is for the table; studies take their own clients.")
    _note_no_report()
    with _shown_steps() as report:
        outcome = run_plan(plan, data, out, workers=workers, reuse=reuse, redo=redo, report=report, facts=facts)
    _tell_failures(outcome)
    _write(out)  # before the studies, which take long and may fail
    public = tuple(found.source.dataset for found in facts if found.source.dataset in KNOWN)
    failed = _do_studies(asked, Request(data, quick, plan.seeds, public), out, redo=redo)
    _finish(out, outcome, as_json, failed)


@app.command()
@one_sentence
def report(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the results.")],
    as_json: AsJson = False,
) -> None:
    """Write the report of a folder of results: one page, its tables and figures, and the data behind them."""
    if not (out / "cells").is_dir():
        raise ValueError(f"{out}: there are no cells in it; make some with `fedkad bench run paper --out {out}`.")
    lacking = _lacking(REPORT_NEEDS)
    if lacking:
        raise ValueError(f"The report needs {lacking}: {EXTRA}")
    written = write_report(out)
    if as_json:
        print_json({"written": [str(path) for path in written]})
    else:
        print_line(f"{out / 'report.html'}, and {len(written) - 1} tables and figures beside it.")


@app.command()
@one_sentence
def evaluate(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="The folder of the results.")],
    data: DataFolder = None,
    datasets: Datasets = None,
    methods: Annotated[str | None, typer.Option(metavar="NAME,…", help="Methods.", show_default="all")] = None,
    to: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write records and tables here.", show_default="the same folder")
    ] = None,
    threshold_rule: Annotated[
        Literal["quantile", "maximum", "pot"], typer.Option(help="How the first protocol's threshold is tuned.")
    ] = "quantile",
    quantile: Annotated[float, typer.Option(help="The quantile of that rule.")] = Choices.tuned_quantile,
    risk: Annotated[float, typer.Option(help="Risk of the POT threshold.")] = Choices.risk,
    strict: Annotated[
        bool, typer.Option("--strict", help="A segment needs more than the share k flagged, not at least k.")
    ] = False,
    at_least: Annotated[bool, typer.Option("--at-least", help="A score at the threshold is an alarm, too.")] = False,
    recall_cap: Annotated[
        Literal["limit", "reject"], typer.Option(help="What a recall above the third protocol's cap means.")
    ] = "limit",
    silent_is_perfect: Annotated[
        bool, typer.Option("--silent-is-perfect", help="Count clients without anomalies, as 1 if nothing is flagged.")
    ] = False,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate kept scores again, without training, with the choices that the paper leaves open."""
    for option, value in (("--quantile", quantile), ("--risk", risk)):
        if not 0.0 < value < 1.0:
            raise typer.BadParameter(f"{value:g} must lie between 0 and 1, both excluded.", param_hint=f"'{option}'")
    choices = Choices(
        tuned_threshold=threshold_rule,
        tuned_quantile=quantile,
        risk=risk,
        share_at_least=not strict,
        score_at_least=at_least,
        recall_cap=recall_cap,
        without_anomalies="perfect_if_silent" if silent_is_perfect else "omit",
    )
    named, wanted = _dataset_names(datasets), _method_names(methods)
    folders = {Path(name).resolve().name: Path(name) for name in named or () if name not in KNOWN}
    chosen = None if named is None else {name if name in KNOWN else Path(name).resolve().name for name in named}

    def only(cell: Cell) -> bool:
        return (chosen is None or cell.dataset in chosen) and (wanted is None or cell.method in wanted)

    _check_data(data)
    if to is not None:
        _check_out(to, data, named)
    _note_no_report()
    with _shown_steps() as report:
        outcome = evaluate_again(
            out, data, choices=choices, only=only, folders=folders, to=to, workers=workers, report=report
        )
    _tell_failures(outcome)
    _finish(to or out, outcome, as_json)


@app.command()
@one_sentence
def sweep(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="A dataset, by name or folder.")],
    data: DataFolder = None,
    rank: Annotated[str, typer.Option(metavar="N,…", help="Ranks to try.")] = "8,16,24,32",
    window: Annotated[str, typer.Option(metavar="N,…", help="Windows to try.")] = str(Candidate.window),
    observables: Annotated[str, typer.Option(metavar="N,…", help="Numbers of observables to try.")] = str(
        Candidate.observables
    ),
    clients: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="So many clients.", show_default="all")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Choose rank, window or observables on held-out training data, without labels."""
    if dataset.upper() not in KNOWN and not Path(dataset).is_dir():
        raise typer.BadParameter(f"{dataset} is no dataset; choose among {', '.join(KNOWN)}, or name a folder.")
    tried = candidates(
        _numbers(window, 1, "--window"), _numbers(rank, 1, "--rank"), _numbers(observables, 0, "--observables")
    )
    _check_data(data)
    facts = look(dataset, data, clients=clients)
    loaded = fetch(facts.source)
    with shown_progress() as progress:
        found = sweep_fleet(loaded.training(), tried, seed=seed, scaling=loaded.scaling, progress=progress)
    if as_json:
        print_json(_sweep_document(facts.label, found))
    else:
        _print_sweep(facts.label, found)


@app.command("list")
@one_sentence
def list_all(as_json: AsJson = False) -> None:
    """List methods, datasets, protocols and metrics."""
    methods = [{"name": m.name, "title": m.title, "group": m.group, "needs": m.needs} for m in METHODS.values()]
    metrics = [{"name": name, **metric._asdict()} for name, metric in METRICS.items()]
    protocols = [{field.name: getattr(protocol, field.name) for field in fields(protocol)} for protocol in PROTOCOLS]
    if as_json:
        print_json({"methods": methods, "datasets": list(KNOWN), "protocols": protocols, "metrics": metrics})
        return
    print_table(("Method", "Title", "Group"), [(m.name, m.title, GROUPS[m.group]) for m in METHODS.values()])
    print_line()
    paper = [(name, str(figures.clients), str(figures.channels)) for name, figures in PAPER_TABLE.items()]
    print_table(("Dataset", "Clients in the paper", "Channels"), paper, numbers=[1, 2])
    print_line()
    shown = [(p.key, p.title, p.threshold, "-" if p.share is None else f"{p.share:g}") for p in PROTOCOLS]
    print_table(("Protocol", "Title", "Threshold", "Share k"), shown, numbers=[3])
    print_line()
    print_table(("Metric", "Title", "Unit", "Group"), [(n, m.title, m.unit, m.group) for n, m in METRICS.items()])


# -- parts of commands ----------------------------------------------------------------------------------------


def _check_data(data: Path | None) -> None:
    if data is not None and not data.is_dir():
        raise ValueError(
            f"{data}: there is no such data folder; name another with --data, or fetch a dataset into it with "
            f"`fedkad datasets get SMD --data {data}`."
        )


def _check_out(out: Path, data: Path | None, named: tuple[str, ...] | None) -> None:
    """Refuse results in the data folder, and in a dataset of one's own."""
    root = data or data_folder()
    check_folder_target(out, root if root is not None else out / "no data")
    for name in named or ():
        if name not in KNOWN:
            check_folder_target(out, Path(name))


def _lacking(modules: Iterable[str]) -> str:
    """Which of these libraries are not installed, in words; empty if all are."""
    return " and ".join(LIBRARIES.get(name, name) for name in modules if find_spec(name) is None)


def _note_no_report() -> None:
    lacking = _lacking(REPORT_NEEDS)
    if lacking:
        note(f"no report will be written, for it needs {lacking}: {EXTRA}")


def _do_studies(names: Sequence[str], request: Request, out: Path, *, redo: bool) -> dict[str, str]:
    """One study after the other, for some measure time; what failed, with a sentence for each.

    Those without their dataset or library are left out.
    """
    failed = {}
    for name in names:
        wanting = _wanting(name, request)
        if wanting:
            note(f"left out: the study {name} needs {wanting}")
            continue
        try:
            with shown_progress() as progress:
                perform_study(STUDIES[name], replace(request, progress=progress), out, redo=redo)
        except (MissingExtraError, ModuleNotFoundError) as error:
            note(f"left out: the study {name}: {error}")
        except Exception as error:
            known = isinstance(error, ValueError | OSError)
            failed[name] = " ".join(str(error).split()) if known else f"{type(error).__name__}: {error}"
            keep_traceback(out, f"study-{name}", traceback.format_exc())
            warn(f"the study {name} failed: {failed[name]}")
        else:
            keep_traceback(out, f"study-{name}", None)
    return failed


def _wanting(name: str, request: Request) -> str:
    """What a study needs and has not, in words; empty if it can be done."""
    datasets = STUDIES[name].datasets
    if not request.datasets or (datasets and not set(datasets) & set(request.datasets)):
        return f"{' or '.join(datasets or tuple(KNOWN))}."
    lacking = _lacking(STUDIES[name].needs)
    return f"{lacking}: {EXTRA}" if lacking else ""


def _look(plan: Plan, data: Path | None, *, optional: bool) -> list[Facts]:
    """What there is of the datasets; one that nobody asked for by name may be absent."""
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


def _tell_failures(outcome: Outcome) -> None:
    for cell, sentence in outcome.failed.items():
        warn(f"{cell} failed: {sentence}")


def _write(folder: Path) -> tuple[Results, bool]:
    """Tables, and the report where there is something to report and what it needs; whether there was."""
    results = write_tables(folder)
    reported = bool(results.records) and not _lacking(REPORT_NEEDS)
    if reported:
        write_report(folder)
    return results, reported


def _finish(folder: Path, outcome: Outcome, as_json: bool, studies: Mapping[str, str] | None = None) -> None:
    """Tables and the report on disk, the main table on stdout; exit status 1 if a cell or a study failed."""
    results, reported = _write(folder)
    studies = studies or {}
    if as_json:
        print_json({**_document(folder, outcome, results), "studies_failed": dict(studies)})
    else:
        for dataset in results.datasets:
            print_line(f"## {results.labels[dataset]}\n")
            print_line(macro_table(results, dataset))
        print_line(
            f"{counted(len(outcome.trained), 'cell')} trained, {len(outcome.evaluated)} evaluated, "
            f"{len(outcome.kept)} kept, {len(outcome.reused)} reused, {len(outcome.failed)} failed."
        )
        where = f"; the report is {folder / 'report.html'}." if reported else "; there is no report."
        print_line(f"Causal smoothing, shares in percent{where}")
    if outcome.failed or studies:
        what = "cells" if not studies else "cells and studies" if outcome.failed else "studies"
        note(f"tracebacks are in {folder / 'failures'}; the same command tries the failed {what} again.")
        raise typer.Exit(FAILED)


def _document(folder: Path, outcome: Outcome, results: Results) -> dict[str, Any]:
    return {
        "out": str(folder),
        **{name: list(map(str, getattr(outcome, name))) for name in ("trained", "evaluated", "kept", "reused")},
        "failed": {str(cell): sentence for cell, sentence in outcome.failed.items()},
        "datasets": results.labels,
        "summaries": list(results.summaries()),
    }


@contextmanager
def _shown_steps() -> Iterator[Report]:
    """A bar with the time that is left on a terminal, a line for each cell elsewhere; on stderr."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda step: typer.echo(_told(step), err=True)
        return
    columns: Sequence[Any] = (
        TextColumn("{task.description:<32}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=console) as bars:
        cells = bars.add_task("cells", total=None, left="")

        def move(step: Step) -> None:
            if step.how == "failed":
                bars.console.print(_told(step), highlight=False, markup=False)
            left = f"about {_duration(step.left)} left" if step.done < step.of else ""
            bars.update(cells, total=step.of, completed=step.done, description=str(step.cell), left=left)

        yield move


def _told(step: Step) -> str:
    left = f", about {_duration(step.left)} left" if step.done < step.of else ""
    how = f"failed: {step.sentence}" if step.how == "failed" else f"{step.how} in {step.seconds:.1f} s"
    return f"[{step.done}/{step.of}] {step.cell} {how}{left}"


def _duration(seconds: float) -> str:
    """Seconds, minutes or hours in words.

    >>> _duration(31.4), _duration(600.0), _duration(9000.0)
    ('31 s', '10 min', '2.5 h')
    """
    if seconds < 90.0:
        return f"{max(seconds, 0.0):.0f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 5400.0 else f"{seconds / 3600.0:.1f} h"


def _print_sweep(label: str, found: Sweep) -> None:
    rows = [
        (
            str(trial.candidate.window),
            str(trial.candidate.rank),
            str(trial.candidate.observables),
            str(trial.numbers),
            significant(trial.mean),
            significant(trial.behind),
            significant(trial.standard_error),
            _mark(trial.candidate, found),
        )
        for trial in found.trials
    ]
    header = ("Window", "Rank", "Observables", "Numbers a message", "Held-out error", "Behind the best", "±", "")
    print_line(f"{label}, without labels: {CRITERION}.\n")
    print_table(header, rows, numbers=range(7))
    if found.left_out:
        note(f"{counted(len(found.left_out), 'client')} with too few rows to hold some out did not take part.")
    print_line(f"\nChosen: {_candidate_text(found.chosen)}.")


def _mark(candidate: Candidate, found: Sweep) -> str:
    if candidate == found.chosen:
        return "chosen"
    return "best" if candidate == found.best else ""


def _candidate_text(candidate: Candidate) -> str:
    return f"--window {candidate.window} --rank {candidate.rank} --observables {candidate.observables}"


def _sweep_document(label: str, found: Sweep) -> dict[str, Any]:
    return {
        "dataset": label,
        "criterion": CRITERION,
        "trials": [{**vars(trial), "candidate": vars(trial.candidate)} for trial in found.trials],
        "best": vars(found.best),
        "chosen": vars(found.chosen),
        "left_out": found.left_out,
    }
