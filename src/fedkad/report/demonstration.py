"""The whole product in one run: simulate a fleet, federate it, detect, and compare with what was injected.

It shows the product at work. Simulated data is no evidence of detection quality.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fedkad.detect.events import Event, Findings
from fedkad.detect.series import Series
from fedkad.federation.inprocess import Federation, federate
from fedkad.report.agreement import answered
from fedkad.report.alternatives import ALTERNATIVES, Recordings
from fedkad.report.chart import Span
from fedkad.report.eventtext import top_channels
from fedkad.report.examination import Examination, examine_table
from fedkad.simulate import CHANNELS, Fault, Fleet
from fedkad.tables import SeriesTable
from fedkad.wording import counted, significant

Progress = Callable[[str, int, int], None]
Outcome = Literal["found", "false alarm", "missed", "quiet"]

DISCLAIMER = "Simulated data, no evidence of detection quality."
HEADER = ("Device", "Injected fault", "What it is", "Start (UTC)", "End (UTC)", "Peak", "Threshold")
DASH = "–"


@dataclass(frozen=True)
class Line:
    """An event with the faults that it answers, a missed fault, or a device with neither."""

    device: str
    event: Event | None = None
    faults: tuple[Fault, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """A fault found, a false alarm, a fault missed, or nothing at all."""
        if self.event is not None:
            return "found" if self.faults else "false alarm"
        return "missed" if self.faults else "quiet"


@dataclass(frozen=True, eq=False)
class Demonstration:
    """A run with all events and missed faults, by device and time; only `seconds` differs between equal runs."""

    seed: int
    fleet: Fleet
    federation: Federation
    examined: Mapping[str, Examination]
    lines: tuple[Line, ...]
    others: Mapping[str, tuple[int, int]]  # faults found and false alarms of simpler ways
    seconds: float

    @property
    def findings(self) -> dict[str, Findings]:
        """What was found, by device."""
        return {device: entry.findings for device, entry in self.examined.items()}

    def count(self, outcome: Outcome) -> int:
        """Count the lines with an outcome; several events may have found the same fault."""
        return sum(line.outcome == outcome for line in self.lines)

    @property
    def found(self) -> int:
        """Faults that an event answers."""
        return len(self.fleet.faults) - self.count("missed")

    @property
    def false_alarms_per_day(self) -> float | None:
        """False alarms per device and day of scored rows without a fault; None if there are no such rows."""
        healthy = sum(
            int((~np.isnan(findings.scores) & ~self.fleet.labels_of(device)).sum())
            for device, findings in self.findings.items()
        )
        return self.count("false alarm") / (healthy * self.fleet.period / 86400.0) if healthy else None


def demonstrate(fleet: Fleet, *, seed: int = 0, progress: Progress | None = None) -> Demonstration:
    """Federate the training series of a fleet and judge its test series.

    >>> from fedkad.simulate import simulate_fleet
    >>> shown = demonstrate(simulate_fleet(2, train_rows=900, test_rows=500))
    >>> list(shown.findings), shown.found + shown.count("missed")
    (['pump-01', 'pump-02'], 4)
    """
    began = time.perf_counter()
    report = progress or (lambda what, done, of: None)
    federation = federate(
        {device: Series(series, CHANNELS) for device, series in fleet.train.items()},
        sample_period=fleet.period,
        seed=seed,
        progress=report,
    )
    examined: dict[str, Examination] = {}
    lines: list[Line] = []
    for device, detector in federation.detectors.items():
        faults = fleet.faults_of(device)
        table = SeriesTable(device, CHANNELS, fleet.test[device], fleet.test_times(device), utc=True)
        marks = tuple(Span(fault.start, fault.end, fault.kind) for fault in faults)
        examined[device] = examine_table(detector.model_, device, table, marks=marks)
        lines += compare(device, examined[device].findings.events, faults, reach=detector.window)
        report("detection", len(examined), len(federation.detectors))
    seconds = time.perf_counter() - began
    others = _others(fleet, federation, report)
    return Demonstration(seed, fleet, federation, examined, tuple(lines), others, seconds)


def _others(fleet: Fleet, federation: Federation, report: Progress) -> dict[str, tuple[int, int]]:
    """Count the faults found and the false alarms of each alternative."""
    counts: dict[str, tuple[int, int]] = {}
    for name, events_of in ALTERNATIVES.items():
        lines: list[Line] = []
        for done, (device, detector) in enumerate(federation.detectors.items()):
            recordings = Recordings(fleet.train[device], fleet.test[device])
            events = events_of(recordings, detector.model_.settings)
            lines += compare(device, events, fleet.faults_of(device), reach=detector.window)
            report(name, done + 1, len(federation.detectors))
        missed, false = (sum(line.outcome == outcome for line in lines) for outcome in ("missed", "false alarm"))
        counts[name] = len(fleet.faults) - missed, false
    return counts


# -- what was found against what was injected -----------------------------------------------------------------


def compare(device: str, events: Sequence[Event], faults: Sequence[Fault], reach: int) -> list[Line]:
    """Compare the events of a device with its faults, in order of time; `answered` has the rule.

    >>> event = Event(start=12, end=15, peak=13, peak_score=9.0, threshold=5.0, causes=())
    >>> faults = [Fault("pump-1", "stuck", ("flow",), 10, 20), Fault("pump-1", "drift", ("flow",), 50, 90)]
    >>> [(line.outcome, line.faults[0].kind) for line in compare("pump-1", [event], faults, reach=5)]
    [('found', 'stuck'), ('missed', 'drift')]
    """
    lines = [Line(device, event, answered(event, faults, reach)) for event in events]
    answered_faults = {fault for line in lines for fault in line.faults}
    lines += [Line(device, faults=(fault,)) for fault in faults if fault not in answered_faults]
    return sorted(lines, key=lambda line: (line.event or line.faults[0]).start) or [Line(device)]


# -- in words -------------------------------------------------------------------------------------------------


def verdict(line: Line) -> str:
    """Say what an event is, or what was missed, as in ``missed: drift of flow_m3h``."""
    faults = " and ".join(f"{fault.kind} of {', '.join(fault.channels)}" for fault in line.faults)
    return {
        "found": faults,
        "missed": f"missed: {faults}",
        "false alarm": "false alarm",
        "quiet": "no fault, no alarm",
    }[line.outcome]


def line_cells(shown: Demonstration, line: Line) -> tuple[str, ...]:
    """Return the cells of a line below `HEADER`; a missed fault has its own start and end."""
    moment, event = shown.examined[line.device].moment, line.event
    when, cells = (DASH, DASH), (DASH, DASH, DASH)
    if event is not None:
        when = moment(event.start), moment(event.end)
        cells = significant(event.peak_score), significant(event.threshold), event.sentence or top_channels(event)
    elif line.faults:
        when = moment(line.faults[0].start), moment(line.faults[0].end - 1)
    peak, threshold, what = cells
    return (line.device, verdict(line), what, *when, peak, threshold)


def summary(shown: Demonstration) -> str:
    """Sum up the counts of a run in one line."""
    faults, alarms = counted(len(shown.fleet.faults), "fault"), counted(shown.count("false alarm"), "false alarm")
    return (
        f"{shown.found} of {faults} found, {alarms} ({false_alarm_rate(shown)} per device-day), "
        f"{counted(len(shown.federation.history), 'round')}, "
        f"{kilobytes_per_device(shown, 'up')} KB sent and {kilobytes_per_device(shown, 'down')} KB received per device."
    )


def comparison(shown: Demonstration) -> str:
    """Say what simpler ways would have found, in one sentence."""
    faults = len(shown.fleet.faults)
    ways = [
        f"{name} {found} of {faults} with {counted(false, 'false alarm')}"
        for name, (found, false) in shown.others.items()
    ]
    return f"At the same budget of false alarms: {'; '.join(ways)}."


def false_alarm_rate(shown: Demonstration) -> str:
    """Return false alarms per device and healthy day."""
    rate = shown.false_alarms_per_day
    return DASH if rate is None else f"{rate:.2f}"


def kilobytes_per_device(shown: Demonstration, way: str) -> str:
    """Return the KB that an average device sent (``up``) or received (``down``), the result included."""
    federation = shown.federation
    total = sum(record[f"bytes_{way}"] for record in federation.history)
    if way == "down":
        total += federation.delivery_bytes
    return f"{total / 1000.0 / len(federation.detectors):.0f}"
