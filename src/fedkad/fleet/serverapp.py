"""The server's side as a Flower app: it carries the messages of a training, and delivers its result."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from logging import INFO, WARNING
from pathlib import Path
from typing import cast

from flwr.app import Context
from flwr.common import log
from flwr.serverapp import Grid, ServerApp

from fedkad.federation.protocol import Header, Reply, Request, Terms
from fedkad.federation.settings import Consensus, Encoding, Start
from fedkad.federation.training import Plan, Training, latest_terms
from fedkad.fleet import secure, settings
from fedkad.fleet.carrier import Carrier
from fedkad.fleet.settings import FleetSettings
from fedkad.koopman.lifting import Lifting

POLL = 0.5
"""Seconds between two looks for replies; Flower's own loop waits three."""

PATIENCE = 600.0
"""Seconds without an answer from anybody after which a training gives up; it can be resumed."""

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Do the job that the run was started for: a training with its delivery, or a delivery alone."""
    folder, job = Path(str(context.run_config["folder"])), str(context.run_config["job"])
    training = resume(folder, settings.load(folder), new=job == "train")
    carrier = Carrier(grid, folder, training.terms)
    while not training.finished:
        exchange(training, carrier)
    deliver(training, carrier)


def resume(folder: Path, known: FleetSettings, *, new: bool) -> Training:
    """The training under way, else a new one, or the last one where only its delivery is asked for."""
    place = folder / "training"
    latest, done = latest_terms(place)
    if latest is not None and not (done and new):
        if terms(latest.run, known) == latest:
            training = Training(place, latest, plan(known))
            training.restore()
            log(INFO, "Training %s goes on after round %d.", latest.run, training.round)
            return training
        log(WARNING, "fleet.toml has changed since training %s began; another one begins.", latest.run)
    return Training(place, terms(new_run(), known), plan(known))


def new_run() -> str:
    """A name for a training that no other has."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"


def terms(run: str, known: FleetSettings) -> Terms:
    """What this fleet's devices must agree on."""
    model, training, privacy = known.model, known.training, known.privacy
    lifting = Lifting(len(model.channels), model.window, model.observables, model.seed)
    consensus = Consensus(
        rank=model.rank,
        penalty=training.penalty,
        local_steps=training.local_steps,
        start=cast(Start, training.start),
        seed=model.seed,
    )
    return Terms.of(
        run,
        lifting,
        model.channels,
        horizon=model.horizon,
        encoding=cast(Encoding, training.encoding),
        consensus=consensus,
        noise=privacy.noise,
        clip=privacy.clip,
        secure=privacy.secure_aggregation,
    )


def plan(known: FleetSettings) -> Plan:
    """How this fleet trains."""
    asked = known.training
    least = secure.FEWEST if known.privacy.secure_aggregation or asked.robust else 1
    return Plan(asked.rounds, asked.participation, asked.quorum, asked.deadline, median=asked.robust, least=least)


def exchange(training: Training, carrier: Carrier) -> None:
    """One round, however often it takes until somebody answers."""
    began = time.monotonic()
    while time.monotonic() - began < PATIENCE:
        names = training.choose(carrier.devices())
        if names and run_round(training, carrier, names):
            return
        time.sleep(POLL)
    raise RuntimeError(f"No device answered in {PATIENCE:g} s; the training goes on from round {training.round}.")


def run_round(training: Training, carrier: Carrier, names: list[str]) -> bool:
    """Ask these devices, and take what they answer until the round is over; False if nobody did."""
    requests = training.open(names)
    if training.terms.secure:
        secure.gather(training, requests, lambda asked: ask(training, carrier, training.ask(asked), training.hear))
    else:
        ask(training, carrier, requests, training.take)
    if not training.close():
        return False
    record = training.records[-1]
    said = ", ".join(record.participants)
    log(INFO, "Round %d (%s) of %d: %s", training.round, record.phase, training.plan.rounds, said)
    return True


def ask(
    training: Training, carrier: Carrier, requests: Mapping[str, Request], take: Callable[[str, Header | str], object]
) -> dict[str, Reply]:
    """Send requests and take the answers as they come, until all are there or the time is up."""
    carrier.send(requests, training.plan.deadline)
    while not training.is_over():
        time.sleep(POLL)
        for name, answer in carrier.answers():
            if not take(name, answer):
                log(WARNING, "%s: %s", name, training.ledger.refused[-1]["reason"])
    return training.replies


def deliver(training: Training, carrier: Carrier) -> None:
    """Give the result to all who are there and do not hold it."""
    ask(training, carrier, training.deliveries(carrier.devices()), training.confirm)
    training.finish()
    log(INFO, "Training %s is delivered to %d devices.", training.terms.run, len(training.ledger.delivered))
