"""A threshold that follows its alarms keeps its budget, whatever the fitted one was worth."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkad.detect.clusters import declustered
from fedkad.detect.expectation import lowest_threshold
from fedkad.detect.threshold import event_threshold
from fedkad.detect.tracking import GAIN, HIGHEST, MARGINAL, REST, ThresholdTracker

WEEK = 604800.0
MINUTES_PER_WEEK = 10080


def incidents_per_week(fitted: float, lowest: float, weeks: int, seed: int) -> np.ndarray:
    """Incidents in each week of exponential scores, one per minute, judged by the loop; each score is its own event."""
    generator, loop = np.random.default_rng(seed), ThresholdTracker(1.0 / WEEK)
    counts = np.zeros(weeks)
    for week in range(weeks):
        for score in generator.exponential(size=MINUTES_PER_WEEK).tolist():
            alarm = score > loop.threshold(fitted, lowest)
            loop.watch(60.0)
            if alarm:
                loop.count("", score)
            counts[week] += alarm
    return counts


@pytest.mark.parametrize("share", [0.6, 1.0, 1.5])
def test_in_the_long_run_alarms_come_as_often_as_allowed(share: float) -> None:
    """The right threshold for one in a week is log 10,080; with 0.6 of it there would be 40 a week at first."""
    fitted = share * math.log(MINUTES_PER_WEEK)
    counts = np.concatenate([incidents_per_week(fitted, 0.5 * fitted, 25, seed)[5:] for seed in range(2)])
    assert 0.5 < counts.mean() < 1.7
    first = incidents_per_week(fitted, 0.5 * fitted, 1, 9)
    assert first[0] <= 15, "a threshold that is far too low is answered within the first week"


def test_quiet_does_not_lower_the_threshold_below_what_the_fit_leaves_open() -> None:
    scores = np.random.default_rng(1).exponential(size=8000)
    found = event_threshold(scores, 1e-4, apart=20)
    lowest = lowest_threshold(scores, 1e-4, apart=20)
    assert declustered(scores, lowest, 20).size >= declustered(scores, found.value, 20).size
    assert 0.7 * found.value < lowest < found.value
    loop = ThresholdTracker(1.0 / WEEK)
    for _ in range(100):
        loop.watch(WEEK)
        assert loop.threshold(found.value, lowest) == pytest.approx(max(lowest, loop.factor * found.value))
    assert loop.threshold(found.value, lowest) == pytest.approx(lowest)
    loop.count("", lowest)  # years of quiet are not saved up
    assert loop.threshold(found.value, lowest) == pytest.approx(lowest * math.exp(GAIN))


def test_the_lower_end_covers_the_threshold_of_another_recording() -> None:
    """Of the true threshold, log 10,000, the lower ends of many recordings are exceeded about 19 times in 20."""
    lower = [lowest_threshold(np.random.default_rng(seed).exponential(size=4000), 1e-4, apart=20) for seed in range(60)]
    assert 0.85 <= np.mean(np.array(lower) < math.log(1e4)) <= 1.0


@given(st.lists(st.tuples(st.floats(0.0, 10 * WEEK), st.integers(0, 50))), st.floats(0.1, 10.0), st.floats(0.01, 1.0))
def test_the_threshold_stays_between_its_bounds(steps: list[tuple[float, int]], fitted: float, share: float) -> None:
    loop = ThresholdTracker(1.0 / WEEK)
    for seconds, incidents in steps:
        loop.watch(seconds)
        for _ in range(incidents):
            loop.count("", fitted)
        value = loop.threshold(fitted, share * fitted)
        assert share * fitted * (1 - 1e-12) <= value <= HIGHEST * fitted * (1 + 1e-12)
    assert ThresholdTracker(1.0 / WEEK, loop.state).threshold(fitted, share * fitted) == loop.threshold(
        fitted, share * fitted
    )


def test_what_a_person_called_a_fault_does_not_count() -> None:
    with_fault, without = ThresholdTracker(1.0 / WEEK), ThresholdTracker(1.0 / WEEK)
    for loop in (with_fault, without):
        loop.threshold(2.0, 1.5)
        loop.count("first", 2.1)
        loop.watch(86400.0)
    with_fault.count("fault", 2.2)
    with_fault.count("again", 2.2)  # too soon to count
    for _ in range(2):
        with_fault.forgive("fault")  # it is taken back once,
        with_fault.forgive("again")  # and what has not counted cannot be
    assert with_fault.threshold(2.0, 1.5) == pytest.approx(without.threshold(2.0, 1.5))


def test_what_is_far_above_the_threshold_does_not_raise_it() -> None:
    loop = ThresholdTracker(1.0 / WEEK)
    before = loop.threshold(2.0, 1.5)
    for _ in range(20):
        loop.count("far", 2.0 * MARGINAL + 0.01)
        loop.forgive("far")
    assert loop.threshold(2.0, 1.5) == before
    loop.count("near", 2.0 * MARGINAL - 0.01)
    assert loop.threshold(2.0, 1.5) == pytest.approx(before * math.exp(GAIN))


def test_a_fault_that_comes_and_goes_counts_once_until_the_loop_has_rested() -> None:
    loop = ThresholdTracker(1.0 / WEEK)
    loop.threshold(2.0, 1.5)
    for k in range(10):
        loop.count(f"fault-{k}", 2.1)
        loop = ThresholdTracker(1.0 / WEEK, json.loads(json.dumps(loop.state)))
        assert loop.threshold(2.0, 1.5) == pytest.approx(2.0 * math.exp(GAIN))
    loop.watch(REST * WEEK)
    loop.count("another", 2.1)
    assert loop.threshold(2.0, 1.5) == pytest.approx(2.0 * math.exp(GAIN * (2.0 - REST)))


def test_a_device_that_is_broken_for_months_does_not_go_deaf() -> None:
    """Every hour the score is a little above the threshold: that is never above three times the fitted one."""
    loop, used = ThresholdTracker(1.0 / WEEK), [2.0]
    for hour in range(90 * 24):
        loop.watch(3600.0)
        loop.count(str(hour), 1.1 * used[-1])
        used.append(loop.threshold(2.0, 1.5))
    assert max(used) == pytest.approx(3.0 * 2.0)
    assert used[-1] > 0.9 * max(used)


def test_the_state_of_early_versions_was_one_number() -> None:
    assert ThresholdTracker(1.0 / WEEK, 0.2).factor == pytest.approx(math.exp(0.2))


def test_too_few_scores_leave_no_lower_end() -> None:
    assert math.isnan(lowest_threshold(np.zeros(50), 1e-4, apart=20))
