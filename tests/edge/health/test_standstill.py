"""Runs of equal values against a loop over each channel alone, and which channels are called stuck."""

import json
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedkad.edge.health.standstill import ENOUGH, LEAST, MARGIN, SELDOM, USUAL, Standstill
from tests.fixtures.draws import draws

Array = NDArray[np.float64]


def naive_stuck(values: list[float], learns: list[bool]) -> list[bool]:
    """Of every row of one channel: whether it is stuck there. All values are counted, not only the frequent ones."""
    found: list[bool] = []
    run, last, longest, runs, rows, usual = 0, math.nan, 0, 0, 0, Counter[float]()

    def is_stuck() -> bool:
        moves = runs >= ENOUGH and runs >= SELDOM * rows and max(usual.values(), default=0) <= USUAL * rows
        return run > max(MARGIN * longest, LEAST) and moves

    for value, learn in zip(values, learns, strict=True):
        if value == last:
            run += 1
        else:
            if run and learn and not is_stuck():
                longest, runs, rows = max(longest, run), runs + 1, rows + run
                if run > 1:
                    usual[last] += run
            run = 0 if math.isnan(value) else 1
        last = value
        found.append(is_stuck())
    return found


@st.composite
def channels(draw: st.DrawFn) -> tuple[Array, list[bool]]:
    """Three channels that move, rest, are missing and move again, after a beginning in which they move a lot."""
    columns = []
    for _ in range(3):
        levels = draw(st.sampled_from([2, 3, 6, 50]))
        begin = np.random.default_rng(draw(st.integers(0, 9))).integers(levels, size=400).astype(float)
        pieces = draw(st.lists(st.tuples(st.sampled_from([0.0, 1.0, 77.0, math.nan]), st.integers(1, 60)), max_size=12))
        columns.append(np.concatenate([begin, *(np.full(count, value) for value, count in pieces)]))
    length = min(map(len, columns))
    learns = draw(st.sampled_from([[True] * length, [k % 50 < 40 for k in range(length)]]))
    return np.stack([column[:length] for column in columns], axis=1), learns


@draws(80, derandomize=True)
@given(channels(), st.integers(0, 600))
def test_runs_are_those_of_a_loop_through_a_restart_at_any_row(drawn: tuple[Array, list[bool]], cut: int) -> None:
    rows, learns = drawn
    expected = np.stack([naive_stuck(column.tolist(), learns) for column in rows.T], axis=1)
    runs = Standstill(3)
    for k, (row, learn) in enumerate(zip(rows, learns, strict=True)):
        if k == cut:
            runs = Standstill(3, json.loads(json.dumps(runs.state(), allow_nan=False)))
        runs.add(row, learns=learn)
        # With four counters a value may be counted too low; the values of these channels are few, or none is usual.
        assert runs.stuck() == np.flatnonzero(expected[k]).tolist()


def told(values: Array, **more: bool) -> list[int]:
    """The rows at which one channel is called stuck."""
    runs, found = Standstill(1), []
    for k, value in enumerate(values):
        runs.add(np.array([value]), learns=True, **more)
        found += [k] * bool(runs.stuck())
    return found


def test_a_sensor_with_noise_is_stuck_after_half_an_hour_of_minutes() -> None:
    values = np.random.default_rng(0).normal(size=1000)
    values[700:800] = values[699]
    assert told(values) == list(range(699 + LEAST, 800))


def test_a_rounded_sensor_is_given_three_times_what_it_ever_stood_still() -> None:
    slow = np.repeat(np.arange(200.0) % 37, 15)  # 15 rows at each value
    stuck = np.concatenate([slow, np.full(100, 99.0), slow])
    assert told(stuck) == list(range(len(slow) + 3 * 15, len(slow) + 100))


@pytest.mark.parametrize("kind", ["switch", "set-point", "constant", "small counter", "valve"])
def test_what_rests_by_nature_is_never_stuck(kind: str) -> None:
    generator, rows = np.random.default_rng(1), 20_000
    night = np.arange(rows) % 1440 < 480
    values = {
        "switch": (generator.random(rows) < 0.3) * ~night,
        "set-point": np.where(night, 18.0, 21.0) + np.arange(rows) // 5000,
        "constant": np.full(rows, 3.0),
        "small counter": generator.poisson(0.4, rows) * ~night,
        "valve": np.repeat(generator.normal(size=rows // 50), 50) * ~night,
    }[kind].astype(float)
    values[-3000:] = values[-3001]
    assert told(values) == []
    runs = Standstill(1)
    for value in values:
        runs.add(np.array([value]), learns=True)
    assert runs.rests(0) or kind == "constant", "of that no run has ended"


def test_what_moves_or_is_hardly_known_does_not_rest() -> None:
    runs = Standstill(2)
    for k, value in enumerate(np.random.default_rng(0).normal(size=1000)):
        runs.add(np.array([value, k // 60]), learns=True)
        assert not runs.rests(0)
        assert runs.rests(1) == (k >= 120), "known from a hundred rows on, of runs that have ended"


def test_a_night_without_sun_is_no_longer_than_the_longest_one() -> None:
    day = np.arange(1440)
    energy = np.cumsum(np.tile(np.maximum(np.sin((day - 360) / 1440 * 2 * np.pi), 0.0), 10))
    assert told(energy) == []


def test_a_missing_value_ends_a_run_and_silence_is_not_standing_still() -> None:
    values = np.random.default_rng(0).normal(size=600)
    values[400:420], values[420:500], values[500:520] = 1.5, np.nan, 1.5
    assert told(values) == []


def test_what_was_allowed_is_not_stuck() -> None:
    runs, values = Standstill(1), np.random.default_rng(0).normal(size=300)
    for value in [*values, *[7.0] * (LEAST + 1)]:
        runs.add(np.array([value]), learns=True)
    assert runs.stuck() == [0]
    runs.allow(0, LEAST)
    assert runs.stuck() == []
