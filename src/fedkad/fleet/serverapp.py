"""The server's side as a Flower app: it carries the messages of a training, and delivers its result."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from logging import INFO, WARNING
from pathlib import Path

from flwr.app import Context
from flwr.common import log
from flwr.serverapp import Grid, ServerApp

from fedkad import locks
from fedkad.federation.protocol import Header, Reply, Request, Terms
from fedkad.federation.settings import Consensus
from fedkad.federation.training import RESULT, UNDER_WAY, Plan, Training, stored_terms
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
    place = folder / "training"
    place.mkdir(parents=True, exist_ok=True)
    with locks.holding(place / "app.lock", f"{place}: another run works on this training; wait for its end."):
        known = settings.load(folder)
        training = resume(place, known) if job == "train" else finished(place, known)
        if training is None:
            log(WARNING, "There is no result to deliver.")
            return
        carrier = Carrier(grid, folder, training.terms)
        while not training.finished and not training.done:
            exchange(training, carrier)
        deliver(training, carrier)


def resume(place: Path, known: FleetSettings) -> Training:
    """The training under way, or a new one if there is none or the operator has decided on another kind."""
    under_way = stored_terms(place, UNDER_WAY)
    if under_way is not None and terms(under_way.run, known) == under_way:
        training = Training(place, under_way, plan(known))
        training.restore()
        log(INFO, "Training %s goes on after round %d.", under_way.run, training.round)
        return training
    if under_way is not None:
        log(WARNING, "fleet.toml has changed since training %s began; another one begins.", under_way.run)
    return Training(place, terms(new_run(), known), plan(known))


def finished(place: Path, known: FleetSettings) -> Training | None:
    """The last training that was finished, whatever fleet.toml says by now."""
    result = stored_terms(place, RESULT)
    if result is None:
        return None
    training = Training(place, result, plan(known))
    training.restore(RESULT)
    training.plan = replace(training.plan, rounds=training.round)  # as many as there were, whatever is planned now
    return training


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
        robust=training.robust,
    )


def plan(known: FleetSettings) -> Plan:
    """How this fleet trains."""
    asked = known.training
    return Plan(asked.rounds, asked.participation, asked.quorum, asked.deadline, least=known.least)


def exchange(training: Training, carrier: Carrier) -> None:
    """One round, however often it takes until somebody answers."""
    began, was_asked = time.monotonic(), False
    while time.monotonic() - began < PATIENCE:
        there = carrier.devices()
        names = training.choose(there)
        if names and run_round(training, carrier, names):
            return
        was_asked = was_asked or bool(names)
        time.sleep(POLL)
    raise RuntimeError(f"{_why_none(training, there, was_asked)}; the training goes on from round {training.round}.")


def _why_none(training: Training, there: Collection[str], was_asked: bool) -> str:
    if was_asked:
        return f"Too few devices answered in {PATIENCE:g} s"
    out = sum(training.ledger.is_out(name) for name in there)
    return (
        f"Nobody could be asked in {PATIENCE:g} s: a round needs {training.plan.least} devices, {len(there)} are "
        f"there, and {out} of these are left out for answers that could not be used"
    )


def run_round(training: Training, carrier: Carrier, names: list[str]) -> bool:
    """Ask these devices, and take what they answer until the round is over; False if too few did."""
    requests, before = training.open(names), training.ledger.refusals
    if training.terms.secure:
        secure.gather(training, requests, lambda asked: hear(training, carrier, asked))
    else:
        ask(training, carrier, requests, training.take)
    _tell_refusals(training, before)
    if not training.close():
        log(WARNING, "Round %d is asked anew: too few answers could be used.", training.round)
        return False
    record = training.records[-1]
    said = ", ".join(record.participants)
    log(INFO, "Round %d (%s) of %d: %s", training.round, record.phase, training.plan.rounds, said)
    return True


def _tell_refusals(training: Training, before: int) -> None:
    """Say what was refused since there were so many refusals."""
    fresh = training.ledger.refusals - before
    for refused in training.ledger.refused[-fresh:] if fresh else ():
        log(WARNING, "%s: %s", refused["device"] or "all", refused["reason"])


def ask(
    training: Training, carrier: Carrier, requests: Mapping[str, Request], take: Callable[[str, Header | str], object]
) -> None:
    """Send requests and take the answers as they come, until all are there or the time is up."""
    carrier.send(requests, training.plan.deadline)
    while not training.is_over():
        time.sleep(POLL)
        for name, answer in carrier.answers():
            if answer is None:
                training.refuse_late(name)
            else:
                take(name, answer)


def hear(training: Training, carrier: Carrier, requests: dict[str, Request]) -> dict[str, Reply]:
    """The replies to one step of secure aggregation."""
    replies: dict[str, Reply] = {}

    def keep(name: str, answer: Header | str) -> bool:
        reply = training.hear(name, answer)
        if reply is not None:
            replies[name] = reply
        return reply is not None

    ask(training, carrier, training.ask(requests), keep)
    return replies


def deliver(training: Training, carrier: Carrier) -> None:
    """Give the result to all who are there and do not hold it."""
    before = training.ledger.refusals
    ask(training, carrier, training.deliveries(carrier.devices()), training.confirm)
    _tell_refusals(training, before)
    training.finish()
    log(INFO, "Training %s is delivered to %d devices.", training.terms.run, len(training.ledger.delivered))
