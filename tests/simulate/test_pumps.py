"""The synthetic fleet: physics, faults, determinism and files."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from fedkad.simulate import CHANNELS, FAULTS, Fault, Fleet, simulate_fleet, write_fleet
from fedkad.simulate.fleet import START, timestamps
from fedkad.simulate.placement import KEEP_APART, PLANS
from fedkad.simulate.pump import Disturbances, Duty, Pump, draw_pump, follow_duty, operating_flow, respond, run_pump
from fedkad.simulate.recursion import accumulate, first_order_lag, wandering_noise

FloatArray = npt.NDArray[np.float64]

PERIOD = 60.0
PLAUSIBLE = {
    "speed_rpm": (0.0, 3100.0),
    "flow_m3h": (0.0, 250.0),
    "pressure_bar": (0.0, 10.0),
    "valve_pct": (20.0, 100.0),
    "current_a": (0.0, 120.0),
    "vibration_mms": (0.05, 12.0),
    "bearing_temp_c": (5.0, 90.0),
    "motor_temp_c": (5.0, 130.0),
}


def generator(seed: int = 0) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def column(name: str) -> int:
    return CHANNELS.index(name)


def correlation(a: FloatArray, b: FloatArray) -> float:
    return float(np.corrcoef(a, b)[0, 1])


def undisturbed(rows: int) -> Disturbances:
    return Disturbances(*np.zeros((5, rows)))


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return simulate_fleet()


@pytest.fixture(scope="module")
def healthy() -> Fleet:
    return simulate_fleet(faults_per_device=0)


# Recursions


def test_accumulate_equals_the_loop_over_samples() -> None:
    drive = generator().standard_normal((137, 4))
    decay = np.array([0.0, 0.3, 0.9, 0.9999])
    expected = np.empty_like(drive)
    state = np.zeros(4)
    for t, u in enumerate(drive):
        state = decay * state + u
        expected[t] = state
    given = drive.copy()
    np.testing.assert_allclose(accumulate(given, decay), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(given, drive)


def test_first_order_lag_begins_at_its_start_value() -> None:
    decaying = first_order_lag(np.zeros(50), time_constant=300.0, period=PERIOD, start=8.0)
    np.testing.assert_allclose(decaying, 8.0 * np.exp(-np.arange(1, 51) * PERIOD / 300.0), rtol=1e-12)


def test_noise_is_stationary_with_the_stated_memory() -> None:
    first, second = [], []
    for seed in range(400):
        noise = wandering_noise(40, (600.0,), PERIOD, generator(seed))[:, 0]
        first.append(noise[0])
        second.append(noise[-1])
    assert np.std(first) == pytest.approx(1.0, abs=0.12)
    assert np.std(second) == pytest.approx(1.0, abs=0.12)
    long = wandering_noise(100_000, (600.0, 60.0), PERIOD, generator())
    for index, tau in enumerate((600.0, 60.0)):
        assert correlation(long[1:, index], long[:-1, index]) == pytest.approx(np.exp(-PERIOD / tau), abs=0.02)
    assert abs(correlation(long[:, 0], long[:, 1])) < 0.05


# Duty


def test_duty_keeps_the_order_of_its_levels_and_the_stated_lengths() -> None:
    duty = Duty(levels=(0.2, 0.5, 0.9), dwell=1800.0)
    asked = follow_duty(duty, 5000, PERIOD, generator(3))
    changes = np.flatnonzero(np.diff(asked)) + 1
    visited = asked[np.concatenate(([0], changes))]
    order = [duty.levels.index(level) for level in visited]
    assert all((b - a) % 3 == 1 for a, b in pairwise(order))
    lengths = np.diff(changes) * PERIOD
    assert lengths.min() >= 0.6 * 1800.0 - PERIOD
    assert lengths.max() <= 1.4 * 1800.0 + PERIOD
    assert lengths.mean() == pytest.approx(1800.0, rel=0.08)


# Physics


def test_values_are_finite_and_plausible() -> None:
    assert set(PLAUSIBLE) == set(CHANNELS)
    for name, series in simulate_fleet(40, faults_per_device=0, seed=5).train.items():
        assert series.dtype == np.float64
        assert series.shape == (10_000, len(CHANNELS))
        assert np.isfinite(series).all(), name
        for channel, (low, high) in PLAUSIBLE.items():
            values = series[:, column(channel)]
            assert low <= values.min(), (name, channel)
            assert values.max() <= high, (name, channel)
            assert values.std() > 0, (name, channel)


def test_pumps_that_rest_and_pumps_that_run_through_both_occur(healthy: Fleet) -> None:
    slowest = [series[:, column("speed_rpm")].min() for series in healthy.train.values()]
    assert min(slowest) < 1.0
    assert max(slowest) > 700.0


def test_current_follows_hydraulic_power(healthy: Fleet) -> None:
    for name, series in healthy.train.items():
        flow, pressure = series[:, column("flow_m3h")], series[:, column("pressure_bar")]
        assert correlation(series[:, column("current_a")], flow * pressure) > 0.95, name


def test_disturbances_reach_flow_through_the_valve_at_constant_speed() -> None:
    duty = Duty(levels=(0.9,), dwell=3600.0)
    pump = replace(draw_pump(generator(1)), speed_duty=duty, valve_duty=Duty(levels=(0.6,), dwell=3600.0))
    series = run_pump(pump, 4000, PERIOD, generator(2))
    valve, flow = series[:, column("valve_pct")], series[:, column("flow_m3h")]
    pressure = series[:, column("pressure_bar")]
    assert correlation(valve, flow) > 0.5
    assert correlation(flow, pressure) < 0.0


def test_flow_is_where_pump_and_pipe_agree() -> None:
    speed = np.array([0.3, 0.6, 0.9, 1.0])
    valve = np.array([0.7, 0.5, 0.8, 1.0])
    flow = operating_flow(speed, valve, 0.15)
    given_by_pump = speed**2 - 0.2 * flow**2
    asked_by_pipe = 0.15 + 0.65 * (0.5 + 0.5 * (0.7 / valve) ** 2) * flow**2
    assert flow[0] == 0.0
    np.testing.assert_allclose(given_by_pump[1:], asked_by_pipe[1:], rtol=1e-12)


def test_a_pump_at_rest_has_no_flow_and_the_ambient_temperature() -> None:
    pump = replace(draw_pump(generator(4)), ambient_swing=0.0)
    rows = 50
    state = respond(pump, np.zeros(rows), np.full(rows, 0.7), undisturbed(rows), PERIOD)
    expected = [0.0, 0.0, pump.suction_bar, 70.0, 0.0, 0.25, pump.ambient_mean, pump.ambient_mean]
    np.testing.assert_allclose(state, np.broadcast_to(expected, state.shape), rtol=1e-12, atol=1e-12)


def quick_pump() -> Pump:
    """A pump whose shaft and water answer at once, so that only heat has a memory."""
    return replace(draw_pump(generator(6)), speed_lag=1e-3, flow_lag=1e-3, ambient_swing=0.0)


def test_thermal_step_response_has_the_stated_time_constant() -> None:
    pump = replace(quick_pump(), motor_lag=3000.0)
    rest, run = 600, 1200
    asked = np.concatenate((np.zeros(rest), np.ones(run)))
    state = respond(pump, asked, np.full(rest + run, 0.7), undisturbed(rest + run), PERIOD)
    motor = state[:, column("motor_temp_c")]
    cold, warm = motor[rest - 1], motor[-1]
    after_one_constant = motor[rest - 1 + round(3000.0 / PERIOD)]
    assert warm - cold > 20.0
    assert (after_one_constant - cold) / (warm - cold) == pytest.approx(1.0 - np.exp(-1.0), abs=1e-3)


def test_speed_step_response_has_the_stated_time_constant() -> None:
    pump = replace(draw_pump(generator(6)), speed_lag=300.0)
    asked = np.concatenate((np.full(10, 0.5), np.ones(60)))
    speed = respond(pump, asked, np.full(70, 0.7), undisturbed(70), PERIOD)[:, column("speed_rpm")]
    assert speed[9] == pytest.approx(0.5 * pump.rated_rpm)
    assert speed[14] == pytest.approx(pump.rated_rpm * (1.0 - 0.5 * np.exp(-1.0)))


def test_vibration_peaks_at_the_resonance() -> None:
    pump = replace(quick_pump(), resonance=0.5, damping=0.15, unbalance=1.0, turbulence=0.0)
    asked = np.linspace(0.0, 1.0, 201)
    state = respond(pump, asked, np.full(201, 0.7), undisturbed(201), PERIOD)
    peak = asked[np.argmax(state[:, column("vibration_mms")])]
    assert peak == pytest.approx(0.5, abs=0.06)


def test_ambient_has_a_daily_cycle() -> None:
    pump = replace(draw_pump(generator(4)), ambient_swing=4.0)
    rows = 4 * 1440
    state = respond(pump, np.zeros(rows), np.full(rows, 0.7), undisturbed(rows), PERIOD)
    temperature = state[1440:, column("bearing_temp_c")]
    np.testing.assert_allclose(temperature[1440:2880], temperature[:1440], atol=1e-6)
    assert 6.0 < temperature.max() - temperature.min() < 8.0
    assert 14 <= np.argmax(temperature[:1440]) / 60.0 <= 17


def test_devices_differ(healthy: Fleet) -> None:
    means = np.array([series.mean(axis=0) for series in healthy.train.values()])
    distances = np.abs(means[:, None] - means[None]).sum(axis=2)
    assert distances[~np.eye(len(means), dtype=bool)].min() > 1.0


def test_physics_is_in_seconds_not_in_rows() -> None:
    pump = replace(quick_pump(), motor_lag=3000.0)
    asked = np.concatenate((np.zeros(100), np.ones(500)))
    for period in (60.0, 300.0):
        rows = len(asked)
        state = respond(pump, asked, np.full(rows, 0.7), undisturbed(rows), period)
        motor = state[:, column("motor_temp_c")]
        after_one_constant = motor[99 + round(3000.0 / period)]
        share = (after_one_constant - motor[99]) / (motor[-1] - motor[99])
        assert share == pytest.approx(1.0 - np.exp(-1.0), abs=0.06)


# Fault functions

TEST_ROWS = slice(300, 460)


@pytest.fixture(scope="module")
def clean() -> FloatArray:
    pump = replace(
        draw_pump(generator(8)), speed_duty=Duty(levels=(0.6, 0.8, 1.0, 0.8), dwell=2400.0), motor_lag=1800.0
    )
    return run_pump(pump, 1500, PERIOD, generator(9))


def inject(kind: str, series: FloatArray, channel: str, severity: float, seed: int = 0) -> FloatArray:
    faulty, index = series.copy(), column(channel)
    read = FAULTS[kind](series[:, index], TEST_ROWS.start, TEST_ROWS.stop, generator(seed), severity)
    assert read.shape == faulty[TEST_ROWS, index].shape
    faulty[TEST_ROWS, index] = read
    return faulty


def test_there_is_a_plan_for_every_kind() -> None:
    assert set(FAULTS) == set(PLANS) == {"drift", "lag", "decoupling", "spikes", "stuck"}
    for plan in PLANS.values():
        assert set(plan.channels) <= set(CHANNELS)


@pytest.mark.parametrize("kind", list(FAULTS))
@pytest.mark.parametrize("channel", ["flow_m3h", "motor_temp_c"])
def test_a_fault_changes_its_own_channel_and_rows_only(kind: str, channel: str, clean: FloatArray) -> None:
    before = clean.copy()
    faulty = inject(kind, clean, channel, severity=float(clean[:, column(channel)].std()))
    np.testing.assert_array_equal(clean, before)
    changed = faulty != clean
    assert changed[TEST_ROWS, column(channel)].any()
    changed[TEST_ROWS, column(channel)] = False
    assert not changed.any()


@pytest.mark.parametrize("kind", list(FAULTS))
def test_a_fault_is_a_function_of_its_generator(kind: str, clean: FloatArray) -> None:
    once, again = (inject(kind, clean, "flow_m3h", 5.0, seed=3) for _ in range(2))
    np.testing.assert_array_equal(once, again)


def test_drift_grows_steadily_to_its_severity(clean: FloatArray) -> None:
    signs = set()
    for seed in range(12):
        faulty = inject("drift", clean, "motor_temp_c", 6.0, seed)
        difference = (faulty - clean)[TEST_ROWS, column("motor_temp_c")]
        signs.add(float(np.sign(difference[-1])))
        steps = np.diff(np.abs(difference))
        np.testing.assert_allclose(steps, 6.0 / len(difference), rtol=1e-6)
        assert abs(difference[-1]) == pytest.approx(6.0)
    assert signs == {-1.0, 1.0}


@pytest.mark.parametrize("kind", ["drift", "spikes"])
def test_a_reading_near_zero_is_never_pushed_below(kind: str) -> None:
    series = np.full((1500, len(CHANNELS)), 0.5)
    for seed in range(12):
        assert inject(kind, series, "flow_m3h", 2.0, seed).min() == 0.5


def delay(reference: FloatArray, channel: FloatArray) -> int:
    """The shift, in rows, at which a channel correlates most with an earlier reference."""
    shifts = range(-20, 41)
    core = slice(20, len(channel) - 40)
    return max(shifts, key=lambda shift: correlation(np.roll(reference, shift)[core], channel[core]))


def test_lag_moves_the_peak_of_the_cross_correlation() -> None:
    pump = replace(draw_pump(generator(8)), speed_duty=Duty(levels=(0.6, 1.0), dwell=2400.0))
    series = run_pump(replace(pump, valve_duty=Duty(levels=(0.7,), dwell=7200.0)), 1500, PERIOD, generator(9))
    flow = column("flow_m3h")
    spread = float(series[:, flow].std())
    late = FAULTS["lag"](series[:, flow], 200, 1200, generator(), 0.5 * spread)
    speed = series[200:1200, column("speed_rpm")]
    before = delay(speed, series[200:1200, flow])
    after = delay(speed, late)
    assert after >= before + 4
    departure = np.sqrt(np.mean((late - series[200:1200, flow]) ** 2))
    assert 0.5 * spread <= departure < spread
    assert late[0] == series[200, flow]


def test_a_severe_lag_is_slower_than_a_mild_one(clean: FloatArray) -> None:
    spread = float(clean[:, column("flow_m3h")].std())
    departures = []
    for severity in (0.1, 0.3, 0.6):
        faulty = inject("lag", clean, "flow_m3h", severity * spread)
        departures.append(np.sqrt(np.mean((faulty - clean)[TEST_ROWS, column("flow_m3h")] ** 2)))
    assert departures[0] < departures[1] < departures[2]
    assert departures[0] >= 0.1 * spread


def test_decoupling_loses_the_partners_and_keeps_the_spread(clean: FloatArray) -> None:
    flow, speed = column("flow_m3h"), column("speed_rpm")
    truth = clean[TEST_ROWS, flow]
    assert correlation(truth, clean[TEST_ROWS, speed]) > 0.8
    for seed in range(10):
        faulty = inject("decoupling", clean, "flow_m3h", 1.0, seed)[TEST_ROWS, flow]
        assert abs(correlation(faulty, clean[TEST_ROWS, speed])) < 0.45
        assert faulty.std() == pytest.approx(truth.std(), rel=0.4)
        assert abs(faulty.mean() - truth.mean()) < 0.6 * truth.std()
        assert np.isin(faulty, clean[:, flow]).all()


def test_decoupling_refuses_a_series_that_is_too_short() -> None:
    with pytest.raises(ValueError, match="at least 20 rows"):
        FAULTS["decoupling"](np.ones(19), 5, 15, generator(), 1.0)


def test_spikes_are_few_short_and_of_the_stated_height(clean: FloatArray) -> None:
    vibration = column("vibration_mms")
    for seed in range(20):
        faulty = inject("spikes", clean, "vibration_mms", 1.5, seed)
        difference = (faulty - clean)[TEST_ROWS, vibration]
        hit = np.flatnonzero(difference)
        assert 16 <= len(hit) <= 32
        assert hit[0] == 0
        assert hit[-1] == len(difference) - 1
        bursts = np.split(hit, np.flatnonzero(np.diff(hit) > 1) + 1)
        assert len(bursts) == 16
        assert max(len(burst) for burst in bursts) <= 2
        heights = np.abs(difference[hit])
        assert heights.min() >= 0.7 * 1.5 - 1e-9
        assert heights.max() <= 1.3 * 1.5 + 1e-9


@pytest.mark.parametrize("rows", [1, 2, 3, 9, 10, 11, 20, 23])
def test_spikes_fit_faults_of_any_length(rows: int) -> None:
    faulty = FAULTS["spikes"](np.ones(30), 3, 3 + rows, generator(1), 5.0)
    assert len(faulty) == rows
    assert np.flatnonzero(faulty != 1.0)[0] == 0


def test_a_stuck_sensor_is_constant(clean: FloatArray) -> None:
    faulty = inject("stuck", clean, "pressure_bar", 1.0)
    assert (faulty[TEST_ROWS, column("pressure_bar")] == clean[TEST_ROWS.start, column("pressure_bar")]).all()


# The fleet


def test_same_seed_same_bytes_and_another_seed_differs() -> None:
    first, again, other = (simulate_fleet(3, train_rows=700, test_rows=500, seed=seed) for seed in (7, 7, 8))
    assert first.faults == again.faults
    assert first.faults != other.faults
    for name in first.train:
        assert first.train[name].tobytes() == again.train[name].tobytes()
        assert first.test[name].tobytes() == again.test[name].tobytes()
        assert not np.array_equal(first.train[name], other.train[name])


def test_a_large_fleet_begins_with_the_small_one(fleet: Fleet) -> None:
    larger = simulate_fleet(31)
    assert len(larger.train) == 31
    assert list(larger.train)[:12] == list(fleet.train)
    for name in fleet.train:
        assert larger.train[name].tobytes() == fleet.train[name].tobytes()
        assert larger.test[name].tobytes() == fleet.test[name].tobytes()
        assert larger.faults_of(name) == fleet.faults_of(name)


def test_names_stay_unique_and_stable_beyond_ninety_nine() -> None:
    names = list(simulate_fleet(101, train_rows=2, test_rows=160, faults_per_device=0).train)
    assert names[0] == "pump-01"
    assert names[98:] == ["pump-99", "pump-100", "pump-101"]


def test_the_fault_free_part_is_the_healthy_series(fleet: Fleet, healthy: Fleet) -> None:
    for name, test in fleet.test.items():
        np.testing.assert_array_equal(fleet.train[name], healthy.train[name])
        present = ~np.isnan(test).any(axis=1) & ~np.isnan(healthy.test[name]).any(axis=1)
        allowed = np.zeros(test.shape, dtype=bool)
        for fault in fleet.faults_of(name):
            columns = [column(channel) for channel in fault.channels]
            allowed[fault.start : fault.end, columns] = True
            changed = np.not_equal(test, healthy.test[name])[fault.start : fault.end, columns]
            assert changed.any(axis=0).all(), fault
        assert not (np.not_equal(test, healthy.test[name]) & ~allowed)[present].any(), name


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_faults_meet_the_plan_of_the_fleet(seed: int) -> None:
    fleet = simulate_fleet(seed=seed)
    assert {fault.kind for fault in fleet.faults} == set(FAULTS)
    counts = [len(fleet.faults_of(name)) for name in fleet.test]
    assert counts.count(0) == 4
    assert counts.count(2) == 8
    for name, test in fleet.test.items():
        bounds = [
            0,
            *(edge for fault in fleet.faults_of(name) for edge in (fault.start, fault.end)),
            len(test),
        ]
        assert bounds == sorted(bounds)
        assert all(after - before >= KEEP_APART for before, after in list(pairwise(bounds))[2:-2:2])
        for fault in fleet.faults_of(name):
            assert PLANS[fault.kind].rows[0] <= fault.end - fault.start <= PLANS[fault.kind].rows[1]
            assert 1 <= len(fault.channels) <= 2
            assert set(fault.channels) <= set(PLANS[fault.kind].channels)


def test_faults_in_a_fleet_are_of_the_kind_they_are_listed_as(fleet: Fleet, healthy: Fleet) -> None:
    seen = set()
    for fault in fleet.faults:
        for channel in fault.channels:
            rows = slice(fault.start, fault.end), column(channel)
            reading, truth = fleet.test[fault.device][rows], healthy.test[fault.device][rows]
            difference = reading - truth
            if not np.isnan(truth).any():
                steady = bool(np.ptp(np.diff(difference)) < 1e-9)
                few = bool(np.count_nonzero(difference) < 0.25 * len(difference))
                stuck = bool(np.ptp(reading) == 0.0)
                assert (steady, few, stuck) == tuple(fault.kind == k for k in ("drift", "spikes", "stuck")), fault
                if fault.kind == "lag":
                    assert np.abs(np.diff(reading)).max() < np.abs(np.diff(truth)).max()
                if fault.kind == "decoupling":
                    assert abs(correlation(reading, truth)) < 0.5
                seen.add(fault.kind)
    assert seen == set(FAULTS)


def test_drifts_and_spikes_are_scaled_by_the_spread_in_training() -> None:
    fleet, healthy = simulate_fleet(20), simulate_fleet(20, faults_per_device=0)
    ratios: dict[str, list[float]] = {"drift": [], "spikes": []}
    for fault in fleet.faults:
        if fault.kind in ratios:
            for channel in fault.channels:
                rows = slice(fault.start, fault.end), column(channel)
                size = np.nanmax(np.abs(fleet.test[fault.device][rows] - healthy.test[fault.device][rows]))
                ratios[fault.kind].append(float(size / fleet.train[fault.device][:, column(channel)].std()))
    assert len(ratios["drift"]) >= 5
    assert len(ratios["spikes"]) >= 5
    assert min(ratios["drift"]) >= 2.0 * 0.8 - 1e-9
    assert max(ratios["drift"]) <= 2.0 * 1.25 + 1e-9
    assert min(ratios["spikes"]) >= 4.0 * 0.8 * 0.7
    assert max(ratios["spikes"]) <= 4.0 * 1.25 * 1.3


def test_outages_are_whole_rows_in_tests_and_never_touch_a_fault(fleet: Fleet) -> None:
    hit = []
    for name, test in fleet.test.items():
        assert np.isfinite(fleet.train[name]).all()
        missing = np.isnan(test)
        np.testing.assert_array_equal(missing.any(axis=1), missing.all(axis=1))
        rows = np.flatnonzero(missing.all(axis=1))
        if len(rows):
            hit.append(name)
            assert 25 <= len(rows) <= 60
            assert rows[-1] - rows[0] + 1 == len(rows)
            near = slice(max(rows[0] - KEEP_APART, 0), rows[-1] + 1 + KEEP_APART)
            assert not fleet.labels_of(name)[near].any()
    assert hit == ["pump-03", "pump-08"]


def test_shortest_permitted_test_series_holds_its_faults() -> None:
    for seed in range(6):
        fleet = simulate_fleet(9, train_rows=600, test_rows=480, seed=seed)
        for name in fleet.test:
            faults = fleet.faults_of(name)
            assert fleet.labels_of(name).sum() == sum(fault.end - fault.start for fault in faults)
            for before, after in pairwise(faults):
                assert after.start - before.end >= KEEP_APART


def test_a_pump_at_rest_throughout_a_short_training_is_no_error() -> None:
    fleet = simulate_fleet(9, train_rows=2, test_rows=480, period=1.0)
    assert np.isfinite(fleet.train["pump-01"]).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"devices": 0}, "devices"),
        ({"train_rows": 1}, "train_rows"),
        ({"test_rows": 479}, "test_rows >= 480"),
        ({"faults_per_device": -1}, "faults_per_device"),
        ({"period": 0.5}, "period"),
        ({"period": float("nan")}, "period"),
    ],
)
def test_wrong_sizes_are_refused(arguments: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simulate_fleet(**arguments)  # type: ignore[arg-type]


def test_labels_are_half_open_and_join_all_faults() -> None:
    faults = (Fault("a", "stuck", ("flow_m3h",), 2, 4), Fault("a", "drift", ("valve_pct",), 6, 7))
    fleet = Fleet({}, {"a": np.zeros((9, 8)), "b": np.zeros((3, 8))}, faults, PERIOD)
    assert np.flatnonzero(fleet.labels_of("a")).tolist() == [2, 3, 6]
    assert fleet.labels_of("b").tolist() == [False, False, False]
    assert fleet.labels_of("b").dtype == np.bool_


def test_timestamps_continue_from_training_to_test(fleet: Fleet) -> None:
    train, test = fleet.train_times("pump-01"), fleet.test_times("pump-01")
    assert train.dtype == test.dtype == np.dtype("datetime64[s]")
    assert train[0] == START
    joined = np.concatenate((train, test))
    assert (np.diff(joined) == np.timedelta64(60, "s")).all()
    assert len(train) == 10_000
    assert len(test) == 2000
    later = timestamps(3, 2.5)
    assert (later - later[0]).astype(int).tolist() == [0, 2, 5]


# Files


def test_files_parse_back_to_six_digits(tmp_path: Path) -> None:
    fleet = simulate_fleet(3, train_rows=600, test_rows=500)
    write_fleet(fleet, tmp_path / "new" / "folder")
    for part, series_of, times_of in (
        ("train", fleet.train, fleet.train_times),
        ("test", fleet.test, fleet.test_times),
    ):
        folder = tmp_path / "new" / "folder" / part
        assert sorted(path.stem for path in folder.iterdir()) == list(series_of)
        for name, series in series_of.items():
            table = pd.read_csv(folder / f"{name}.csv", parse_dates=["time"])
            assert list(table.columns) == ["time", *CHANNELS]
            assert str(table["time"].dt.tz) == "UTC"
            moments = table["time"].dt.tz_localize(None).to_numpy().astype("datetime64[s]")
            np.testing.assert_array_equal(moments, times_of(name))
            np.testing.assert_allclose(table[list(CHANNELS)].to_numpy(), series, rtol=5.1e-6, atol=0.0)
    assert np.isnan(fleet.test["pump-03"]).any()
    assert "Z,,,,,,,,\n" in (tmp_path / "new/folder/test/pump-03.csv").read_text(encoding="utf-8")


def test_fault_list_parses_back(fleet: Fleet, tmp_path: Path) -> None:
    write_fleet(fleet, tmp_path)
    table = pd.read_csv(tmp_path / "faults.csv")
    assert list(table.columns) == ["device", "kind", "channels", "start", "end"]
    rows = table.itertuples(index=False)
    parsed = [Fault(r.device, r.kind, tuple(r.channels.split(";")), r.start, r.end) for r in rows]
    assert tuple(parsed) == fleet.faults
    assert any(len(fault.channels) == 2 for fault in parsed)
