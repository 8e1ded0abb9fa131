"""A change that stays becomes the new normal, and a fault does not."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedkad import KoopmanDetector
from fedkad.detect.series import Series
from fedkad.detect.witnesses import WitnessScoring
from fedkad.edge.alarms.acceptance import PARTS, Settling, why_not, without_outliers
from fedkad.edge.alert import Alert, Severity
from fedkad.edge.commands.command import Command
from fedkad.edge.device.pipeline import Device
from fedkad.edge.settings import Alarm, DeviceSettings, Learning, Sampling
from fedkad.edge.sources.payload import Sample
from fedkad.edge.store import Store
from tests.fixtures.alerts import an_alert, as_json
from tests.fixtures.broker import logged

Array = NDArray[np.float64]
CHANNELS = ("flow", "pressure", "temperature")
BEGIN, SETTLE = 1_700_000_000.0, 200.0


def machine(rows: int, seed: int, first: int = 0) -> Array:
    t = np.arange(first, first + rows)[:, None]
    noise = 0.05 * np.random.default_rng(seed).normal(size=(rows, 3))
    found: Array = np.sin(t / np.array([5.0, 8.0, 11.0])) + noise
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.fedkad"
    train = Series(machine(3000, 0), CHANNELS)
    KoopmanDetector(window=8, rank=6, observables=16, sample_period=1.0).fit(train).save(path)
    return path


Make = Callable[..., Device]


@pytest.fixture
def make(tmp_path: Path, model: Path) -> Make:
    settings = DeviceSettings(
        Sampling(channels=CHANNELS, period=1.0, max_gap=3.0, stale_after=10.0),
        Alarm(clear_after=30.0, cool_down=0.0, rate_limit=0.0, settle=SETTLE),
        Learning(model=str(model), folder=str(tmp_path / "pump"), every=0),
    )

    def made(**learning: Any) -> Device:
        own = replace(settings, learning=replace(settings.learning, **learning))
        return Device("pump", own, Store(tmp_path / "agent.sqlite"))

    return made


def feed(device: Device, rows: Array, first: int) -> list[dict[str, Any]]:
    """Feed rows, and settle when it is due, as the agent does."""
    alerts: list[Alert] = []
    for k, row in enumerate(rows, start=first):
        values = dict(zip(CHANNELS, map(float, row), strict=True))
        alerts += device.take(Sample("pump", BEGIN + k, values), BEGIN + k)
        if device.parts.is_level_due:
            device.save()
            device._store.commit()
            alerts += device.accept_level()
    for alert in alerts:
        device._store.alerts.put([], alert)
    device.save()
    device._store.commit()
    return as_json(alerts)


def changed(rows: int, seed: int, how: Callable[[Array], None]) -> Array:
    live = machine(rows, seed)
    how(live)
    return live


def warmer(live: Array) -> None:
    live[100:, 2] += 1.2


def test_a_change_that_stays_becomes_normal_and_other_faults_are_still_found(make: Make) -> None:
    with logged() as lines:
        device = make()
        live = changed(800, 1, warmer)
        live[700:706, 0] += 3.0
        alerts = feed(device, live[:300], 0)
        device._store.close()
        device = make()  # killed meanwhile
        alerts += feed(device, live[300:], 300)
    settled, fault = [alert for alert in alerts if alert["event"] == "end" and alert["duration"] > 1.0]
    assert (settled["reason"], settled["id"]) == ("settled", alerts[0]["id"])
    assert SETTLE <= settled["duration"] <= SETTLE + 60.0
    assert settled["text"].startswith("pump: taken for the new normal after 3.3 min")
    assert fault["channels"][0]["channel"] == "flow"
    assert 695 <= datetime.fromisoformat(fault["start"]).timestamp() - BEGIN < 710
    assert any("is normal from now on" in line for line in lines)


def test_a_fault_that_is_over_does_not_become_normal_while_its_incident_waits(make: Make) -> None:
    with logged() as lines:
        live = machine(800, 1)
        live[100:278, 2] += 1.2  # over before it would settle, and not yet quiet for as long as it lasted
        alerts = feed(make(), live, 0)
    assert [alert for alert in alerts if alert["reason"] == "settled"] == []
    assert any(line.endswith("does not become normal yet: it is quiet now, and may be over.") for line in lines)


def test_what_has_become_normal_can_be_taken_back(make: Make) -> None:
    with logged():
        device = make()
        feed(device, changed(450, 1, warmer), 0)
        assert device.status().incident is None
        device.parts.learner.go_back("mark")
        alerts = feed(device, machine(60, 2, 450) + np.array([0.0, 0.0, 1.2]), 450)
    assert [alert["event"] for alert in alerts] == ["start"]


def test_what_is_taken_back_and_still_there_is_told_again_and_stays_a_fault(make: Make) -> None:
    live = changed(1200, 1, warmer)
    with logged() as lines:
        device = make()
        (settled,) = [alert for alert in feed(device, live[:450], 0) if alert["reason"] == "settled"]
        assert device.obey(Command("1", "pump", "undo", "", "anna")).alerts == []
        device.save()
        device._store.commit()
        device._store.close()
        device = make()  # killed meanwhile
        alerts = feed(device, live[450:], 450)
    assert (alerts[0]["event"], alerts[0]["reason"], alerts[0]["id"]) == ("update", "again", settled["id"])
    assert datetime.fromisoformat(alerts[0]["time"]).timestamp() - BEGIN < 450 + 20
    assert alerts[0]["acknowledged"] == "anna"
    assert [alert for alert in alerts if alert["event"] != "update"] == [], "it is open"
    assert any(line.endswith("does not become normal yet: anna has acknowledged it as a fault.") for line in lines)


def test_what_is_taken_back_and_over_is_not_told_again(make: Make) -> None:
    live = changed(1200, 1, warmer)
    live[400:, 2] -= 1.2
    live[900:, 2] += 1.2
    with logged():
        device = make()
        (settled,) = [alert for alert in feed(device, live[:450], 0) if alert["reason"] == "settled"]
        device.obey(Command("1", "pump", "undo", "", "anna"))
        alerts = feed(device, live[450:], 450)
    assert settled["id"] not in [alert["id"] for alert in alerts], "a new fault is another incident"
    incident = device.status().incident
    assert incident is not None
    assert incident.acknowledged is None


def test_where_the_file_of_the_model_is_gone_the_device_learns_anew_instead(make: Make, tmp_path: Path) -> None:
    with logged() as lines:
        device = make(first=300)
        live = changed(900, 1, warmer)
        alerts = feed(device, live[:200], 0)
        shutil.rmtree(tmp_path / "pump")
        assert not device.parts.model.is_renewed()
        alerts += feed(device, live[200:400], 200)
        (end,) = [alert for alert in alerts if alert["event"] == "end"]
        assert (end["id"], end["reason"]) == (alerts[0]["id"], "no model")
        assert sum("is gone; the incident ends, and the device learns again" in line for line in lines) == 1
        assert device.status().state == "learning"
        assert device.status().threshold is None
        device._store.close()
        device = make(first=300)  # a restart does not bring back what was given
        feed(device, live[400:], 400)
        assert device.is_learning_due
        device.learn()
        fault = machine(60, 3, 900) + np.array([0.0, 0.0, 1.2])
        assert feed(device, fault, 900) == []
        fault[:, 0] += 3.0
        assert [alert["event"] for alert in feed(device, fault, 960)][:1] == ["start"]


def drifting(live: Array) -> None:
    live[100:, 2] += 1.0 + np.arange(len(live) - 100) / 150.0


def far(live: Array) -> None:
    live[100:, 2] += 9.0


def stuck(live: Array) -> None:
    live[60:, 2] = 1.2  # so early that it is not known yet for how long it may stand still


@pytest.mark.parametrize("fault", [drifting, far, stuck], ids=lambda fault: fault.__name__)
def test_a_fault_does_not_become_normal(make: Make, fault: Callable[[Array], None]) -> None:
    with logged() as lines:
        alerts = feed(make(), changed(500, 1, fault), 0)
    assert [alert for alert in alerts if alert["reason"] == "settled"] == []
    assert any("does not become normal yet" in line for line in lines)


def test_a_channel_that_is_told_to_be_stuck_is_not_judged_and_becomes_no_normal(make: Make) -> None:
    live = machine(1200, 1)
    live[300:, 2] = 1.2
    with logged():
        alerts = feed(make(), live, 0)
    assert [alert for alert in alerts if alert["reason"] == "settled"] == []
    assert [(alert["fault"], alert["event"]) for alert in alerts if alert["kind"] == "health"] == [("stuck", "start")]


def test_what_somebody_acknowledged_as_a_fault_does_not_become_normal(make: Make) -> None:
    with logged() as lines:
        device, live = make(), changed(450, 1, warmer)
        feed(device, live[:150], 0)
        device.obey(Command("1", "pump", "acknowledge", "", "anna"))
        alerts = feed(device, live[150:], 150)
    assert [alert for alert in alerts if alert["event"] == "end"] == []
    assert device.status().incident is not None
    assert any(line.endswith("does not become normal yet: anna has acknowledged it as a fault.") for line in lines)


def test_what_has_become_normal_and_was_taken_back_is_so_in_the_history(make: Make) -> None:
    with logged():
        device = make()
        alerts = feed(device, changed(450, 1, warmer), 0)
        assert device.obey(Command("1", "pump", "undo")).alerts == []
        device._store.commit()
    (settled,) = [alert for alert in alerts if alert["reason"] == "settled"]
    kept = device._store.alerts.incident("pump", settled["id"])
    assert kept is not None
    assert kept.to_json() == settled | {"reason": "undone", "text": kept.text}
    assert kept.text.startswith("pump: not taken for normal any more after 3.3 min")


WARNING, CRITICAL = an_alert(), an_alert(severity=Severity.CRITICAL)


def test_a_critical_incident_and_an_impossible_value_do_not_become_normal(model: Path) -> None:
    scoring = KoopmanDetector.load(model).model_.scoring
    assert isinstance(scoring, WitnessScoring)
    rows = np.random.default_rng(0).normal(size=(100, 3))
    assert why_not(WARNING, rows, scoring.bounds, 20) == ""
    assert why_not(CRITICAL, rows, scoring.bounds, 20) == "it is critical"
    rows[50, 1] = 1e6
    assert "impossible" in why_not(WARNING, rows, scoring.bounds, 20)


def test_a_battery_may_rest_and_an_input_is_where_somebody_put_it(model: Path) -> None:
    scoring = KoopmanDetector.load(model).model_.scoring
    assert isinstance(scoring, WitnessScoring)
    rows, incident = np.random.default_rng(0).normal(size=(100, 3)), WARNING
    rows[:, 1] = 0.5
    assert why_not(incident, rows, scoring.bounds, 20) == "a channel has stopped moving"
    assert why_not(incident, rows, scoring.bounds, 20, resting=[0, 2]) == "a channel has stopped moving"
    assert why_not(incident, rows, scoring.bounds, 20, resting=[1]) == ""
    rows[:, 1] = np.where(np.arange(100) % 2, 5.0, 6.0)
    assert why_not(incident, rows, scoring.bounds, 20) == "it is too far from what is known"
    assert why_not(incident, rows, scoring.bounds, 20, inputs=np.array([False, True, False])) == ""
    assert why_not(incident, rows, scoring.bounds, 20, inputs=np.array([True, False, True])) != ""


def test_a_channel_that_is_silent_all_day_is_no_warning_of_numpy(model: Path) -> None:
    scoring = KoopmanDetector.load(model).model_.scoring
    assert isinstance(scoring, WitnessScoring)
    rows = np.random.default_rng(0).normal(size=(100, 3))
    rows[:, 1] = np.nan
    assert why_not(WARNING, rows, scoring.bounds, 20) == ""
    assert np.isnan(without_outliers(rows, scoring.bounds)[:, 1]).all()


def test_a_sensor_that_is_off_all_day_does_not_become_normal() -> None:
    def pair(rows: int, seed: int) -> NDArray[np.float64]:
        generator = np.random.default_rng(seed)
        first = np.sin(np.arange(rows) / 48.0) + 0.5 * np.repeat(generator.normal(size=rows // 20 + 1), 20)[:rows]
        return np.stack([first, 2.0 * first + 1.0], axis=1) + 0.05 * generator.normal(size=(rows, 2))

    detector = KoopmanDetector(rank=6).fit(pair(24_000, 0))
    scoring = detector.model_.scoring
    assert isinstance(scoring, WitnessScoring)
    today, off = pair(1440, 3), np.array([0.0, 1.0])  # within its usual range all the time
    assert why_not(WARNING, detector.scaling_.standardise(today), scoring.bounds, 20) == ""
    said = why_not(WARNING, detector.scaling_.standardise(today + off), scoring.bounds, 20)
    assert said == "a channel does not match the others any more"
    # A tie has a level of its own: where that is higher by what the sensor is off, the two match.
    moved = detector.scaling_.standardise(off[None]) - detector.scaling_.standardise(np.zeros((1, 2)))
    higher = scoring.bounds._replace(offset=scoring.bounds.offset + scoring.bounds.ties @ moved[0])
    assert why_not(WARNING, detector.scaling_.standardise(today + off), higher, 20) == ""


def test_day_and_night_are_steady_and_a_drift_is_not() -> None:
    day, drift = Settling(), Settling()
    for minute in range(1440):
        day.note("x", 60.0 * minute, 3.0 if minute < 840 else 0.5, 86400.0)
        drift.note("x", 60.0 * minute, 1.0 + minute / 1440, 86400.0)
    assert day.is_steady
    assert not drift.is_steady


def test_a_clock_that_is_set_back_lets_an_incident_settle_all_the_same() -> None:
    settling = Settling()
    settling.note("x", 1e9, 1.0, 160.0)
    for k in range(160):
        settling.note("x", float(k), 1.0, 160.0)
    assert not settling.is_due(159.0, 160.0)
    assert settling.is_due(160.0, 160.0)
    assert settling.is_steady


def test_what_is_not_steady_is_looked_at_again_after_a_part() -> None:
    settling = Settling()
    for k in range(160):
        settling.note("x", float(k), 1.0 if k < 80 else 2.0, 160.0)
    assert settling.is_due(160.0, 160.0)
    assert not settling.is_steady
    for part in range(1, PARTS):
        settling.look_later(160.0)
        start = 160 + 20 * (part - 1)
        assert not settling.is_due(float(start), 160.0)
        for k in range(start, start + 20):
            settling.note("x", float(k), 2.0, 160.0)
        assert settling.is_due(float(start + 20), 160.0)
        again = Settling.restored(json.loads(json.dumps(settling.state())))
        assert again == settling
        assert settling.is_steady, "the first half has a part that is as high as any"
    settling.note("y", 999.0, 1.0, 160.0)
    assert not settling.is_due(1000.0, 160.0)
