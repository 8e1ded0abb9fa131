"""The page of what was found in recordings: events with their signals, and what the judgement rests on."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedkad import __version__
from fedkad.detect.events import Event
from fedkad.detect.inspection import KINDS, ChannelRole, channel_roles, threshold_origin
from fedkad.detect.model import Model
from fedkad.progress import Report, unheard
from fedkad.report.agreement import Agreement
from fedkad.report.chart import Curve, Panel, Span, line_chart
from fedkad.report.document import (
    Block,
    Bullets,
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
)
from fedkad.report.eventtext import BY_RULE, clock, is_by_rule, marked, top_channels
from fedkad.report.examination import Examination
from fedkad.wording import between, counted, lasting, significant

MOST_EVENTS = 12
"""Events that are drawn, the strongest of all."""

MOST_LISTED = 500
"""Events in the table: more of them need another threshold, not a longer page."""

MOST_RECORDINGS = 40
"""Recordings that are drawn as a whole: the page of a large fleet must stay readable and small."""

MOST_SIGNALS = 12
"""Channels that are drawn where a single recording is drawn as a whole."""

AROUND = 4
"""Windows that are drawn before and after an event."""

Found = tuple[Examination, Event]


def findings_page(
    examined: Sequence[Examination],
    title: str,
    *,
    notices: Sequence[str] = (),
    agreement: Agreement | None = None,
    report: Report = unheard,
) -> Document:
    """Put what was found on a page; `report` is told how many pictures of how many are drawn."""
    found = [(entry, event) for entry in examined for event in entry.findings.events]
    events, recordings = min(len(found), MOST_EVENTS), min(len(examined), MOST_RECORDINGS)

    def drawn(before: int) -> Report:
        return lambda done, _: report(before + done, events + recordings)

    sections = [
        events_section(found, brief=sum(entry.findings.brief for entry in examined), report=drawn(0)),
        *([agreement_section(agreement)] if agreement is not None else []),
        recordings_section(examined, report=drawn(events)),
        *role_sections(examined),
    ]
    return Document(
        title=title,
        lead=summary(examined),
        opening=(*map(Notice, notices), _key_figures(examined)),
        sections=tuple(sections),
        footer=f"fedkad {__version__}",
        zoom=True,
    )


def summary(examined: Sequence[Examination]) -> str:
    """Sum up events, rows and what could not be judged, in two sentences.

    Events that were left out because they were brief are counted as well.
    """
    events = sum(len(entry.findings.events) for entry in examined)
    brief = sum(entry.findings.brief for entry in examined)
    rows = sum(len(entry.findings.scores) for entry in examined)
    blind = rows - sum(entry.scored for entry in examined)
    short = f" and {counted(brief, 'shorter one')} left out" if brief else ""
    unscored = f"{counted(blind, 'row')} could not be judged" if blind else "all of them were judged"
    return f"{counted(events, 'event')}{short} in {counted(rows, 'row')}; {unscored}."


def _key_figures(examined: Sequence[Examination]) -> KeyFigures:
    facts = [
        Fact("events", str(sum(len(entry.findings.events) for entry in examined))),
        Fact("rows", f"{sum(len(entry.findings.scores) for entry in examined):,}"),
    ]
    devices = {entry.device for entry in examined}
    if len(devices) > 1:
        facts.append(Fact("devices", str(len(devices))))
    else:
        model = examined[0].model
        facts += [
            Fact("threshold", significant(model.threshold)),
            Fact("false alarms to expect", model.expectation.partition(";")[0]),
        ]
    return KeyFigures(tuple(facts))


# -- events ----------------------------------------------------------------------------------------------------


def events_section(found: Sequence[Found], brief: int = 0, report: Report = unheard) -> Section:
    """Show every event in a table, and the strongest with their signals; `brief` ones were left out."""
    heading = "What was found"
    if not found:
        short = f"Nothing that lasted: {counted(brief, 'shorter event')} left out."
        return Section(heading, (Paragraph(short if brief else "Nothing: no score rose above the threshold."),))
    drawn = sorted(found, key=lambda pair: -strength(pair[1]))[:MOST_EVENTS]
    blocks: list[Block] = []
    if len(found) > len(drawn):
        text = f"The {len(drawn)} strongest of {len(found)} events are drawn, in order of time."
        blocks.append(Paragraph(text))
    for number, pair in enumerate(pair for pair in found if pair in drawn):
        blocks += event_blocks(*pair, name=f"event-{number}")
        report(number + 1, len(drawn))
    if len(found) > 1:
        blocks += [Subheading("All events"), events_table(found[:MOST_LISTED])]
    if len(found) > MOST_LISTED:
        blocks.append(Paragraph(f"The first {MOST_LISTED} of {len(found)}; `fedkad detect --json` has all of them."))
    return Section(heading, tuple(blocks))


def strength(event: Event) -> float:
    """Return the peak in units of its threshold."""
    return event.peak_score / max(event.threshold, 1e-9)


def event_blocks(entry: Examination, event: Event, name: str) -> list[Block]:
    """Show an event: when, what, and a picture of the channels to look at."""
    mark = clock(entry.table)
    when = between(entry.moment(event.start), entry.moment(event.end))
    sentence = event.sentence or f"look at {top_channels(event)}"
    sentence = f"T{sentence[1:]}" if sentence.startswith("the ") else sentence  # the name of a channel stays as it is
    score, threshold = significant(event.peak_score), significant(event.threshold)
    numbers = f"The score rose to {score}, the threshold is {threshold}. It comes from {top_channels(event)}."
    if is_by_rule(event):
        numbers = f"{BY_RULE} Here it is {score}, and the threshold is {threshold}."
    return [
        Subheading(f"{entry.name}, {marked(when, mark)}"),
        Paragraph(f"{sentence}. {numbers}"),
        event_drawing(entry, event, name),
    ]


def event_drawing(entry: Examination, event: Event, name: str) -> Drawing:
    """Draw the channels to look at as they were seen and expected, and the score."""
    around = AROUND * entry.model.settings.window
    start, stop = max(event.start - around, 0), min(event.end + around + 1, len(entry.findings.scores))
    expected = entry.expected(start, stop)
    roles = {role.name: role for role in channel_roles(entry.model)}
    panels = []
    for cause in event.main_causes:
        at, role = entry.findings.channels.index(cause.channel), roles[cause.channel]
        curves = (
            Curve("expected", expected[:, at], "second", dashed=True),
            Curve("seen", entry.table.values[start:stop, at], "score"),
        )
        panels.append(Panel(cause.channel, curves, _band(role)))
    panels.append(_score_panel(entry, start, stop))
    spans = _spans(entry, [event], start, stop)
    svg = line_chart(panels, entry.axis_times(start, stop), spans)
    shown = between(entry.moment(start), entry.moment(stop - 1))
    shown = shown if entry.table.times is not None else f"Rows {shown}"
    return Drawing(name, f"{shown}. {_key(spans)}", svg, f"Signals and score of {entry.name} around an event.")


def _band(role: ChannelRole) -> tuple[float, float] | None:
    return None if np.isnan(role.low) else (role.low, role.high)


def _score_panel(entry: Examination, start: int, stop: int) -> Panel:
    findings = entry.findings
    curves = (
        Curve("threshold", findings.thresholds[start:stop], "alarm", dashed=True),
        Curve("score", findings.scores[start:stop], "score"),
    )
    return Panel("score", curves, logarithmic=True)


def _spans(entry: Examination, events: Sequence[Event], start: int, stop: int) -> list[Span]:
    """Return unscored rows, what is known to be wrong, and events, as far as they are in the picture."""
    spans = [
        *(Span(*rows, role="faint") for rows in entry.unscored_spans()),
        *entry.marks,
        *(Span(event.start, event.end + 1, role="alarm") for event in events),
    ]
    inside = [span for span in spans if span.start < stop and span.end > start]
    return [span._replace(start=max(span.start, start) - start, end=min(span.end, stop) - start) for span in inside]


def _key(spans: Sequence[Span]) -> str:
    """Say what the shades mean."""
    words = {"alarm": "red: an event", "fault": "yellow: known to be wrong", "faint": "grey: no score"}
    roles = {span.role for span in spans}
    used = [text for role, text in words.items() if role in roles]
    return f"Shaded {', '.join(used)}." if used else ""


def events_table(found: Sequence[Found]) -> DataTable:
    """List events, one a row."""
    clocks = {clock(entry.table) for entry, _ in found}
    shared = clocks.pop() if len(clocks) == 1 else None
    rows = []
    for entry, event in found:
        moments = [entry.moment(row) for row in (event.start, event.end)]
        if shared is None:
            moments = [marked(text, clock(entry.table)) for text in moments]
        numbers = significant(event.peak_score), significant(event.threshold)
        what = event.sentence or top_channels(event)
        rows.append(TableRow(entry.name, tuple(map(TableCell, (what, *moments, *numbers)))))
    columns = (
        TableColumn("What it is", kind="text"),
        *(TableColumn(marked(title, shared), kind="word") for title in ("Start", "End")),
        *map(TableColumn, ("Score", "Threshold")),
    )
    return DataTable("events", "", "Device", columns, tuple(rows), cards=True)


def agreement_section(agreed: Agreement) -> Section:
    """Say how events and labels agree."""
    return Section("Against the labels", (Bullets(tuple(agreement_sentences(agreed))),))


def agreement_sentences(agreed: Agreement) -> list[str]:
    """Say precision, recall, delay and false alarms a day, each in a sentence."""
    delay = "–"
    if agreed.delays:
        delay = lasting(agreed.delay) if agreed.healthy_days is not None else counted(round(agreed.delay), "row")
    rate = f", {significant(agreed.false_alarms_per_day)} a day" if agreed.healthy_days else ""
    stretches = counted(agreed.labelled, "labelled stretch", "labelled stretches")
    right = agreed.events - agreed.false_alarms
    return [
        f"recall {_share(agreed.recall)}: {agreed.found} of {stretches} found",
        f"precision {_share(agreed.precision)}: {right} of {counted(agreed.events, 'event')} answer a label",
        f"median delay {delay}, from the start of a label to the first alarm",
        f"{counted(agreed.false_alarms, 'false alarm')}{rate}",
    ]


def _share(share: float) -> str:
    return "–" if np.isnan(share) else f"{share:.0%}"


# -- whole recordings ------------------------------------------------------------------------------------------


def recordings_section(
    examined: Sequence[Examination], heading: str = "The whole recording", report: Report = unheard
) -> Section:
    """Draw the score of every row against its threshold."""
    drawn = examined[:MOST_RECORDINGS]
    blocks: list[Block] = []
    if len(drawn) < len(examined):
        blocks.append(Paragraph(f"The first {len(drawn)} of {len(examined)} recordings are drawn."))
    for number, entry in enumerate(drawn):
        if len(examined) > 1:
            blocks.append(Subheading(entry.name))
        blocks.append(recording_drawing(entry, f"recording-{number}", signals=len(examined) == 1))
        report(number + 1, len(drawn))
    return Section(heading, tuple(blocks))


def recording_drawing(entry: Examination, name: str, *, signals: bool) -> Drawing:
    """Draw the score of a recording, and the signals if wanted; blind time, events and marks are shaded."""
    rows = len(entry.findings.scores)
    spans = _spans(entry, entry.findings.events, 0, rows)
    panels = [_score_panel(entry, 0, rows)]
    if signals:
        panels += [
            Panel(role.name, (Curve("seen", entry.table.values[:, at], "score"),), _band(role))
            for at, role in enumerate(channel_roles(entry.model)[:MOST_SIGNALS])
        ]
    svg = line_chart(panels, entry.axis_times(0, rows), spans)
    ends = marked(between(entry.moment(0), entry.moment(rows - 1)), clock(entry.table))
    blind = rows - entry.scored
    unscored = f" {counted(blind, 'row')} of {rows} could not be judged." if blind else ""
    channels = len(entry.model.setup.channel_names)
    drawn = (
        f" The first {MOST_SIGNALS} of {channels} channels are drawn." if signals and channels > MOST_SIGNALS else ""
    )
    caption = f"{ends}. {_key(spans)}{unscored}{drawn}"
    return Drawing(name, caption, svg, f"Score of {entry.name} against the threshold.")


# -- what it rests on ------------------------------------------------------------------------------------------


def role_sections(examined: Sequence[Examination]) -> list[Section]:
    """Say what thresholds rest on, and what the models make of the channels."""
    models = {entry.device: entry.model for entry in examined}
    rests: list[Block]
    if len(models) == 1:
        [model] = models.values()
        rests = [
            Paragraph(f"The threshold is {significant(model.threshold)}: {threshold_origin(model)}."),
            Paragraph(f"False alarms to expect: {model.expectation}."),
        ]
    else:
        cells = {
            device: (significant(model.threshold), threshold_origin(model), model.expectation)
            for device, model in models.items()
        }
        columns = (
            TableColumn("Threshold"),
            *(TableColumn(t, kind="text") for t in ("It rests on", "False alarms to expect")),
        )
        rows = tuple(TableRow(device, tuple(map(TableCell, texts))) for device, texts in cells.items())
        rests = [DataTable("thresholds", "", "Device", columns, rows, cards=True)]
    return [Section("What the threshold rests on", tuple(rests)), Section("Channels", _channel_blocks(models))]


def _channel_blocks(models: Mapping[str, Model]) -> tuple[Block, ...]:
    """List the channels of one model; of several only those channels that are not judged as usual."""
    roles = {device: channel_roles(model) for device, model in models.items()}
    used = {role.kind for several in roles.values() for role in several}
    words = Bullets(tuple(f"{kind}: {text}" for kind, text in KINDS.items() if kind in used))
    if len(models) == 1:
        [channels] = roles.values()
        columns = (TableColumn("Kind", kind="word"), TableColumn("Normal range"), TableColumn("Predicted"))
        table = DataTable("channels", "", "Channel", columns, tuple(map(_channel_row, channels)))
        share = Paragraph("Predicted is the share of a channel's variance that is predicted from the samples before.")
        return table, words, share
    listed = []
    for kind in KINDS:
        named = {
            device: ", ".join(role.name for role in several if role.kind == kind) for device, several in roles.items()
        }
        if kind != "predicted" and any(named.values()):
            same = len(set(named.values())) == 1
            text = (
                next(iter(named.values()))
                if same
                else "; ".join(f"{d}: {names}" for d, names in named.items() if names)
            )
            listed.append(f"{kind}: {text}" + (" (on every device)" if same else ""))
    odd = Bullets(tuple(listed)) if listed else Paragraph("All channels are judged by prediction and by place.")
    return odd, Paragraph("What that means:"), words


def _channel_row(role: ChannelRole) -> TableRow:
    predicted = "–" if np.isnan(role.predicted) else f"{role.predicted:.0%}"
    return TableRow(role.name, tuple(map(TableCell, (role.kind, _range(role.low, role.high), predicted))))


def _range(low: float, high: float) -> str:
    if np.isnan(low):
        return "–"
    return significant(low) if low == high else f"{low:.4g} … {high:.4g}"
