"""The simulated house of `measurements.house`, and the replay of its messages through a real agent."""

from __future__ import annotations

import time
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkad.edge.settings.file import parse
from measurements.house import Measured, arriving, at, configuration, delay, false_alarms, is_false
from measurements.house_model import BEGAN, DAY, DURATIONS, MINUTE, WEEK, House, HouseFault, simulate_house, with_faults
from measurements.replay import IncidentSpan, Operator, incidents, replay, seconds
from measurements.servers import Watched, compared


@pytest.fixture(scope="module")
def house() -> House:
    return simulate_house(seed=3, days=14)


def test_twins_differ_only_in_the_rows_of_faults(house: House) -> None:
    faulty = with_faults(house, seed=3, begin=WEEK, repeats=1)
    kinds = [fault.kind for fault in faulty.faults]
    assert {kind: kinds.count(kind) for kind in kinds} == {kind: 3 - (kind == "decoupling") for kind in DURATIONS}
    for device, channels in house.rows.items():
        own = sorted((fault for fault in faulty.faults if fault.device == device), key=lambda fault: fault.start)
        assert all(before.end + 240 <= after.start for before, after in pairwise(own))
        for name, values in channels.items():
            may_differ = np.zeros(len(values), dtype=bool)
            for fault in own:
                if fault.channel == name:
                    may_differ[fault.start : fault.end] = True
            differs = faulty.rows[device][name] != values
            assert not differs[~may_differ].any()
            assert differs.any() == may_differ.any()
        lost = faulty.arrives[device] != house.arrives[device]
        silent = next(fault for fault in own if fault.kind == "silent")
        assert silent.start <= np.flatnonzero(lost)[0] <= np.flatnonzero(lost)[-1] < silent.end


def test_the_hour_is_in_every_message_and_an_input_of_every_detector(house: House) -> None:
    hour = "day and week"
    (_, first), *_, (_, later) = islice(arriving(house, WEEK + 1, hour), WEEK + 1)
    phases = [{name: value for name, value in each[0].items() if name.startswith("hour.")} for each in (first, later)]
    assert len(phases[0]) == 8
    assert phases[0] == pytest.approx(phases[1], abs=1e-9)  # a week later it is the same
    document = configuration(house, (), hour)
    assert set(parse(document, Path()).devices) == set(house.rows)
    for device, settings in document["override"].items():
        assert settings["sampling"]["channels"] == [*house.rows[device], *phases[0]]
        assert set(settings["detector"]["inputs"]) >= set(phases[0])


def test_faults_have_the_stated_sizes(house: House) -> None:
    faulty = with_faults(house, seed=3, begin=WEEK, repeats=1)
    sizes = {"spike": 8.0, "blip": 8.0, "shift": 4.0, "drift": 5.0}
    for fault in faulty.faults:
        rows = slice(fault.start, fault.end)
        assert fault.end - fault.start == DURATIONS[fault.kind]
        if fault.kind in sizes:
            unit = 2.5 if fault.device == "plug" else 1.0
            off = np.abs(faulty.rows[fault.device][fault.channel][rows] - house.rows[fault.device][fault.channel][rows])
            assert abs(off[-1] - sizes[fault.kind] * unit) <= 0.5  # readings are rounded, voltages to 1 V
        if fault.kind == "stuck":
            assert len(set(faulty.rows[fault.device][fault.channel][fault.start - 1 : fault.end])) == 1


def test_a_higher_setpoint_changes_nothing_before_and_warms_the_room_after(house: House) -> None:
    warmer = simulate_house(seed=3, days=14, warmer_from=WEEK)
    for device, channels in house.rows.items():
        for name, values in channels.items():
            assert np.array_equal(warmer.rows[device][name][:WEEK], values[:WEEK])
    gained = (warmer.rows["climate"]["temperature"] - house.rows["climate"]["temperature"])[-3 * DAY :]
    assert 2.0 < np.median(gained) < 3.5


@pytest.mark.slow
def test_two_days_of_one_device_go_through_a_real_agent(house: House) -> None:
    """It learns from what comes first, tells a gross fault when it comes, and leaves the clock as it was."""
    values = house.rows["climate"]["temperature"].copy()
    values[2500:2520] += 12.0  # gross, not impossible
    began = time.monotonic()
    for temperature, told in ((values, True), (house.rows["climate"]["temperature"], False)):
        alone = House({"climate": {**house.rows["climate"], "temperature": temperature}}, house.arrives)
        settings = ["learning.first=1500", "alarm.budget=", "alarm.threshold=8", "alarm.rate_limit=0"]
        operator = Operator(lambda alert: True, after=300.0)
        alerts = replay(configuration(alone, settings), arriving(alone, 2 * DAY), operator)
        found = incidents(alerts)
        # It ends after as much quiet as it lasted.
        assert [each.device for each in found if at(2500) <= each.told <= at(2505) < each.end <= at(2620)] == told * [
            "climate"
        ]
        assert all(each.start >= at(1500) for each in found)
        answered = [alert["acknowledged"] for alert in alerts if alert["event"] == "update" and alert["acknowledged"]]
        assert bool(answered) == told
    assert time.monotonic() - began < 1e6  # not the simulated one


def test_what_counts_as_found_and_as_false() -> None:
    fault = HouseFault("shift", "plug", "voltage", WEEK + 1000, WEEK + 1360)
    early, during, late, after = (
        IncidentSpan("plug", "score", at(WEEK + row), at(WEEK + row + 1), at(WEEK + row + 30), 0, "")
        for row in (900, 1010, 1370, 1500)
    )
    other = during._replace(device="climate")
    assert [is_false(each, [fault]) for each in (early, during, late, after, other)] == [True, False, False, True, True]
    assert delay(fault, [during, late]) == 11.0
    assert delay(fault, [early, late, other]) is None
    assert delay(HouseFault("blip", "plug", "voltage", WEEK + 999, WEEK + 1000), [during]) == 12.0
    measured = Measured((fault,), [early, during, late, after, early._replace(start=at(10), end=at(20))], 0.0)
    assert false_alarms(measured, 2) == pytest.approx(2 / 3)
    assert false_alarms(measured, 2, device="plug") == 2.0


def test_alerts_are_gathered_by_incident() -> None:
    start: dict[str, Any] = {"id": "a", "device": "plug", "event": "start", "kind": "score", "witness": "fit"}
    times = {"start": "2026-01-05T00:01:00.000Z", "time": "2026-01-05T00:03:00.000Z"}
    alerts = [{**start, **times, "channels": [{"channel": "power"}]}, {**start, **times, "event": "update"}]
    assert incidents(alerts) == [
        IncidentSpan("plug", "score", BEGAN + MINUTE, BEGAN + 3 * MINUTE, float("inf"), 1, "power fit")
    ]
    assert incidents([*alerts, {**start, **times, "event": "end"}])[0].end == seconds(times["time"])


def test_incidents_of_a_server_are_compared_with_its_labels() -> None:
    labels = np.zeros(WEEK, dtype=bool)
    labels[100:110] = labels[500:520] = True
    spans = [(50, 60), (1050, 1060), (1095, 1100), (1150, 1151), (1171, 1172), (1499, 1600)]
    found = [IncidentSpan("a", "score", at(start), at(start), at(end), 2, "") for start, end in spans]
    health = IncidentSpan("a", "health", at(1300), at(1300), at(1301), 0, "")
    lasted = (10 + 5 + 1 + 1 + 101) / WEEK
    assert compared([*found, health], 1000, labels) == pytest.approx(
        Watched(1.0, 2, 1, 2, 0, 2, 10, lasted)
    )  # both began before
    assert compared(found[3:4], 1000, labels) == pytest.approx(Watched(1.0, 0, 0, 2, 0, 0, 2, 1 / WEEK))
    for row, told in [(1099, 0), (1100, 1), (1134, 1), (1135, 0)]:
        alert = health._replace(start=at(row), told=at(row), end=at(row + 1))
        met = int(told or row < 1110)
        assert compared([found[3], alert], 1000, labels) == pytest.approx(Watched(1.0, 0, 0, 2, told, met, 2, 1 / WEEK))
