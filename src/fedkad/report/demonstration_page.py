"""The page of a demonstration: what was found, the faults that were injected, and how the fleet learned."""

from fedkad import __version__
from fedkad.report.demonstration import (
    DISCLAIMER,
    HEADER,
    Demonstration,
    Outcome,
    comparison,
    false_alarm_rate,
    kilobytes_per_device,
    line_cells,
    verdict,
)
from fedkad.report.document import (
    DataTable,
    Document,
    Fact,
    KeyFigures,
    Notice,
    Paragraph,
    Section,
    TableCell,
    TableColumn,
    TableRow,
    Tone,
)
from fedkad.report.findings_page import event_blocks, recordings_section, role_sections, strength
from fedkad.wording import counted

TONES: dict[Outcome, Tone] = {"found": "good", "false alarm": "bad", "missed": "bad", "quiet": "quiet"}


def demonstration_page(shown: Demonstration) -> Document:
    """Put a run on a page."""
    examined = list(shown.examined.values())
    return Document(
        title="FedKAD demonstration",
        lead=(
            f"{len(shown.findings)} simulated pumps learn one small subspace of their normal dynamics together; "
            "their samples stay where they are. Each then watches itself."
        ),
        opening=(Notice(DISCLAIMER), _key_figures(shown)),
        sections=(
            *_caught_section(shown),
            _table_section(shown),
            recordings_section(examined, "Every pump"),
            *role_sections(examined),
            _rounds_section(shown),
        ),
        footer=f"fedkad {__version__}, seed {shown.seed}. {DISCLAIMER}",
        zoom=True,
    )


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


def _caught_section(shown: Demonstration) -> list[Section]:
    """Show the fault that was found most clearly, with its signal; nothing if none was found."""
    pairs = [(line, line.event) for line in shown.lines if line.outcome == "found" and line.event is not None]
    if not pairs:
        return []
    line, event = max(pairs, key=lambda pair: strength(pair[1]))
    text = (
        f"Injected: {verdict(line)}. The page begins with the fault that was found most clearly; all are listed below."
    )
    blocks = event_blocks(shown.examined[line.device], event, "caught")
    return [Section("A fault that was found", (Paragraph(text), *blocks))]


def _table_section(shown: Demonstration) -> Section:
    text = (
        "Alarms at most one window apart make one event. An event answers a fault if it overlaps it or begins within "
        "one window after it; otherwise it is a false alarm. That is a match in time alone: the channels may "
        "differ. "
        "A missed fault is listed with its own start and end. Times are UTC."
    )
    first, fault, what, start, end, peak, threshold = HEADER
    columns = (
        *(TableColumn(title, kind="text") for title in (fault, what)),
        *(TableColumn(title, kind="word") for title in (start, end)),
        *(TableColumn(title) for title in (peak, threshold)),
    )
    rows = []
    for line in shown.lines:
        device, outcome, *others = line_cells(shown, line)
        rows.append(TableRow(device, (TableCell(outcome, tone=TONES[line.outcome]), *map(TableCell, others))))
    table = DataTable("found", "", first, columns, tuple(rows), cards=True)
    return Section("What was found, and what was not", (Paragraph(text), table, Paragraph(comparison(shown))))


def _rounds_section(shown: Demonstration) -> Section:
    text = (
        "In a warm round, devices that were not asked before send the directions they predict along; from then on "
        "subspaces are averaged. The objective is the energy that is not predicted, summed over the devices; the "
        "augmented Lagrangian adds the terms that hold the devices together; the residual ‖P − Z‖ is how far their "
        "subspaces are from the shared one, in the mean. It rises a little after the warm rounds: all devices start at "
        "the shared subspace, then each moves towards its own data, and the duals hold them together."
    )
    titles = ("Phase", "Devices", "Objective", "Lagrangian", "Residual", "KB up", "KB down")
    columns = tuple(TableColumn(title, kind="word" if title == "Phase" else "number") for title in titles)
    rows = [
        TableRow(
            str(number),
            tuple(
                map(
                    TableCell,
                    (
                        record.phase,
                        str(len(record.participants)),
                        f"{record.objective:.6g}",
                        f"{record.lagrangian:.6g}",
                        f"{record.consensus_residual:.4g}",
                        f"{record.bytes_up / 1000:.1f}",
                        f"{record.bytes_down / 1000:.1f}",
                    ),
                )
            ),
        )
        for number, record in enumerate(shown.federation.history, start=1)
    ]
    return Section(
        "How the fleet came to agree", (Paragraph(text), DataTable("rounds", "", "Round", columns, tuple(rows)))
    )
