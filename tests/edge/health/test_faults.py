"""Faults of sensors: what begins and ends each, against a loop that sees all rows at once, and through restarts."""

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedkad.edge.alert import FaultAlert, FaultKind, Reason, from_json
from fedkad.edge.alerttext import span
from fedkad.edge.device.grid import GridRow
from fedkad.edge.health.faults import Beyond, Health
from fedkad.edge.settings import Sampling
from fedkad.settingkinds import parse_duration
from tests.fixtures.alerts import as_json
from tests.fixtures.draws import draws

Alert = dict[str, Any]
NAMES = ("flow", "heat")
PLAN = Sampling(channels=NAMES, period=1.0, max_gap=2.0, stale_after=10.0)
LIMIT = 100.0
"""A value above this is impossible."""


def fed(health: Health, rows: Sequence[tuple[float, float, float]], restarts: bool = False) -> list[Alert]:
    """Rows of a time and two values."""
    alerts: list[Alert] = []
    for time, *values in rows:
        row = GridRow(time, np.array(values), not np.isnan(values).all(), bool(np.isfinite(values).all()))
        beyond = [Beyond(k, 0.0, 1.0) for k, value in enumerate(values) if value > LIMIT]
        alerts += as_json(health.take(row, beyond, memory=5))
        if restarts:
            health = Health("pump", PLAN, json.loads(json.dumps(health.state(), allow_nan=False)))
    return alerts


def shown(alerts: list[Alert]) -> list[tuple[str, str, str | None]]:
    return [(alert["event"], alert["fault"], alert["channel"]) for alert in alerts]


def noisy(count: int, first: int = 0) -> list[tuple[float, float, float]]:
    values = np.random.default_rng(first).random((count, 2))
    return [(float(first + k), float(a), float(b)) for k, (a, b) in enumerate(values)]


Times = list[tuple[float, str]]


def naive(rows: Sequence[tuple[float, float, float]], channel: int, fault: str) -> Times:
    """The starts and ends of one fault of one channel, in rows a second apart."""
    found: Times = []
    is_open, gone, missing = False, math.nan, math.nan
    for time, *values in rows:
        value = values[channel]
        if fault == "impossible":
            holds = value > LIMIT
        else:
            missing = (time if math.isnan(missing) else missing) if math.isnan(value) else math.nan
            holds = time - missing >= 10.0 - 2.0
        if holds:
            gone = math.nan
            if not is_open:
                is_open = True
                found.append((time, "start"))
        elif is_open:
            gone = time if math.isnan(gone) else gone
            if time - gone >= 10.0:
                is_open, gone = False, math.nan
                found.append((time, "end"))
    return found


values = st.sampled_from([0.5, 0.7, math.nan, 999.0])
courses = st.lists(st.tuples(values, values, st.integers(1, 14)), max_size=12)


def played(course: Sequence[tuple[float, float, int]]) -> list[tuple[float, float, float]]:
    rows = [(a, b) for a, b, count in course for _ in range(count)]
    return [(float(time), a, b) for time, (a, b) in enumerate(rows) if not (math.isnan(a) and math.isnan(b))]


@draws(150, derandomize=True)
@given(courses)
def test_faults_are_those_of_a_loop_over_each_channel(course: list[tuple[float, float, int]]) -> None:
    rows = played(course)
    alerts = fed(Health("pump", PLAN), rows)
    for k, name in enumerate(NAMES):
        for fault in ("impossible", "channel silent"):
            mine = [each for each in alerts if (each["fault"], each["channel"]) == (fault, name)]
            told = [(float(each["time"][17:23]) + 60.0 * float(each["time"][14:16]), each["event"]) for each in mine]
            assert told == naive(rows, k, fault)


@draws(40, derandomize=True)
@given(courses)
def test_faults_are_well_formed_and_a_restart_at_any_row_changes_nothing(
    course: list[tuple[float, float, int]],
) -> None:
    rows = noisy(120) + [(time + 120.0, a, b) for time, a, b in played(course)] + noisy(40, 400)
    health = Health("pump", PLAN)
    alerts = fed(health, rows)
    assert fed(Health("pump", PLAN), rows, restarts=True) == alerts
    opened: dict[str, tuple[str, str | None]] = {}
    for alert in alerts:
        what = (alert["fault"], alert["channel"])
        if alert["event"] == "start":
            assert what not in opened.values()
            opened[alert["id"]] = what
        else:
            assert opened.pop(alert["id"]) == what
        assert alert["fault"] in set(FaultKind)
        assert alert["duration"] >= 0.0
    assert [(each.fault, each.channel) for each in health.open] == list(opened.values())
    assert health.count == sum(alert["event"] == "start" for alert in alerts)


def test_a_stuck_channel_is_told_while_it_is_stuck_and_its_release_is_no_news() -> None:
    rows = noisy(200)
    rows[150:190] = [(time, 0.25, b) for time, _, b in rows[150:190]]
    health = Health("pump", PLAN)
    (start,) = fed(health, rows[:190])
    assert shown([start]) == [("start", "stuck", "flow")]
    assert (start["start"], start["time"]) == ("1970-01-01T00:02:30.000Z", "1970-01-01T00:03:00.000Z")
    assert start["sentence"] == "flow has been 0.25 for 31 s, and never the same for more than 1 s before"
    assert health.faulty == [0]
    assert not health.is_recovering(189.0)
    fed(health, rows[190:191])
    assert health.faulty == []
    assert [health.is_recovering(time) for time in (190.0, 194.0, 195.0)] == [True, True, False]
    (end,) = fed(health, noisy(11, 191))
    assert (end["event"], end["duration"], end["reason"]) == ("end", 40.0, "recovered")
    assert end["text"].startswith("pump: over, lasted 40 s; flow has been 0.25")


def test_a_channel_that_is_silent_is_told_soon_once_it_has_shown_that_it_sends_often() -> None:
    plan = Sampling(channels=NAMES, period=1.0)  # stale after ten seconds
    for steady, told in ((20, 6 * 3600.0), (150, 10.0)):
        health = Health("pump", plan)
        rows = [(time, math.nan, b) for time, _, b in noisy(6 * 3600 + 300, steady)]
        (start,) = fed(health, [*noisy(steady), *rows])
        assert shown([start]) == [("start", "channel silent", "flow")]
        assert start["duration"] == told
        (fault,) = health.open  # described as it is now, to a tenth
        words = f"flow has sent nothing for {span(fault.duration)}, and the others are judged without it"
        assert (fault.sentence, fault.text) == (words, f"pump: {words}")
        assert fault.duration <= 6 * 3600 + 300 <= 1.1 * fault.duration


def test_a_silence_that_is_no_fault_yet_is_no_news_when_it_ends() -> None:
    health = Health("pump", Sampling(channels=NAMES, period=1.0))
    assert fed(health, [*noisy(20), *((time, math.nan, b) for time, _, b in noisy(15, 20)), *noisy(1, 35)]) == []
    assert [health.is_recovering(time) for time in (35.0, 39.0, 40.0)] == [True, True, False]


def test_an_impossible_value_is_told_with_bounds_that_differ() -> None:
    health = Health("pump", Sampling(channels=("pressure",), period=1.0))
    (alert,) = as_json(health.take(GridRow(0.0, np.array([-4000.0]), True, True), [Beyond(0, 1012.66, 1013.41)]))
    assert alert["sentence"] == "pressure is -4000, which is impossible where 1012.7 to 1013.4 is normal"


def test_what_comes_and_goes_is_one_fault() -> None:
    rows = [(float(k), 999.0 if k % 9 == 0 and k < 100 else 0.5, 0.5) for k in range(120)]
    assert shown(fed(Health("pump", PLAN), rows)) == [("start", "impossible", "flow"), ("end", "impossible", "flow")]


def test_a_device_that_answers_now_and_then_is_silent_once() -> None:
    health, alerts = Health("pump", PLAN), []
    for k in range(6):
        alerts += fed(health, noisy(3, 100 * k))
        alerts += as_json(health.note_silence(100.0 * k + 13.0, 100.0 * k + 3.0, "no sample has come for 10 s"))
    assert shown(alerts) == [("start", "silent", None)]
    assert shown(fed(health, noisy(11, 600))) == [("end", "silent", None)]


def test_an_interval_is_told_until_it_is_the_period() -> None:
    health = Health("pump", PLAN)
    health.note_interval(3600.0)
    (alert,) = fed(health, noisy(5))
    advice = 'samples come every 1 h, but the period is 1 s; set period = "3600s" in [sampling]'
    assert (alert["sentence"], parse_duration("3600s")) == (advice, 3600.0)
    health.note_interval(None)
    assert shown(fed(health, noisy(20, 5))) == [("end", "period", None)]


def test_maintenance_ends_what_is_open() -> None:
    health = Health("pump", PLAN)
    fed(health, [(0.0, 999.0, 1.0)])
    (alert,) = as_json(health.silence(5.0, Reason.MAINTENANCE))
    assert (alert["event"], alert["reason"], alert["duration"]) == ("end", "maintenance", 5.0)
    assert health.silence(6.0, Reason.MUTED) == health.open == []


def test_the_fault_of_a_channel_that_is_gone_ends() -> None:
    health = Health("pump", PLAN)
    fed(health, [(0.0, 999.0, 1.0)])
    other = Health("pump", Sampling(channels=("heat",), period=1.0, max_gap=2.0, stale_after=10.0), health.state())
    (alert,) = as_json(other.take(GridRow(1.0, np.array([1.0]), True, True)))
    assert (alert["event"], alert["reason"]) == ("end", "channel removed")


def test_a_clock_that_is_set_back_holds_nothing_up() -> None:
    health, day = Health("pump", PLAN), 86400.0
    later = [(time + day, a, b) for time, a, b in noisy(200)]
    later[160:198] = [(time, 0.25, b) for time, _, b in later[160:198]]
    assert shown(fed(health, [*later, (later[-1][0] + 1.0, 999.0, 0.3)])) == [
        ("start", "stuck", "flow"),
        ("start", "impossible", "flow"),
    ]
    assert shown(fed(health, noisy(12))) == [("end", "stuck", "flow"), ("end", "impossible", "flow")]
    assert not health.is_recovering(12.0)


def test_what_has_recovered_is_over_when_the_clock_is_set_back() -> None:
    rows = noisy(300)
    rows[150:190] = [(time, 0.25, b) for time, _, b in rows[150:190]]
    health = Health("pump", PLAN)
    assert [event for event, *_ in shown(fed(health, [(1e9 + time, a, b) for time, a, b in rows]))] == ["start", "end"]
    assert fed(health, noisy(5)) == []
    assert not health.is_recovering(4.0), "no incident would begin for 31 years"


def test_what_a_person_accepts_is_not_told_again() -> None:
    def rows(first: int) -> list[tuple[float, float, float]]:
        return [(time, 0.25, b) if first <= time < first + 40 else (time, a, b) for time, a, b in noisy(first + 60)]

    health = Health("pump", PLAN)
    alerts = fed(health, rows(150))
    assert shown(alerts) == [("start", "stuck", "flow"), ("end", "stuck", "flow")]
    over = from_json(alerts[1])
    assert isinstance(over, FaultAlert)
    assert health.accept(over, 300.0) == [], "it is over"
    assert fed(health, [(time + 500.0, a, b) for time, a, b in rows(20)]) == []


def test_an_older_state_has_no_faults_and_one_of_other_channels_no_runs() -> None:
    assert Health("pump", PLAN, {}).open == []
    health = Health("pump", PLAN)
    fed(health, noisy(300))
    stands = [(float(k), 7.0, 8.0) for k in range(300, 340)]
    assert len(fed(Health("pump", PLAN, health.state()), stands)) == 2
    swapped = Sampling(channels=NAMES[::-1], period=1.0, max_gap=2.0, stale_after=10.0)
    assert fed(Health("pump", swapped, health.state()), stands) == []
