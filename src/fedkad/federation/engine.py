"""The engine of rounds: choose, ask, take answers until the round is over, close, and at last deliver.

It knows nothing of how messages travel; that is the carrier's part. Two carriers exist: `local.LocalTransport` answers
in this process, and `fedkad.fleet.server.carrier.Carrier` asks over Flower.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Protocol

from fedkad.federation.coordinator import Coordinator
from fedkad.federation.history import Round
from fedkad.federation.protocol import Answer, Reply, Request

Take = Callable[[str, Answer], object]

logger = logging.getLogger(__name__)


class RequestCarrier(Protocol):
    """Sends requests to devices and collects their answers."""

    def devices(self) -> Collection[str]:
        """The devices that can be asked now."""

    def send(self, requests: Mapping[str, Request], deadline: float) -> None:
        """Send requests to devices that `devices` has named; answers after the deadline are of no use."""

    def answers(self) -> Iterator[tuple[str, Answer | None]]:
        """What has arrived since the last call, or None in place of what is too late."""


def run_rounds(coordinator: Coordinator, carrier: RequestCarrier) -> Iterator[Round]:
    """Hold the rounds that are left, each as many attempts as it takes; each is yielded once it is closed."""
    while not coordinator.finished:
        _hold_round(coordinator, carrier)
        yield coordinator.records[-1]


def _hold_round(coordinator: Coordinator, carrier: RequestCarrier) -> None:
    """Try until a round is closed; what the training waits for meanwhile, the coordinator says."""
    plan, began = coordinator.plan, time.monotonic()
    while True:
        names = coordinator.choose(carrier.devices())
        if names and _attempt_round(coordinator, carrier, names):
            return
        if time.monotonic() - began >= plan.patience:
            raise RuntimeError(
                f"No round was closed within {plan.patience:g} s: the training {coordinator.waits}; it can continue "
                f"from round {coordinator.round}."
            )
        time.sleep(plan.poll)


def _attempt_round(coordinator: Coordinator, carrier: RequestCarrier, names: list[str]) -> bool:
    """Ask these devices, and take what they answer until the round is over; False if too few did."""
    before = coordinator.ledger.refusals
    requests = coordinator.open(names)
    if coordinator.terms.secure:
        from fedkad.federation.secure.server import gather

        gather(coordinator, requests, partial(_hear, coordinator, carrier))
    else:
        _collect(coordinator, carrier, requests, coordinator.take)
    _log_refusals(coordinator, before)
    if not coordinator.close():
        return False
    record, rounds = coordinator.records[-1], coordinator.plan.rounds
    if record.left_out:
        logger.warning(
            "Left out of the warm rounds, because the others would lose by the directions of these devices: %s",
            ", ".join(record.left_out),
        )
    logger.info("Round %d (%s) of %d: %s", coordinator.round, record.phase, rounds, ", ".join(record.participants))
    return True


def _collect(coordinator: Coordinator, carrier: RequestCarrier, requests: Mapping[str, Request], take: Take) -> None:
    """Send requests and take the answers as they arrive, until all are there or the time is up."""
    carrier.send(requests, coordinator.plan.deadline)
    while not coordinator.is_over():
        time.sleep(coordinator.plan.poll)
        for name, answer in carrier.answers():
            if answer is None:
                coordinator.refuse_late(name)
            else:
                take(name, answer)


def _hear(coordinator: Coordinator, carrier: RequestCarrier, requests: dict[str, Request]) -> dict[str, Reply]:
    """The replies to one step of secure aggregation."""
    replies: dict[str, Reply] = {}

    def keep(name: str, answer: Answer) -> None:
        if (reply := coordinator.hear(name, answer)) is not None:
            replies[name] = reply

    _collect(coordinator, carrier, coordinator.expect(requests), keep)
    return replies


def deliver(coordinator: Coordinator, carrier: RequestCarrier) -> None:
    """Give the result to all devices that can be asked and do not hold it, unless it is worse than what they have."""
    before = coordinator.ledger.refusals
    if not _is_good(coordinator, carrier):
        coordinator.keep_back()
        gate = coordinator.gate
        logger.warning(
            "Training %s is not delivered: on their own rows %d devices lose %.3g times as much with it as with the "
            "current model; see `fedkad fleet history`.",
            coordinator.terms.run,
            gate["judges"],
            gate["ratio"],
        )
        return
    _collect(coordinator, carrier, coordinator.deliveries(carrier.devices()), coordinator.confirm)
    _log_refusals(coordinator, before)
    coordinator.finish()
    logger.info("Training %s is delivered to %d devices.", coordinator.terms.run, len(coordinator.ledger.delivered))


def _is_good(coordinator: Coordinator, carrier: RequestCarrier) -> bool:
    """Whether devices find the result no worse than the current model on rows of their own."""
    requests = coordinator.judges(carrier.devices())
    if not requests:
        return True
    if coordinator.terms.secure:
        from fedkad.federation.secure.server import gather_verdict

        ask = partial(_hear, coordinator, carrier)
        return coordinator.decide(gather_verdict(coordinator, requests, ask))
    _collect(coordinator, carrier, requests, coordinator.hear)
    return coordinator.decide(coordinator.verdict())


def _log_refusals(coordinator: Coordinator, before: int) -> None:
    """Log what was refused since there were `before` refusals."""
    fresh = coordinator.ledger.refusals - before
    for refused in coordinator.ledger.refused[-fresh:] if fresh else ():
        logger.warning("%s: %s", refused["device"] or "all", refused["reason"])
