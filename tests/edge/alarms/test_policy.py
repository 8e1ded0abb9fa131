"""The policy of alarms: every rule by an example, and what must hold for any row of scores."""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedkad import KoopmanDetector
from fedkad.detect.series import Series
from fedkad.detect.stream import Reading
from fedkad.edge.alarms import Alarms
from fedkad.edge.alarms.tally import BUCKETS
from fedkad.edge.alert import Reason
from fedkad.edge.device.grid import GridRow
from fedkad.edge.settings import USUAL_WINDOW, Alarm
from tests.fixtures.alerts import as_json
from tests.fixtures.draws import draws

Array = NDArray[np.float64]
Alert = dict[str, Any]

NAMES = ["flow", "pressure", "level"]
THRESHOLD = 6.0
SHARP = Alarm(clear_after=0.0, cool_down=0.0, rate_limit=0.0, update_every=0.0)


EXPLAINED = np.array([3.0, 6.0, 1.0]), np.array([1.0, 3.2, 0.0]), np.array([1.5, 5.1, 0.0])
"""Shares, values seen and values expected, by channel."""


class StubReading(Reading):
    """A reading with the shares and expectations that a test wants; without them it must not be explained."""

    inputs: Sequence[str] = ()

    @property
    def commands(self) -> list[str]:
        return list(self.inputs)

    def __init__(
        self, score: float, threshold: float, abnormal: bool, explained: tuple[Array, Array, Array] | None
    ) -> None:
        seen = np.zeros(0) if explained is None else explained[1]
        super().__init__(score, threshold, abnormal, "ok", 0, seen, *[None] * 3)  # type: ignore[arg-type]
        self._explained = explained

    @property
    def shares(self) -> Array:
        assert self._explained is not None, "explaining is costly"
        return self._explained[0]

    @property
    def expected(self) -> Array:
        assert self._explained is not None, "explaining is costly"
        return self._explained[2]


def update(
    alarms: Alarms,
    time: float,
    score: float,
    threshold: float,
    abnormal: bool,
    *,
    observed: bool = True,
    explained: tuple[Array, Array, Array] = EXPLAINED,
) -> list[Alert]:
    """Let the policy take one row; only abnormal rows that were observed may be explained."""
    reading = StubReading(score, threshold, abnormal, explained if abnormal and observed else None)
    return as_json(alarms.update(GridRow(time, reading.seen, observed, observed), reading))


class FarReading(StubReading):
    """A reading whose second channel is so far from where it has been."""

    far = 0.0

    @property
    def outside_by_channel(self) -> Array:
        return np.array([0.0, self.far, 0.0])


def stray(
    alarms: Alarms, outside: Iterable[float], start: float, score: float = 3.0, inputs: Sequence[str] = ()
) -> list[Alert]:
    """Rows a minute apart that are so far outside, all with one score."""
    alerts = []
    for k, far in enumerate(outside):
        reading = FarReading(score, THRESHOLD, score > THRESHOLD, EXPLAINED)
        reading.far, reading.inputs = far, inputs
        alerts += as_json(alarms.update(GridRow(start + 60.0 * k, reading.seen, True, True), reading, outside=far))
    return alerts


DWELLING = Alarm(clear_after=60.0, cool_down=0.0, update_every=0.0, rate_window=3600.0, rate_limit=0.2)


def test_a_device_that_stays_where_it_has_not_been_is_told_although_no_score_is_abnormal() -> None:
    alarms = Alarms("pump", DWELLING, 60.0, NAMES)
    assert stray(alarms, [0.0] * 60, 0.0) == []
    (begun,) = stray(alarms, [2.5] * 30, 3600.0)
    assert (begun["event"], begun["kind"], begun["reason"]) == ("start", "rate", "rate")
    assert begun["time"] == "1970-01-01T01:11:00.000Z", "a fifth of an hour"
    assert stray(Alarms("pump", DWELLING, 60.0, NAMES), [1.9] * 200, 0.0) == []


def test_an_incident_goes_on_while_a_channel_of_it_is_where_it_has_not_been() -> None:
    alarms = Alarms("pump", DWELLING, 60.0, NAMES)
    (begun,) = stray(alarms, [0.5], 0.0, score=9.0)
    assert begun["event"] == "start"
    assert stray(alarms, [0.5] * 120, 60.0) == [], "the score is quiet, and the level is not the old one"
    (end,) = stray(alarms, [0.1] * 10, 121 * 60.0)
    assert (end["event"], end["reason"], end["duration"]) == ("end", "cleared", 120 * 60.0)
    # Another channel that is outside keeps it open only if it went there within an hour before it began.
    for before, reasons in [(0, ["cleared"]), (5, []), (60, []), (61, ["cleared"])]:
        alarms = Alarms("pump", replace(DWELLING, rate_limit=0.0), 60.0, NAMES)
        assert stray(alarms, [0.5] * before, -60.0 * before) == []
        reading = FarReading(10.0, THRESHOLD, True, (np.array([8.0, 1.0, 1.0]), *EXPLAINED[1:]))
        reading.far = 0.5 if before else 0.0
        alarms.update(GridRow(0.0, reading.seen, True, True), reading, outside=reading.far)
        restored = Alarms(
            "pump", replace(DWELLING, rate_limit=0.0), 60.0, NAMES, json.loads(json.dumps(alarms.state()))
        )
        for policy in (alarms, restored):
            assert [alert["reason"] for alert in stray(policy, [0.5] * 10, 60.0)] == reasons


def test_a_level_that_comes_by_day_and_goes_at_night_is_one_incident() -> None:
    alarms = Alarms("pump", DWELLING, 60.0, NAMES)
    day, night = [4.0] * 840, [0.0] * 600
    alerts = stray(alarms, day + night + day[:300], 0.0)
    assert [alert["event"] for alert in alerts] == ["start"]
    # A night ends it only if no day follows.
    assert stray(alarms, night, 1740 * 60.0) == []
    assert [alert["reason"] for alert in stray(alarms, night, 2340 * 60.0)] == ["cleared"]
    restored = Alarms("pump", DWELLING, 60.0, NAMES, json.loads(json.dumps(alarms.state())))
    assert restored.state() == alarms.state()


def test_a_set_point_may_have_left_within_a_day_before_its_incident() -> None:
    for command, hours, reasons in [("pressure", 10, []), ("pressure", 25, ["cleared"]), ("flow", 10, ["cleared"])]:
        inputs = [command]
        alarms = Alarms("pump", DWELLING, 60.0, NAMES)
        stray(alarms, [0.5] * (60 * hours), 0.0, inputs=inputs)
        begun = 3600.0 * hours
        reading = FarReading(10.0, THRESHOLD, True, (np.array([8.0, 1.5, 0.5]), *EXPLAINED[1:]))
        reading.far, reading.inputs = 0.5, inputs
        (start,) = as_json(alarms.update(GridRow(begun, reading.seen, True, True), reading, outside=0.5))
        assert start["event"] == "start"
        assert [alert["reason"] for alert in stray(alarms, [0.5] * 300, begun + 60.0, inputs=inputs)] == reasons
        # By night it is where it was, and the incident waits for the day.
        if not reasons:
            assert stray(alarms, [0.0] * 250, begun + 301 * 60.0, inputs=inputs) == []
            assert [each["reason"] for each in stray(alarms, [0.0] * 60, begun + 551 * 60.0)] == ["cleared"]
    # What has no part in the score, or was told already, did not begin it.
    for share, told in [(0.1, False), (1.5, True)]:
        alarms = Alarms("pump", DWELLING, 60.0, NAMES)
        stray(alarms, [0.5] * 120, 0.0, inputs=NAMES)
        if told:
            alarms.silence(7200.0)
        reading = FarReading(10.0, THRESHOLD, True, (np.array([8.0, share, 0.5]), *EXPLAINED[1:]))
        reading.far, reading.inputs = 0.5, NAMES
        alarms.update(GridRow(7200.0, reading.seen, True, True), reading, outside=0.5)
        assert [alert["reason"] for alert in stray(alarms, [0.5] * 10, 7260.0, inputs=NAMES)] == ["cleared"]


def test_a_set_point_has_no_part_in_a_score_that_is_not_finite() -> None:
    alarms = Alarms("pump", DWELLING, 60.0, NAMES)
    stray(alarms, [0.5] * 120, 0.0, inputs=NAMES)
    reading = FarReading(math.inf, THRESHOLD, True, (np.array([math.inf, math.inf, 0.0]), *EXPLAINED[1:]))
    reading.far, reading.inputs = 0.5, NAMES
    (start,) = as_json(alarms.update(GridRow(7200.0, reading.seen, True, True), reading, outside=0.5))
    assert (start["event"], alarms.state()["incident"]["episode"]["departed"]) == ("start", "")


def test_who_is_away_is_looked_at_once_a_minute_and_when_an_incident_begins() -> None:
    looks: list[float] = []

    class Costly(FarReading):
        @property
        def outside_by_channel(self) -> Array:
            looks.append(self.far)
            return super().outside_by_channel

    alarms = Alarms("pump", DWELLING, 1.0, NAMES)
    for second in range(630):
        reading = Costly(3.0 if second < 629 else 10.0, THRESHOLD, second == 629, EXPLAINED)
        reading.far = 0.5 if second >= 10 else 0.0
        alerts = as_json(alarms.update(GridRow(float(second), reading.seen, True, True), reading, outside=reading.far))
        assert len(looks) == second // 60 or second == 629
    assert [alert["event"] for alert in alerts] == ["start"]
    assert alarms.state()["away"] == {"pressure": 60.0}
    # What left a moment ago is known when an incident begins, though nobody has looked yet.
    alarms = Alarms("pump", DWELLING, 1.0, NAMES)
    stray(alarms, [0.0] * 3, 0.0)
    stray(alarms, [0.5], 121.0, score=10.0)
    assert alarms.state()["incident"]["episode"]["departed"] == "pressure"


ECHOING = replace(DWELLING, budget="1/week", rate_limit=0.0)


def flare(alarms: Alarms, minute: int, score: float, minutes: int = 1, *, by: Array = EXPLAINED[0]) -> list[str]:
    """The events of a flare of so many minutes, and of ten quiet ones."""
    scores = [score] * minutes + [1.0] * 10
    return [
        alert["event"]
        for k, each in enumerate(scores)
        for alert in update(
            alarms, 60.0 * (minute + k), each, THRESHOLD, each > THRESHOLD, explained=(by, *EXPLAINED[1:])
        )
    ]


def test_with_a_budget_the_echo_of_an_incident_is_not_told() -> None:
    alarms, again, other = Alarms("pump", ECHOING, 60.0, NAMES), ["update", "end"], np.array([1.0, 0.0, 6.0])
    assert flare(alarms, 0, 8.0) == ["start", "end"]
    assert flare(alarms, 60, 9.9) == [], "hardly worse than the last"
    restored = Alarms("pump", ECHOING, 60.0, NAMES, json.loads(json.dumps(alarms.state())))
    for policy in (alarms, restored):
        assert flare(policy, 120, 10.1) == again, "a score a quarter higher is news,"
        assert flare(policy, 180, 10.1, by=other) == again, "and so is another channel,"
        assert flare(policy, 240, 10.1, 90) == again, "or what lasts for an hour"
        assert (policy.incidents, policy.begun_since(0.0)) == (1, 4)
        assert flare(policy, 720, 10.1) == ["start", "end"], "six hours are over"


def test_an_incident_that_comes_back_is_the_same_one() -> None:
    alarms = Alarms("pump", ECHOING, 60.0, NAMES)
    begun, ended = feed(alarms, [8.0, *[1.0] * 10], 0.0, 60.0)
    back, over = feed(alarms, [11.0, *[1.0] * 10], 3600.0, 60.0)
    assert back["id"] == over["id"] == begun["id"] == ended["id"]
    assert (back["event"], back["reason"], back["start"], back["peak"]) == ("update", "again", begun["start"], 11.0)
    assert back["text"].startswith("pump, again: ")
    assert (over["reason"], over["duration"], over["samples"]) == ("cleared", 3600.0, 2)
    # One that became normal is over, and the next one is another.
    (update,) = feed(alarms, [14.0], 7200.0, 60.0)
    assert update["reason"] == "again"
    alarms.silence(7260.0, Reason.SETTLED)
    assert feed(alarms, [18.0], 7320.0, 60.0)[0]["event"] == "start"


def test_what_comes_back_is_told_as_it_is_now() -> None:
    alarms = Alarms("pump", ECHOING, 60.0, NAMES)
    feed(alarms, [12.0, *[1.0] * 10], 0.0, 60.0)
    explained = (np.array([1.0, 0.0, 6.0]), *EXPLAINED[1:])
    (back,) = update(alarms, 3600.0, 8.0, THRESHOLD, True, explained=explained)
    assert (back["reason"], back["peak"], back["worst"]) == ("again", 12.0, back["time"])
    assert back["channels"][0]["channel"] == NAMES[2]
    assert NAMES[2] in back["text"]


def test_what_became_normal_may_echo_for_as_long_as_it_took() -> None:
    alarms = Alarms("pump", replace(ECHOING, settle=86400.0), 60.0, NAMES)
    update(alarms, 0.0, 9.0, THRESHOLD, True)
    assert [alert["event"] for alert in as_json(alarms.silence(86400.0, Reason.SETTLED))] == ["end"]
    assert flare(alarms, 1440 + 700, 9.0, by=np.array([1.0, 0.0, 6.0])) == [], "whatever the channel"
    assert flare(alarms, 1440 + 1430, 9.0) == []
    assert flare(alarms, 1440 + 1450, 9.0) == ["start", "end"]
    without = Alarms("pump", replace(ECHOING, budget=""), 60.0, NAMES)
    assert flare(without, 0, 8.0) == flare(without, 60, 8.0) == ["start", "end"]


@pytest.mark.parametrize(
    ("minute", "score", "blamed", "budget", "told"),
    [
        (180, 8.0, "pressure", "1/week", []),  # an echo
        (180, 8.0, "pressure", "", []),
        (180, 12.0, "pressure", "1/week", ["end", "update"]),  # worse: the same once more
        (180, 8.0, "level", "1/week", ["end", "update"]),  # another channel, at once
        (180, 8.0, "level", "", ["end", "start"]),
        (500, 8.0, "pressure", "1/week", ["end", "start"]),  # too late for an echo
        (500, 8.0, "pressure", "", []),
    ],
)
def test_an_incident_that_waits_for_its_level_to_come_back_gives_way_to_news(
    minute: int, score: float, blamed: str, budget: str, told: list[str]
) -> None:
    alarms = Alarms("pump", replace(DWELLING, budget=budget, rate_limit=0.0), 60.0, NAMES)
    (begun,) = stray(alarms, [4.0] * 600, -599 * 60.0, score=9.0)
    assert stray(alarms, [0.0] * minute, 60.0) == [], "it is quiet, and not for as long as it lasted"
    shares = np.where(np.array(NAMES) == blamed, 6.0, 1.0)
    alerts = update(alarms, 60.0 * (minute + 1), score, THRESHOLD, True, explained=(shares, *EXPLAINED[1:]))
    assert [alert["event"] for alert in alerts] == told
    assert [alert["id"] == begun["id"] for alert in alerts] == [True, "update" in told][: len(told)]
    if not told:  # nor does it wait for longer
        alerts = stray(alarms, [0.0] * (600 - minute - 1), 60.0 * (minute + 2), score=5.9)
        assert [(alert["event"], alert["duration"]) for alert in alerts] == [("end", 599 * 60.0)]


def test_an_incident_that_waits_goes_on_when_its_level_comes_back() -> None:
    alarms = Alarms("pump", ECHOING, 60.0, NAMES)
    (begun,) = stray(alarms, [4.0] * 600, -599 * 60.0, score=9.0)
    assert stray(alarms, [0.0] * 500, 60.0) == []
    assert stray(alarms, [4.0] * 600, 501 * 60.0, score=9.0) == []
    alerts = stray(alarms, [0.0] * 721, 1101 * 60.0)
    assert [(alert["event"], alert["id"]) for alert in alerts] == [("end", begun["id"])]


@pytest.mark.parametrize("blamed", ["pressure", "level"])
def test_what_follows_a_new_set_point_late_belongs_to_it(blamed: str) -> None:
    shares = np.where(np.array(NAMES) == blamed, 6.0, 1.0)
    for inputs, told in [(NAMES, []), ([], ["end", "start"])]:
        alarms = Alarms("pump", ECHOING, 60.0, NAMES)
        stray(alarms, [4.0] * 600, -599 * 60.0, score=9.0, inputs=inputs)
        stray(alarms, [0.0] * 500, 60.0, inputs=inputs)
        reading = FarReading(8.0, THRESHOLD, True, (shares, *EXPLAINED[1:]))
        reading.inputs = inputs
        alerts = as_json(alarms.update(GridRow(501 * 60.0, reading.seen, True, True), reading))
        assert [alert["event"] for alert in alerts] == told


def blame(name: str) -> tuple[Array, Array, Array]:
    """An explanation of a row by which most of its score is of that channel."""
    return np.where(np.array(NAMES) == name, 6.0, 1.0), *EXPLAINED[1:]


def test_another_cause_is_told_while_an_incident_is_open() -> None:
    settings = replace(DWELLING, rate_limit=0.0)
    alarms = Alarms("pump", settings, 60.0, NAMES)
    (begun,) = update(alarms, 0.0, 7.0, THRESHOLD, True, explained=blame("flow"))
    assert update(alarms, 60.0, 8.0, THRESHOLD, True, explained=blame("flow")) == [], "the same, and worse"
    assert update(alarms, 120.0, 10.1, THRESHOLD, True, explained=blame("level")) == [], "it spreads"
    assert update(alarms, 180.0, 8.0, THRESHOLD, True, explained=blame("flow")) == []
    assert update(alarms, 3600.0, 12.6, THRESHOLD, True, explained=blame("level")) == [], "not a quarter higher"
    restored = Alarms("pump", settings, 60.0, NAMES, json.loads(json.dumps(alarms.state())))
    for policy in (alarms, restored):
        (told,) = update(policy, 3660.0, 12.7, THRESHOLD, True, explained=blame("level"))
        assert (told["event"], told["reason"], told["id"]) == ("update", "another", begun["id"])
        assert told["channels"][0]["channel"] == "level"
        assert told["text"].startswith("pump, and another cause: level ")
        assert update(policy, 3720.0, 17.0, THRESHOLD, True, explained=blame("level")) == [], "it is about that now"
        assert update(policy, 3780.0, 17.0, THRESHOLD, True, explained=blame("pressure")) == []
        alerts = feed(policy, [1.0] * 3, 3840.0, 60.0)
        assert [(alert["event"], alert["peak"], alert["samples"]) for alert in alerts] == [("end", 17.0, 8)]
        assert (policy.incidents, policy.begun_since(0.0)) == (1, 2)


def test_another_cause_is_told_once_it_has_lasted() -> None:
    alarms = Alarms("pump", replace(DWELLING, rate_limit=0.0, min_duration=120.0), 60.0, NAMES)
    assert [len(update(alarms, 60.0 * k, 8.0, THRESHOLD, True, explained=blame("flow"))) for k in range(3)] == [0, 0, 1]
    assert update(alarms, 3600.0, 12.0, THRESHOLD, True, explained=blame("level")) == []
    assert update(alarms, 3660.0, 8.0, THRESHOLD, True, explained=blame("flow")) == [], "it was too short"
    found = [update(alarms, 3720.0 + 60.0 * k, 16.0, THRESHOLD, True, explained=blame("level")) for k in range(3)]
    assert [[alert["reason"] for alert in alerts] for alerts in found] == [[], [], ["another"]]
    assert found[2][0]["samples"] == 8, "also the one that was too short"


def blamed(alarms: Alarms, minute: int, score: float, name: str, far: float) -> list[Alert]:
    """One row of a device whose second channel is so far from where it has been, and which blames another one."""
    reading = FarReading(score, THRESHOLD, score > THRESHOLD, blame(name))
    reading.far = far
    return as_json(alarms.update(GridRow(60.0 * minute, reading.seen, True, True), reading, outside=far))


def test_two_brief_moments_of_another_channel_are_no_cause_that_lasts() -> None:
    alarms = Alarms("pump", replace(DWELLING, rate_limit=0.0, min_duration=120.0), 60.0, NAMES)
    assert [len(blamed(alarms, k, 8.0, "pressure", 4.0)) for k in range(3)] == [0, 0, 1]
    assert blamed(alarms, 100, 12.0, "level", 4.0) == []
    assert stray(alarms, [4.0] * 60, 101 * 60.0) == [], "its level stays, and all else is quiet"
    found = [[alert["reason"] for alert in blamed(alarms, 200 + k, 16.0, "level", 4.0)] for k in range(3)]
    assert found == [[], [], ["another"]]


def test_an_incident_has_lasted_until_its_level_came_back_although_another_channel_spoke_before() -> None:
    alarms = Alarms("pump", replace(DWELLING, rate_limit=0.0), 60.0, NAMES)
    assert len(blamed(alarms, 0, 8.0, "pressure", 4.0)) == 1
    assert blamed(alarms, 100, 9.0, "level", 4.0) == []
    assert stray(alarms, [4.0] * 100, 101 * 60.0, score=5.5) == []
    (ended,) = stray(alarms, [0.0] * 202, 201 * 60.0)
    assert (ended["event"], ended["duration"]) == ("end", 200 * 60.0)


def test_another_cause_that_is_critical_is_told_though_it_is_hardly_higher() -> None:
    alarms = Alarms("pump", replace(DWELLING, rate_limit=0.0, update_every=0.0), 60.0, NAMES)
    (begun,) = update(alarms, 0.0, 17.0, THRESHOLD, True, explained=blame("flow"))
    assert update(alarms, 3600.0, 17.5, THRESHOLD, True, explained=blame("level")) == []
    (told,) = update(alarms, 3660.0, 18.0, THRESHOLD, True, explained=blame("level"))
    assert (told["reason"], told["severity"], told["id"]) == ("worse", "critical", begun["id"])
    assert (told["peak"], told["channels"][0]["channel"]) == (18.0, "level")
    assert update(alarms, 3720.0, 19.0, THRESHOLD, True, explained=blame("level")) == [], "that is known"
    (told,) = update(alarms, 3780.0, 22.0, THRESHOLD, True, explained=blame("level"))
    assert told["reason"] == "another"


def test_another_cause_is_told_though_the_clock_was_set_back() -> None:
    alarms = Alarms("pump", replace(DWELLING, rate_limit=0.0), 60.0, NAMES)
    update(alarms, 1e9, 8.0, THRESHOLD, True, explained=blame("flow"))
    (told,) = update(alarms, 0.0, 12.0, THRESHOLD, True, explained=blame("level"))
    assert told["reason"] == "another"


def test_what_follows_a_new_set_point_has_to_be_higher_to_be_another_cause() -> None:
    for inputs, score, told in [(["pressure"], 10.4, []), (["pressure"], 10.6, ["another"]), ([], 8.8, ["another"])]:
        alarms = Alarms("pump", DWELLING, 60.0, NAMES)
        stray(alarms, [4.0], 0.0, score=7.0, inputs=inputs)
        reading = FarReading(score, THRESHOLD, True, blame("level"))
        reading.far, reading.inputs = 4.0, inputs
        alerts = as_json(alarms.update(GridRow(3600.0, reading.seen, True, True), reading, outside=4.0))
        assert [alert["reason"] for alert in alerts] == told


def test_what_lasts_is_news_although_an_incident_of_the_same_channel_waits() -> None:
    alarms = Alarms("pump", replace(ECHOING, rate_limit=0.2), 60.0, NAMES)
    stray(alarms, [4.0] * 600, -599 * 60.0, score=9.0)
    assert stray(alarms, [0.0] * 200, 60.0) == []
    alerts = [alert for k in range(80) for alert in update(alarms, 60.0 * (201 + k), 8.0, THRESHOLD, True)]
    assert [(alert["event"], alert["reason"]) for alert in alerts] == [("end", "cleared"), ("update", "again")]


def test_nothing_is_told_of_an_incident_while_it_is_quiet() -> None:
    alarms = Alarms("pump", replace(DWELLING, update_every=600.0), 60.0, NAMES)
    assert [alert["event"] for alert in stray(alarms, [4.0] * 240, 0.0, score=9.0)] == ["start"] + ["update"] * 4
    (end,) = stray(alarms, [0.0] * 300, 240 * 60.0)
    assert (end["event"], end["duration"]) == ("end", 239 * 60.0)


def feed(alarms: Alarms, scores: Iterable[float], start: float = 0.0, period: float = 1.0) -> list[Alert]:
    alerts = []
    for k, score in enumerate(scores):
        alerts += update(alarms, start + k * period, score, THRESHOLD, score > THRESHOLD)
    return alerts


def events(alerts: Sequence[Alert]) -> list[tuple[str, str]]:
    return [(alert["event"], alert["reason"]) for alert in alerts]


def test_an_alert_says_what_when_and_why() -> None:
    alarms = Alarms("pump-1", SHARP, 1.0, NAMES)
    (alert,) = feed(alarms, [1.0, 10.0], start=1_700_000_000.0)
    assert alert == {
        "id": "pump-1-20231114T221321Z-1",
        "device": "pump-1",
        "event": "start",
        "kind": "score",
        "severity": "warning",
        "start": "2023-11-14T22:13:21.000Z",
        "time": "2023-11-14T22:13:21.000Z",
        "duration": 0.0,
        "score": 10.0,
        "peak": 10.0,
        "worst": "2023-11-14T22:13:21.000Z",
        "threshold": 6.0,
        "rate": 0.5,
        "samples": 1,
        "channels": [
            {"channel": "pressure", "share": 0.6, "seen": 3.2, "expected": 5.1},
            {"channel": "flow", "share": 0.3, "seen": 1.0, "expected": 1.5},
            {"channel": "level", "share": 0.1, "seen": 0.0, "expected": 0.0},
        ],
        "witness": "",
        "sentence": "",
        "acknowledged": None,
        "reason": "threshold",
        "provisional": False,
        "text": "pump-1: pressure 3.2 instead of 5.1 (60 %), then flow (30 %); score 10, threshold 6",
    }
    assert alarms.open is not None
    assert alarms.open.to_json() == alert
    assert (alarms.incidents, alarms.watched) == (1, 2.0)


def test_an_alert_carries_what_the_leading_witness_says_at_the_worst_row() -> None:
    rows = np.sin(np.arange(1100.0)[:, None] / [[7.0, 11.0, 13.0]])
    rows += 0.05 * np.random.default_rng(0).normal(size=rows.shape)
    stream = KoopmanDetector(rank=8).fit(Series(rows[:1000], tuple(NAMES))).stream()
    rows[1050:, 1] = 40.0
    alarms, worst, alerts = Alarms("pump-1", SHARP, 1.0, NAMES), (0.0, ""), []
    for k, values in enumerate(rows[1000:1056]):
        reading = stream.update(values)
        alerts += as_json(alarms.update(GridRow(float(k), values, True, True), reading))
        worst = max(worst, (reading.score, reading.sentence)) if reading.is_anomaly else worst
    alert = alarms.open
    assert alerts
    assert alert is not None
    assert alerts[0]["witness"] == "place"
    assert alerts[0]["sentence"].startswith(f"{NAMES[1]} is outside: 40 where ")
    assert alerts[0]["sentence"] in alerts[0]["text"]
    episode = alarms.state()["incident"]["episode"]
    assert episode["sentence"] == worst[1]


def test_min_duration_counts_from_the_first_abnormal_row() -> None:
    alarms = Alarms("d", Alarm(min_duration=3.0, rate_limit=0.0), 1.0, NAMES)
    assert feed(alarms, [7.0, 7.0, 7.0, 1.0, 7.0, 7.0]) == []
    (alert,) = feed(alarms, [7.0, 9.0, 7.0], start=6.0)
    assert (alert["start"], alert["time"]) == ("1970-01-01T00:00:04.000Z", "1970-01-01T00:00:07.000Z")
    assert (alert["duration"], alert["samples"], alert["peak"]) == (3.0, 4, 9.0)


def test_rows_between_release_and_threshold_neither_begin_nor_clear() -> None:
    alarms = Alarms("d", Alarm(min_duration=2.0, clear_after=2.0, rate_limit=0.0), 1.0, NAMES)
    assert feed(alarms, [5.5] * 10) == []
    assert events(feed(alarms, [7.0, 5.5, 5.5, 5.5, 7.0], start=10.0)) == [("start", "threshold")]
    assert feed(alarms, [1.0, 1.0, 5.5, 1.0, 1.0], start=15.0) == []
    assert events(feed(alarms, [1.0], start=20.0)) == [("end", "cleared")]
    assert alarms.open is None


@pytest.mark.parametrize("period", [0.1, 1 / 3, 60.0])
def test_a_duration_of_whole_periods_is_reached_at_that_row(period: float) -> None:
    alarms = Alarms("d", Alarm(min_duration=7 * period, clear_after=3 * period, rate_limit=0.0), period, NAMES)
    alerts = feed(alarms, [7.0] * 8 + [1.0] * 4, start=1_700_000_000.0, period=period)
    assert [alert["duration"] for alert in alerts] == pytest.approx([7 * period, 7 * period], abs=2e-3)


def test_the_worst_row_says_what_was_seen_and_all_rows_say_who() -> None:
    alarms = Alarms("d", Alarm(rate_limit=0.0, update_every=1.0), 1.0, ["a", "b"])
    rows = [(8.0, [8.0, 0.0]), (12.0, [0.0, 12.0]), (10.0, [10.0, 0.0])]
    for k, (score, shares) in enumerate(rows):
        explained = np.array(shares), np.full(2, float(k)), np.full(2, k + 10.0)
        alerts = update(alarms, (0.0, 1.0, 3.0)[k], score, 6.0, True, explained=explained)
    assert alerts[0]["channels"] == [
        {"channel": "a", "share": 0.6, "seen": 1.0, "expected": 11.0},
        {"channel": "b", "share": 0.4, "seen": 1.0, "expected": 11.0},
    ]


def test_values_of_the_worst_row_are_told_with_its_time() -> None:
    alarms = Alarms("d", Alarm(clear_after=120.0, rate_limit=0.0, update_every=120.0), 60.0, NAMES)
    values = "pressure 3.2 instead of 5.1"
    start, update, end = feed(alarms, [10.0, 12.0, 10.0, 8.0, 1.0, 1.0, 1.0], start=50_400.0, period=60.0)
    assert [alert["worst"][11:16] for alert in (start, update, end)] == ["14:00", "14:01", "14:01"]
    assert start["text"] == f"d: {values} (60 %), then flow (30 %); score 10, threshold 6"
    told = f"at worst (14:01Z) {values} (56 %), then flow (28 %)"
    assert update["text"] == f"d, for 2 min: {told}; score 10, threshold 6"
    assert end["text"] == f"d: over, lasted 3 min; at worst (14:01Z) {values} (60 %), then flow (30 %); peak 12"
    assert (end["time"], end["duration"]) == ("1970-01-01T14:06:00.000Z", 180.0)


def test_an_update_at_the_worst_row_tells_of_now() -> None:
    alarms = Alarms("d", Alarm(rate_limit=0.0), 1.0, NAMES)
    _, update = feed(alarms, [7.0, 20.0])
    assert update["text"].startswith("d, now critical: pressure 3.2 instead of 5.1")


@pytest.mark.parametrize(
    ("rule", "scores"),
    [
        (Alarm(min_duration=2.0, rate_limit=0.0), [7.0, 9.0, 7.0]),
        (Alarm(min_duration=9.0, rate_window=6.0), [7.0, 9.0, 1.0, 7.0]),
    ],
)
def test_a_start_after_the_worst_row_says_so(rule: Alarm, scores: list[float]) -> None:
    (start,) = feed(Alarms("d", rule, 1.0, NAMES), scores)
    assert start["worst"] == "1970-01-01T00:00:01.000Z"
    assert start["text"].startswith("d: at worst (00:00:01Z) pressure 3.2 instead of 5.1")


def test_a_single_sample_is_told_as_such() -> None:
    _, end = feed(Alarms("d", SHARP, 1.0, NAMES), [7.0, 1.0])
    assert (end["duration"], end["text"].split(";")[0]) == (0.0, "d: over, lasted one sample")


def test_a_state_of_a_version_that_did_not_keep_the_time_of_the_worst_row() -> None:
    rule = Alarm(clear_after=0.0, rate_limit=0.0, update_every=1.0)
    alarms = Alarms("d", rule, 1.0, NAMES)
    feed(alarms, [9.0])
    state = json.loads(json.dumps(alarms.state()))
    del state["incident"]["episode"]["worst"], state["incident"]["alert"]["worst"]
    update, worse = feed(Alarms("d", rule, 1.0, NAMES, state), [7.0, 12.0, 7.0], start=1.0)
    assert (update["worst"], update["peak"]) == (None, 9.0)
    assert update["text"].startswith("d, for 1 s: at worst pressure 3.2 instead of 5.1")
    assert worse["worst"] == "1970-01-01T00:00:02.000Z"


def test_cool_down_holds_the_next_one_back_until_it_is_over() -> None:
    alarms = Alarms("d", Alarm(clear_after=0.0, cool_down=10.0, rate_limit=0.0), 1.0, NAMES)
    assert events(feed(alarms, [7.0, 1.0])) == [("start", "threshold"), ("end", "cleared")]
    assert feed(alarms, [7.0, 1.0] * 2, start=2.0) == []
    (alert,) = feed(alarms, [7.0] * 6, start=6.0)
    assert (alert["start"], alert["time"]) == ("1970-01-01T00:00:06.000Z", "1970-01-01T00:00:11.000Z")
    assert alert["id"].endswith("-2")


def test_a_critical_score_breaks_the_cool_down_but_must_last() -> None:
    alarms = Alarms("d", Alarm(min_duration=1.0, clear_after=0.0, cool_down=100.0, rate_limit=0.0), 1.0, NAMES)
    feed(alarms, [7.0, 7.0, 1.0])
    assert feed(alarms, [7.0, 7.0, 1.0, 18.0, 1.0], start=3.0) == []
    (alert,) = feed(alarms, [7.0, 18.0], start=8.0)
    assert (alert["event"], alert["severity"], alert["duration"]) == ("start", "critical", 1.0)


def test_updates_come_when_it_gets_worse_and_now_and_then() -> None:
    alarms = Alarms("d", Alarm(clear_after=4.0, rate_limit=0.0, update_every=3.0), 1.0, NAMES)
    alerts = feed(alarms, [7.0, 7.0, 18.0, 20.0, 7.0, 7.0, 7.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    assert events(alerts) == [
        ("start", "threshold"),
        ("update", "worse"),
        ("update", "still"),
        ("end", "cleared"),
    ]
    assert [alert["duration"] for alert in alerts] == [
        0.0,
        2.0,
        5.0,
        6.0,
    ]  # to the last abnormal row, once it is over
    assert [alert["severity"] for alert in alerts] == ["warning"] + 3 * ["critical"]
    assert [alert["peak"] for alert in alerts] == [7.0, 18.0, 20.0, 20.0]
    assert len({alert["id"] for alert in alerts}) == 1


@pytest.mark.parametrize(("period", "rows"), [(60.0, 20), (1.0, 300), (600.0, 20)])
def test_by_default_an_alarm_within_a_window_after_an_end_is_no_new_incident(period: float, rows: int) -> None:
    alarms = Alarms("d", Alarm(clear_after=period, rate_limit=0.0, update_every=0.0), period, NAMES)
    assert KoopmanDetector().window == USUAL_WINDOW
    assert events(feed(alarms, [7.0, 1.0, 1.0], period=period)) == [("start", "threshold"), ("end", "cleared")]
    assert feed(alarms, [1.0] * (rows - 3) + [7.0, 1.0], start=3 * period, period=period) == []
    assert events(feed(alarms, [7.0], start=(2 + rows) * period, period=period)) == [("start", "threshold")]


def test_a_rate_of_short_excursions_is_an_incident() -> None:
    rule = Alarm(min_duration=10.0, clear_after=5.0, cool_down=0.0, rate_window=60.0, rate_limit=0.3, update_every=0.0)
    alarms = Alarms("d", rule, 1.0, NAMES)
    alerts = feed(alarms, [1.0, 7.0] * 100)
    assert events(alerts) == [("start", "rate")]
    (start,) = alerts
    assert start["kind"] == "rate"
    assert start["time"] == "1970-01-01T00:00:29.000Z"  # not before half of the window was scored
    assert (start["start"], start["samples"], start["rate"]) == ("1970-01-01T00:00:01.000Z", 15, 0.5)
    assert [cause["channel"] for cause in start["channels"]] == ["pressure", "flow", "level"]
    assert "50 % of the last 1 min abnormal" in start["text"]
    # It ends when the rate has fallen below 0.8 · 0.3, which is later than after 5 s of quiet.
    (end,) = feed(alarms, [1.0] * 60, start=200.0)
    assert (end["event"], end["reason"]) == ("end", "cleared")
    assert end["rate"] < 0.24
    assert end["time"] > "1970-01-01T00:03:40"
    assert end["duration"] == 198.0


def test_what_was_told_is_not_counted_towards_a_rate() -> None:
    rule = Alarm(min_duration=5.0, clear_after=5.0, cool_down=0.0, rate_window=60.0, rate_limit=0.3)
    alarms = Alarms("d", rule, 1.0, NAMES)
    assert len(feed(alarms, [7.0] * 40 + [1.0] * 6)) == 2
    assert alarms.rate > 0.8
    assert feed(alarms, [7.0, 1.0, 1.0, 1.0] * 20, start=46.0) == []


@pytest.mark.parametrize("rule", [Alarm(min_duration=1e9, rate_limit=0.0), Alarm(min_duration=1e9, rate_window=0.0)])
def test_without_a_limit_or_window_the_rate_begins_nothing(rule: Alarm) -> None:
    assert feed(Alarms("d", rule, 60.0, NAMES), [7.0] * 500, period=60.0) == []


def test_the_rate_is_that_of_its_window_and_its_memory_is_bounded() -> None:
    alarms = Alarms("d", Alarm(min_duration=1e9, rate_window=600.0, rate_limit=0.0), 1.0, NAMES)
    assert math.isnan(alarms.rate)
    scores = np.random.default_rng(0).choice([1.0, 7.0], p=[0.7, 0.3], size=5000)
    feed(alarms, scores)
    assert alarms.rate == pytest.approx(np.mean(scores[-600:] > THRESHOLD), abs=0.01)
    assert len(alarms.state()["buckets"]) <= BUCKETS
    assert len(json.dumps(alarms.state())) < 3000


def test_maintenance_ends_an_incident_and_what_follows_is_news() -> None:
    alarms = Alarms("d", Alarm(min_duration=2.0, cool_down=1000.0), 1.0, NAMES)
    feed(alarms, [7.0] * 5)
    (alert,) = as_json(alarms.silence(6.0))
    assert (alert["event"], alert["reason"], alert["duration"]) == ("end", "maintenance", 6.0)
    assert "ended by maintenance after 6 s" in alert["text"]
    assert alarms.silence(7.0) == []
    assert events(feed(alarms, [7.0] * 3, start=10.0)) == [("start", "threshold")]


def test_maintenance_drops_what_was_counted() -> None:
    rule = Alarm(min_duration=3.0, rate_window=60.0, rate_limit=0.3)
    alarms = Alarms("d", rule, 1.0, NAMES)
    assert feed(alarms, [1.0, 7.0] * 14 + [7.0]) == []
    assert alarms.silence(29.0) == []
    assert feed(alarms, [7.0, 7.0, 7.0, 1.0, 7.0], start=30.0) == []


def test_maintenance_by_another_clock_stops_no_rate() -> None:
    rule = Alarm(min_duration=3.0, rate_window=60.0, rate_limit=0.3)
    alarms = Alarms("d", rule, 1.0, NAMES)
    feed(alarms, [7.0, 1.0])
    alarms.silence(1e9)
    assert events(feed(alarms, [7.0, 1.0] * 30, start=2.0)) == [("start", "rate")]


def test_an_interruption_drops_a_beginning_and_keeps_an_incident() -> None:
    alarms = Alarms("d", Alarm(min_duration=3.0, clear_after=3.0, rate_limit=0.0), 1.0, NAMES)
    feed(alarms, [7.0] * 3)
    alarms.interrupt(3.0)
    assert feed(alarms, [7.0] * 3, start=50.0) == []
    assert len(feed(alarms, [7.0, 1.0, 1.0, 1.0], start=53.0)) == 1
    alarms.interrupt(60.0)
    assert alarms.open is not None
    assert feed(alarms, [1.0] * 3, start=100.0) == []
    assert events(feed(alarms, [1.0], start=103.0)) == [("end", "cleared")]


def test_rows_without_evidence_neither_begin_nor_end() -> None:
    alarms = Alarms("d", SHARP, 1.0, NAMES)
    assert update(alarms, 0.0, 9.0, 6.0, True, observed=False) == []
    assert update(alarms, 0.0, math.nan, 6.0, False) == []
    feed(alarms, [7.0])
    assert update(alarms, 9.0, 1.0, 6.0, False, observed=False) == []
    assert alarms.open is not None
    assert alarms.watched == 1.0


def test_a_threshold_of_zero() -> None:
    alarms = Alarms("d", SHARP, 1.0, NAMES)
    (start,) = update(alarms, 0.0, 0.1, 0.0, True)
    (end,) = update(alarms, 1.0, 0.0, 0.0, False)
    assert (start["severity"], end["event"]) == ("critical", "end")


def test_a_clock_that_is_set_back() -> None:
    alarms = Alarms("d", Alarm(clear_after=2.0, cool_down=10.0, rate_window=600.0, update_every=5.0), 1.0, NAMES)
    feed(alarms, [7.0] * 3, start=10_000.0)
    alerts = feed(alarms, [7.0] * 8 + [1.0] * 3)
    assert events(alerts) == [("update", "still"), ("end", "cleared")]
    assert all(alert["duration"] == 0.0 for alert in alerts)
    assert alarms.rate == 8 / 11
    # The cool-down is not waited for until the old time comes again.
    feed(alarms, [7.0] * 11 + [1.0] * 3, start=10_011.0)
    assert alarms.open is None
    assert events(feed(alarms, [7.0] * 12, start=100.0))[0] == ("start", "threshold")
    assert alarms.begun_since(-math.inf) == 1, "those of the old time would count for years"


def test_counts_of_the_future_are_dropped() -> None:
    alarms = Alarms("d", Alarm(min_duration=1e9, rate_window=600.0), 1.0, NAMES)
    feed(alarms, [1.0] * 100 + [7.0] * 100)
    feed(alarms, [1.0] * 10, start=95.0)
    assert alarms.rate == 0.0
    assert sum(scored for _, scored, _ in alarms.state()["buckets"]) == 100 + 10


def test_a_rate_is_explained_by_rows_before_a_restart() -> None:
    rule = Alarm(min_duration=10.0, rate_window=60.0, rate_limit=0.3)
    alarms = Alarms("d", rule, 1.0, NAMES)
    assert feed(alarms, [1.0, 7.0] * 14) == []
    restarted = Alarms("d", rule, 1.0, NAMES, json.loads(json.dumps(alarms.state(), allow_nan=False)))
    (alert,) = feed(restarted, [1.0, 7.0], start=28.0)
    assert [alert] == feed(alarms, [1.0, 7.0], start=28.0)
    assert (alert["kind"], alert["samples"]) == ("rate", 15)


def test_updates_of_a_long_incident_become_rare() -> None:
    """After ten minutes, twenty, forty and so on up to a day: eight in the first day, then one per day."""
    alarms = Alarms("d", Alarm(rate_limit=0.0), 60.0, NAMES)
    alerts = feed(alarms, [7.0] * (5 * 1440), start=0.0, period=60.0)
    waits, moments = [10, 20, 40, 80, 160, 320, 640, 1280, 1440, 1440, 1440, 1440], [0]
    for wait in waits:
        moments.append(moments[-1] + wait)
    assert [int(alert["duration"] / 60) for alert in alerts] == [moment for moment in moments if moment < 5 * 1440]
    restarted = Alarms("d", Alarm(rate_limit=0.0), 60.0, NAMES, json.loads(json.dumps(alarms.state())))
    assert feed(restarted, [7.0] * 60, start=5 * 86400.0, period=60.0) == []


def test_alerts_of_a_young_model_are_provisional() -> None:
    alarms = Alarms("d", SHARP, 1.0, NAMES)
    reading = StubReading(9.0, THRESHOLD, True, EXPLAINED)
    row = GridRow(0.0, reading.seen, True, True)
    (alert,) = as_json(alarms.update(row, reading, is_provisional=True))
    assert alert["provisional"]
    assert alert["text"].startswith("d (provisional): ")


def test_numbers_that_json_does_not_have() -> None:
    alarms = Alarms("d", Alarm(update_every=1.0), 1.0, ["a", "b"])
    explained = np.array([np.nan, 1.0]), np.array([np.inf, 2.0]), np.array([1.0, np.nan])
    for k in range(3):
        alerts = update(alarms, (0.0, 1.0, 3.0)[k], math.inf, math.nan, True, explained=explained)
        assert json.loads(json.dumps(alerts, allow_nan=False))[0]["score"] is None
        state = json.loads(json.dumps(alarms.state(), allow_nan=False))
        alarms = Alarms("d", Alarm(update_every=1.0), 1.0, ["a", "b"], state)
    finite = np.array([4.0, 5.0]), np.array([np.inf, 2.0]), np.array([1.0, 3.0])
    (alert,) = update(alarms, 9.0, 9.0, 6.0, True, explained=finite)
    json.dumps(alert, allow_nan=False)
    assert [cause["share"] for cause in alert["channels"]] == [0.5556, 0.4444]


def test_numpy_numbers_become_plain_ones() -> None:
    alarms = Alarms("d", Alarm(min_duration=1.0), 1.0, NAMES)
    for k in range(4):
        judged = np.float64(7.0 - 6 * (k > 2)), np.float64(6.0), np.bool_(k < 3)
        json.dumps([update(alarms, np.float64(k), *judged), alarms.state()], allow_nan=False)  # type: ignore[arg-type]


def test_other_channels_begin_anew() -> None:
    alarms = Alarms("d", Alarm(update_every=1.0), 1.0, NAMES)
    feed(alarms, [30.0])
    other = np.array([8.0]), np.array([1.0]), np.array([2.0])
    changed = Alarms("d", Alarm(update_every=1.0), 1.0, ["speed"], alarms.state())
    (alert,) = update(changed, 1.0, 8.0, 6.0, True, explained=other)
    assert alert["channels"] == [{"channel": "speed", "share": 1.0, "seen": 1.0, "expected": 2.0}]
    assert alert["peak"] == 30.0


def test_at_most_five_channels() -> None:
    n = 8
    alarms = Alarms("d", SHARP, 1.0, [str(k) for k in range(n)])
    explained = np.arange(n, dtype=float), np.zeros(n), np.zeros(n)
    (alert,) = update(alarms, 0.0, 28.0, 6.0, True, explained=explained)
    assert [cause["channel"] for cause in alert["channels"]] == ["7", "6", "5", "4", "3"]


@pytest.mark.parametrize("time", [-1e300, -5.0, 1e300])
def test_times_that_no_calendar_has(time: float) -> None:
    (alert,) = update(Alarms("d", SHARP, 1.0, NAMES), time, 9.0, 6.0, True)
    json.dumps(alert, allow_nan=False)


def test_counts_of_another_window_are_dropped() -> None:
    alarms = Alarms("d", Alarm(min_duration=1e9), 1.0, NAMES)
    feed(alarms, [7.0] * 100)
    assert Alarms("d", Alarm(min_duration=1e9), 1.0, NAMES, alarms.state()).rate == 1.0
    assert math.isnan(Alarms("d", Alarm(rate_window=60.0), 1.0, NAMES, alarms.state()).rate)


durations = st.sampled_from([0.0, 1.0, 3.0, 10.0])
rules = st.builds(
    Alarm,
    min_duration=durations,
    clear_after=durations,
    cool_down=st.sampled_from([0.0, 5.0, 20.0]),
    release=st.sampled_from([0.5, 0.8, 1.0]),
    rate_window=st.sampled_from([0.0, 7.0, 40.0]),
    rate_limit=st.sampled_from([0.0, 0.2, 0.6]),
    update_every=durations,
)
# Long stretches of the same kind make incidents; single rows make trouble.
kinds = st.sampled_from([1.0, 5.5, 7.0, 20.0, math.nan, "carried", "silence", "interrupt", "jump", "back"])
courses = st.lists(st.tuples(kinds, st.integers(1, 12)), max_size=25)


def play(alarms: Alarms, course: Sequence[tuple[Any, int]], restart: Alarm | None = None) -> list[Alert]:
    """Rows a second apart; with `restart`, through JSON after each of them."""
    alerts, time = [], 1000.0
    for kind, count in course:
        for _ in range(count):
            time += {"jump": 50.0, "back": -37.0}.get(kind, 1.0)
            if kind == "silence":
                alerts += as_json(alarms.silence(time))
            elif kind in ("interrupt", "jump", "back"):
                alarms.interrupt(time)
            else:
                score = 20.0 if kind == "carried" else kind
                alerts += update(alarms, time, score, THRESHOLD, score > THRESHOLD, observed=kind != "carried")
            if restart is not None:
                alarms = Alarms("d", restart, 1.0, NAMES, json.loads(json.dumps(alarms.state(), allow_nan=False)))
    return alerts


@draws(300)
@given(rules, courses)
def test_incidents_are_well_formed(rule: Alarm, course: list[tuple[Any, int]]) -> None:
    alarms = Alarms("d", rule, 1.0, NAMES)
    alerts = play(alarms, course)
    json.dumps(alerts, allow_nan=False)
    current = None
    for alert in alerts:
        assert (alert["event"] == "start") == (current is None)
        assert current in (None, alert["id"])
        current = None if alert["event"] == "end" else alert["id"]
        assert alert["duration"] >= 0.0
        assert alert["samples"] > 0
        assert (alert["severity"] == "critical") == (alert["peak"] >= rule.critical * THRESHOLD)
    assert (None if alarms.open is None else alarms.open.id) == current
    starts = Counter(alert["id"] for alert in alerts if alert["event"] == "start")
    assert set(starts.values()) <= {1}
    assert len(starts) == alarms.incidents


@draws(200)
@given(rules, courses)
def test_a_restart_at_any_row_changes_nothing(rule: Alarm, course: list[tuple[Any, int]]) -> None:
    assert play(Alarms("d", rule, 1.0, NAMES), course, restart=rule) == play(Alarms("d", rule, 1.0, NAMES), course)


@draws(200)
@given(rules, courses)
def test_no_incident_is_shorter_than_it_must_be(rule: Alarm, course: list[tuple[Any, int]]) -> None:
    for alert in play(Alarms("d", rule, 1.0, NAMES), course):
        if alert["event"] == "start" and alert["kind"] == "score":
            assert alert["duration"] >= rule.min_duration


@draws(100)
@given(rules, st.lists(st.floats(0.0, THRESHOLD), max_size=100))
def test_scores_below_the_threshold_never_alert(rule: Alarm, scores: list[float]) -> None:
    assert feed(Alarms("d", rule, 1.0, NAMES), scores) == []


@draws(100)
@given(rules, st.lists(st.sampled_from([5.5, 7.0]), min_size=1, max_size=200))
def test_a_score_around_the_threshold_is_one_incident(rule: Alarm, scores: list[float]) -> None:
    if rule.release * THRESHOLD <= 5.5:
        assert sum(alert["event"] != "update" for alert in feed(Alarms("d", rule, 1.0, NAMES), scores)) <= 1
