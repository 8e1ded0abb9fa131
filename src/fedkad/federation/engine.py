"""The engine of rounds: choose, ask, take answers until the round is over, close, and at last deliver.

It knows nothing of how messages travel; that is the carrier's part. Two carriers exist: `local.LocalTransport` answers
in this process, and `fedkad.fleet.server.carrier.Carrier` asks over Flower.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedkad.federation.coordinator import Coordinator
from fedkad.federation.gate import verdict_of, verdict_of_sum
from fedkad.federation.history import Round
from fedkad.federation.protocol import Answer, Reply, Request

Array = NDArray[np.float64]
Take = Callable[[str, Answer], object]

logger = logging.getLogger(__name__)


class RequestCarrier(Protocol):
    """Sends requests to devices and collects their answers."""

    def devices(self) -> Collection[str]:
        """Name the devices that can be asked now."""

    def send(self, requests: Mapping[str, Request], deadline: float) -> None:
        """Send requests to devices that `devices` has named, which have `deadline` seconds to answer."""

    def answers(self) -> Iterator[tuple[str, Answer | None]]:
        """Yield what has arrived since the last call, None in place of a late answer: one to an earlier `send`."""


def run_rounds(coordinator: Coordinator, carrier: RequestCarrier) -> Iterator[Round]:
    """Hold the rounds that are left, each as many attempts as it takes; each is yielded once it is closed."""
    while not coordinator.finished:
        plan, began = coordinator.plan, time.monotonic()
        while not ((names := coordinator.choose(carrier.devices())) and hold_round(coordinator, carrier, names)):
            if time.monotonic() - began >= plan.patience:
                raise RuntimeError(
                    f"No round was closed within {plan.patience:g} s: the training {coordinator.waits}; it can "
                    f"continue from round {coordinator.state.round}."
                )
            time.sleep(plan.poll)
        yield coordinator.state.records[-1]


def hold_round(coordinator: Coordinator, carrier: RequestCarrier, names: Sequence[str]) -> bool:
    """Ask these devices, take what they answer until the round is over, and close it; False if too few answered."""
    state = coordinator.state
    before = state.ledger.refusals
    requests = coordinator.open(names)
    if not state.terms.secure:
        _collect(coordinator, carrier, requests, coordinator.take)
    elif (masked := _masked_sum(coordinator, carrier, requests)) is not None:
        coordinator.take_sum(*masked)
    _log_refusals(coordinator, before)
    if not coordinator.close():
        return False
    record = state.records[-1]
    if record.left_out:
        logger.warning(
            "Left out of the warm rounds, because the others would lose by the directions of these devices: %s",
            ", ".join(record.left_out),
        )
    participants = ", ".join(record.participants)
    logger.info("Round %d (%s) of %d: %s", state.round, record.phase, coordinator.plan.rounds, participants)
    return True


def _collect(coordinator: Coordinator, carrier: RequestCarrier, requests: Mapping[str, Request], take: Take) -> None:
    """Send requests and take the answers as they arrive, until all are there or the time is up."""
    carrier.send(requests, coordinator.plan.deadline)
    while not coordinator.requests.is_over():
        time.sleep(coordinator.plan.poll)
        for name, answer in carrier.answers():
            if answer is None:
                coordinator.requests.refuse_late(name)
            else:
                take(name, answer)


def _masked_sum(
    coordinator: Coordinator, carrier: RequestCarrier, requests: Mapping[str, Request]
) -> tuple[dict[str, Reply], Array] | None:
    """Return the masked replies to these requests and their sum; None if too few devices took all the steps."""
    from fedkad.federation.secure.server import gather  # needs an extra
    from fedkad.federation.secure.session import MaskingError

    def ask(step: dict[str, Request]) -> dict[str, Reply]:
        replies: dict[str, Reply] = {}

        def keep(name: str, answer: Answer) -> None:
            if (reply := coordinator.requests.hear(name, answer)) is not None:
                replies[name] = reply

        _collect(coordinator, carrier, coordinator.requests.expect(step), keep)
        return replies

    try:
        return gather(requests, ask, coordinator.requests.refuse)
    except MaskingError as error:
        coordinator.requests.void(str(error))
        return None


def deliver(coordinator: Coordinator, carrier: RequestCarrier) -> None:
    """Give the result to all devices that can be asked and do not hold it, unless it is worse than what they have."""
    state, delivery = coordinator.state, coordinator.delivery
    before = state.ledger.refusals
    if not pass_gate(coordinator, carrier):
        delivery.keep_back()
        logger.warning(
            "Training %s is not delivered: on their own rows %d devices lose %.3g times as much with it as with the "
            "current model; see `fedkad fleet history`.",
            state.terms.run,
            state.gate["judges"],
            state.gate["ratio"],
        )
        return
    _collect(coordinator, carrier, delivery.requests(carrier.devices()), delivery.confirm)
    _log_refusals(coordinator, before)
    delivery.finish()
    logger.info("Training %s is delivered to %d devices.", state.terms.run, len(state.ledger.delivered))


def pass_gate(coordinator: Coordinator, carrier: RequestCarrier) -> bool:
    """Have devices compare the result with the current model on rows of their own; True if it is no worse."""
    delivery = coordinator.delivery
    requests = delivery.judges(carrier.devices())
    if not requests:
        return True
    if not coordinator.state.terms.secure:
        _collect(coordinator, carrier, coordinator.requests.expect(requests), coordinator.requests.hear)
        return delivery.decide(delivery.verdict())
    masked = _masked_sum(coordinator, carrier, requests)
    return delivery.decide(verdict_of([]) if masked is None else verdict_of_sum(len(masked[0]), masked[1].item()))


def _log_refusals(coordinator: Coordinator, before: int) -> None:
    """Log what was refused since there were `before` refusals."""
    ledger = coordinator.state.ledger
    fresh = ledger.refusals - before
    for refused in ledger.refused[-fresh:] if fresh else ():
        logger.warning("%s: %s", refused["device"] or "all", refused["reason"])
