"""A demonstration in words: the cells of its table and the line that sums it up."""

from __future__ import annotations

from fedkad.report.demonstration import Demonstration, Line
from fedkad.report.wording import counted, moment, significant, top_channels
from fedkad.simulate import Fault

HEADER = ("Device", "Start (UTC)", "End (UTC)", "Peak", "Threshold", "Top channels", "Injected fault")


def fault_text(fault: Fault) -> str:
    """A fault in words, as in ``drift of flow_m3h``."""
    return f"{fault.kind} of {', '.join(fault.channels)}"


def verdict(line: Line) -> str:
    """What an event is or what was missed."""
    faults = " and ".join(map(fault_text, line.faults))
    return {
        "found": faults,
        "missed": f"missed: {faults}",
        "false alarm": "false alarm",
        "quiet": "no fault, no alarm",
    }[line.outcome]


def line_cells(shown: Demonstration, line: Line) -> tuple[str, ...]:
    """The cells of a line below `HEADER`; a missed fault has its own start and end."""
    times = shown.fleet.test_times(line.device)
    if line.event is not None:
        event = line.event
        when = moment(times, event.start), moment(times, event.end)
        peak = significant(event.peak_score), significant(event.threshold)
        return (line.device, *when, *peak, top_channels(event), verdict(line))
    if line.faults:
        when = moment(times, line.faults[0].start), moment(times, line.faults[0].end - 1)
        return (line.device, *when, "–", "–", "–", verdict(line))
    return (line.device, "–", "–", "–", "–", "–", verdict(line))


def summary(shown: Demonstration) -> str:
    """The counts of a run in one line."""
    counts, history = shown.tally, shown.federation.history
    rate = counts.false_alarms_a_day
    return (
        f"{counts.found} of {counted(counts.faults, 'fault')} found, {counted(counts.false_alarms, 'false alarm')} "
        f"({'–' if rate is None else f'{rate:.2f}'} per device-day), {counted(len(history), 'round')}, "
        f"{kilobytes_each(shown, 'up')} KB sent and {kilobytes_each(shown, 'down')} KB received per device."
    )


def kilobytes_each(shown: Demonstration, way: str) -> str:
    """KB that an average device sent (``up``) or received (``down``), the delivery of the result included."""
    federation = shown.federation
    total = sum(record[f"bytes_{way}"] for record in federation.history)
    if way == "down":
        total += federation.delivery_bytes
    return f"{total / 1000.0 / len(federation.detectors):.0f}"
