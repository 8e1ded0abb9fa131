"""Time gaps, filling of holes, and the series that a detector sees."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedkad.tables import SeriesTable, read_table
from fedkad.tables.reading import fill_forward
from fedkad.tables.times import Times
from fedkad.timesteps import gap_starts

NAN = float("nan")
NO_GAPS = np.empty(0, dtype=np.intp)


def table_at(times: Times | None, channels: int = 2) -> SeriesTable:
    rows = 5 if times is None else len(times)
    names = tuple(f"c{i}" for i in range(channels))
    return SeriesTable("pump-1", names, np.arange(rows * channels, dtype=np.float64).reshape(rows, channels), times)


def naive_fill(values: list[list[float]], gaps: set[int], max_fill: int) -> list[list[float]]:
    """Fill cell by cell, remembering for each channel its last value and its age."""
    filled = [list(row) for row in values]
    last: list[tuple[float, int] | None] = [None] * len(values[0])
    for t, row in enumerate(values):
        whole = all(np.isnan(x) for x in row)
        if t in gaps or whole:
            last = [None] * len(row)
        for c, x in enumerate(row):
            if not np.isnan(x):
                last[c] = (x, 0)
                continue
            carried = last[c]
            if carried is not None and carried[1] < max_fill:
                filled[t][c] = carried[0]
                last[c] = (carried[0], carried[1] + 1)
            else:
                last[c] = None
    return filled


@st.composite
def holed(draw: st.DrawFn) -> tuple[list[list[float]], set[int]]:
    rows, channels = draw(st.integers(1, 14)), draw(st.integers(1, 3))
    cell = st.one_of(st.just(NAN), st.integers(0, 99).map(float))
    values = draw(st.lists(st.lists(cell, min_size=channels, max_size=channels), min_size=rows, max_size=rows))
    gaps = draw(st.sets(st.integers(1, rows - 1), max_size=3)) if rows > 1 else set()
    return values, gaps


@given(holed(), st.integers(0, 4))
def test_filling_equals_the_naive_loop(case: tuple[list[list[float]], set[int]], max_fill: int) -> None:
    values, gaps = case
    filled = np.array(values)
    cells = fill_forward(filled, np.array(sorted(gaps), dtype=np.intp), max_fill)
    np.testing.assert_array_equal(filled, naive_fill(values, gaps, max_fill))
    assert cells == int(np.isnan(values).sum() - np.isnan(filled).sum())


@pytest.mark.parametrize(
    ("max_fill", "expected"), [(0, [1, NAN, NAN, NAN, 5]), (2, [1, 1, 1, NAN, 5]), (3, [1, 1, 1, 1, 5])]
)
def test_only_the_beginning_of_a_long_hole_is_filled(max_fill: int, expected: list[float]) -> None:
    values = np.array([[1, 0], [NAN, 0], [NAN, 0], [NAN, 0], [5, 0]])
    fill_forward(values, NO_GAPS, max_fill)
    np.testing.assert_array_equal(values[:, 0], expected)


def test_nothing_is_carried_into_across_or_out_of_a_gap() -> None:
    values = np.array([[1, 2], [NAN, NAN], [3, NAN], [NAN, 4], [NAN, 5], [6, NAN]])
    cells = fill_forward(values, np.array([4]), 3)
    np.testing.assert_array_equal(values, [[1, 2], [NAN, NAN], [3, NAN], [3, 4], [NAN, 5], [6, 5]])
    assert cells == 2


def test_a_leading_hole_stays() -> None:
    values = np.array([[NAN, 1.0], [2.0, NAN]])
    assert fill_forward(values, NO_GAPS, 3) == 1
    np.testing.assert_array_equal(values, [[NAN, 1], [2, 1]])


def test_a_read_table_reports_what_was_filled_and_what_was_not(tmp_path: Path) -> None:
    path = tmp_path / "pump-1.csv"
    rows = ["0,1,10", "1,,11", "2,,", "3,3,12", "4,4,", "9,,13", "10,5,14"]
    path.write_text("time,a,b\n" + "\n".join(rows) + "\n")
    table = read_table(path)
    expected = [[1, 10], [1, 11], [NAN, NAN], [3, 12], [4, 12], [NAN, 13], [5, 14]]
    np.testing.assert_array_equal(table.values, expected)
    assert (table.filled, table.gap_rows) == (2, 2)


def test_a_gap_is_a_step_larger_than_one_and_a_half_times_the_median() -> None:
    np.testing.assert_array_equal(gap_starts(np.array([0.0, 2, 4, 7, 9, 12.1, 14])), [5])
    assert len(gap_starts(None)) == 0
    assert len(gap_starts(np.array([3.0]))) == 0


def minutes(*offsets: int) -> Times:
    return np.datetime64("2024-01-01T00:00:00", "ns") + np.array(offsets, dtype="timedelta64[m]")


@pytest.mark.parametrize("times", [np.array([0.0, 1, 2, 9, 10, 30]), minutes(0, 1, 2, 9, 10, 30)])
def test_the_gaps_are_shown_to_the_detector(times: Times) -> None:
    # The steps are 1, 1, 7, 1, 20: their median is 1.
    table = table_at(times)
    series, rows = table.with_gaps()
    assert rows.tolist() == [0, 1, 2, -1, 3, 4, -1, 5]
    assert np.isnan(series[rows < 0]).all()
    np.testing.assert_array_equal(series[rows >= 0], table.values)


@pytest.mark.parametrize("times", [None, np.array([0.0, 1.0, 2.1, 3.0, 4.2])])
def test_without_time_gaps_the_series_is_the_table(times: Times | None) -> None:
    table = table_at(times)
    series, rows = table.with_gaps()
    assert rows.tolist() == [0, 1, 2, 3, 4]
    assert series is table.values  # a million rows are not copied without need


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_rows_are_inserted_at_large_steps_only(steps: list[int]) -> None:
    times: NDArray[np.float64] = np.cumsum([0.0, *steps])
    large = 1.5 * float(np.median(steps))
    expected = [0]
    for row, step in enumerate(steps, start=1):
        expected += [-1, row] if step > large else [row]
    assert table_at(times).with_gaps()[1].tolist() == expected
