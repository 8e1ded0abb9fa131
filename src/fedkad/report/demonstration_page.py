"""The page of a demonstration: the summary, everything found or missed, and pictures of a few devices."""

from __future__ import annotations

from collections import Counter

from fedkad import __version__
from fedkad.report.demonstration import (
    DISCLAIMER,
    HEADER,
    Demonstration,
    Line,
    Outcome,
    comparison,
    false_alarm_rate,
    kilobytes_per_device,
    line_cells,
    verdict,
)
from fedkad.report.document import (
    Block,
    DataTable,
    Document,
    Drawing,
    Fact,
    KeyFigures,
    Notice,
    Paragraph,
    Section,
    Subheading,
    TableCell,
    TableColumn,
    TableRow,
    Tone,
)
from fedkad.report.pictures import Span, as_svg, convergence_figure, device_figure
from fedkad.report.wording import counted
from fedkad.simulate import FAULTS

MOST_DEVICES = 6
"""Devices with pictures: the page of a large fleet must stay readable and small."""

TONES: dict[Outcome, Tone] = {"found": "good", "false alarm": "bad", "missed": "bad", "quiet": "quiet"}


def demonstration_page(shown: Demonstration) -> Document:
    """Put a run on a page."""
    return Document(
        title="FedKAD demonstration",
        lead=(
            f"{len(shown.findings)} simulated pumps learn one small subspace of their normal dynamics together; "
            "their samples stay where they are. Each then watches itself."
        ),
        opening=(Notice(DISCLAIMER), _key_figures(shown)),
        sections=(_table_section(shown), _convergence_section(shown), _device_section(shown)),
        footer=f"fedkad {__version__}, seed {shown.seed}. {DISCLAIMER}",
    )


def devices_to_show(shown: Demonstration) -> dict[str, str]:
    """At most six devices, by name, with the reason for each: every kind of fault, a miss, a false alarm, health."""

    def with_fault(kind: str) -> set[str]:
        return {fault.device for fault in shown.fleet.faults if fault.kind == kind}

    def with_line(outcome: Outcome) -> set[str]:
        return {line.device for line in shown.lines if line.outcome == outcome}

    healthy = set(shown.findings) - {fault.device for fault in shown.fleet.faults}
    rules = [
        *((f"the first with a fault of the kind {kind}", with_fault(kind)) for kind in FAULTS),
        ("the first with a missed fault", with_line("missed")),
        ("the first with a false alarm", with_line("false alarm")),
        ("the first without a fault", healthy),
    ]
    reasons: dict[str, list[str]] = {}
    for reason, candidates in rules:
        first = next((device for device in shown.findings if device in candidates), None)
        if first is not None and (first in reasons or len(reasons) < MOST_DEVICES):
            reasons.setdefault(first, []).append(reason)
    return {device: "; ".join(reasons[device]) for device in shown.findings if device in reasons}


def _key_figures(shown: Demonstration) -> KeyFigures:
    history = shown.federation.history
    warm = sum(record.phase == "warm" for record in history)
    return KeyFigures(
        (
            Fact("devices", str(len(shown.findings))),
            Fact("faults found", f"{shown.found} of {len(shown.fleet.faults)}"),
            Fact("false alarms per device-day", false_alarm_rate(shown)),
            Fact("learned in", f"{counted(len(history), 'round')} ({warm} warm)"),
            Fact("sent per device", f"{kilobytes_per_device(shown, 'up')} KB"),
            Fact("received per device", f"{kilobytes_per_device(shown, 'down')} KB"),
            Fact("learning and detecting", f"{shown.seconds:.1f} s", timing=True),
        )
    )


def _table_section(shown: Demonstration) -> Section:
    text = (
        "Alarms at most one window apart make one event. An event answers a fault if it overlaps it or begins within "
        "one window after it; otherwise it is a false alarm. That is a match in time alone: the channels may "
        "differ. "
        "A missed fault is listed with its own start and end. Times are UTC."
    )
    first, start, end, peak, threshold, what, fault = HEADER
    columns = (
        *(TableColumn(title, kind="word") for title in (start, end)),
        *(TableColumn(title) for title in (peak, threshold)),
        *(TableColumn(title, kind="text") for title in (what, fault)),
    )
    rows = []
    for line in shown.lines:
        device, *middle, last = line_cells(shown, line)
        rows.append(TableRow(device, (*map(TableCell, middle), TableCell(last, tone=TONES[line.outcome]))))
    table = DataTable("found", "", first, columns, tuple(rows))
    return Section("What was found, and what was not", (Paragraph(text), table, Paragraph(comparison(shown))))


def _convergence_section(shown: Demonstration) -> Section:
    caption = (
        "After every round. In a warm round, devices that were not asked before send the directions they predict "
        "along; from then on subspaces are averaged. Left: the part of the energy that is not predicted, and the same "
        "with the terms that hold the devices together. Right: how far the devices' subspaces P are from the shared "
        "Z. It rises a little after the warm rounds: all devices start at the shared subspace, then each moves towards "
        "its own data, and the duals hold them together."
    )
    svg = as_svg(convergence_figure(shown.federation.history), "convergence")
    alt = "Objective, augmented Lagrangian and consensus residual after every round."
    return Section("How the fleet came to agree", (Drawing("convergence", caption, svg, alt),))


def _device_section(shown: Demonstration) -> Section:
    chosen = devices_to_show(shown)
    text = (
        f"{len(chosen)} of {len(shown.findings)} devices are drawn, chosen by a fixed rule: the first in the "
        "order of names with each kind of fault, with a missed fault, with a false alarm, and without a fault."
    )
    blocks: list[Block] = [Paragraph(text)]
    for device, why in chosen.items():
        blocks += [Subheading(device), Paragraph(f"Shown as {why}. {_outcome(shown, device)}"), _drawing(shown, device)]
    return Section("Devices in pictures", tuple(blocks))


def _drawing(shown: Demonstration, device: str) -> Drawing:
    faults = [Span(fault.start, fault.end, fault.kind) for fault in shown.fleet.faults_of(device)]
    figure = device_figure(shown.findings[device], shown.fleet.test_times(device), faults)
    caption = (
        "Above: the score of every sample against the threshold, faults shaded. Below: which channels the score "
        "comes from; full colour means that a channel alone reaches the threshold. Where a line breaks, samples are "
        "missing."
    )
    return Drawing(device, caption, as_svg(figure, device), f"Scores, threshold and causes of {device} over time.")


def _outcome(shown: Demonstration, device: str) -> str:
    def words(line: Line) -> str:
        return f"found: {verdict(line)}" if line.outcome == "found" else verdict(line)

    counts = Counter(words(line) for line in shown.lines if line.device == device)
    text = "; ".join(text if count == 1 else f"{text} ({count} events)" for text, count in counts.items())
    return text[:1].upper() + text[1:] + "."
