"""The interval of samples: of one channel, whatever comes between, and whether the intervals agree."""

import json
from itertools import accumulate
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkad.edge.device.period import BLOCK, CONVINCING, MOST_WITHOUT, FirstSamples, Pace
from tests.fixtures.draws import draws


def blocks(pace: Pace, times: list[float], restarts: bool = False) -> list[tuple[float | None, float | None]]:
    found = []
    for time in times:
        if pace.note(time, ["a", "b"]):
            found.append((pace.interval, pace.agreed))
        if restarts:
            pace = Pace(json.loads(json.dumps(pace.state(), allow_nan=False)))
    return found


@draws(100, derandomize=True)
@given(st.lists(st.sampled_from([1.0, 9.9, 10.0, 10.1, 11.0, 300.0]), min_size=0, max_size=70))
def test_each_block_has_its_median_and_agrees_if_most_are_near_it(steps: list[float]) -> None:
    times, expected = [1000.0], list[tuple[float, bool]]()
    for step in steps:
        times.append(times[-1] + step)
    for first in range(0, len(times) - BLOCK, BLOCK + 1):  # the first of a block ends no interval
        intervals = [b - a for a, b in zip(times[first:], times[first + 1 : first + BLOCK + 1], strict=False)]
        if len(intervals) == BLOCK:
            near = [each for each in intervals if abs(each / median(intervals) - 1.0) < 0.2001]
            agreed = len(near) >= 0.8 * BLOCK
            is_doubted = [before for _, before in expected[-2:]] == [False, False]
            expected.append((sum(near) / len(near) if agreed else median(intervals), agreed and not is_doubted))
    found = blocks(Pace(), times)
    assert found == blocks(Pace(), times, restarts=True)
    assert [agreed is not None for _, agreed in found] == [agreed for _, agreed in expected]
    assert [interval for interval, _ in found] == pytest.approx([interval for interval, _ in expected], rel=0.035)


def test_channels_that_come_one_by_one_are_one_sample() -> None:
    pace, found = Pace(), []
    for k in range(BLOCK + 1):
        found += [pace.note(10.0 * k + 0.1 * j, [name]) for j, name in enumerate("abc")]
    assert sum(found) == 1
    assert pace.agreed == 10.0


def test_a_channel_that_never_comes_again_leaves_the_others_their_interval() -> None:
    pace = Pace()
    assert not any(pace.note(10.0 * k, ["dead"]) for k in range(BLOCK - 1))
    found = []
    for k in range(MOST_WITHOUT + BLOCK):
        pace = Pace(json.loads(json.dumps(pace.state(), allow_nan=False)))
        found.append(pace.note(1000.0 + 60.0 * k, ["b"]))
    assert (found.index(True), pace.agreed) == (MOST_WITHOUT + BLOCK - 1, 60.0)


def test_a_clock_that_is_set_back_is_no_interval() -> None:
    assert blocks(Pace(), [float(k) for k in range(12)] + [float(k) for k in range(12)]) == [(1.0, 1.0)]


def test_who_sends_when_a_value_changes_has_no_other_period_though_it_is_calm_for_days() -> None:
    changes = [780.0, 1200.0, 3600.0, 200.0] * 11
    times = list(accumulate(changes + [3600.0] * (BLOCK + 1) * (CONVINCING - 1), initial=1000.0))
    found = blocks(Pace(), times)
    assert len(found) == CONVINCING + 1
    assert {agreed for _, agreed in found} == {None}
    assert found[-1][0] == 3600.0
    # Who has another interval for good is believed in the end.
    assert blocks(Pace(), times + [times[-1] + 3600.0 * k for k in range(1, BLOCK + 2)])[-1] == (3600.0, 3600.0)


def test_the_period_of_an_irregular_reporter_is_short_enough_for_what_comes_soon() -> None:
    first = FirstSamples()
    times = accumulate([780.0, 1200.0, 3600.0, 200.0] * 5, initial=1000.0)
    assert [first.add(time, {"a": 1.0}, time) for time in times][-1] == 60.0
