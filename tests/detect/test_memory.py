"""What a detector needs beside the numbers that it is given, and that it leaves these alone."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from fedkad import KoopmanDetector
from fedkad.detect.events import examine
from fedkad.detect.heldout import MOST_HELD_OUT, HeldOut
from fedkad.detect.series import Series, join_stretches
from fedkad.koopman.snapshots import stretches

Array = NDArray[np.float64]

ROWS, CHANNELS = 200_000, 10
STATISTICS = 8e6
"""Bytes that do not grow with the rows: statistics, the rows that are kept, and work on them."""


def recording(*, spike: bool = False, holes: bool = False) -> Array:
    rng = np.random.default_rng(0)
    series = np.sin(np.arange(ROWS)[:, None] / np.arange(7.0, 7.0 + CHANNELS))
    series += 0.1 * rng.normal(size=series.shape)
    if spike:
        series[ROWS // 2 : ROWS // 2 + 3, 2] = 15.0
    if holes:
        series[ROWS // 3], series[100, 3] = np.nan, np.nan
    return series


def peak_beyond(work: Callable[[], object]) -> tuple[float, float]:
    """The most memory that the work took, and what is left of it, in bytes; numpy tells of its arrays."""
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        kept = work()
        left, peak = tracemalloc.get_traced_memory()
        del kept
    finally:
        tracemalloc.stop()
    return peak - before, left - before


@pytest.mark.parametrize(("kind", "most"), [({}, 2.4), ({"spike": True}, 2.4), ({"holes": True}, 3.2)])
def test_fit_takes_little_memory_beside_the_numbers_and_keeps_none_of_it(kind: dict[str, bool], most: float) -> None:
    series = recording(**kind)
    peak, left = peak_beyond(lambda: KoopmanDetector().fit(series))
    assert peak < most * series.nbytes + STATISTICS
    assert left < STATISTICS


@pytest.mark.parametrize(("kind", "most"), [({}, 2.4), ({"spike": True}, 3.3), ({"holes": True}, 3.3)])
def test_an_examination_takes_little_memory_beside_the_numbers(kind: dict[str, bool], most: float) -> None:
    model = KoopmanDetector().fit(recording()[:20_000]).model_
    series = recording(**kind)
    peak, left = peak_beyond(lambda: examine(model, series))
    assert peak < most * series.nbytes
    assert left < 0.4 * series.nbytes  # scores, thresholds, alarms


def test_a_series_that_is_spare_is_learned_from_and_judged_in_its_own_memory() -> None:
    detector = KoopmanDetector().fit(recording(spike=True, holes=True))
    again = KoopmanDetector()
    series = recording(spike=True, holes=True)
    peak, _ = peak_beyond(lambda: again.fit(Series(series, None, overwrite_ok=True)))
    assert peak < 2.3 * series.nbytes + STATISTICS
    np.testing.assert_array_equal(again.memory_.held_out.rows, detector.memory_.held_out.rows)
    assert again.threshold_ == detector.threshold_
    series = recording(spike=True, holes=True)
    known = detector.decision_function(series)
    peak, _ = peak_beyond(lambda: examine(detector.model_, Series(series, None, overwrite_ok=True)))
    assert peak < 2.4 * series.nbytes
    series = recording(spike=True, holes=True)
    scores = examine(detector.model_, Series(series, None, overwrite_ok=True)).scores
    np.testing.assert_array_equal(scores, known)


@pytest.mark.parametrize("kind", [{}, {"holes": True}])
def test_what_a_caller_passes_is_neither_changed_nor_kept(kind: dict[str, bool]) -> None:
    series = recording(**kind)[ROWS // 3 - 2000 : ROWS // 3 + 2000]
    before = series.copy()
    detector = KoopmanDetector().fit(series)
    scores, causes = detector.decision_function(series), detector.explain(series)
    np.testing.assert_array_equal(series, before)
    series[:] = 0.0
    np.testing.assert_array_equal(detector.decision_function(before), scores)
    np.testing.assert_array_equal(detector.explain(before), causes)
    again = KoopmanDetector().fit(before)
    np.testing.assert_array_equal(detector.memory_.held_out.rows, again.memory_.held_out.rows)
    assert not np.shares_memory(detector.memory_.held_out.rows, series)


@pytest.mark.parametrize("last", [5, 100, MOST_HELD_OUT - 2, MOST_HELD_OUT - 1, MOST_HELD_OUT, MOST_HELD_OUT + 3])
def test_the_rows_kept_are_the_last_of_all_joined_stretches(last: int) -> None:
    rng = np.random.default_rng(last)
    pieces = [rng.normal(size=(size, 2)) for size in (9000, 3, 40, last)]
    rows, lead = join_stretches(pieces, gap=2), 4
    weights = rng.uniform(size=len(rows))
    found = HeldOut(rows, False, weights).scorable(lead)
    runs = list(stretches(rows, lead + 1))
    assert len(runs) == 3
    np.testing.assert_array_equal(found.rows, join_stretches([rows[run] for run in runs])[-MOST_HELD_OUT:])
    joined = join_stretches([weights[run, None] for run in runs])[-MOST_HELD_OUT:, 0]
    np.testing.assert_array_equal(found.weights, joined)
