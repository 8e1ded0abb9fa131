"""The page of a demonstration: the summary, all that was found or missed, and pictures of a few devices."""

from __future__ import annotations

from collections.abc import Callable

from fedkad import __version__
from fedkad.report.comparison import Comparison
from fedkad.report.demonstration import DISCLAIMER, Demonstration, Line, lines
from fedkad.report.demonstration_table import HEADER, kilobytes_each, line_cells, verdict
from fedkad.report.page import Fact, Grid, Page, Picture, Row, Section, Tone
from fedkad.report.pictures import Span, as_svg, convergence_figure, device_figure
from fedkad.report.wording import counted
from fedkad.simulate import FAULTS

MOST_DEVICES = 6
"""Devices with pictures: a page of a large fleet must stay readable and small."""

TONES: dict[str, Tone] = {"found": "good", "false alarm": "bad", "missed": "bad", "quiet": "quiet"}


def demonstration_page(shown: Demonstration) -> Page:
    """Put a run on a page."""
    chosen = devices_to_show(shown)
    return Page(
        title="FedKAD demonstration",
        lead=(
            f"{len(shown.comparisons)} simulated pumps learn one small subspace of their normal dynamics together; "
            "their samples stay where they are. Each then watches itself."
        ),
        notice=DISCLAIMER,
        facts=_facts(shown),
        sections=(
            _table_section(shown),
            _convergence_section(shown),
            Section("Devices in pictures", _choice(shown, chosen)),
            *(_device_section(shown, device, why) for device, why in chosen.items()),
        ),
        footer=f"fedkad {__version__}, seed {shown.seed}. {DISCLAIMER}",
    )


def devices_to_show(shown: Demonstration) -> dict[str, str]:
    """At most six devices, by name, with the reason for each: every kind of fault, a miss, a false alarm, health."""

    def meets(kind: str) -> Callable[[Comparison], bool]:
        return lambda entry: any(fault.kind == kind for fault in shown.fleet.faults_of(entry.device))

    rules: list[tuple[str, Callable[[Comparison], bool]]] = [
        *((f"the first with a fault of the kind {kind}", meets(kind)) for kind in FAULTS),
        ("the first with a missed fault", lambda entry: bool(entry.missed)),
        ("the first with a false alarm", lambda entry: entry.false_alarms > 0),
        ("the first without a fault", lambda entry: not entry.found and not entry.missed),
    ]
    reasons: dict[str, list[str]] = {}
    for reason, holds in rules:
        first = next((entry.device for entry in shown.comparisons if holds(entry)), None)
        if first is not None and (first in reasons or len(reasons) < MOST_DEVICES):
            reasons.setdefault(first, []).append(reason)
    order = [entry.device for entry in shown.comparisons if entry.device in reasons]
    return {device: "; ".join(reasons[device]) for device in order}


def _facts(shown: Demonstration) -> tuple[Fact, ...]:
    counts, history = shown.tally, shown.federation.history
    rate = counts.false_alarms_a_day
    warm = sum(record.phase == "warm" for record in history)
    return (
        Fact("devices", str(len(shown.comparisons))),
        Fact("faults found", f"{counts.found} of {counts.faults}"),
        Fact("false alarms per device-day", "–" if rate is None else f"{rate:.2f}"),
        Fact("learnt in", f"{counted(len(history), 'round')} ({warm} warm)"),
        Fact("sent per device", f"{kilobytes_each(shown, 'up')} KB"),
        Fact("received per device", f"{kilobytes_each(shown, 'down')} KB"),
        Fact("learning and detecting", f"{shown.seconds:.1f} s", timing=True),
    )


def _table_section(shown: Demonstration) -> Section:
    rows = tuple(Row(line_cells(shown, line), TONES[line.outcome]) for line in lines(shown))
    return Section(
        "What was found, and what was not",
        "Alarms at most one window apart make one event. An event answers a fault if it overlaps it or begins within "
        "one window after it; otherwise it is a false alarm. That is a match in time alone: the channels may "
        "be others. Top channels come with their shares of the score. "
        "A missed fault is listed with its own start and end. Times are UTC.",
        Grid(HEADER, rows, numbers=frozenset({3, 4})),
    )


def _convergence_section(shown: Demonstration) -> Section:
    caption = (
        "After every round. In a warm round devices that were not asked before send the directions they predict "
        "along; from then on subspaces are averaged. Left: the part of the energy that is not predicted, and the same "
        "with the terms that hold the devices together. Right: how far the devices' subspaces P lie from the shared Z. "
        "It rises after the warm rounds, by little: all devices start at the shared subspace, then each moves towards "
        "its own data, and the duals hold them together."
    )
    picture = Picture(as_svg(convergence_figure(shown.federation.history), "convergence"), caption)
    return Section("How the fleet came to agree", pictures=(picture,))


def _choice(shown: Demonstration, chosen: dict[str, str]) -> str:
    return (
        f"{len(chosen)} of {len(shown.comparisons)} devices are drawn, chosen by a fixed rule: the first in the "
        "order of names with each kind of fault, with a missed fault, with a false alarm, and without a fault."
    )


def _device_section(shown: Demonstration, device: str, why: str) -> Section:
    faults = [Span(fault.start, fault.end, fault.kind) for fault in shown.fleet.faults_of(device)]
    figure = device_figure(shown.findings[device], shown.fleet.test_times(device), faults)
    caption = (
        "Above: the score of every sample against the threshold, faults shaded. Below: which channels the score "
        "comes from; full colour means that a channel alone reaches the threshold. Where a line breaks, samples are "
        "missing."
    )
    text = f"Shown as {why}. {_outcome([line for line in lines(shown) if line.device == device])}"
    return Section(device, text, pictures=(Picture(as_svg(figure, device), caption),), inner=True)


def _outcome(own: list[Line]) -> str:
    counted: dict[str, int] = {}
    for line in own:
        words = f"found: {verdict(line)}" if line.outcome == "found" else verdict(line)
        counted[words] = counted.get(words, 0) + 1
    words = "; ".join(text if count == 1 else f"{text} ({count} events)" for text, count in counted.items())
    return words[:1].upper() + words[1:] + "."
