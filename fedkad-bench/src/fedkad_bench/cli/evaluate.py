"""``fedkad bench evaluate``: evaluate kept scores again, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from fedkad.cli.output import AsJson
from fedkad_bench.cells import Cell
from fedkad_bench.cli.arguments import (
    DataFolder,
    Datasets,
    Methods,
    OutFolder,
    Workers,
    check_data_folder,
    check_out_folder,
    dataset_names,
    method_names,
)
from fedkad_bench.cli.finish import finish, note_missing_report, warn_of_failures
from fedkad_bench.cli.steps import shown_steps
from fedkad_bench.data.datasets import KNOWN
from fedkad_bench.protocols import Choices
from fedkad_bench.running.runner import evaluate_again


def evaluate(
    out: OutFolder,
    data: DataFolder = None,
    datasets: Datasets = None,
    methods: Methods = None,
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
            raise typer.BadParameter(f"{value:g} must be between 0 and 1, exclusive.", param_hint=f"'{option}'")
    choices = Choices(
        tuned_threshold=threshold_rule,
        tuned_quantile=quantile,
        risk=risk,
        share_at_least=not strict,
        score_at_least=at_least,
        recall_cap=recall_cap,
        without_anomalies="perfect_if_silent" if silent_is_perfect else "omit",
    )
    named, wanted = dataset_names(datasets), method_names(methods)
    folders = {Path(name).resolve().name: Path(name) for name in named or () if name not in KNOWN}
    chosen = None if named is None else {name if name in KNOWN else Path(name).resolve().name for name in named}

    def only(cell: Cell) -> bool:
        return (chosen is None or cell.dataset in chosen) and (wanted is None or cell.method in wanted)

    check_data_folder(data)
    if to is not None:
        check_out_folder(to, data, named)
    note_missing_report()
    with shown_steps() as report:
        outcome = evaluate_again(
            out, data, choices=choices, only=only, folders=folders, to=to, workers=workers, report=report
        )
    warn_of_failures(outcome)
    finish(to or out, outcome, as_json)
