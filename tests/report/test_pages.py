"""Events, pictures and the page, each against something that does not use the code under test."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedkad import KoopmanDetector, federate
from fedkad.detect.events import Event, examine, find_events
from fedkad.detect.inspection import channel_roles
from fedkad.detect.series import Series
from fedkad.report.agreement import agreement
from fedkad.report.chart import Curve, Panel, Span, line_chart, standalone, thinned
from fedkad.report.demonstration import Demonstration, compare, demonstrate, line_cells
from fedkad.report.demonstration_page import demonstration_page
from fedkad.report.document import (
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
    render_page,
    write_page,
)
from fedkad.report.findings_page import event_drawing, findings_page
from fedkad.simulate import CHANNELS, Fault, simulate_fleet
from fedkad.tables import SeriesTable

Array = NDArray[np.float64]

# -- events ---------------------------------------------------------------------------------------------------


def naive_events(scores: list[float], alarms: list[bool], join: int) -> list[tuple[int, int, int]]:
    """Start, end and peak by walking through the entries one at a time."""
    found: list[list[int]] = []
    for t, flagged in enumerate(alarms):
        if not flagged:
            continue
        if found and t - found[-1][-1] <= join:
            found[-1].append(t)
        else:
            found.append([t])
    peaks = [max(run, key=lambda t: scores[t]) for run in found]
    return [(run[0], run[-1], peak) for run, peak in zip(found, peaks, strict=True)]


@given(
    st.lists(st.sampled_from([float("nan"), 0.5, 1.0, 6.0, 7.0, 9.0]), max_size=40),
    st.integers(1, 6),
)
def test_events_are_those_of_a_naive_loop(values: list[float], join: int) -> None:
    scores = np.array(values)
    alarms = scores > 5.0
    shares = np.stack([0.25 * scores, 0.75 * scores], axis=1)
    events = find_events(scores, np.full(len(scores), 5.0), alarms, shares, ["a", "b"], join=join)
    assert [(e.start, e.end, e.peak) for e in events] == naive_events(values, alarms.tolist(), join)
    for event in events:
        assert event.peak_score == scores[event.peak]
        assert [cause.channel for cause in event.causes] == ["b", "a"]
        assert [cause.share for cause in event.causes] == pytest.approx([0.75, 0.25])


def test_a_bridged_row_does_not_cut_an_event_in_two_and_a_gap_does() -> None:
    generator = np.random.default_rng(4)
    series = np.sin(np.arange(3200.0)[:, None] / [[7.0, 11.0, 17.0]]) + 0.05 * generator.normal(size=(3200, 3))
    detector = KoopmanDetector(rank=8).fit(series[:2000])
    recording = series[2000:].copy()
    recording[500:560, 1] += 3.0
    recording[530] = np.nan
    [event] = [event for event in detector.events(recording) if event.end >= 500 and event.start < 600]
    assert event.start < 530 < event.end
    assert sum(cause.share for cause in event.causes) == pytest.approx(1.0)
    recording[525:535] = np.nan  # longer than what is bridged; a new window is full at row 555
    events = [event for event in detector.events(recording) if event.end >= 500 and event.start < 600]
    assert [event.start < 530 for event in events] == [True, False]


def test_shares_are_weighted_by_the_scores_of_the_event() -> None:
    shares = np.array([[9.0, 1.0], [0.0, 30.0]])
    scores = shares.sum(axis=1)
    [event] = find_events(scores, np.full(2, 5.0), scores > 5.0, shares, ["a", "b"], join=1)
    assert {cause.channel: cause.share for cause in event.causes} == pytest.approx({"a": 9 / 40, "b": 31 / 40})


@pytest.fixture(scope="module")
def series() -> Array:
    generator = np.random.default_rng(3)
    return np.sin(np.arange(2600.0)[:, None] / [[7.0, 11.0, 17.0]]) + 0.05 * generator.normal(size=(2600, 3))


@pytest.mark.parametrize("threshold", ["pot", 2.5])
def test_thresholds_and_alarms_are_those_of_the_stream(series: Array, threshold: str | float) -> None:
    detector = KoopmanDetector(rank=8, threshold=threshold).fit(series[:1800])
    test = series[1800:].copy()
    test[300:330, 1] = 0.0
    test[500] = np.nan
    stream = detector.stream()
    readings = [stream.update(sample) for sample in test]
    alarms = detector.decision_function(test) > detector.threshold_
    assert alarms.tolist() == [reading.is_anomaly for reading in readings]
    assert {reading.threshold for reading in readings} == {detector.threshold_}
    assert alarms.any()


def test_comparison_counts_every_event_and_every_fault_once() -> None:
    def event(start: int, end: int) -> Event:
        return Event(start, end, start, 9.0, 5.0, ())

    faults = [
        Fault("p", kind, ("x",), start, end) for kind, start, end in (("a", 10, 20), ("b", 50, 60), ("c", 90, 95))
    ]
    events = [event(9, 9), event(9, 10), event(24, 30), event(25, 30), event(59, 70), event(40, 91)]
    lines = compare("p", events, faults, reach=5)
    assert [[fault.kind for fault in line.faults] for line in lines] == [
        [],  # ends the row before the fault
        ["a"],
        ["a"],  # begins 4 rows after the last faulty row but one window is 5
        [],
        ["b", "c"],
        ["b"],
    ]
    assert [line.outcome for line in lines].count("false alarm") == 2
    first, *missed = compare("p", events[:1], faults, reach=5)
    assert first.outcome == "false alarm"
    assert [(line.outcome, line.faults) for line in missed] == [("missed", (fault,)) for fault in faults]
    assert [line.outcome for line in compare("p", [], [], reach=5)] == ["quiet"]


# -- charts ---------------------------------------------------------------------------------------------------


def drawn(svg: str, plot: int = 0) -> list[list[list[tuple[float, float]]]]:
    """The lines of a plot without its grid: runs of points, from left to right."""
    nested = [element for element in ET.fromstring(svg).iter("svg") if element.get("class") == "plot"][plot]
    lines = [path.get("d", "") for path in nested.iter("path") if "--grid" not in path.get("style", "")]
    return [
        [
            [(float(x), float(y)) for x, y in re.findall(r"[ML](\S+) ([^MLh]+)", run)]
            for run in re.findall(r"M[^M]+", line)
        ]
        for line in lines
    ]


def test_a_line_is_drawn_to_scale_and_breaks_at_holes_and_at_gaps_in_time() -> None:
    values = np.sin(np.arange(60.0))
    values[20:25] = np.nan
    times = np.datetime64("2026-01-01T00:00", "s") + 60 * np.r_[0:40, 100:120]
    [line] = drawn(line_chart([Panel("flow", (Curve("seen", values, "score"),))], times))
    assert [len(run) for run in line] == [20, 15, 20]
    x, y = np.array([point for run in line for point in run]).T
    known = ~np.isnan(values)
    for found, expected in ((x, (times - times[0]).astype(float)[known]), (y, values[known])):
        slope, offset = np.polyfit(expected, found, 1)
        np.testing.assert_allclose(slope * expected + offset, found, atol=0.6)  # points stand on whole units
    assert y[np.argmax(values[known])] == y.min()  # heights are counted from the top
    assert (x.min(), y.min() > 0, y.max() < 1000, x.max() < 10_000) == (0, True, True, True)


@given(st.lists(st.sampled_from([1.0, 2.0, 7.0, np.nan]), min_size=1, max_size=50), st.integers(1, 9))
def test_a_thinned_line_keeps_the_least_and_the_greatest(values: list[float], width: int) -> None:
    heights = np.array(values)
    across, pairs, _ = thinned(np.arange(len(values), dtype=np.float64), heights, np.empty(0, dtype=np.intp), width)
    blocks = [[value for value in values[k : k + width] if value == value] for k in range(0, len(values), width)]
    expected = [bound for block in blocks for bound in ((min(block), max(block)) if block else (np.nan, np.nan))]
    np.testing.assert_array_equal(pairs, expected)
    np.testing.assert_array_equal(across, np.repeat(np.arange(0.0, len(values), width), 2))


@pytest.mark.parametrize("minutes", [0.05, 1, 7, 60, 1440])
def test_labels_of_the_axis_stand_at_their_times(minutes: float) -> None:
    times = np.datetime64("2026-03-01T22:13:05", "s") + np.arange(400) * np.timedelta64(round(60 * minutes), "s")
    svg = line_chart([Panel("flow", (Curve("seen", np.ones(400), "score"),))], times)
    ticks = [element for element in ET.fromstring(svg).iter("text") if element.get("class") == "tick"]
    assert 2 <= len(ticks) <= 7
    step = (times[1] - times[0]).astype(float)
    for tick in ticks:
        moment = times[0] + np.timedelta64(round(400 * step * float((tick.get("x") or "").rstrip("%")) / 100), "s")
        near = moment + np.arange(-round(0.03 * step) - 1, round(0.03 * step) + 2)  # positions have four digits
        texts = {
            form.format(m.item()) for m in near for form in ("{:%H:%M}", "{:%H:%M:%S}", "{0.day} {0:%b}", "{:%b %Y}")
        }
        assert tick.text in texts


def test_charts_of_odd_numbers_and_names() -> None:
    for values in ([3.0], [np.nan] * 5, [7.0] * 5, [1e300, -1e300], [0.0, 0.0], [1e-9, 1.0, 1e9]):
        for logarithmic in (False, True):
            for times in (np.arange(len(values)), 1e9 + np.arange(len(values)) * 0.5):
                band = (-1.0, 1.0) if not logarithmic else None
                panel = Panel("<b>$x", (Curve("&", np.array(values), "score"),), band, logarithmic)
                svg = line_chart([panel], times, [Span(0, 1, "<i>")])
                assert not re.search(r"<b>|<i>|nan|inf|NaN", svg)
                assert "&lt;b&gt;$x" in svg
                ET.fromstring(svg)


def test_a_chart_is_a_file_of_its_own_in_light_colours() -> None:
    svg = standalone(
        line_chart([Panel("flow", (Curve("seen", np.arange(9, dtype=np.float64), "score"),))], np.arange(9)), 700
    )
    assert "var(" not in svg
    assert ET.fromstring(svg).get("width") == "700"


@pytest.fixture(scope="module")
def shown() -> Demonstration:
    return demonstrate(simulate_fleet(4, train_rows=1500, test_rows=700, seed=5), seed=5)


def test_what_was_expected_is_the_forecast_of_the_detector(shown: Demonstration) -> None:
    for device, entry in shown.examined.items():
        detector, test = shown.federation.detectors[device], shown.fleet.test[device]
        np.testing.assert_array_equal(entry.findings.scores, detector.decision_function(test))
        for start, stop in ((0, 60), (300, 420), (0, 700)):
            found, expected = entry.expected(start, stop), detector.forecast(test)[start:stop]
            np.testing.assert_allclose(found, expected, rtol=1e-9)
        missing = np.isnan(entry.findings.scores)
        assert [k for span in entry.unscored_spans() for k in range(*span)] == np.flatnonzero(missing).tolist()


def test_an_event_is_drawn_with_its_signals_and_its_score(shown: Demonstration) -> None:
    entry = shown.examined["pump-04"]
    event = entry.findings.events[0]
    drawing = event_drawing(entry, event, "event")
    start, stop = event.start - 80, event.end + 81
    names = [cause.channel for cause in event.main_causes]
    assert 1 <= len(names) <= 3
    for plot, name in enumerate(names):
        _, seen = drawn(drawing.svg, plot)
        at = CHANNELS.index(name)
        known = entry.table.values[start:stop, at]
        y = np.array([point[1] for run in seen for point in run])
        slope, offset = np.polyfit(known[~np.isnan(known)], y, 1)
        np.testing.assert_allclose(slope * known[~np.isnan(known)] + offset, y, atol=0.6)
        assert f">{name}<" in drawing.svg
    threshold, score = drawn(drawing.svg, len(names))
    level, peak = threshold[0][0][1], min(point[1] for run in score for point in run)
    assert peak < level
    assert "▒ normal" in drawing.svg
    # A fault that reaches into the picture is written on it.
    for fault in shown.fleet.faults_of("pump-04"):
        assert (f">{fault.kind}<" in drawing.svg) == (fault.start < stop and fault.end > start)


# -- labels and channels --------------------------------------------------------------------------------------


@given(st.data())
def test_agreement_is_that_of_a_naive_count(data: st.DataObject) -> None:
    def spans() -> list[tuple[int, int]]:
        edges = sorted(data.draw(st.sets(st.integers(0, 99), max_size=8)))
        return list(zip(edges[::2], edges[1::2], strict=False))

    events = [Event(start, end, start, 9.0, 5.0, ()) for start, end in spans()]
    labels = [Span(start, end) for start, end in spans()]
    scored = np.array(data.draw(st.lists(st.booleans(), min_size=100, max_size=100)))
    found = agreement(events, labels, scored, reach=3, period=3600.0)

    def answers(event: Event, label: Span) -> bool:
        rows, lasting = set(range(event.start, event.end + 1)), set(range(label.start, label.end))
        return bool(rows & lasting) or event.start - label.end in range(3)

    hit = [[event for event in events if answers(event, label)] for label in labels]
    assert found.found == sum(map(bool, hit))
    assert found.false_alarms == sum(not any(answers(event, label) for label in labels) for event in events)
    delays = [
        3600.0 * max(min(e.start for e in several) - label.start, 0)
        for several, label in zip(hit, labels, strict=True)
        if several
    ]
    assert list(found.delays) == delays
    healthy = sum(bool(scored[k]) and not any(label.start <= k < label.end for label in labels) for k in range(100))
    assert found.healthy_days == pytest.approx(healthy / 24.0)
    assert np.isnan(found.recall) == (not labels)


def test_channels_are_told_by_what_the_model_makes_of_them() -> None:
    generator = np.random.default_rng(0)
    t = np.arange(2500)
    columns = {
        "wave": np.sin(t / 9.0) + 0.02 * generator.normal(size=2500),
        "noise": generator.normal(size=2500),
        "switch": (t // 40 % 2).astype(float),
        "still": np.full(2500, 3.0),
        "command": np.sin(t / 50.0),
    }
    series = Series(np.column_stack(list(columns.values())), tuple(columns))
    model = KoopmanDetector(rank=10, observables=32, inputs=["command"]).fit(series).model_
    standings = {standing.name: standing for standing in channel_roles(model)}
    kinds = {name: standing.kind for name, standing in standings.items()}
    expected = {
        "wave": "predicted",
        "noise": "unpredictable",
        "switch": "switch",
        "still": "constant",
        "command": "input",
    }
    assert kinds == expected
    assert (standings["switch"].low, standings["switch"].high) == pytest.approx((0.0, 1.0))
    assert standings["still"].low == standings["still"].high == pytest.approx(3.0)
    assert standings["wave"].predicted > 0.95 > 0.2 > standings["noise"].predicted
    paper = KoopmanDetector.paper(rank=10, observables=32).fit(series).model_
    assert all(np.isnan(s.predicted) and np.isnan(s.low) for s in channel_roles(paper))


# -- the page -------------------------------------------------------------------------------------------------


class Cells(HTMLParser):
    """The text of all table cells, and the tags met."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: set[str] = set()
        self._inside = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self._inside = True
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.rows[-1][-1] += data


def test_a_moment_is_told_to_the_minute_or_by_its_row(shown: Demonstration) -> None:
    entry = next(iter(shown.examined.values()))
    times = np.array(["2025-01-09T07:58:00", "2025-01-09T07:58:30"], dtype="datetime64[ns]")
    timed, timeless = (SeriesTable("pump", ("flow",), np.ones((2, 1)), each) for each in (times, None))
    moments = [replace(entry, table=timed).moment(0), replace(entry, table=timed).moment(1)]
    assert moments == ["2025-01-09 07:58", "2025-01-09 07:58:30"]
    assert replace(entry, table=timeless).moment(12) == "12"


def test_all_text_of_a_page_is_escaped() -> None:
    evil = "<b>&\"'</b>"
    rows = (TableRow(evil), TableRow(evil, (TableCell(evil, True, evil, "good"),)))
    table = DataTable(evil, evil, evil, (TableColumn(evil, evil),), rows)
    drawing = Drawing(evil, evil, "<svg></svg>", evil)
    blocks = (Paragraph(evil), Notice(evil), Subheading(evil), Bullets((evil,)), KeyFigures((Fact(evil, evil),)))
    section = Section(evil, (*blocks, table, drawing))
    html = render_page(Document(evil, evil, (section,), evil, opening=blocks, numbered=True))
    assert "<b>" not in html
    assert "b" not in Cells(html).tags
    assert Cells(html).rows == [[evil, evil], [evil], [evil], [evil, f"{evil} {evil}"]]


def outside(html: str) -> list[str]:
    """Everything that a page would fetch."""
    found = re.findall(r"https?://[^\"< ]*|url\((?!#)[^)]*|@import", html)
    return found + [s for s in re.findall(r'(?:src|href)="([^"]*)', html) if not s.startswith(("data:", "#"))]


def test_page_of_a_demonstration_has_every_line_and_needs_nothing_else(shown: Demonstration, tmp_path: Path) -> None:
    path = tmp_path / "index.html"
    write_page(path, demonstration_page(shown))
    html = path.read_text()
    parsed = Cells(html)
    expected = [list(line_cells(shown, line)) for line in shown.lines]
    assert parsed.rows[1 : 1 + len(expected)] == expected
    assert {row[0] for row in expected} == set(shown.fleet.test)
    assert "link" not in parsed.tags
    assert outside(html) == []
    assert len(html) < 2_000_000
    # First a caught fault with its signal, then every pump; the rounds are a table at the end.
    headings = re.findall(r"<h2>([^<]*)", html)
    assert headings[0] == "A fault that was found"
    assert headings[-1] == "How the fleet came to agree"
    assert html.count('<svg role="img"') == 1 + len(shown.fleet.test)
    rounds = parsed.rows[-len(shown.federation.history) :]
    assert [row[1] for row in rounds] == [record.phase for record in shown.federation.history]
    assert [float(row[5]) for row in rounds] == pytest.approx(
        [record.consensus_residual for record in shown.federation.history], rel=1e-3
    )
    warm = sum(record.phase == "warm" for record in shown.federation.history)
    assert f"{len(shown.federation.history)} rounds ({warm} warm)" in html
    assert list(tmp_path.iterdir()) == [path]


def test_a_demonstration_that_found_nothing_has_a_page(shown: Demonstration) -> None:
    quiet = [line for line in shown.lines if line.event is None]
    assert "A fault that was found" not in render_page(demonstration_page(replace(shown, lines=tuple(quiet))))


def test_page_of_findings_tells_every_event_and_draws_the_strongest(
    shown: Demonstration, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedkad.report.findings_page.MOST_EVENTS", 2)
    examined = list(shown.examined.values())
    html = render_page(findings_page(examined, "<Pumps>", notices=["pump-9 was skipped: <no data>"]))
    parsed = Cells(html)
    events = [(entry, event) for entry in examined for event in entry.findings.events]
    assert len(events) > 2
    table = [row for row in parsed.rows if len(row) == 6][1:]
    assert [row[1] for row in table] == [event.sentence for _, event in events]
    assert [row[2] for row in table] == [entry.moment(event.start) for entry, event in events]
    strongest = sorted(events, key=lambda pair: -pair[1].peak_score / pair[1].threshold)[:2]
    for entry, event in strongest:
        assert f"<h3>{entry.device}, {entry.moment(event.start)}" in html
    assert html.count('<svg role="img"') == 2 + len(examined)
    assert outside(html) == []
    assert "pump-9 was skipped: &lt;no data&gt;" in html
    assert "<Pumps>" not in html


def test_demonstration_leaves_the_participation_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def noting(fleet: Any, **settings: Any) -> Any:
        given.update(settings)
        return federate(fleet, **settings)

    monkeypatch.setattr("fedkad.report.demonstration.federate", noting)
    demonstrate(simulate_fleet(1, train_rows=900, test_rows=500))
    assert "participation" not in given


def test_a_named_series_teaches_names(series: Array) -> None:
    detector = KoopmanDetector(rank=4).fit(Series(series, ("a", "b", "c")))
    assert detector.model_.setup.channel_names == ("a", "b", "c")
    assert examine(detector.model_, series).channels == ("a", "b", "c")
    with pytest.raises(ValueError, match="order"):
        detector.predict(Series(series, ("b", "a", "c")))


@pytest.mark.slow
def test_importing_the_package_loads_neither_typer_nor_rich_nor_matplotlib() -> None:
    code = "import sys, fedkad, fedkad.report, fedkad.cli; print({'typer', 'rich', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
