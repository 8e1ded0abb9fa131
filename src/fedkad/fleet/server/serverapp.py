"""The server's side as a Flower app: the engine of rounds over Flower's grid."""

import logging
import secrets
import sys
from datetime import UTC, datetime
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedkad import locks
from fedkad.federation import engine
from fedkad.federation.coordinator import Coordinator, TrainingPlan
from fedkad.federation.protocol import Terms
from fedkad.federation.settings import Consensus
from fedkad.federation.training_files import APP_LOCK, RESULT, UNDER_WAY
from fedkad.federation.training_state import stored_terms
from fedkad.fleet.server import settings
from fedkad.fleet.server.carrier import Carrier
from fedkad.fleet.server.settings import FleetSettings
from fedkad.fleet.shared.logs import LogLine
from fedkad.koopman.lifting import Lifting

logger = logging.getLogger(__name__)
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Do the job that the run was started for: a training with its delivery, or a delivery alone."""
    _log_with_flower()
    folder, job = Path(str(context.run_config["folder"])), str(context.run_config["job"])
    place = folder / "training"
    place.mkdir(parents=True, exist_ok=True)
    with locks.holding(place / APP_LOCK, f"{place}: another run works on this training; wait until it ends."):
        fleet = settings.load(folder)
        coordinator = resume(place, fleet) if job == "train" else finished(place, fleet)
        if coordinator is None:
            logger.warning(
                "There is no model to deliver; train, or go back to an earlier one with `fedkad fleet rollback`."
            )
            return
        carrier = Carrier(grid, folder, coordinator.state.terms)
        for _ in engine.run_rounds(coordinator, carrier):
            pass
        engine.deliver(coordinator, carrier)


def _log_with_flower() -> None:
    """Let what FedKAD logs appear where Flower's own log does, which is what the app prints."""
    ours, handler = logging.getLogger("fedkad"), logging.StreamHandler(sys.stdout)
    handler.setFormatter(LogLine())
    ours.setLevel(logging.INFO)
    ours.addHandler(handler)
    for theirs in logging.getLogger("flwr").handlers:
        theirs.setFormatter(LogLine())


def resume(place: Path, fleet: FleetSettings) -> Coordinator:
    """Return the training in progress, or a new one if there is none or the operator has chosen other settings."""
    in_progress = stored_terms(place, UNDER_WAY)
    if in_progress is not None and terms(in_progress.run, fleet) == in_progress:
        coordinator = Coordinator(in_progress, plan(fleet), place)
        coordinator.restore()
        logger.info("Training %s continues after round %d.", in_progress.run, coordinator.state.round)
        return coordinator
    if in_progress is not None:
        logger.warning("fleet.toml has changed since training %s began; a new one begins.", in_progress.run)
    run = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"
    return Coordinator(terms(run, fleet), plan(fleet), place)


def finished(place: Path, fleet: FleetSettings) -> Coordinator | None:
    """Return the last finished training, whatever fleet.toml says by now."""
    result = stored_terms(place, RESULT)
    if result is None:
        return None
    coordinator = Coordinator(result, plan(fleet), place)
    coordinator.restore(RESULT)
    return coordinator


def terms(run: str, fleet: FleetSettings) -> Terms:
    """Return what this fleet's devices must agree on."""
    model, training, privacy = fleet.model, fleet.training, fleet.privacy
    lifting = Lifting(len(model.channels), model.window, model.observables, model.seed)
    consensus = Consensus(
        rank=model.rank,
        penalty=training.penalty,
        local_steps=training.local_steps,
        start=training.start,
        seed=model.seed,
    )
    return Terms.of(
        run,
        lifting,
        model.channels,
        horizon=model.horizon,
        encoding=training.encoding,
        consensus=consensus,
        noise=privacy.noise,
        clip=privacy.clip,
        secure=privacy.secure_aggregation,
        robust=fleet.robust,
    )


def plan(fleet: FleetSettings) -> TrainingPlan:
    """Return how this fleet trains."""
    training = fleet.training
    return TrainingPlan(
        training.rounds,
        training.participation,
        training.quorum,
        training.deadline,
        least=fleet.min_devices,
        asked=fleet.asked,
    )
