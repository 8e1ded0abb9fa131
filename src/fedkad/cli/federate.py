"""``fedkad federate``: a folder of devices, one model for each."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedkad.cli.failures import fail_if_skipped, few_rows_noted, naming, note, skipped_documents
from fedkad.cli.options import (
    DetectOnly,
    above_zero,
    complete_period,
    share,
    with_detector_options,
    with_options,
    with_reading_options,
)
from fedkad.cli.output import AsJson, print_json, print_line, print_table, shown_progress
from fedkad.cli.recordings import load_fleet, named_series, report_reading, usual_period
from fedkad.cli.targets import check_folder_target, made_folder, require_model_or_none
from fedkad.federation.federation_file import model_file
from fedkad.federation.history import Round
from fedkad.federation.inprocess import Federation
from fedkad.federation.inprocess import federate as federate_fleet
from fedkad.intake import Switches
from fedkad.tables import write_table
from fedkad.wording import counted, significant

RECORDED = ("objective", "lagrangian", "consensus_residual", "subspace_change", "refit_perturbation")
COSTS = ("bytes_up", "bytes_down", "seconds")

MODEL_ENDING = ".safetensors"
HISTORY = "history.csv"

FEDERATION_OPTIONS: dict[str, dict[str, Any]] = {
    "rounds": {"min": 1, "help": "Exchanges with the server.", "show_default": "8"},
    "participation": {
        "callback": share,
        "help": "Share of the fleet that takes part in a round.",
        "show_default": "a quarter",
    },
    "penalty": {"callback": above_zero, "help": "Weight of the consensus against the local loss."},
    "local_steps": {"min": 1, "help": "Gradient steps of a device in one round."},
    "step_size": {
        "callback": above_zero,
        "help": "Size of a gradient step.",
        "show_default": "from the local curvature",
    },
    "start": {"help": "Where the consensus begins.", "show_default": "warm"},
    "sampling": {"help": "How the devices of a round are chosen.", "show_default": "cover"},
    "scaling": {"help": "z-scores of each device alone, or of the whole fleet."},
    "wire": {"parameter": "encoding", "help": "Numbers on the wire."},  # --encoding is that of text
    "preset": {"help": "Settings that go together.", "show_default": False},
}


@with_options("consensus", FEDERATION_OPTIONS, federate_fleet)
@with_reading_options()
@with_detector_options
def federate(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", help="One table, or folder of stretches, per device; or a file and --device."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="MODELS", help="The folder for the models.")],
    detector: dict[str, Any],
    consensus: dict[str, Any],
    reading: Switches,
    detect_only: DetectOnly = False,
    as_json: AsJson = False,
) -> None:
    """Train a detector for every device of a folder, on a subspace that the devices learn together.

    A device that cannot be read or trained is skipped with its reason, and the exit status is 1.
    """
    check_folder_target(output, folder)
    with shown_progress(brief=True) as progress:
        fleet, skipped = load_fleet(folder, reading, progress)
    _check_participation(consensus.get("participation"), len(fleet))
    _refuse_foreign_files(output, fleet)
    period = usual_period(fleet.values())
    complete_period(detector, period)
    report_reading(fleet.values(), period)
    with naming(folder), few_rows_noted(None), shown_progress() as progress:
        series = {name: named_series(device) for name, device in fleet.items()}
        federation = federate_fleet(series, progress=progress, skip=skipped.__setitem__, **consensus, **detector)
    _report_short_devices(folder, federation)
    made_folder(output.parent)
    models = save_models(federation, output, statistics=not detect_only)
    if as_json:
        print_json({**_document(federation, models, output), "skipped": skipped_documents(skipped)})
    else:
        _print_rounds(federation.history)
        print_line()
        rows = [(name, significant(d.threshold_), str(models[name])) for name, d in federation.detectors.items()]
        print_table(("Device", "Threshold", "Model"), rows, numbers=[1])
        print_line(f"\nRounds are recorded in {output / HISTORY}.")
    fail_if_skipped(skipped)


def _check_participation(participation: float | None, devices: int) -> None:
    if participation is not None and participation * devices < 1.0 - 1e-9:
        raise typer.BadParameter(
            f"{participation:g} of {counted(devices, 'device')} is less than one device per round; "
            f"pass {1.0 / devices:.2g} or more, or leave it out.",
            param_hint="'--participation'",
        )


def _refuse_foreign_files(output: Path, names: Iterable[str]) -> None:
    """Refuse to replace files in the output folder that an earlier run did not write."""
    for name in names:
        require_model_or_none(output / f"{name}{MODEL_ENDING}")
    history = output / HISTORY
    if history.exists() and not history.read_bytes().startswith(b"round,phase,participants"):
        raise ValueError(f"{history}: the file exists and is not a record of rounds; choose another folder.")


def save_models(federation: Federation, folder: Path, *, statistics: bool) -> dict[str, Path]:
    """Write the model of every device and the history of the rounds; the paths by device."""
    federation.save(folder, statistics=statistics)
    models = {name: model_file(folder, name) for name in federation.detectors}
    write_table(folder / HISTORY, history_columns(federation.history))
    stale = sorted(path.name for path in folder.glob(f"*{MODEL_ENDING}") if path not in models.values())
    if stale:
        note(f"{folder}: {', '.join(stale)} is from an earlier run, not of this fleet; remove it before detection.")
    return models


def history_columns(history: Sequence[Round]) -> dict[str, list[Any]]:
    """Return the rounds as columns, participants separated by semicolons."""
    return {
        "round": list(range(1, len(history) + 1)),
        "phase": [record.phase for record in history],
        "participants": [";".join(record.participants) for record in history],
        **{name: [record[name] for record in history] for name in (*RECORDED, *COSTS)},
    }


def _report_short_devices(folder: Path, federation: Federation) -> None:
    short = [name for name, detector in federation.detectors.items() if detector.model_.few_rows]
    if short:
        note(
            f"{folder}: too few rows to hold some out for {', '.join(short)}; the threshold there is a quantile of "
            "cross-fitted scores, and false alarms are more likely."
        )


def _print_rounds(history: Sequence[Round]) -> None:
    columns = {
        "Round": [str(k) for k in range(1, len(history) + 1)],
        "Phase": [record.phase for record in history],
        "Devices": [str(len(record.participants)) for record in history],
        "Objective": [f"{record.objective:.6g}" for record in history],
        "Lagrangian": [f"{record.lagrangian:.6g}" for record in history],
        "Consensus residual": [f"{record.consensus_residual:.4g}" for record in history],
        "KB up": [f"{record.bytes_up / 1000:.1f}" for record in history],
        "KB down": [f"{record.bytes_down / 1000:.1f}" for record in history],
        "Seconds": [f"{record.seconds:.3f}" for record in history],
    }
    print_table(list(columns), zip(*columns.values(), strict=True), numbers=[0, *range(2, len(columns))])


def _document(federation: Federation, models: dict[str, Path], output: Path) -> dict[str, Any]:
    columns = history_columns(federation.history)
    columns["participants"] = [list(record.participants) for record in federation.history]
    return {
        "devices": {
            name: {"model": str(models[name]), "threshold": detector.threshold_, "few_rows": detector.model_.few_rows}
            for name, detector in federation.detectors.items()
        },
        "rounds": [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)],
        "delivery_bytes": federation.delivery_bytes,
        "history": str(output / HISTORY),
    }
