"""What a running server tells its operator: metrics in a file, and messages about what needs a person.

The file is in Prometheus' text format, for the textfile collector of node_exporter. It is no port, because the server
may run in a network of its own.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from fedkad.atomicfile import write_atomically
from fedkad.federation.training_files import TrainingRequest, is_requested, known_status, last_end
from fedkad.fleet.server.lastseen import LastSeen
from fedkad.fleet.server.overview import (
    NEVER,
    OFFLINE,
    REVOKED,
    SeenDevice,
    certificate_ends,
    counts_of,
    privacy_of,
    seen_devices,
)
from fedkad.fleet.server.registry import Registry
from fedkad.fleet.server.requests import TrainingEnd, outcome_of
from fedkad.fleet.server.settings import ServerFolder
from fedkad.fleet.server.webhook import Messenger
from fedkad.repeats import RepeatFilter

if TYPE_CHECKING:
    from fedkad.fleet.flower.control import Node

logger = logging.getLogger(__name__)

PAUSE = 15.0  # seconds between two writes of the metrics
SETTLING = 600.0  # seconds after its start in which a server does not know yet who is away
MOST_NAMED = 20
READABLE = 0o644

Samples = Mapping[str, float]


class Reporter:
    """Notices what a person should know, and says it once."""

    def __init__(self, folder: ServerFolder) -> None:
        self.folder, settings = folder, folder.settings.reporting
        self.messenger = Messenger(settings.webhook) if settings.webhook else None
        self.metrics = Path(settings.metrics) if settings.metrics else None
        self.began, self.next_write = time.monotonic(), 0.0
        self.silent: frozenset[str] = frozenset()
        self.outcomes: Counter[str] = Counter()
        self._failures = RepeatFilter()

    def training_ended(self, request: TrainingRequest | None) -> None:
        """Tell how the training ended that was requested before the last step of the server, if that closed it."""
        if request is None or not request.token:  # an unreadable one, which is rewritten
            return
        outcome = outcome_of(self.folder.training, request)
        if outcome is not None:
            self.outcomes[outcome.state] += 1
            if outcome.state not in (TrainingEnd.DONE, TrainingEnd.CANCELLED):  # an operator who cancelled it knows
                self.tell(f"training {outcome.state}", outcome.sentence)

    def look(self, devices: Registry, nodes: Mapping[str, Node] | None, last_seen: LastSeen | None = None) -> None:
        """Take note of where the devices are; `nodes` is None if Flower was not asked.

        With `last_seen`, devices connect only when they are called. Then only one that has reported once can fall
        silent, since those of an earlier release never report.
        """
        is_due = time.monotonic() >= self.next_write
        if last_seen is not None and not is_due:
            return  # there may be very many of them
        seen = seen_devices(devices, nodes, last_seen)
        settled = SETTLING if last_seen is None else time.time() - last_seen.since  # then all that are on have reported
        if (nodes is not None or last_seen is not None) and time.monotonic() - self.began >= settled:
            self._notice_silence(
                seen if last_seen is None else [each for each in seen if each.device in last_seen.last]
            )
        if is_due:
            self.next_write = time.monotonic() + PAUSE
            if self.metrics is not None:
                self._write_metrics(self.metrics, seen)

    def tell(self, event: str, sentence: str) -> None:
        """Log a sentence, and post it."""
        logger.warning("%s: %s", event, sentence)
        if self.messenger is not None:
            address, moment = self.folder.settings.place.reached_at, datetime.now(UTC).isoformat(timespec="seconds")
            text = f"FedKAD fleet at {address}: {sentence}"
            self.messenger.send({"event": event, "fleet": address, "time": moment, "text": text})

    def _notice_silence(self, seen: Iterable[SeenDevice]) -> None:
        settings = self.folder.settings.reporting
        now = frozenset(silent_devices(seen, time.time() - settings.silence))
        fresh, self.silent = sorted(now - self.silent), now
        if fresh:
            more = f" and {len(fresh) - MOST_NAMED} more" if len(fresh) > MOST_NAMED else ""
            names = ", ".join(fresh[:MOST_NAMED])
            self.tell("device silent", f"No sign of life for {settings.silent} from {names}{more}.")

    def _write_metrics(self, path: Path, seen: list[SeenDevice]) -> None:
        try:
            write_atomically(path, "".join(self._lines(seen)).encode(), mode=READABLE)
            path.chmod(READABLE)
            self._failures.clear()
        except OSError as error:
            self._failures.log(logger, f"the metrics cannot be written ({error}); correct metrics in [reporting].")

    def _lines(self, seen: list[SeenDevice]) -> Iterator[str]:
        requested, training = is_requested(self.folder.training), known_status(self.folder.training)
        yield from metric("look_timestamp_seconds", "When the server wrote this.", {"": time.time()})
        yield from metric("devices_registered", "Devices that may take part.", {"": len(seen)})
        if any(each.state is not None for each in seen):
            counts = {state: count for state, count in counts_of(seen).items() if state != REVOKED}
            yield from metric("devices", "Devices by their connection.", labelled("state", counts))
        yield from metric("devices_silent", "Devices that were silent for long.", {"": len(self.silent)})
        yield from metric("training_open", "1 while a training is requested or under way.", {"": requested})
        for name, text in TRAINING.items():
            if isinstance(training.get(name), int | float):
                yield from metric(f"training_{name}", text, {"": training[name]})
        if (end := last_end(self.folder.training)) is not None:
            yield from metric("training_end_timestamp_seconds", "When the last one ended.", {"": end})
        outcomes = {str(state): self.outcomes[state] for state in TrainingEnd}
        about = "Trainings that ended since the server was started."
        yield from metric("trainings_total", about, labelled("outcome", outcomes), kind="counter")
        ends = {owner: end.timestamp() for owner, end in certificate_ends(self.folder).items()}
        yield from metric("certificate_end_timestamp_seconds", "When it expires.", labelled("of", ends))
        if (bound := privacy_of(self.folder.settings)["epsilon"]) is not None:
            yield from metric("epsilon", "Differential privacy of one training, at δ = 1e-5.", {"": bound})


TRAINING = {
    "round": "Closed rounds of the latest training.",
    "rounds": "Rounds of the latest training in all.",
    "loss": "Mean loss of the participants in the last round that told it.",
    "took_part": "Devices in the last closed round.",
    "held_by": "Devices that got the model over Flower.",
    "refusals": "Answers that were refused in the latest training.",
}


def metric(name: str, text: str, samples: Samples, kind: str = "gauge") -> Iterator[str]:
    """Yield the lines of one metric in Prometheus' text format; `samples` are by their labels.

    >>> print("".join(metric("devices", "Devices.", {'{state="online"}': 3})), end="")
    # HELP fedkad_fleet_devices Devices.
    # TYPE fedkad_fleet_devices gauge
    fedkad_fleet_devices{state="online"} 3
    """
    yield f"# HELP fedkad_fleet_{name} {text}\n# TYPE fedkad_fleet_{name} {kind}\n"
    for labels, value in samples.items():
        yield f"fedkad_fleet_{name}{labels} {float(value):.17g}\n"


def labelled(label: str, values: Samples) -> Samples:
    """Return the values by labels instead of names."""
    return {f'{{{label}="{name}"}}': value for name, value in values.items()}


def silent_devices(seen: Iterable[SeenDevice], before: float) -> Iterator[str]:
    """Yield the devices that have not been connected since a moment, or never although they were added before it."""
    for each in seen:
        moment = {OFFLINE: each.since, NEVER: each.added}.get(str(each.state))
        if moment is not None and _seconds(moment) < before:
            yield each.device


def _seconds(text: str) -> float:
    """Return a time stamp of Flower or of the list of devices, in seconds since 1970; one without a zone is in UTC."""
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
