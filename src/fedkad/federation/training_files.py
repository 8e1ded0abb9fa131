"""The state of a training on a server: nine files in one folder, written by several processes and read here.

    wanted                 the request: the training that was done last when it was made, and a unique token; it exists
                           until the server closes it, so that no crash loses it
    cancelled              the token of the request that was cancelled last
    ended                  when the last training ended; the next one of the interval counts from then
    app.lock               held by the app of a run, and by commands that must not run beside one
    training.safetensors   the training in progress, as of its last closed round
    status.json            what people and programs want to know about the latest training
    waits                  what a training waits for, while it does
    result.safetensors     the current model, which every device gets
    result.json            the training that was done last, which model is current, and which devices hold it: a request
                           is done once this names another training than the request does

The command line writes `wanted` and `cancelled`; the running server removes `wanted`, and writes `ended`, `status.json`
when a training is cancelled and, between two runs, `waits`; the app of a run, and `fedkad fleet rollback` and `deliver`
in its place, write all others. Every file is written whole or not at all, so that any of these processes may be killed
at any time.

`phase_of` reads the files as one state machine, and `BECOMES` has all of its steps.
"""

import json
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from fedkad.atomicfile import write_atomically

WANTED, CANCELLED, ENDED, APP_LOCK = "wanted", "cancelled", "ended", "app.lock"
UNDER_WAY, STATUS, WAITS = "training.safetensors", "status.json", "waits"
RESULT, HOLDERS = "result.safetensors", "result.json"


class TrainingFileError(ValueError):
    """A file of a training that cannot be read; the message says which, why and what to do."""


class TrainingPhase(StrEnum):
    """How far a request for a training is."""

    IDLE = "idle"  # there is none
    REQUESTED = "requested"  # there is one, and no round of its training is closed yet
    TRAINING = "training"
    DELIVERING = "delivering"  # all rounds are closed; devices judge the model, or get it
    DONE = "done"  # the training is done, and the server has not closed the request yet
    CANCELLED = "cancelled"  # the server ends the run, and closes the request once its app has ended


OPEN = frozenset({TrainingPhase.REQUESTED, TrainingPhase.TRAINING, TrainingPhase.DELIVERING})

BECOMES = {
    TrainingPhase(phase): frozenset(map(TrainingPhase, following.split()))
    for phase, following in {
        "idle": "requested training delivering",  # the last two: an unfinished training goes on
        "requested": "training delivering cancelled idle",  # delivering: with a single round; idle: after five failures
        "training": "delivering cancelled idle",
        "delivering": "done cancelled idle training",  # training: a new one, where settings have changed meanwhile
        "done": "idle requested",
        "cancelled": "idle done",  # done: cancelled too late
    }.items()
}
"""The phases that may follow each phase."""


class TrainingRequest(NamedTuple):
    """The training that was done last at the time of the request, or an empty string, and a unique token."""

    after: str
    token: str


def phase_of(training: Path) -> TrainingPhase:
    """Return how far the current request is."""
    request = read_request(training)
    if request is None:
        return TrainingPhase.IDLE
    if is_fulfilled(training, request):
        return TrainingPhase.DONE
    if is_cancelled(training, request):
        return TrainingPhase.CANCELLED
    status = known_status(training)
    is_of_request = status.get("run") != request.after
    # An unfinished training of an earlier request goes on with this one, which is as far as that was.
    if is_of_request and status.get("state") in (TrainingPhase.TRAINING, TrainingPhase.DELIVERING):
        return TrainingPhase(status["state"])
    return TrainingPhase.REQUESTED


def is_requested(training: Path) -> bool:
    """Return whether a training is requested or under way, and not cancelled."""
    return phase_of(training) in OPEN


def read_request(training: Path) -> TrainingRequest | None:
    """Return the current request; an unreadable one, such as an empty file, is taken to be made just now."""
    try:
        document = json.loads((training / WANTED).read_text())
        return TrainingRequest(str(document["after"]), str(document["token"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        return TrainingRequest(last_done(training), "")


def is_fulfilled(training: Path, request: TrainingRequest) -> bool:
    """Return whether another training has been done since the request, whatever the clock says."""
    return last_done(training) not in ("", request.after)


def is_cancelled(training: Path, request: TrainingRequest) -> bool:
    """Return whether this request was cancelled."""
    try:
        return (training / CANCELLED).read_bytes() == request.token.encode()
    except FileNotFoundError:
        return False


def last_done(training: Path) -> str:
    """Return the run of the last training that was done; empty if there is none."""
    return str(read_delivered(training).get("run", ""))


def last_end(training: Path) -> float | None:
    """Return when the last training ended, in seconds since 1970; None if that is not known."""
    try:
        return float((training / ENDED).read_text())
    except (FileNotFoundError, ValueError):
        return None


def read_waits(training: Path) -> str | None:
    """Return what a training waits for; None if none waits."""
    try:
        return (training / WAITS).read_text(errors="replace")
    except FileNotFoundError:
        return None


def read_delivered(training: Path) -> dict[str, Any]:
    """Return which training was done last, and which devices hold the current model; empty if that is not known."""
    try:
        document = json.loads((training / HOLDERS).read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def read_status(training: Path) -> dict[str, Any] | None:
    """Return the app's report on the latest training, None without one; raises `TrainingFileError`."""
    path = training / STATUS
    try:
        document = json.loads(path.read_text())
        if not isinstance(document, dict):
            raise ValueError("it holds no table")
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise TrainingFileError(
            f"{path}: this is not the report of a training ({error}); remove it, the next round writes another."
        ) from None
    return document


def known_status(training: Path) -> dict[str, Any]:
    """Return the app's report on the latest training; empty if there is none that can be read."""
    try:
        return read_status(training) or {}
    except TrainingFileError:
        return {}


def write_status(folder: Path, status: Mapping[str, Any]) -> None:
    """Replace status.json."""
    write_atomically(folder / STATUS, json.dumps(status, indent=1).encode())


def write_waits(folder: Path, reason: str | None) -> None:
    """Say what the training in progress waits for; None removes the file."""
    if reason is None:
        (folder / WAITS).unlink(missing_ok=True)
    else:
        write_atomically(folder / WAITS, reason.encode())
