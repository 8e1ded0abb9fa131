"""Requests for trainings: one file from the request until a training is done, so that no crash of a process loses it.

A request made while one is pending or under way adds nothing, and the caller is told so; one made after a training is
done, but before the server has noticed, asks for another. `federation.training_files` reads these files.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
    last_done,
    phase_of,
    read_request,
)
from fedkad.federation.training_folder import abandon
from fedkad.fleet.shared.files import FleetFileError, write_private
from fedkad.locks import HeldError, holding, waiting_for


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
