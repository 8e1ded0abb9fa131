"""Requests for trainings: one file from the request until a training is done, so that no crash of a process loses it.

A request made while one is pending or under way adds nothing, as the caller learns; one made after a training is done,
but before the server has noticed, asks for another. `federation.training_files` reads these files.
"""

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from fedkad.federation.delivery import abandon
from fedkad.federation.model_archive import KEPT_BACK
from fedkad.federation.training_files import (
    APP_LOCK,
    CANCELLED,
    ENDED,
    OPEN,
    WANTED,
    TrainingPhase,
    TrainingRequest,
    is_cancelled,
    is_fulfilled,
    known_status,
    last_done,
    phase_of,
    read_request,
)
from fedkad.fleet.shared.files import FleetFileError, write_private
from fedkad.locks import HeldError, holding, waiting_for

ATTEMPTS = 5  # failures in a row, without a round completed, before a request is dropped


def request_training(training: Path) -> bool:
    """Ask for a training; False if one is already requested or under way, which then also answers this request."""
    with _locked(training):
        phase = phase_of(training)
        if phase is TrainingPhase.CANCELLED:
            raise FleetFileError(f"{training}: the training that was cancelled has not ended yet; try again.")
        if phase not in OPEN:
            _write_request(training)
        return phase not in OPEN


def cancel_training(training: Path) -> TrainingRequest | None:
    """Ask for the end of the training that is requested or under way; None if there is none."""
    with _locked(training):
        if phase_of(training) not in OPEN:
            return None
        request = read_request(training)
        if request is None or not request.token:
            request = _write_request(training)
        write_private(training / CANCELLED, request.token.encode())
        return request


def close_request(training: Path, now: float) -> bool:
    """Remove a request that is fulfilled or cancelled, also under an earlier server; rewrite an unreadable one.

    Returns whether it was removed. A cancelled one stays until the app has ended; then nothing is left of its training.
    """
    with _locked(training):
        request = read_request(training)
        if request is None:
            return False
        if not is_fulfilled(training, request):
            if not is_cancelled(training, request):
                if not request.token:
                    _write_request(training)
                return False
            try:
                with holding(training / APP_LOCK, "held by the app"):
                    abandon(training)
            except HeldError:
                return False
        note_end(training, now)  # first: after a kill in between, the next training of the interval is not due at once
        (training / WANTED).unlink()
        return True


def drop_request(training: Path, request: TrainingRequest, now: float) -> None:
    """Remove a request whose training broke off too often, unless there already is a newer one."""
    with _locked(training):
        note_end(training, now)
        if read_request(training) == request:
            (training / WANTED).unlink()


def note_end(training: Path, now: float) -> None:
    """Record when a training ended, for the interval."""
    write_private(training / ENDED, f"{now}\n".encode())


def _write_request(training: Path) -> TrainingRequest:
    request = TrainingRequest(last_done(training), secrets.token_hex(8))
    write_private(training / WANTED, json.dumps(request._asdict()).encode())
    return request


@contextmanager
def _locked(training: Path) -> Iterator[None]:
    """Keep others from making a request between reading the current one and its removal."""
    training.mkdir(mode=0o700, exist_ok=True)
    with waiting_for(training / f".{WANTED}.lock"):
        yield


class TrainingEnd(StrEnum):
    """How a training ends."""

    DONE = "done"
    KEPT_BACK = KEPT_BACK
    CANCELLED = "cancelled"
    FAILED = "failed"


class TrainingOutcome(NamedTuple):
    """How a requested training has ended: its run, if there is one, and a sentence."""

    state: TrainingEnd
    run: str | None
    sentence: str


def outcome_of(training: Path, request: TrainingRequest) -> TrainingOutcome | None:
    """Return the outcome of a requested training; None until the server has closed the request."""
    if read_request(training) == request:
        return None
    if is_fulfilled(training, request):
        run, status = last_done(training), known_status(training)
        if status.get("run") == run and status.get("state") == TrainingEnd.KEPT_BACK:
            ratio, judges = status["gate"]["ratio"], status["gate"]["judges"]
            worse = f"{judges} devices lose {ratio:.3g} times as much with it as with the current model"
            return TrainingOutcome(
                TrainingEnd.KEPT_BACK, run, f"The model of training {run} is not delivered: {worse}."
            )
        return TrainingOutcome(TrainingEnd.DONE, run, f"Training {run} is done.")
    if is_cancelled(training, request):
        return TrainingOutcome(TrainingEnd.CANCELLED, None, "The training was cancelled.")
    log = training.parent / "logs" / "app.log"
    return TrainingOutcome(
        TrainingEnd.FAILED,
        None,
        f"The training broke off {ATTEMPTS} times without a new round; see {log}, then ask again.",
    )
