"""Events, pictures and the page, each against something that does not use the code under test."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.dates import date2num
from numpy.typing import NDArray

from fedkad import KoopmanDetector, federate
from fedkad.detect.events import Event, Findings, examine, find_events
from fedkad.detect.series import Series
from fedkad.detect.threshold import judge_all
from fedkad.report.demonstration import Demonstration, compare, demonstrate, line_cells
from fedkad.report.demonstration_page import demonstration_page, devices_to_show
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
from fedkad.report.pictures import Span, as_svg, convergence_figure, device_figure, largest_of_columns
from fedkad.simulate import FAULTS, Fault, simulate_fleet

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


@pytest.mark.parametrize("threshold", ["pot", "spot", "dspot", 2.5])
def test_thresholds_and_alarms_are_those_of_the_stream(series: Array, threshold: str | float) -> None:
    detector = KoopmanDetector(rank=8, threshold=threshold).fit(series[:1800])
    test = series[1800:].copy()
    test[300:330, 1] = 0.0
    test[500] = np.nan
    stream = detector.stream()
    readings = [stream.update(sample) for sample in test]
    # A tail is searched for on a grid, where the last bit of a score may decide between two neighbours.
    thresholds, alarms = judge_all(detector.model_.judge(), detector.decision_function(test))
    assert alarms.tolist() == [reading.is_anomaly for reading in readings]
    np.testing.assert_allclose(thresholds, [reading.threshold for reading in readings], rtol=1e-6)
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


# -- pictures -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shown() -> Demonstration:
    return demonstrate(simulate_fleet(4, train_rows=1500, test_rows=700, seed=5), seed=5)


def test_picture_plots_the_scores_thresholds_and_alarms_of_the_detector(shown: Demonstration) -> None:
    device = "pump-04"
    detector, test = shown.federation.detectors[device], shown.fleet.test[device]
    times = shown.fleet.test_times(device)
    faults = shown.fleet.faults_of(device)
    spans = [Span(fault.start, fault.end, fault.kind) for fault in faults]
    axes: Any = device_figure(shown.findings[device], times, spans).axes
    above, below, bar = axes
    score, threshold, alarm = above.lines
    np.testing.assert_array_equal(score.get_ydata(), detector.decision_function(test))
    np.testing.assert_array_equal(score.get_xdata(), date2num(times))
    assert set(threshold.get_ydata()) == {detector.threshold_}
    flagged = np.flatnonzero(detector.predict(test))
    assert len(flagged)
    np.testing.assert_array_equal(alarm.get_xdata(), date2num(times[flagged]))
    assert [patch.get_x() for patch in above.patches] == [date2num(times[fault.start]) for fault in faults]
    assert [text.get_text() for text in above.texts] == [fault.kind for fault in faults]
    [image] = below.images
    expected = (detector.explain(test) / detector.threshold_).T
    np.testing.assert_allclose(np.ma.filled(image.get_array(), np.nan), expected)
    assert [label.get_text() for label in below.get_yticklabels()] == list(detector.model_.setup.channel_names)
    assert (above.get_ylabel(), below.get_xlabel()) == ("score", "time (UTC)")
    assert "threshold" in bar.get_ylabel()


def test_convergence_picture_has_the_numbers_of_the_history(shown: Demonstration) -> None:
    history = shown.federation.history
    axes: Any = convergence_figure(history).axes
    left, right = axes
    drawn = [line.get_ydata().tolist() for line in (*left.lines, *right.lines)]
    assert drawn == [[r[name] for r in history] for name in ("objective", "lagrangian", "consensus_residual")]
    warm = sum(record.phase == "warm" for record in history)
    assert 0 < warm < len(history)
    [shade] = left.patches
    assert (shade.get_x(), shade.get_width()) == (0.5, warm)


def test_svg_is_deterministic_and_takes_its_colours_from_the_page(shown: Demonstration) -> None:
    first, again, other = (as_svg(convergence_figure(shown.federation.history), name) for name in ("a", "a", "b"))
    assert first == again
    assert "var(--score)" in first
    assert "http" not in first
    assert set(re.findall(r' id="(\w+)"', first)).isdisjoint(re.findall(r' id="(\w+)"', other))
    ET.fromstring(first.replace("xlink:href", "href"))


@given(st.integers(1, 50), st.integers(1, 12))
def test_thinned_columns_keep_the_largest(length: int, most: int) -> None:
    values = np.random.default_rng(length).normal(size=(2, length))
    thinned, width = largest_of_columns(values, most)
    assert thinned.shape[1] <= most
    expected = [values[:, k : k + width].max(axis=1) for k in range(0, length, width)]
    np.testing.assert_array_equal(thinned, np.transpose(expected))


def test_channel_with_markup_and_dollars_is_drawn_as_it_is() -> None:
    scores = np.array([np.nan, 1.0, 6.0, 1.0])
    names = ("<b>", "$x")
    findings = Findings(scores, scores, np.full(4, 5.0), scores > 5.0, np.stack([scores, 0 * scores], 1), names, ())
    svg = as_svg(device_figure(findings), "x")
    assert "<b>" not in svg
    assert "&lt;b&gt;" in svg
    assert "$x" in svg


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


def test_page_of_a_demonstration_has_every_line_and_needs_nothing_else(shown: Demonstration, tmp_path: Path) -> None:
    path = tmp_path / "index.html"
    write_page(path, demonstration_page(shown))
    html = path.read_text()
    parsed = Cells(html)
    expected = [list(line_cells(shown, line)) for line in shown.lines]
    assert parsed.rows[1:] == expected
    assert {row[0] for row in expected} == set(shown.fleet.test)
    assert "script" not in parsed.tags
    assert "link" not in parsed.tags
    assert not re.search(r"https?://|url\((?!#)|@import", html)
    assert all(
        source.startswith("data:") or source.startswith("#") for source in re.findall(r'(?:src|href)="([^"]*)', html)
    )
    warm = sum(record.phase == "warm" for record in shown.federation.history)
    assert f"{len(shown.federation.history)} rounds ({warm} warm)" in html
    assert "all devices start at the shared subspace, then each moves towards its own data" in html
    assert html.count("<svg") == 1 + len(devices_to_show(shown))
    assert list(tmp_path.iterdir()) == [path]


def test_demonstration_leaves_the_participation_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    def noting(fleet: Any, **settings: Any) -> Any:
        given.update(settings)
        return federate(fleet, **settings)

    monkeypatch.setattr("fedkad.report.demonstration.federate", noting)
    demonstrate(simulate_fleet(1, train_rows=900, test_rows=500))
    assert "participation" not in given


def test_pictures_are_limited_and_show_every_kind(shown: Demonstration, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = devices_to_show(shown)
    kinds = {fault.kind for device in chosen for fault in shown.fleet.faults_of(device)}
    assert kinds == set(FAULTS)
    assert any(not shown.fleet.faults_of(device) for device in chosen)
    assert all(chosen.values())
    monkeypatch.setattr("fedkad.report.demonstration_page.MOST_DEVICES", 2)
    assert len(devices_to_show(shown)) == 2


def test_a_named_series_teaches_names(series: Array) -> None:
    detector = KoopmanDetector(rank=4).fit(Series(series, ("a", "b", "c")))
    assert detector.model_.setup.channel_names == ("a", "b", "c")
    assert examine(detector.model_, series).channels == ("a", "b", "c")
    with pytest.raises(ValueError, match="order"):
        detector.predict(Series(series, ("b", "a", "c")))


def test_importing_the_package_loads_neither_typer_nor_rich_nor_matplotlib() -> None:
    code = "import sys, fedkad, fedkad.report, fedkad.cli; print({'typer', 'rich', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_federation_without_warm_rounds_has_no_shade(series: Array) -> None:
    fed = federate({"a": series, "b": series[::-1]}, participation=1.0, start="common", rounds=2, rank=4)
    assert not convergence_figure(fed.history).axes[0].patches
