"""``fedkad bench sweep``: choose settings on held-out training data, without labels."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fedkad.cli.failures import note
from fedkad.cli.output import AsJson, print_json, print_line, print_table, shown_progress
from fedkad.wording import counted, significant
from fedkad_bench.cli.arguments import DataFolder, check_data_folder, dataset_name, integers
from fedkad_bench.data.sources import fetch, look
from fedkad_bench.sweep import CRITERION, Candidate, Sweep, candidates
from fedkad_bench.sweep import sweep as sweep_fleet


def sweep(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="A dataset, by name or folder.")],
    data: DataFolder = None,
    rank: Annotated[str, typer.Option(metavar="N,…", help="Ranks to try.")] = "8,16,24,32",
    window: Annotated[str, typer.Option(metavar="N,…", help="Windows to try.")] = str(Candidate.window),
    observables: Annotated[str, typer.Option(metavar="N,…", help="Numbers of observables to try.")] = str(
        Candidate.observables
    ),
    clients: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only N clients.", show_default="all")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Choose rank, window or observables on held-out training data, without labels."""
    name = dataset_name(dataset)
    tried = candidates(
        integers(window, 1, "--window"), integers(rank, 1, "--rank"), integers(observables, 0, "--observables")
    )
    check_data_folder(data)
    facts = look(name, data, clients=clients)
    loaded = fetch(facts.source)
    with shown_progress() as progress:
        found = sweep_fleet(loaded.training(), tried, seed=seed, scaling=loaded.scaling, progress=progress)
    if as_json:
        print_json(_document(facts.label, found))
    else:
        _print(facts.label, found)


def _print(label: str, found: Sweep) -> None:
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
    header = ("Window", "Rank", "Observables", "Numbers per message", "Held-out error", "Behind the best", "±", "")
    print_line(f"{label}, without labels: {CRITERION}.\n")
    print_table(header, rows, numbers=range(7))
    if found.left_out:
        note(f"{counted(len(found.left_out), 'client')} had too few rows to hold some out and did not take part.")
    print_line(f"\nChosen: {_options(found.chosen)}.")


def _mark(candidate: Candidate, found: Sweep) -> str:
    if candidate == found.chosen:
        return "chosen"
    return "best" if candidate == found.best else ""


def _options(candidate: Candidate) -> str:
    return f"--window {candidate.window} --rank {candidate.rank} --observables {candidate.observables}"


def _document(label: str, found: Sweep) -> dict[str, Any]:
    return {
        "dataset": label,
        "criterion": CRITERION,
        "trials": [{**vars(trial), "candidate": vars(trial.candidate)} for trial in found.trials],
        "best": vars(found.best),
        "chosen": vars(found.chosen),
        "left_out": found.left_out,
    }
