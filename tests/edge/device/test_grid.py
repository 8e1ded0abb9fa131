"""The grid against a naive one that sees all samples at once, and against what must hold for any samples whatever."""

import json
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkad.edge.device.grid import CONFIRM, COUNTERS, MAX_SUSPECTS, GridRow, SampleGrid
from fedkad.edge.settings import BY_PERIOD, Sampling
from tests.fixtures.draws import draws

Samples = list[tuple[float, dict[str, float]]]
NAMES = ("a", "b", "c")
START = 1_700_000_000.0
YEAR = 365.25 * 86400.0


def sampling(channels: int = 1, **changes: Any) -> Sampling:
    return Sampling(**{"channels": NAMES[:channels], "period": 1.0, "lateness": 0.0, "max_gap": 3.0, **changes})


def fed(grid: SampleGrid, samples: Iterable[tuple[float, dict[str, float]]]) -> list[GridRow]:
    return [row for time, values in samples for row in grid.add(time, values)]


def steady(start: float, count: int, value: float = 1.0, channels: int = 1, period: float = 1.0) -> Samples:
    return [(start + k * period, dict.fromkeys(NAMES[:channels], value + k)) for k in range(count)]


def plain(rows: list[GridRow]) -> list[tuple[float, list[float | None], bool, bool]]:
    """Rows that can be compared, NaN being equal to NaN."""
    return [
        (row.time, [None if np.isnan(value) else float(value) for value in row.values], row.observed, row.complete)
        for row in rows
    ]


def naive_rhythm(silences: list[tuple[str, int, int]], name: str) -> int:
    """Slots for which a channel is silent by its rhythm: what it repeated today or yesterday, and a quarter more."""
    if not silences:
        return 0
    now = silences[-1][1]
    longest = sorted(silence for each, day, silence in silences if each == name and now - 1 <= day <= now)
    return int(1.25 * longest[-3]) if len(longest) >= 3 else 0


def naive_rows(plan: Sampling, samples: Samples) -> list[GridRow]:
    """All rows of samples none of which is late, off the clock or a duplicate, slot by slot."""
    origin = samples[0][0]
    slots: dict[int, dict[str, float]] = {}
    for time, measurements in samples:
        slots.setdefault(int(np.floor((time - origin) / plan.period + 0.5)), {}).update(measurements)
    rows: list[GridRow] = []
    measured: dict[str, tuple[int, float]] = {}
    silences: list[tuple[str, int, int]] = []
    for slot in range(min(slots), max(slots) + 1):
        held, now = slots.get(slot, {}), origin + slot * plan.period
        for name in held:
            if name in measured and 1 < slot - measured[name][0] <= 86400.0 / plan.period:
                silences.append((name, int(now // 86400), slot - measured[name][0]))
        measured |= {name: (slot, value) for name, value in held.items()}
        values, usual = np.full(len(plan.channels), np.nan), True
        for k, name in enumerate(plan.channels):
            age, rhythm = slot - measured.get(name, (-(10**9), 0.0))[0], naive_rhythm(silences, name)
            reach = max(3, rhythm) if plan.max_gap == BY_PERIOD else int(plan.max_gap / plan.period + 1e-9)
            if age <= reach:
                values[k] = measured[name][1]
            usual = usual and (not age or age <= min(rhythm, reach))
        void, partial = np.isnan(values).all(), np.isnan(values).any()
        if (partial and len(measured) < len(plan.channels)) or (void and rows and np.isnan(rows[-1].values).all()):
            continue
        rows.append(GridRow(now, values, bool(held), usual))
    return rows


@st.composite
def punctual(draw: st.DrawFn) -> tuple[Sampling, Samples]:
    """Samples of up to three channels in the order of their arrival, none later than allowed."""
    period = draw(st.sampled_from([1.0, 0.1, 60.0]))
    lateness = period * draw(st.sampled_from([0.0, 1.0, 2.5]))
    max_gap = draw(st.sampled_from([0.0, period, 3.0 * period, 20.0 * period, BY_PERIOD]))
    channels = NAMES[: draw(st.integers(1, 3))]
    arrivals: list[tuple[float, float, dict[str, float]]] = []
    slot = 0
    for number in range(draw(st.integers(1, 40))):
        for name in draw(st.sets(st.sampled_from(channels), min_size=1)):
            jitter = draw(st.sampled_from([-0.4, 0.0, 0.4])) if arrivals else 0.0
            time = START + (slot + jitter) * period
            delay = draw(st.sampled_from([0.0, 0.5, 1.0])) * lateness if arrivals else -period
            arrivals.append((time + delay, time, {name: float(100 * number + NAMES.index(name))}))
        slot += draw(st.sampled_from([1, 1, 1, 2, 6]))
    ordered = [(time, values) for _, time, values in sorted(arrivals, key=lambda arrival: arrival[0])]
    return Sampling(channels=channels, period=period, lateness=lateness, max_gap=max_gap), ordered


@draws(100, derandomize=True)
@given(punctual())
def test_the_rows_are_those_of_all_samples_at_once_in_whatever_order_they_came(drawn: tuple[Sampling, Samples]) -> None:
    plan, samples = drawn
    grid = SampleGrid(plan)
    rows = fed(grid, samples) + grid.flush()
    assert plain(rows) == plain(naive_rows(plan, samples))
    assert (grid.late, grid.duplicates, grid.off_clock, grid.jumps) == (0, 0, 0, 0)
    assert grid.rows == len(rows)
    assert grid.broken == ("gap" if rows and np.isnan(rows[-1].values).any() else None)


@st.composite
def anything(draw: st.DrawFn) -> tuple[Sampling, Samples]:
    """Samples whose clock does as it likes; every value occurs once."""
    plan = sampling(draw(st.integers(1, 3)), lateness=draw(st.sampled_from([0.0, 2.0, 30.0])))
    samples, time = [], START
    steps = st.sampled_from([1.0, 1.0, 1.0, 1.0, 0.0, 0.3, 2.0, -0.6, -1.0, -3.0, 8.0, 14.0, -90.0, 3e7])
    for number in range(draw(st.integers(0, 50))):
        names = draw(st.sampled_from([NAMES, NAMES, NAMES[:1], NAMES[1:]]))
        samples.append((time, {name: 10.0 * number + k for k, name in enumerate(plan.channels) if name in names}))
        time += draw(steps)
    return plan, samples


@draws(200, derandomize=True)
@given(anything())
def test_an_unbroken_stretch_has_a_row_for_each_slot_and_no_value_older_than_allowed(
    drawn: tuple[Sampling, Samples],
) -> None:
    plan, samples = drawn
    measured = {value: time for time, values in samples for value in values.values()}
    grid = SampleGrid(plan)
    rows: list[GridRow] = []
    for time, values in samples:
        rows += grid.add(time, values)
        assert grid.broken in ((None,) if not rows or np.isfinite(rows[-1].values).all() else ("gap", "clock"))
    rows += grid.flush()
    for row, after in pairwise(rows):
        if np.isfinite([*row.values, *after.values]).all():
            assert after.time - row.time == pytest.approx(plan.period, abs=1e-6)
    for row in rows:
        ages = [row.time - measured[value] for value in row.values if not np.isnan(value)]
        assert all(-0.5 <= age <= plan.max_gap + 0.5 for age in ages)
        assert not row.complete or np.isfinite(row.values).all()
    assert not rows or np.isfinite(rows[0].values).any()


@draws(100, derandomize=True)
@given(anything())
def test_nothing_is_lost_and_nothing_is_counted_twice(drawn: tuple[Sampling, Samples]) -> None:
    plan = sampling(1, lateness=drawn[0].lateness)
    samples = [(time, {"a": float(k)}) for k, (time, _) in enumerate(drawn[1])]
    grid = SampleGrid(plan)
    rows = fed(grid, samples) + grid.flush()
    waiting = len(grid.state()["aside"])
    assert sum(row.observed for row in rows) + grid.late + grid.duplicates + grid.off_clock + waiting == len(samples)


@draws(100, derandomize=True)
@given(anything(), st.integers(0, 50))
def test_a_grid_goes_on_from_its_state_as_if_nothing_had_happened(drawn: tuple[Sampling, Samples], cut: int) -> None:
    plan, samples = drawn
    unbroken = SampleGrid(plan)
    before = fed(unbroken, samples[:cut])
    resumed = SampleGrid(plan, json.loads(json.dumps(unbroken.state(), allow_nan=False)))
    assert resumed.broken == unbroken.broken
    after = [fed(grid, samples[cut:]) + grid.flush() for grid in (unbroken, resumed)]
    assert plain(after[0]) == plain(after[1])
    assert unbroken.state() == resumed.state()
    assert unbroken.rows == len(before) + len(after[0])


def test_a_state_of_other_channels_gives_its_counters_only() -> None:
    grid = SampleGrid(sampling())
    fed(grid, steady(START, 5))
    other = SampleGrid(sampling(2), grid.state())
    assert other.rows == 5
    assert other.add(5.0, {"a": 1.0, "b": 2.0})[0].time == 5.0
    assert SampleGrid(sampling(), SampleGrid(sampling()).state()).state() == SampleGrid(sampling()).state()


def test_a_complete_sample_is_the_next_row_as_it_stands() -> None:
    grid = SampleGrid(sampling(2, lateness=60.0))
    rows = fed(grid, steady(START, 4, channels=2))
    assert [row.time for row in rows] == [START, START + 1, START + 2, START + 3]
    assert rows[-1].values.tolist() == [4.0, 4.0]
    assert all(row.complete and row.observed for row in rows)
    with pytest.raises(ValueError, match="read-only"):
        rows[-1].values[0] = 0.0


def test_values_of_channels_of_other_devices_are_passed_over() -> None:
    grid = SampleGrid(sampling(2))
    assert len(grid.add(START, {"a": 1.0, "b": 2.0, "x": 3.0})) == 1
    assert grid.add(START + 1, {"x": 3.0, "y": 4.0}) == []
    assert grid.add(START + 1, {"a": 1.0, "y": 4.0}) == []
    assert [row.values.tolist() for row in grid.add(START + 1, {"b": 7.0})] == [[1.0, 7.0]]
    assert grid.duplicates == grid.late == 0


def test_jitter_of_less_than_half_a_period_does_no_harm() -> None:
    grid = SampleGrid(sampling(period=10.0))
    times = [START + 10 * k + jitter for k, jitter in enumerate([0, 4.9, -4.9, 3, -5, 0])]
    rows = [row for time in times for row in grid.add(time, {"a": time})]
    assert [row.time - START for row in rows] == [0, 10, 20, 30, 40, 50]
    assert all(row.complete for row in rows)


def test_channels_of_one_slot_come_one_by_one_and_the_first_of_each_counts() -> None:
    grid = SampleGrid(sampling(2, lateness=5.0))
    assert grid.add(START, {"a": 1.0}) == []
    assert grid.add(START + 0.2, {"a": 9.0}) == []
    assert plain(grid.add(START + 0.3, {"b": 2.0})) == [(START, [1.0, 2.0], True, True)]
    assert grid.add(START + 0.4, {"b": 8.0, "a": 8.0}) == []
    assert (grid.duplicates, grid.late) == (1, 2)


def test_a_slot_waits_for_as_long_as_lateness_says() -> None:
    grid = SampleGrid(sampling(2, lateness=2.0))
    fed(grid, steady(START, 1, channels=2))
    assert fed(grid, [(START + 1, {"a": 5.0}), (START + 2, {"a": 6.0, "b": 6.0}), (START + 3.4, {"a": 7.0})]) == []
    rows = grid.add(START + 3.5, {"b": 7.0})  # the end of slot 1 plus two seconds
    assert plain(rows)[0] == (START + 1, [5.0, 1.0], True, False)
    assert plain(rows)[1] == (START + 2, [6.0, 6.0], True, True)
    assert grid.carried == 1
    assert grid.add(START + 1, {"b": 5.0}) == []
    assert grid.late == 1


def test_what_was_measured_before_the_first_to_arrive_is_no_less_welcome() -> None:
    grid = SampleGrid(sampling(2, lateness=3.0))
    assert fed(grid, [(START, {"a": 1.0}), (START - 1, {"a": 0.0, "b": 0.0})])[0].time == START - 1
    assert grid.add(START - 1.6, {"a": 3.0}) == []
    assert grid.late == 1


def test_a_grid_that_closed_nothing_yet_still_takes_what_was_measured_before_after_a_restart() -> None:
    grid = SampleGrid(sampling(2, lateness=3.0))
    grid.add(START, {"a": 1.0})
    resumed = SampleGrid(sampling(2, lateness=3.0), grid.state())
    assert resumed.add(START - 1, {"a": 0.0, "b": 0.0})[0].time == START - 1


def test_a_repeated_message_is_late_and_not_off_the_clock() -> None:
    grid = SampleGrid(sampling())
    fed(grid, [*steady(START, 3), (START + 2, {"a": 9.0}), (START + 1.6, {"a": 9.0})])
    assert (grid.late, grid.state()["aside"]) == (2, [])


def test_a_clock_may_run_ahead_by_as_much_as_values_may_be_late() -> None:
    grid = SampleGrid(sampling(lateness=30.0))
    assert fed(grid, [*steady(START, 1), (START + 20, {"a": 9.0})])[-1].time == START
    assert plain(grid.flush())[-1] == (START + 20, [9.0], True, True)


def test_a_gap_of_three_tenths_is_three_tenths_long() -> None:
    """0.3 / 0.1 is less than 3 in floating point."""
    grid = SampleGrid(sampling(period=0.1, max_gap=0.3))
    rows = fed(grid, [(START, {"a": 1.0}), (START + 0.4, {"a": 2.0})])
    assert [row.values.tolist() for row in rows] == [[1.0], [1.0], [1.0], [1.0], [2.0]]


def test_silence_closes_what_is_open_and_no_more() -> None:
    grid = SampleGrid(sampling(2, lateness=9.0))
    fed(grid, steady(START, 2, channels=2))
    assert grid.flush() == []
    assert grid.add(START + 3, {"a": 4.0}) == []
    assert plain(grid.flush()) == [
        (START + 2, [2.0, 2.0], False, False),
        (START + 3, [4.0, 2.0], True, False),
    ]
    assert grid.flush() == []
    assert grid.carried == 3


def test_a_gap_is_filled_while_that_is_allowed_then_breaks_the_window_once() -> None:
    grid = SampleGrid(sampling())
    fed(grid, steady(START, 2))
    rows = grid.add(START + 9, {"a": 7.0})
    assert [row.time - START for row in rows] == [2, 3, 4, 5, 9]
    assert plain(rows)[2] == (START + 4, [2.0], False, False)
    assert np.isnan(rows[3].values).all()
    assert not rows[3].observed
    assert rows[4].complete
    assert grid.broken is None
    assert grid.carried == 3


def test_a_channel_that_died_breaks_the_window_in_every_row() -> None:
    grid = SampleGrid(sampling(2, max_gap=2.0))
    fed(grid, steady(START, 1, channels=2))
    rows = fed(grid, [(START + k, {"a": float(k)}) for k in range(1, 7)])
    assert [bool(np.isnan(row.values[1])) for row in rows] == [False, False, True, True, True]
    assert all(np.isfinite(row.values[0]) and row.observed and not row.complete for row in rows)
    assert grid.broken == "gap"
    assert fed(grid, steady(START + 7, 1, channels=2))[-1].complete
    assert grid.broken is None


def test_rows_before_every_channel_was_seen_are_dropped_in_silence() -> None:
    grid = SampleGrid(sampling(2, max_gap=1.0))
    rows = fed(grid, [(START + k, {"a": float(k)}) for k in range(9)])
    assert (rows, grid.rows, grid.broken) == ([], 0, None)
    assert plain(grid.add(START + 9, {"b": 1.0}) + grid.flush()) == [(START + 9, [8.0, 1.0], True, False)]


@pytest.mark.parametrize("wild", [4_102_444_800.0, 5.0])
def test_a_single_wild_time_changes_nothing(wild: float) -> None:
    calm, grid = SampleGrid(sampling(lateness=2.0)), SampleGrid(sampling(lateness=2.0))
    samples = steady(START, 12)
    rows = fed(grid, [*samples[:6], (wild, {"a": -1.0}), *samples[6:9], (wild, {"a": -1.0}), *samples[9:]])
    assert plain(rows) == plain(fed(calm, samples))
    assert (grid.off_clock, grid.jumps, grid.late) == (2, 0, 0)


def test_wild_times_that_do_not_agree_are_never_believed() -> None:
    grid = SampleGrid(sampling())
    fed(grid, steady(START, 3))
    assert fed(grid, [(START + 1e6 * k, {"a": 0.0}) for k in (5, 3, 9, 9, 9, 9, 9, 1, 7, 2)]) == []
    assert grid.off_clock == 9
    assert len(fed(grid, steady(START + 3, 1))) == 1
    assert grid.off_clock == 10


@pytest.mark.parametrize(("shift", "why"), [(-7200.0, "clock"), (7200.0, "gap")])
def test_another_clock_is_taken_over_once_enough_samples_agree(shift: float, why: str) -> None:
    grid = SampleGrid(sampling(2, lateness=2.0))
    fed(grid, steady(START, 5, channels=2))
    grid.add(START + 5, {"a": 50.0})
    moved = steady(START + shift + 0.25, CONFIRM + 2, 70.0, channels=2)
    assert fed(grid, moved[: CONFIRM - 1]) == []
    assert grid.broken is None
    rows = grid.add(*moved[CONFIRM - 1])
    assert plain(rows)[0] == (START + 5, [50.0, 5.0], True, False)
    assert plain(rows)[1] == (START + 6, [None, None], False, False)
    assert [row.time for row in rows[2:]] == [time for time, _ in moved[:CONFIRM]]
    assert [row.values[0] for row in rows[2:]] == [70.0, 71.0, 72.0, 73.0, 74.0]
    assert (grid.jumps, grid.off_clock, grid.broken) == (1, 0, None)
    assert len(fed(grid, moved[CONFIRM:])) == 2
    partial = SampleGrid(sampling(2, lateness=2.0))
    fed(partial, steady(START, 5, channels=2))
    fed(partial, [(time, {"a": 1.0}) for time, _ in moved])
    assert partial.broken == why


def test_messages_of_one_moment_are_one_voice_for_another_clock() -> None:
    grid = SampleGrid(sampling(3))
    fed(grid, steady(START, 3, channels=3))
    ones = [(START + 5000 + k + 0.01 * j, {NAMES[j]: float(k)}) for k in range(CONFIRM) for j in range(3)]
    assert fed(grid, ones[: 3 * CONFIRM - 3]) == []
    assert grid.jumps == 0
    rows = fed(grid, ones[-3:])
    assert [row.complete for row in rows] == [False] + [True] * CONFIRM
    same = SampleGrid(sampling(3))
    fed(same, steady(START, 3, channels=3))
    assert len(fed(same, [(5.0 + k, {name: 1.0}) for k in range(CONFIRM) for name in NAMES])) == 1 + CONFIRM
    assert same.duplicates == same.late == same.off_clock == 0


@pytest.mark.parametrize("lateness", [0.0, 1.0])
@pytest.mark.parametrize("shift", [-900.0, 60.0, 900.0])
def test_another_clock_is_believed_though_its_samples_come_out_of_order(lateness: float, shift: float) -> None:
    grid = SampleGrid(sampling(2, lateness=lateness))
    fed(grid, steady(START, 3, channels=2))
    pairs = [((START + shift + k, {"a": 1.0}), (START + shift + k - 0.1, {"b": 1.0})) for k in range(12)]
    rows = fed(grid, [sample for pair in pairs for sample in pair])
    assert grid.jumps == 1
    assert sum(row.complete for row in rows) == 12


def test_a_device_that_boots_in_1970_is_followed_into_the_present() -> None:
    grid = SampleGrid(sampling())
    rows = fed(grid, steady(4.0, 3) + steady(START, 20, 50.0))
    assert [row.time for row in rows[:4]] == [4.0, 5.0, 6.0, 7.0]
    assert np.isnan(rows[3].values).all()
    assert [row.time for row in rows[4:]] == [START + k for k in range(20)]
    assert grid.off_clock == 0


def test_a_clock_that_stands_still_fills_no_memory() -> None:
    grid = SampleGrid(sampling())
    fed(grid, steady(START, 3))
    assert fed(grid, [(0.0, {"a": 1.0})] * (3 * MAX_SUSPECTS)) == []
    assert len(grid.state()["aside"]) == MAX_SUSPECTS
    assert grid.off_clock == 2 * MAX_SUSPECTS
    assert len(fed(grid, steady(START + 3, 1))) == 1


@pytest.mark.parametrize("lateness", [0.0, 2 * YEAR])
def test_a_gap_of_a_year_takes_no_time(lateness: float) -> None:
    """With a period of a millisecond its slots could not be counted one by one."""
    plan = sampling(period=0.001, max_gap=0.005, lateness=lateness)
    grid = SampleGrid(plan)
    fed(grid, steady(START, 3, period=0.001))
    rows = fed(grid, steady(START + YEAR, CONFIRM, period=0.001)) + grid.flush()
    assert len(rows) <= 6 + CONFIRM
    assert sum(np.isnan(row.values).all() for row in rows) == 1
    assert rows[-1].time == pytest.approx(START + YEAR + 0.004)


def test_counters_are_plain_integers() -> None:
    grid = SampleGrid(sampling(2))
    fed(grid, [(START, {"a": 1.0, "b": 2.0}), (START + 1, {"a": 1.0}), (START + 3, {"a": 1.0})])
    assert all(type(getattr(grid, name)) is int for name in COUNTERS)


# -- slow and irregular reporters -------------------------------------------------------------------------------------


def irregular(intervals: Iterable[float]) -> Samples:
    times = START + np.cumsum([0.0, *intervals])
    return [(float(time), {"a": float(k)}) for k, time in enumerate(times)]


@pytest.mark.parametrize("arrives", [True, False])
def test_a_device_that_is_slower_than_its_grid_is_held_and_nothing_is_set_aside(arrives: bool) -> None:
    """One sample in 11 s on a grid of 1 s, live or from a file."""
    grid, rows = SampleGrid(sampling(max_gap=BY_PERIOD)), list[GridRow]()
    for time, values in irregular([11.0] * 1999):
        rows += grid.add(time, values, time if arrives else None)
    assert (grid.off_clock, grid.state()["aside"]) == (0, [])
    assert sum(row.observed for row in rows) == 2000
    assert sum(row.complete for row in rows[100:]) == len(rows) - 100  # the values between are held, and learned from
    assert len(rows) > 21_900


@pytest.mark.parametrize("arrives", [True, False])
def test_four_weeks_of_reports_on_change_with_a_sign_of_life_every_hour(arrives: bool) -> None:
    generator = np.random.default_rng(0)
    intervals, time = [], 0.0
    while time < 28 * 86400.0:
        is_day = 6 <= time / 3600 % 24 < 23
        change = generator.exponential(240.0 if is_day else 9000.0)
        intervals.append(float(min(max(change, 5.0), 3600.0)))
        time += intervals[-1]
    grid, rows = SampleGrid(sampling(period=60.0, max_gap=BY_PERIOD)), list[GridRow]()
    for moment, values in irregular(intervals):
        rows += grid.add(moment, values, moment + 0.3 if arrives else None)
    assert grid.off_clock == 0
    lost = sum(bool(np.isnan(row.values).any()) for row in rows)
    assert lost <= 40  # most of them in the first night
    assert sum(row.complete for row in rows) > 0.97 * 28 * 1440


def test_an_outage_is_no_rhythm() -> None:
    grid = SampleGrid(sampling(period=60.0, max_gap=BY_PERIOD))
    rows = fed(grid, irregular([60.0] * 100 + [600.0] + [60.0] * 100 + [600.0] + [60.0] * 5))
    assert sum(bool(np.isnan(row.values).any()) for row in rows) == 2
    assert grid.rhythm == 0.0


def test_a_rhythm_is_forgotten_after_two_days() -> None:
    grid = SampleGrid(sampling(period=60.0, max_gap=BY_PERIOD))
    fed(grid, irregular([300.0] * 10 + [60.0] * 60))
    assert grid.rhythm == 360.0
    fed(grid, irregular([60.0] * 3 * 1440 + [120.0]))
    assert grid.rhythm == 0.0


def test_a_time_that_agrees_with_its_arrival_is_never_set_aside() -> None:
    grid = SampleGrid(sampling())
    fed(grid, steady(START + 7200.0, 5))  # a clock that was an hour or two ahead
    (gap, row) = grid.add(START + 40.0, {"a": 1.0}, START + 41.0)
    assert (grid.broken, row.time, gap.observed) == (None, START + 40.0, False)
    assert plain(grid.add(START + 9040.0, {"a": 2.0}, START + 9040.0))[-1] == (START + 9040.0, [2.0], True, True)
    assert grid.add(START + 20_000.0, {"a": 2.0}, START + 9041.0) == []  # and one that does not agree still is
    assert grid.off_clock == 0


def test_a_dead_channel_leaves_the_rhythm_of_the_others_alone() -> None:
    """Every slot has its row while a value is held, even if another channel is missing: there is no hidden gap."""
    grid = SampleGrid(sampling(2, max_gap=BY_PERIOD))
    fed(grid, steady(START, 2, channels=2))
    rows = fed(grid, [(START + 2 + 3 * k, {"a": float(k)}) for k in range(20)])
    assert np.diff([row.time for row in rows]).tolist() == [1.0] * (len(rows) - 1)
    assert np.isfinite([row.values[0] for row in rows]).all()
