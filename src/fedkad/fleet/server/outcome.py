"""How a requested training has ended, by what it has left in the server's folder."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fedkad.federation.model_archive import KEPT_BACK
from fedkad.federation.training_files import (
    TrainingRequest,
    is_cancelled,
    is_fulfilled,
    known_status,
    last_done,
    read_request,
)
from fedkad.fleet.server.trainings import ATTEMPTS

DONE, CANCELLED, FAILED = "done", "cancelled", "failed"


class TrainingOutcome(NamedTuple):
    """`done`, `kept back`, `cancelled` or `failed`; the run, if there is one; and a sentence."""

    state: str
    run: str | None
    sentence: str


def outcome_of(training: Path, request: TrainingRequest) -> TrainingOutcome | None:
    """Return the outcome of a requested training; None until the server has closed the request."""
    if read_request(training) == request:
        return None
    if is_fulfilled(training, request):
        run, status = last_done(training), known_status(training)
        if status.get("run") == run and status.get("state") == KEPT_BACK:
            ratio, judges = status["gate"]["ratio"], status["gate"]["judges"]
            worse = f"{judges} devices lose {ratio:.3g} times as much with it as with the current model"
            return TrainingOutcome(KEPT_BACK, run, f"The model of training {run} is not delivered: {worse}.")
        return TrainingOutcome(DONE, run, f"Training {run} is done.")
    if is_cancelled(training, request):
        return TrainingOutcome(CANCELLED, None, "The training was cancelled.")
    log = training.parent / "logs" / "app.log"
    return TrainingOutcome(
        FAILED, None, f"The training broke off {ATTEMPTS} times without a new round; see {log}, then ask again."
    )
