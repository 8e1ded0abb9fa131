"""A device that begins without a model: until it has seen a week, its model is fitted anew to everything so far."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedkad.detect.modelfile import load_model
from fedkad.edge.alert import from_json
from fedkad.edge.commands.command import Command
from fedkad.edge.device import learning as edge_learning
from fedkad.edge.device.pipeline import Device
from fedkad.edge.settings import Alarm, DeviceSettings, Learning, Sampling
from fedkad.edge.sources.payload import Sample
from fedkad.edge.store import Store
from tests.fixtures.alerts import as_json
from tests.fixtures.broker import logged

CHANNELS = ("flow", "pressure", "current")
BEGIN, MATURE = 1_700_000_000.0, 2000
FIRST = 700  # rows of the least cycle
Array = NDArray[np.float64]


@pytest.fixture(autouse=True)
def a_short_week(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(edge_learning, "MATURE_ROWS", MATURE)
    with logged():
        yield


def wandering(rows: int) -> Array:
    """Normal data whose first channel is somewhere else after the first model has been fitted, and stays there."""
    t, noise = np.arange(rows)[:, None], 0.05 * np.random.default_rng(1).normal(size=(rows, len(CHANNELS)))
    values: Array = np.sin(t / np.array([5.0, 8.0, 11.0])) + noise
    values[FIRST + 50 :, 0] += 6.0
    return values


def make(folder: Path, **learning: Any) -> Device:
    settings = DeviceSettings(
        Sampling(channels=CHANNELS, period=1.0, max_gap=3.0, stale_after=10.0),
        Alarm(clear_after=5.0, cool_down=0.0, settle=0.0),
        Learning(folder=str(folder / "pump"), cycle=60.0, every=5000, **learning),
        {"window": 6, "rank": 5, "observables": 16},
    )
    return Device("pump", settings, Store(folder / "agent.sqlite"))


def feed(device: Device, rows: Array, first: int) -> list[dict[str, Any]]:
    """Let an agent's loop take the rows: it commits, and learns when that is due."""
    alerts: list[dict[str, Any]] = []
    for k, row in enumerate(rows, start=first):
        sample = Sample("pump", BEGIN + k, dict(zip(CHANNELS, map(float, row), strict=True)))
        alerts += as_json(device.take(sample, BEGIN + k))
        if device.is_learning_due:
            commit(device)
            device.learn()
    commit(device)
    return alerts


def commit(device: Device) -> None:
    device.save()
    device._store.commit()


def learned_range(folder: Path) -> tuple[float, float]:
    """What the model has ever seen of the first channel."""
    model, _ = load_model(folder / "pump" / "model.safetensors", memory=False)
    assert model.scoring.bounds is not None
    least, greatest = (model.setup.scaling.restore(bound)[0] for bound in model.scoring.bounds.ranges[0].T)
    return float(least), float(greatest)


def test_what_the_first_model_had_not_seen_is_learned_although_it_alarmed(tmp_path: Path) -> None:
    live, device = wandering(MATURE + 600), make(tmp_path)
    alerts = feed(device, live[: FIRST + 100], 0)
    assert [alert["event"] for alert in alerts][:1] == ["start"]
    assert alerts[0]["provisional"]
    assert learned_range(tmp_path)[1] < 2.0
    assert device.parts.learner.young == FIRST
    alerts = feed(device, live[FIRST + 100 : 2 * FIRST + 100], FIRST + 100)
    assert device.parts.learner.young == 2 * FIRST
    assert learned_range(tmp_path)[1] > 6.0
    quiet = feed(device, live[2 * FIRST + 100 :], 2 * FIRST + 100)
    assert "start" not in [alert["event"] for alert in quiet]
    assert device.parts.learner.young == 0  # a week has passed
    model, memory = load_model(tmp_path / "pump" / "model.safetensors")
    assert memory is not None
    assert memory.statistics.count == MATURE - model.settings.window


def test_what_somebody_acknowledged_as_a_fault_is_not_learned(tmp_path: Path) -> None:
    live, device = wandering(4 * FIRST), make(tmp_path)
    live[FIRST + 150 :, 0] -= 6.0  # it went away again
    feed(device, live[: FIRST + 100], 0)
    device.parts.alarms.acknowledge("somebody")
    feed(device, live[FIRST + 100 :], FIRST + 100)
    assert device.parts.learner.learned >= 2
    assert learned_range(tmp_path)[1] < 2.0


def test_what_is_acknowledged_after_its_end_is_left_out_the_next_time(tmp_path: Path) -> None:
    live, device = wandering(4 * FIRST + 20), make(tmp_path)
    live[FIRST + 90 :, 0] -= 6.0
    alerts = feed(device, live[: 2 * FIRST + 100], 0)
    assert learned_range(tmp_path)[1] > 6.0, "nobody has said anything yet"
    (end,) = [alert for alert in alerts if alert["event"] == "end"]
    device._store.alerts.put([], from_json(end))
    commit(device)
    device.obey(Command("1", "pump", "acknowledge", end["id"], "somebody", BEGIN))
    commit(device)
    feed(device, live[2 * FIRST + 100 :], 2 * FIRST + 100)
    assert device.parts.learner.learned == 3
    assert learned_range(tmp_path)[1] < 2.0


def test_a_grown_up_model_leaves_incidents_out(tmp_path: Path) -> None:
    live, device = wandering(MATURE + 400), make(tmp_path)
    live[:, 0] -= np.where(np.arange(len(live)) < FIRST + 50, 0.0, 6.0)
    feed(device, live[:MATURE], 0)
    assert device.parts.learner.young == 0
    fault = live[MATURE:].copy()
    fault[100:140, 0] += 6.0
    before = device.parts.learner.fresh
    alerts = feed(device, fault, MATURE)
    assert [alert["event"] for alert in alerts if alert["event"] != "update"] == ["start", "end"]
    _, rows = device._store.rows.to_learn("pump", len(CHANNELS), MATURE)
    assert np.nanmax(rows[:, 0]) < 2.0
    assert device.parts.learner.fresh > before


def test_a_kill_between_fitting_and_committing_counts_no_row_twice(tmp_path: Path) -> None:
    live, device = wandering(2 * FIRST), make(tmp_path)
    feed(device, live[:-1], 0)
    device.take(Sample("pump", BEGIN + len(live) - 1, dict(zip(CHANNELS, map(float, live[-1]), strict=True))), BEGIN)
    commit(device)
    assert device.is_learning_due
    device.learn()
    device._store.close()  # the model is written, and nothing else
    device = make(tmp_path)
    assert device.parts.learner.young == 2 * FIRST
    assert device.parts.learner.fresh == 0
    assert not device.is_learning_due


def fed_by(folder: Path, period: float, rows: Array, **learning: Any) -> tuple[list[int], list[dict[str, Any]]]:
    """After how many rows a device with that period learned, without a word about that, and its alerts."""
    settings = DeviceSettings(
        Sampling(channels=CHANNELS, period=period),
        Alarm(clear_after=0.0, cool_down=0.0, rate_limit=0.0, settle=0.0),
        Learning(folder=str(folder / "pump"), **learning),
        {"window": 6, "rank": 5, "observables": 16},
    )
    device, learned, alerts = Device("pump", settings, Store(folder / "agent.sqlite")), list[int](), []
    for k, row in enumerate(rows):
        sample = Sample("pump", BEGIN + period * k, dict(zip(CHANNELS, map(float, row), strict=True)))
        alerts += as_json(device.take(sample, BEGIN + period * k))
        if device.is_learning_due:
            commit(device)
            device.learn()
            learned.append(k + 1)
    return learned, alerts


def calm(rows: int) -> Array:
    later = np.arange(rows)[:, None] >= FIRST + 50
    found: Array = wandering(rows) - 6.0 * later * np.array([1.0, 0.0, 0.0])
    return found


@pytest.mark.parametrize(("period", "expected"), [(60.0, [1440]), (120.0, [720, 1440]), (600.0, [700, 1008])])
def test_a_first_model_has_seen_a_day_and_700_rows_and_is_young_for_a_week(
    tmp_path: Path, period: float, expected: list[int]
) -> None:
    learned, _ = fed_by(tmp_path, period, calm(1800))
    assert learned == expected


def test_alarms_are_provisional_until_a_week_has_passed(tmp_path: Path) -> None:
    first, day = 200, 144  # rows of ten minutes
    rows = calm(first + 7 * day)
    for days in (1, 3, 5.8, 6.2):
        rows[first + int(days * day), 0] += 5.0
    _, alerts = fed_by(tmp_path, 600.0, rows, first=first)
    told = [alert["provisional"] for alert in alerts if alert["event"] == "start" and alert["kind"] == "score"]
    assert told == [True, True, True, False]


def test_a_model_of_a_set_number_of_rows_is_never_young(tmp_path: Path) -> None:
    live, device = wandering(FIRST + 10), make(tmp_path, first=FIRST)
    feed(device, live, 0)
    assert device.parts.learner.learned == 1
    assert device.parts.learner.young == 0


def test_a_model_that_was_given_is_not_young(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    feed(make(tmp_path / "other"), wandering(FIRST + 10), 0)
    given = tmp_path / "other" / "pump" / "model.safetensors"
    device = make(tmp_path, model=str(given))
    assert device.parts.learner.young == 0
    assert device.parts.learner.needed == 5000
