"""What the app of a training writes into the server's folder, and the latest training in full as programs read it.

Names and small files are in `training_files`, and the models that trainings have led to in `model_archive`.
`status.json` is as small with thousands of devices and rounds as with few.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedkad.atomicfile import set_aside, write_atomically
from fedkad.detect.modelfile import ModelFileError, read_model
from fedkad.federation.model_archive import KIND, UNREADABLE, archived_file, forget_delivered
from fedkad.federation.protocol import ProtocolError, Terms
from fedkad.federation.training_files import RESULT, STATUS, UNDER_WAY, WAITS, TrainingPhase, known_status
from fedkad.federation.training_state import TrainingState

logger = logging.getLogger(__name__)


def stored_terms(folder: Path, file: str) -> Terms | None:
    """Return the terms of the training in a file, or None; a file that cannot be read any more is set aside."""
    path = folder / file
    if not path.exists():
        return None
    try:
        return Terms.read(read_model(path, KIND)[0]["terms"])
    except (ModelFileError, ProtocolError) as error:
        aside, back = set_aside(path, UNREADABLE), "go back to an earlier model with `fedkad fleet rollback`, "
        remedy = f"{back if file == RESULT else ''}restore it from a backup, or train again"
        logger.warning("%s The file is now %s; %s.", error, aside.name, remedy)
        return None


def stored_training(folder: Path, file: str) -> TrainingState | None:
    """Return the training in a file; None if there is none that can be read."""
    terms = stored_terms(folder, file)
    if terms is None:
        return None
    state = TrainingState(terms)
    state.restore(folder / file)
    return state


def write_status(folder: Path, status: Mapping[str, Any]) -> None:
    """Replace status.json."""
    write_atomically(folder / STATUS, json.dumps(status, indent=1).encode())


def write_waits(folder: Path, reason: str | None) -> None:
    """Say what the training in progress waits for; None removes the file."""
    if reason is None:
        (folder / WAITS).unlink(missing_ok=True)
    else:
        write_atomically(folder / WAITS, reason.encode())


def latest_training(folder: Path) -> dict[str, Any] | None:
    """Return the status with all rounds and devices of the latest training; None if there is no readable status.

    `participants` is the schedule that repeats the training in one process.
    """
    status = known_status(folder)
    if not status:
        return None
    run = str(status.get("run", ""))
    header = next((header for header in _headers(folder, run) if header["terms"]["run"] == run), None)
    return status if header is None else {**status, **_details(header, status.get("round"))}


def _headers(folder: Path, run: str) -> Iterator[dict[str, Any]]:
    """Read the files that may hold a training, in the order in which it moves through them, so as to miss none."""
    for file in (UNDER_WAY, RESULT, archived_file(run)):
        try:
            yield read_model(folder / file, KIND)[0]
        except ModelFileError:
            continue


def _details(header: Mapping[str, Any], rounds: int | None) -> dict[str, Any]:
    records = header["records"][:rounds]  # another may have been closed since the status was written
    return {
        "phases": [each["phase"] for each in records],
        "participants": [list(each["participants"]) for each in records],
        "objective": [None if math.isnan(each["objective"]) else each["objective"] for each in records],
        "subspace_change": [each["subspace_change"] for each in records],
        "round_bytes": [each["bytes_up"] + each["bytes_down"] for each in records],
        "round_seconds": [each["seconds"] for each in records],
        "round_computing": [each["computing"] for each in records],
        "delivered": sorted(header["ledger"]["delivered"]),
    }


def abandon(folder: Path) -> None:
    """Give up the training in progress, whose app must have ended.

    Devices to which its result was going out get the current model again.
    """
    (folder / UNDER_WAY).unlink(missing_ok=True)
    status = known_status(folder)
    if status.get("state") == TrainingPhase.DELIVERING and stored_terms(folder, RESULT) is not None:
        forget_delivered(folder, lambda name: True)
    if status.get("state") in (TrainingPhase.TRAINING, TrainingPhase.DELIVERING):
        write_status(folder, {**status, "state": TrainingPhase.CANCELLED})
