"""One device: what it scores is what the batch scores, and what it learns is normal, measured, and learnt once."""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedkad import KoopmanDetector
from fedkad.detect import learning
from fedkad.detect.modelfile import load_model
from fedkad.detect.series import Series
from fedkad.edge.alert import format_time, from_json
from fedkad.edge.alerttext import short_number
from fedkad.edge.commands.command import Command
from fedkad.edge.device import modelfolder
from fedkad.edge.device.pipeline import Device
from fedkad.edge.settings import (
    BY_PERIOD,
    INFERRED,
    AgentSettings,
    Alarm,
    DeviceSettings,
    Learning,
    Maintenance,
    Sampling,
    SettingsError,
)
from fedkad.edge.sources.payload import Sample
from fedkad.edge.store import Store
from fedkad.edge.subcommands.history import incidents, status
from fedkad.federation.devicestate import DeviceState
from fedkad.koopman.snapshots import collect
from tests.fixtures.alerts import as_json
from tests.fixtures.broker import logged

CHANNELS = ("flow", "pressure", "current")
BEGIN = 1_700_000_000.0
Array = NDArray[np.float64]


def series(rows: int, seed: int = 1) -> Array:
    t = np.arange(rows)[:, None]
    noise = 0.05 * np.random.default_rng(seed).normal(size=(rows, len(CHANNELS)))
    values: NDArray[np.float64] = np.sin(t / np.array([5.0, 8.0, 11.0])) + noise
    return values


@pytest.fixture(scope="module")
def model() -> KoopmanDetector:
    train = Series(series(3000, 0), CHANNELS)
    return KoopmanDetector(window=6, rank=5, observables=16, sample_period=1.0).fit(train)


Make = Callable[..., Device]


@pytest.fixture
def make(tmp_path: Path, model: KoopmanDetector) -> Make:
    model.save(tmp_path / "model.fedkad")
    learning = Learning(model=str(tmp_path / "model.fedkad"), folder=str(tmp_path / "pump"), every=0)
    sampling = Sampling(channels=CHANNELS, period=1.0, max_gap=3.0, stale_after=10.0)
    alarm = Alarm(clear_after=5.0, cool_down=0.0)

    def made(
        maintenance: tuple[Maintenance, ...] = (),
        on_reading: Callable[[dict[str, Any]], None] | None = None,
        **changes: Any,
    ) -> Device:
        settings = DeviceSettings(
            replace(sampling, **changes.pop("sampling", {})),
            replace(alarm, **changes.pop("alarm", {})),
            replace(learning, **changes.pop("learning", {})),
        )
        return Device("pump", settings, Store(tmp_path / "agent.sqlite"), maintenance, on_reading)

    return made


@pytest.fixture(autouse=True)
def said() -> Iterator[list[str]]:
    with logged() as lines:
        yield lines


def take(device: Device, time: float | None, values: dict[str, float], arrival: float) -> list[dict[str, Any]]:
    return as_json(device.take(Sample("pump", time, values), arrival))


def feed(device: Device, rows: Array, first: int = 0) -> list[dict[str, Any]]:
    alerts: list[dict[str, Any]] = []
    for k, row in enumerate(rows, start=first):
        alerts += take(device, BEGIN + k, dict(zip(CHANNELS, map(float, row), strict=True)), BEGIN + k)
    return alerts


def commit(device: Device) -> None:
    device.save()
    device._store.commit()


def test_a_device_scores_as_the_batch_does_also_after_a_restart(make: Make, model: KoopmanDetector) -> None:
    live = series(120)
    scores: list[float] = []

    def keep(line: dict[str, Any]) -> None:
        scores.append(line.get("score", np.nan))

    device = make(on_reading=keep)
    feed(device, live[:60])
    commit(device)
    device._store.close()
    device = make(on_reading=keep)
    feed(device, live[60:], 60)
    np.testing.assert_allclose(scores, model.decision_function(live), rtol=1e-12)


def test_what_is_seen_and_expected_is_in_the_alert(make: Make, model: KoopmanDetector) -> None:
    live = series(120)
    live[80:90, 1] += 4.0
    alerts = feed(make(), live)
    assert alerts[0]["event"] == "start"
    first = alerts[0]["channels"][0]
    assert first["channel"] == "pressure"
    assert first["seen"] == live[80, 1]
    assert abs(first["expected"] - (live[80, 1] - 4.0)) < 0.5


def test_what_is_smaller_than_the_tolerance_is_not_told(make: Make, tmp_path: Path) -> None:
    small, large = series(160), series(160)
    small[80:, 1] += 0.9
    large[80:, 1] += 2.9
    told = [alert["channels"][0]["channel"] for alert in feed(make(), small)]
    assert told
    assert set(told) == {"pressure"}
    tolerant = make(alarm={"tolerance": {"pressure": 2.0}}, learning={"folder": str(tmp_path / "other")})
    assert feed(tolerant, small, 1000) == []
    assert feed(tolerant, large, 2000)[0]["channels"][0]["channel"] == "pressure"


def test_a_tolerance_widens_what_is_possible(make: Make) -> None:
    live = series(100)
    live[60, 1] += 30.0
    (fault, _) = feed(make(alarm={"tolerance": {"pressure": 20.0}}), live)
    assert (fault["fault"], fault["channel"]) == ("impossible", "pressure")
    again = make(alarm={"tolerance": {"pressure": 40.0}})
    assert [alert for alert in feed(again, live, 1000) if alert["kind"] == "health"] == []


def test_a_model_without_witnesses_and_a_tolerance_do_not_go_together(make: Make, tmp_path: Path) -> None:
    train = Series(series(900, 0), CHANNELS)
    KoopmanDetector(window=6, rank=5, observables=16, scoring="paper").fit(train).save(tmp_path / "paper")
    with pytest.raises(SettingsError, match="the model has no witnesses, which tolerance in"):
        make(alarm={"tolerance": {"flow": 1.0}}, learning={"model": str(tmp_path / "paper")})


def test_a_kill_between_the_model_and_the_store_learns_nothing_twice(make: Make, tmp_path: Path) -> None:
    learning = {"every": 200}
    device = make(learning=learning)
    feed(device, series(250))
    assert device.is_learning_due
    commit(device)
    device.learn()  # the model is on the disk; that its rows are spent is not, for here comes the kill
    known = KoopmanDetector.load(tmp_path / "pump" / "model.safetensors").memory_.statistics.count
    device._store.close()
    again = make(learning=learning)
    assert not again.is_learning_due
    commit(again)
    _, rows = again._store.rows.to_learn("pump", 3)
    assert np.isnan(rows).all()
    feed(again, series(250, 2), 250)
    commit(again)
    again.learn()
    # 500 new rows in two pieces: the pairs of each, less its last 15 %, which judge.
    whole = KoopmanDetector.load(tmp_path / "pump" / "model.safetensors")
    piece = int(collect(whole.scaling_.transform(series(250, 2)), whole.lifting_).count)
    assert known < whole.memory_.statistics.count <= known + piece


def test_only_normal_measured_rows_are_learnt(make: Make, model: KoopmanDetector) -> None:
    device, live = make(learning={"every": 100}), series(340)
    live[150:155, 0] += 5.0
    feed(device, live[:200])
    for k in range(200, 203):  # one channel is silent: the others go on
        take(device, BEGIN + k, {"flow": 0.0, "current": 0.0}, BEGIN + k)
    feed(device, live[203:], 203)
    commit(device)
    _, rows = device._store.rows.to_learn("pump", 3)
    learnable = np.isfinite(rows.sum(axis=1))
    memory = model.stream().memory
    assert learnable[: 150 - memory - 3].all()
    assert not learnable[150 - memory + 1 : 160].any()  # what led to it, and it
    assert not learnable[200:203].any()
    assert learnable[-80:].all()


@pytest.mark.parametrize(("cautiously", "greatest"), [(True, 1.4), (False, 1.95)])
def test_what_is_far_from_all_that_was_seen_is_not_learned_unasked(
    make: Make, tmp_path: Path, cautiously: bool, greatest: float
) -> None:
    device, drifting = make(), series(600)
    drifting[200:500, 0] += np.linspace(0.0, 1.0, 300)
    device.parts.model.folder.learn(drifting, "feed:600", cautiously=cautiously)
    learned, memory = load_model(tmp_path / "pump" / "model.safetensors")
    assert learned.scoring.bounds is not None
    seen = learned.setup.scaling.restore(learned.scoring.bounds.ranges[0].T)[1]
    assert seen[0] == pytest.approx(greatest, abs=0.15)
    assert seen[1] == pytest.approx(1.15, abs=0.1)
    assert memory is not None


def test_an_incident_near_the_threshold_raises_it(make: Make) -> None:
    device, live = make(alarm={"budget": "1/day", "clear_after": 2.0}), series(300)
    threshold = device.parts.model.current.threshold if device.parts.model.current is not None else 0.0
    live[150, 0] += 0.35
    (end,) = [alert for alert in feed(device, live) if alert["event"] == "end"]
    assert threshold < end["peak"] < 1.25 * threshold
    assert device.status().threshold == pytest.approx(threshold * np.exp(0.1), rel=1e-3)


@pytest.mark.parametrize("is_over", [False, True])
def test_an_incident_near_the_threshold_that_somebody_acknowledges_does_not_raise_it(make: Make, is_over: bool) -> None:
    device, live = make(alarm={"budget": "1/day", "clear_after": 2.0}), series(300)
    threshold = device.parts.model.current.threshold if device.parts.model.current is not None else 0.0
    live[150, 0] += 0.35
    alerts = feed(device, live[:152])
    assert [alert["event"] for alert in alerts] == ["start"]
    alerts += feed(device, live[152:200], 152) if is_over else []
    device._store.alerts.put([], from_json(alerts[-1]))
    commit(device)
    device.obey(Command("1", "pump", "acknowledge", "", "anna", BEGIN))
    row = 200 if is_over else 152
    alerts += feed(device, live[row:], row)
    assert [alert["event"] for alert in alerts] == ["start", "end"]
    assert device.status().threshold == pytest.approx(threshold, rel=1e-3)


def test_what_happens_again_and_again_is_learnt_from(make: Make) -> None:
    """One in fifty samples jumps: the first five incidents are taken for faults, and then it is the model."""
    device, live = make(learning={"every": 100}, alarm={"clear_after": 2.0}), series(1000)
    live[100::50, 0] += 0.6
    ends = [alert for alert in feed(device, live) if alert["event"] == "end"]
    commit(device)
    assert {alert["severity"] for alert in ends} == {"warning"}
    assert len(ends) >= 15
    _, rows = device._store.rows.to_learn("pump", 3)
    learnable = np.isfinite(rows.sum(axis=1))
    assert not learnable[[100, 150, 200, 250, 300]].any()
    assert learnable[400::50].all()


def test_maintenance_silences_and_teaches_nothing(make: Make) -> None:
    live = series(200)
    live[100:110, 0] += 5.0
    planned = Maintenance(BEGIN + 90, BEGIN + 130, "pump")
    statuses: list[str] = []
    device = make((planned,), lambda line: statuses.append(line["state"]), learning={"every": 100})
    assert feed(device, live) == []
    assert set(statuses[90:130]) == {"maintenance"}
    assert "maintenance" not in statuses[:90] + statuses[130:]
    commit(device)
    _, rows = device._store.rows.to_learn("pump", 3)
    assert np.isnan(rows[90:130]).all()
    assert feed(make(), live)[0]["event"] == "start"  # without the plan it is told


def test_a_silent_device_is_stale_and_no_anomaly(make: Make) -> None:
    device = make()
    feed(device, series(50))
    now = time.monotonic()
    assert device.tick(now + 5.0) == []
    assert device.status().state == "ok"
    (alert,) = as_json(device.tick(now + 11.0))
    assert (alert["kind"], alert["fault"], alert["text"]) == ("health", "silent", "pump: no sample has come for 11 s")
    assert device.tick(now + 12.0) == []
    assert device.status().state == "stale"
    assert device.status().score is None
    assert not device.status().abnormal
    feed(device, series(60)[50:], 50)
    assert device.status().state == "ok"


def test_warming_up_is_told_as_n_of_all(make: Make) -> None:
    device = make()
    feed(device, series(4))
    assert device.status().state == "warming"
    assert device.status().progress == {"have": 4, "need": 7}


def test_without_a_model_the_device_gathers_rows_for_one(make: Make, tmp_path: Path) -> None:
    device = make(learning={"model": "", "first": 600, "folder": str(tmp_path / "new")})
    feed(device, series(599))
    assert (device.status().state, device.status().progress) == (
        "learning",
        {"have": 599, "need": 600, "seconds": 1.0},
    )
    assert not device.is_learning_due
    feed(device, series(600)[599:], 599)
    commit(device)
    device.learn()
    feed(device, series(650)[600:], 600)
    assert device.status().state == "ok"
    assert KoopmanDetector.load(tmp_path / "new" / "model.safetensors").model_.setup.channel_names == CHANNELS


def test_a_new_model_keeps_the_window(make: Make, model: KoopmanDetector, tmp_path: Path) -> None:
    readings: list[dict[str, Any]] = []
    device, live = make(on_reading=readings.append), series(80)
    feed(device, live[:60])
    other = KoopmanDetector.load(tmp_path / "model.fedkad").learn(series(500, 7))
    folder = DeviceState(tmp_path / "pump")
    with folder.locked():
        folder.deliver(other, "run-1")
    commit(device)
    assert device.parts.model.is_renewed()
    device.adopt_model()
    readings.clear()
    feed(device, live[60:], 60)
    assert readings[0]["state"] == "ok"
    expected = other.decision_function(live)
    assert abs(readings[-1]["score"] - expected[-1]) < 1e-9


def test_a_new_model_in_the_configuration_takes_the_place_of_the_old_one(
    make: Make, model: KoopmanDetector, tmp_path: Path, said: list[str]
) -> None:
    device = make(learning={"every": 100})
    feed(device, series(200))
    commit(device)
    device.learn()
    assert device.parts.learner.learned == 1
    commit(device)
    device._store.close()
    again = make(learning={"every": 100})  # the same file: what was learnt since stays
    assert again.parts.model.current is not None
    assert again.parts.model.current.learnt_through
    again._store.close()
    other = KoopmanDetector.load(tmp_path / "model.fedkad")
    other.threshold_ = 50.0
    other.save(tmp_path / "model.fedkad")
    third = make()
    assert third.parts.model.current is not None
    assert third.parts.model.current.threshold == 50.0
    assert "has changed and replaces the model in use" in said[-1]
    third._store.close()
    (tmp_path / "model.fedkad").unlink()
    assert make().status().state == "waiting"  # with the one that it has


def test_a_model_that_the_device_has_already_is_not_replaced_unasked(
    make: Make, model: KoopmanDetector, tmp_path: Path, said: list[str]
) -> None:
    state = DeviceState(tmp_path / "pump")
    other = KoopmanDetector.load(tmp_path / "model.fedkad").learn(series(500, 7))
    with state.locked():
        state.deliver(other, "run-1")
    device = make()
    assert device.parts.model.current is not None
    assert device.parts.model.current.threshold == other.threshold_
    assert "is not used because the device has" in said[-1]


def test_a_device_says_how_its_first_model_comes_about(make: Make, said: list[str]) -> None:
    device = make(learning={"model": "", "first": 300})
    assert said.pop() == "pump: no model yet; one is fitted to 300 normal rows, of which 0 are there."
    feed(device, series(250))
    device.finish()
    device.finish()
    assert said == ["pump: the input has ended with 250 of 300 rows for a first model."]
    feed(device, series(300)[250:], 250)
    commit(device)
    device.learn()
    assert "a first model was fitted to 300 rows" in said[-1]
    assert "a guess" in said[-1]


def test_a_device_says_that_it_has_learned_again(make: Make, said: list[str]) -> None:
    device = make(learning={"every": 300})
    assert device.parts.model.current is not None
    before = device.parts.model.current.threshold
    feed(device, series(300))
    commit(device)
    device.learn()
    after = device.parts.model.current.threshold
    assert said[-1] == f"pump: 300 more rows were learned; its threshold is {after:.3g}, and was {before:.3g} before."


def test_a_stale_device_says_why(make: Make, said: list[str]) -> None:
    device = make()
    device.tick(time.monotonic() + 11.0)
    assert "no sample has come since the agent was started; check its name" in said[-1]
    feed(device, series(20))
    device.tick(time.monotonic() + 30.0)
    assert "no sample has come for 30 s" in said[-1]
    assert device.status().why == "no sample has come for 30 s"
    commit(device)
    again = make()
    again.tick(time.monotonic() + 11.0)
    assert "no sample has come since the agent was started; it is stale" in said[-1], "its name is known to be right"


def test_samples_without_a_time_that_come_at_once_are_told_of_once(make: Make, said: list[str]) -> None:
    device = make()
    for row in series(100):
        take(device, None, dict(zip(CHANNELS, map(float, row), strict=True)), BEGIN)
    assert sum("without a known time" in text for text in said) == 1


def test_a_model_that_is_not_for_the_device_is_neither_used_nor_changed(make: Make, tmp_path: Path) -> None:
    device = make(learning={"every": 100})
    feed(device, series(90))
    commit(device)
    foreign = KoopmanDetector(window=6, rank=5, observables=16).fit(Series(series(3000, 5), ("a", "b", "c")))
    foreign.save(tmp_path / "pump" / "model.safetensors")
    content = (tmp_path / "pump" / "model.safetensors").read_bytes()
    device.adopt_model()
    feed(device, series(200)[90:], 90)
    commit(device)
    assert device.is_learning_due
    device.learn()
    assert (tmp_path / "pump" / "model.safetensors").read_bytes() == content
    assert (device.status().state, device.parts.learner.learned, device.is_learning_due) == ("ok", 0, False)


def test_a_model_that_is_delivered_while_the_first_is_fitted_stays(
    make: Make, model: KoopmanDetector, tmp_path: Path
) -> None:
    device, folder = make(learning={"model": "", "first": 300}), DeviceState(tmp_path / "pump")
    feed(device, series(300))
    commit(device)
    fit = learning.fit

    def fit_slowly(*given: Any) -> Any:
        with folder.locked():
            folder.deliver(model, "run-1")
        return fit(*given)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(modelfolder, "fit", fit_slowly)
        device.learn()
    assert device.parts.model.is_renewed()
    device.adopt_model()
    assert device.parts.model.current is not None
    assert device.parts.model.current.threshold == model.threshold_
    assert device.status().state != "learning"


def test_a_device_of_another_period_gathers_a_new_window_once(make: Make, model: KoopmanDetector) -> None:
    device = make()
    feed(device, series(50))
    commit(device)
    device._store.close()
    again = make(sampling={"period": 2.0})
    take(again, BEGIN + 100.0, dict.fromkeys(CHANNELS, 0.0), BEGIN)
    assert again.status().state == "warming"
    for k in range(51, 80):
        take(again, BEGIN + 2.0 * k, dict.fromkeys(CHANNELS, 0.1 * k), BEGIN)
    assert again.status().state == "ok"
    commit(again)
    again.adopt_model()
    take(again, BEGIN + 160.0, dict.fromkeys(CHANNELS, 8.0), BEGIN)
    assert again.status().state == "ok"


def shown_status(device: Device) -> list[str]:
    """The line of `fedkad-agent status` about the device, by its columns."""
    commit(device)
    settings = AgentSettings({"pump": device._configured}, state=device._store.path.parent)
    return re.split("  +", status(settings).splitlines()[-1])


def test_the_status_says_how_far_learning_is_and_how_long_it_takes(make: Make) -> None:
    device = make(learning={"model": "", "first": 0}, sampling={"period": INFERRED, "max_gap": BY_PERIOD})
    for k in range(600):
        take(device, BEGIN + 60.0 * k, dict.fromkeys(CHANNELS, 0.1 * k), BEGIN + 60.0 * k)
        if k == 5:
            assert shown_status(device)[1] == "learning, its period is not known yet"
            assert device.status().progress == {"have": 0, "need": 700, "seconds": 86400.0}
    assert shown_status(device)[1:3] == ["learning, 600 of 1440 rows, 14 h left", "600"]


def test_a_damaged_model_is_set_aside_and_the_device_goes_on(make: Make, tmp_path: Path, said: list[str]) -> None:
    device = make()
    feed(device, series(50))
    (tmp_path / "pump" / "model.safetensors").write_bytes(b"nonsense")
    device.adopt_model()
    assert (tmp_path / "pump" / "model.safetensors.damaged-1").read_bytes() == b"nonsense"
    assert "the device continues with the one that it has read before" in said[-1]
    assert not device.parts.model.is_renewed()
    assert "is gone" not in said[-1]  # that it was renamed is logged already
    feed(device, series(60)[50:], 50)
    assert device.status().state == "ok"


def test_a_device_whose_model_is_taken_away_says_so_once_and_is_monitored(
    make: Make, tmp_path: Path, said: list[str]
) -> None:
    device = make()
    feed(device, series(50))
    (tmp_path / "pump" / "model.safetensors").unlink()
    assert not device.parts.model.is_renewed()
    assert not device.parts.model.is_renewed()
    assert sum("model.safetensors is gone; the device continues with" in line for line in said) == 1
    feed(device, series(60)[50:], 50)
    assert device.status().state == "ok"
    assert "ok" in shown_status(device)


def test_settings_hold_for_a_model_whose_file_was_taken_away(make: Make, tmp_path: Path, said: list[str]) -> None:
    device = make(alarm={"threshold": 2.5})
    own = KoopmanDetector.load(tmp_path / "pump" / "model.safetensors").threshold_
    feed(device, series(50))
    commit(device)
    (tmp_path / "pump" / "model.safetensors").unlink()
    assert device.status().threshold == 2.5
    others: list[tuple[str | float, float]] = [(9.5, 9.5), ("", own), (3.5, 3.5)]
    for number, (threshold, expected) in enumerate(others):
        alarm = replace(device._configured.alarm, threshold=threshold)
        device.configure(replace(device._configured, alarm=alarm))
        feed(device, series(60)[50 + number : 51 + number], 50 + number)
        assert (device.status().state, device.status().threshold) == ("ok", expected)
        commit(device)


def test_a_tolerance_that_the_model_cannot_have_is_said_and_the_rest_of_the_settings_holds(
    make: Make, tmp_path: Path, said: list[str]
) -> None:
    train = Series(series(900, 0), CHANNELS)
    KoopmanDetector(window=6, rank=5, observables=16, scoring="paper").fit(train).save(tmp_path / "paper")
    device = make(learning={"model": str(tmp_path / "paper")})
    alarm = replace(device._configured.alarm, threshold=9.5, tolerance={"flow": 1.0})
    device.configure(replace(device._configured, alarm=alarm))
    feed(device, series(50))
    assert device.status().threshold == 9.5
    assert "the model has no witnesses" in said[-1]
    assert said[-1].endswith("The device continues without a tolerance.")


def test_what_cannot_be_understood_of_the_device_begins_anew(make: Make) -> None:
    device = make()
    feed(device, series(50))
    device._store.states.put("pump", {"seq": 50, "grid": {"other": 1}})
    device._store.commit()
    device._store.close()
    again = make()
    feed(again, series(80)[50:], 50)
    assert again.status().state == "ok"


def test_a_budget_sets_the_threshold_and_what_was_measured_is_told(make: Make, model: KoopmanDetector) -> None:
    device = make(alarm={"budget": "1/day"})
    live = series(200)
    live[100:105] += 5.0
    feed(device, live)
    expected = KoopmanDetector.load(Path(device.parts.settings.learning.model)).rejudge("1/day", 1.0).threshold_
    told = device.status()
    hours, budget = (200 - 6) / 3600, told.budget or {}
    # A few minutes lower the threshold by next to nothing, and what is far above it does not raise it.
    assert (told.counters or {})["incidents"] > 0
    assert budget["threshold_factor"] == pytest.approx(np.exp(-0.1 * 194 / 86400))
    assert told.threshold == pytest.approx(expected * budget["threshold_factor"], rel=1e-5)
    assert budget["allowed_per_week"] == pytest.approx(7.0)
    assert budget["watched_hours"] == pytest.approx(hours)
    assert budget["measured_per_week"] == pytest.approx((told.counters or {})["incidents"] * 7 * 24 / hours)
    assert shown_status(device)[6:9] == ["1", "1/day", f"{short_number(budget['measured_per_week'])}/week"]


# -- back to monitoring by itself -------------------------------------------------------------------------------------


def with_open_incident(make: Make, **changes: Any) -> Device:
    """A device that has a model of its own, with an incident that is open and committed."""
    device = make(learning={"model": "", "first": 600}, **changes)
    live = series(700)
    feed(device, live[:600])
    commit(device)
    device.learn()
    live[690:] += 5.0
    (alert,) = feed(device, live[600:], 600)
    assert alert["event"] == "start"
    commit(device)
    device._store.close()
    return device


@pytest.mark.parametrize("fate", ["removed", "damaged"])
def test_an_open_incident_ends_when_its_model_is_gone_and_the_device_learns_again(
    make: Make, tmp_path: Path, fate: str, said: list[str]
) -> None:
    with_open_incident(make)
    path = tmp_path / "pump" / "model.safetensors"
    if fate == "removed":
        path.unlink()
    else:
        path.write_bytes(b"nonsense")
    again = make(learning={"model": "", "first": 600})
    (alert,) = as_json(again.tick(time.monotonic()))
    assert (alert["event"], alert["reason"], alert["duration"]) == ("end", "no model", 9.0)
    assert "ended without a model, which the device learns again, after 9 s" in alert["text"]
    assert again.tick(time.monotonic()) == []
    assert again.status().state == "learning"
    commit(again)
    _, rows = again._store.rows.to_learn("pump", len(CHANNELS), 690)
    assert len(rows) == 10
    assert np.isnan(rows).all()  # those of the incident are not learned
    feed(again, series(1400)[700:], 700)
    assert again.is_learning_due
    commit(again)
    again.learn()
    live = series(1800)
    live[1450:1460] += 5.0
    told = feed(again, live[1400:], 1400)
    assert [alert["event"] for alert in told] == ["start", "end"]


def test_changed_channels_put_the_model_that_learned_the_old_ones_aside(
    make: Make, tmp_path: Path, said: list[str]
) -> None:
    with_open_incident(make)
    fewer = {"channels": ("flow", "current")}
    again = make(learning={"model": "", "first": 600}, sampling=fewer)
    assert (tmp_path / "pump" / "model.safetensors.outgrown-1").exists()
    assert any("channels in [sampling] are now flow, current" in line for line in said)
    live = series(1400)
    (alert,) = feed(again, live[700:701], 700)  # a row comes before the first tick
    assert (alert["event"], alert["reason"]) == ("end", "no model")
    assert feed(again, live[701:], 701) == []
    commit(again)
    again.learn()
    feed(again, series(1450)[1400:], 1400)
    assert again.status().state == "ok"


def test_a_given_model_of_other_channels_is_never_put_aside(make: Make, tmp_path: Path) -> None:
    make()
    with pytest.raises(SettingsError, match="the model has the channels"):
        make(sampling={"channels": ("flow", "current")})
    assert (tmp_path / "pump" / "model.safetensors").exists()


# -- faults of sensors ------------------------------------------------------------------------------------------------


def told(alerts: list[dict[str, Any]]) -> list[tuple[str, str, str | None]]:
    return [(alert["event"], alert.get("fault", "incident"), alert.get("channel")) for alert in alerts]


def with_stuck_pressure(rows: int = 500) -> Array:
    """Pressure stands still in the rows 300 … 379."""
    live = series(rows)
    live[300:380, 1] = live[299, 1]
    return live


def test_a_stuck_channel_is_told_before_it_recovers_and_its_recovery_is_no_incident(make: Make) -> None:
    device, live = make(), with_stuck_pressure()
    first = feed(device, live[:380])
    assert ("start", "stuck", "pressure") in told(first)
    assert device.status().why == "judged without pressure"
    assert device.status().payload()["faults"][0]["fault"] == "stuck"
    after = feed(device, live[380:], 380)
    assert told([alert for alert in after if alert["event"] == "start"]) == []
    assert ("end", "stuck", "pressure") in told(after)
    assert device.status().state == "ok"
    assert device.status().metrics()["faults"] == 1
    assert device.status().metrics()["faults_open"] == 0


def test_a_slow_channel_that_jumps_when_it_is_released_begins_no_incident(make: Make, tmp_path: Path) -> None:
    def slow(rows: int, seed: int) -> Array:
        noise = 0.05 * np.random.default_rng(seed).normal(size=(rows, 3))
        return np.asarray(np.sin(np.arange(rows)[:, None] / np.array([40.0, 60.0, 80.0])) + noise)

    live = slow(600, 1)
    live[300:420, 1] = live[299, 1]
    fitted = KoopmanDetector(window=6, rank=5, observables=16, sample_period=1.0).fit(Series(slow(3000, 0), CHANNELS))
    fitted.save(tmp_path / "slow.fedkad")
    starts = []
    for heeds in (True, False):
        folder = {"folder": str(tmp_path / f"slow-{heeds}"), "model": str(tmp_path / "slow.fedkad")}
        device = make(learning=folder)
        if not heeds:
            device.parts.health.is_recovering = lambda time: False  # type: ignore[method-assign]
        alerts = feed(device, live)
        starts.append([alert for alert in alerts if alert["event"] == "start" and alert["kind"] == "score"])
        device._store.close()
        (tmp_path / "agent.sqlite").unlink()
    jumped = [[alert for alert in found if alert["time"] >= format_time(BEGIN + 419)] for found in starts]
    assert (len(jumped[0]), len(jumped[1])) == (0, 1)


@pytest.mark.parametrize("kills", [{299}, {310, 335}, {340, 378, 381}, {383, 389, 395}])
def test_a_kill_while_a_channel_is_stuck_changes_no_alert(make: Make, tmp_path: Path, kills: set[int]) -> None:
    live, calm = with_stuck_pressure(), make()
    expected = feed(calm, live)
    calm._store.close()
    (tmp_path / "agent.sqlite").unlink()
    device, alerts = make(), []
    for k, row in enumerate(live):
        alerts += feed(device, row[None], k)
        commit(device)
        if k in kills:
            device._store.close()
            device = make()
    assert alerts == expected


def test_an_impossible_value_is_a_fault_of_the_sensor_and_no_incident(make: Make) -> None:
    device, live = make(learning={"every": 100}), series(200)
    live[100, 0] = -3277.0
    alerts = feed(device, live)
    assert told(alerts) == [("start", "impossible", "flow"), ("end", "impossible", "flow")]
    assert alerts[0]["sentence"] == "flow is -3277, which is impossible where -1.097 to 1.085 is normal"
    commit(device)
    _, rows = device._store.rows.to_learn("pump", 3)
    assert np.isnan(rows[100]).all()
    assert np.isfinite(rows[101:]).all()


def test_a_channel_that_has_never_moved_may_begin_to_and_is_an_incident(make: Make, tmp_path: Path) -> None:
    train, live = series(3000, 0), series(200)
    train[:, 2] = live[:, 2] = 0.0
    live[100:120, 2] = 500.0
    fitted = KoopmanDetector(window=6, rank=5, observables=16, sample_period=1.0).fit(Series(train, CHANNELS))
    fitted.save(tmp_path / "off.fedkad")
    alerts = feed(make(learning={"model": str(tmp_path / "off.fedkad"), "folder": str(tmp_path / "off")}), live)
    assert told(alerts)[0] == ("start", "incident", None)
    assert {alert["kind"] for alert in alerts} == {"score"}


def test_a_silent_channel_is_named_and_the_others_are_judged(make: Make) -> None:
    device, live = make(), series(400)
    live[200:210, 2] += 5.0
    alerts = feed(device, live[:100])
    for k in range(100, 300):
        flow, _, current = map(float, live[k])
        alerts += take(device, BEGIN + k, {"flow": flow, "current": current}, BEGIN + k)
    assert device.status().why == "judged without pressure"
    alerts += feed(device, live[300:], 300)
    assert told(alerts) == [
        ("start", "channel silent", "pressure"),
        ("start", "incident", None),
        ("end", "incident", None),
        ("end", "channel silent", "pressure"),
    ]
    assert alerts[0]["start"] == format_time(BEGIN + 100)
    assert alerts[1]["channels"][0]["channel"] == "current"


def test_a_device_is_silent_until_it_has_sent_for_a_while_and_a_kill_tells_nothing_twice(make: Make) -> None:
    device = make()
    feed(device, series(50))
    (start,) = as_json(device.tick(time.monotonic() + 11.0))
    commit(device)
    device._store.close()
    again = make()
    assert again.tick(time.monotonic() + 12.0) == []
    assert [each.id for each in again.status().faults] == [start["id"]]
    alerts = feed(again, series(100)[60:], 60)
    assert [(alert["event"], alert["id"]) for alert in alerts] == [("end", start["id"])]
    assert alerts[0]["duration"] == 11.0


def test_a_device_that_fell_silent_before_a_restart_has_been_silent_since_then(make: Make) -> None:
    device = make()
    feed(device, series(50))
    commit(device)
    device._store.close()
    device, now = make(), time.monotonic()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "time", lambda: BEGIN + 49.0 + 36000.0)
        (alert,) = as_json(device.tick(now + 11.0))
    assert alert["start"] == format_time(BEGIN + 49.0)
    assert alert["time"] == format_time(BEGIN + 49.0 + 36000.0)
    assert alert["duration"] == 36000.0


def test_a_fault_that_is_open_is_shown_as_it_is_now(make: Make) -> None:
    device, now = make(), time.monotonic()
    feed(device, series(50))
    (start,) = as_json(device.tick(now + 11.0))
    for seconds, words in ((12.0, "11 s"), (30.0, "30 s"), (900.0, "15 min")):
        device.is_changed = False
        assert device.tick(now + seconds) == []
        assert device.is_changed == (seconds > 12.0)  # not every second is written to the disk
        (fault,) = device.status().faults
        assert fault.sentence == f"no sample has come for {words}"
    assert fault.duration == pytest.approx(900.0, abs=5.0)
    assert (fault.id, fault.start, fault.text) == (start["id"], from_json(start).start, f"pump: {fault.sentence}")
    device._store.alerts.put([], from_json(start))
    commit(device)
    settings = AgentSettings({"pump": device._configured}, state=device._store.path.parent)
    (row,) = incidents(settings, "pump", 5).splitlines()[1:]
    assert "  15 min  " in row
    assert row.endswith("no sample has come for 15 min")


def test_no_device_is_silent_while_the_agent_hears_nobody_nor_just_after(make: Make) -> None:
    device, now = make(), time.monotonic()
    assert device.tick(now + 11.0, hears=False) == device.tick(now + 19.0) == []
    assert device.status().state == "stale"
    assert told(as_json(device.tick(now + 22.0))) == [("start", "silent", None)]


def test_a_channel_that_has_never_come_is_named(make: Make) -> None:
    device, now = make(), time.monotonic()
    for k in range(60):
        take(device, BEGIN + k, {"flow": 1.0 + k, "current": 2.0}, BEGIN + k)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "monotonic", lambda: now + 5.0)
        take(device, BEGIN + 60, {"flow": 1.0, "current": 2.0}, BEGIN + 60)
    (alert,) = as_json(device.tick(now + 12.0))
    assert alert["sentence"] == "samples come, but none could be judged for 12 s, since pressure has never come"


def test_a_channel_that_has_never_come_is_in_the_state_at_once_and_a_fault_after_two_hours(make: Make) -> None:
    device, now = make(sampling={"stale_after": BY_PERIOD}), time.monotonic()
    alerts = []
    with pytest.MonkeyPatch.context() as patched:
        for minute in range(125):
            patched.setattr(time, "monotonic", lambda minute=minute: now + 60.0 * minute)
            take(device, BEGIN + 60.0 * minute, {"flow": 1.0, "current": 2.0}, BEGIN)
            assert device.status().why == "pressure has never come" or minute > 120
            alerts += as_json(device.tick(now + 60.0 * minute + 5.0))
    (alert,) = alerts
    assert alert["sentence"] == "samples come, but none could be judged for 2 h, since pressure has never come"
    device.tick(now + 60.0 * 124.0 + 300.0)
    assert (device.status().why or "").startswith("no sample has come for"), "its samples have ended, too"


def test_a_device_that_is_switched_off_for_maintenance_is_not_silent(make: Make) -> None:
    now = time.time()
    device = make((Maintenance(now - 60.0, now + 3600.0, "pump"),))
    assert device.tick(time.monotonic() + 11.0) == []
    assert device.status().state == "stale"
    planned, device._maintenance = device._maintenance, []  # it is over, and still nothing comes
    assert told(as_json(device.tick(time.monotonic() + 12.0))) == [("start", "silent", None)]
    device._maintenance = planned
    assert told(as_json(device.tick(time.monotonic() + 13.0))) == [("end", "silent", None)]


def test_the_faults_of_a_device_that_is_muted_end_though_no_row_comes(make: Make) -> None:
    device = make()
    feed(device, series(50))
    now = time.monotonic()
    (start,) = as_json(device.tick(now + 11.0))
    device.obey(Command("1", "pump", "mute", "1h", "anna", time.time()))
    (end,) = as_json(device.tick(now + 12.0))
    assert (end["event"], end["id"], end["reason"]) == ("end", start["id"], "muted")
    assert end["duration"] == pytest.approx(12.0, abs=2.0)  # as long as it was silent
    status = device.status()
    assert (status.faults, status.state, status.metrics()["muted"]) == ([], "stale", 1.0)
    assert device.tick(now + 13.0) == []
    device.obey(Command("2", "pump", "mute", "0", "anna", time.time()))
    assert told(as_json(device.tick(now + 14.0))) == [("start", "silent", None)]
    assert device.status().metrics()["muted"] == 0.0


# -- slow and irregular reporters -------------------------------------------------------------------------------------


@pytest.mark.parametrize("live", [True, False])
def test_a_device_that_sends_every_eleven_seconds_is_told_with_its_interval(make: Make, live: bool) -> None:
    device, alerts = make(sampling={"max_gap": BY_PERIOD, "stale_after": BY_PERIOD}), list[dict[str, Any]]()
    for k, row in enumerate(series(100)):
        at = BEGIN + 11.0 * k
        alerts += take(device, at, dict(zip(CHANNELS, map(float, row), strict=True)), at if live else time.time())
    (alert,) = [alert for alert in alerts if alert["kind"] == "health"]
    assert (alert["fault"], alert["sentence"]) == (
        "period",
        'samples come every 11 s, but the period is 1 s; set period = "11s" in [sampling]',
    )
    assert device.status().state == "ok"
    assert (device.status().counters or {})["off_clock"] == 0


def test_a_device_that_sends_faster_than_its_period_is_logged_once(make: Make, said: list[str]) -> None:
    device = make(sampling={"period": 60.0})
    for k in range(300):
        take(device, BEGIN + k, dict.fromkeys(CHANNELS, 0.1 * k), BEGIN + k)
    words = "samples come every 1 s, but the period is 60 s: only the first one in each period counts."
    assert sum(words in line for line in said) == 1


def test_two_values_of_a_channel_at_one_time_are_logged_as_that(make: Make, said: list[str]) -> None:
    device = make(sampling={"period": 10.0})
    for k in range(30):  # as Telegraf does for every processor unless it is told otherwise
        for processor in (0.0, 50.0):
            take(device, BEGIN + 10.0 * k, dict.fromkeys(CHANNELS, processor + 0.1 * k), BEGIN + 10.0 * k)
    assert sum("had another one at the same time, of which the first counts" in line for line in said) == 1


@pytest.mark.parametrize("period", [INFERRED, 60.0, 1200.0])
def test_a_device_that_sends_when_a_value_changes_loses_nothing_without_a_word(
    make: Make, said: list[str], period: float
) -> None:
    new = {"learning": {"model": ""}, "sampling": {"period": period, "max_gap": BY_PERIOD, "stale_after": BY_PERIOD}}
    device, generator, at = make(**new), np.random.default_rng(3), BEGIN
    for k in range(600):  # by day every 20 minutes or so, at night once an hour
        is_night = at % 86400.0 < 6 * 3600.0
        at += 3600.0 if is_night else float(generator.uniform(240.0, 2160.0))
        assert take(device, at, dict.fromkeys(CHANNELS, 0.1 * k), at) == []
    assert ("pump: its samples are irregular, and its period is 60 s from now on." in said) == (period == INFERRED)
    counters = device.status().counters or {}
    lines = [line for line in said if "values were dropped, since their period of 1200 s had one already" in line]
    if period == 1200.0:
        assert counters["late"] > 100
        assert len(lines) == 1
        assert "samples come every" in lines[0]
    else:
        assert (counters["late"], counters["duplicates"], counters["off_clock"], lines) == (0, 0, 0, [])


def test_a_device_with_a_sign_of_life_every_hour_is_not_silent_between(make: Make) -> None:
    device = make(sampling={"period": 60.0, "max_gap": BY_PERIOD, "stale_after": BY_PERIOD})
    for k in range(6):
        take(device, BEGIN + 3600.0 * k, dict.fromkeys(CHANNELS, 0.1 * k), BEGIN + 3600.0 * k)
    assert device.tick(time.monotonic() + 7200.0) == []
    assert told(as_json(device.tick(time.monotonic() + 9100.0))) == [("start", "silent", None)]


def slow(
    make: Make, until: float, period: float = INFERRED, kills: frozenset[int] = frozenset()
) -> list[tuple[float, str, str]]:
    """The hour, event and fault of what is told in a day of temperatures, with a humidity once an hour until then."""
    plan = {"channels": ("heat", "humidity"), "period": period, "max_gap": BY_PERIOD, "stale_after": BY_PERIOD}
    new = {"learning": {"model": ""}, "sampling": plan}
    found, begun, k = [], time.monotonic(), 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "monotonic", lambda: begun + 300.0 * k)
        device = make(**new)
        for k in range(288):
            values = {"heat": 20.0 + 0.1 * k}
            if k % 12 == 11 and k < 12 * until:
                values["humidity"] = 50.0 + k
            alerts = take(device, BEGIN + 300.0 * k, values, BEGIN + 300.0 * k)
            alerts += as_json(device.tick(begun + 300.0 * k + 5.0))
            found += [(k / 12, alert["event"], alert["fault"]) for alert in alerts]
            commit(device)
            if k in kills:
                device._store.close()
                device = make(**new)
    device._store.close()
    return found


@pytest.mark.parametrize("period", [INFERRED, 300.0])
def test_a_channel_that_comes_once_an_hour_is_never_silent(make: Make, period: float) -> None:
    assert slow(make, 24.0, period) == []


@pytest.mark.parametrize(("until", "told"), [(1.0, 7.0), (2.0, 8.0), (6.0, 7.75), (12.0, 13.75)])
@pytest.mark.parametrize("kills", [frozenset(), frozenset({15, 40, 75, 90, 91, 150})])
def test_a_slow_channel_that_dies_is_told_by_its_rhythm_or_after_six_hours(
    make: Make, until: float, told: float, kills: frozenset[int]
) -> None:
    ((hour, event, fault),) = slow(make, until, 300.0, kills)
    assert (event, fault) == ("start", "channel silent")
    assert hour == pytest.approx(told, abs=0.3)


@pytest.mark.parametrize("kills", [set(), {3, 20, 21, 30}])
def test_a_period_that_is_not_written_is_that_of_the_first_samples(
    make: Make, said: list[str], kills: set[int]
) -> None:
    new = {"learning": {"model": "", "first": 300}, "sampling": {"period": INFERRED, "max_gap": BY_PERIOD}}
    device, generator = make(**new), np.random.default_rng(0)
    for k, row in enumerate(series(400)):
        at = BEGIN + 10.0 * k + generator.uniform(-1.0, 1.0)
        take(device, at, dict(zip(CHANNELS, map(float, row), strict=True)), at)
        assert (device.status().why == "its period is not known yet") == (k < 20)
        commit(device)
        if device.is_learning_due:
            device.learn()
        if k in kills:
            device._store.close()
            device = make(**new)
    status = device.status()
    assert status.state == "ok"
    assert device.parts.settings.sampling.period == pytest.approx(10.0, rel=0.01)
    assert 395 <= (status.counters or {})["rows"] <= 405  # those that waited are among them
    assert sum("which is its period from now on" in line for line in said) == 1
    assert not status.faults


def test_a_period_that_is_not_written_is_that_of_the_model(make: Make) -> None:
    device = make(sampling={"period": INFERRED})
    assert device.parts.settings.sampling.period == 1.0
    feed(device, series(30))
    assert device.status().state == "ok"


def test_an_input_that_ends_early_shows_its_period_by_what_there_is(make: Make) -> None:
    device = make(learning={"model": ""}, sampling={"period": INFERRED})
    for k in range(5):
        take(device, BEGIN + 5.0 * k, dict.fromkeys(CHANNELS, 1.0), BEGIN)
    device.finish()
    assert (device.parts.settings.sampling.period, (device.status().counters or {})["rows"]) == (5.0, 5)


def test_a_clock_that_stands_still_is_no_reason_to_wait_for_ever(make: Make) -> None:
    device = make(learning={"model": ""}, sampling={"period": INFERRED})
    for _ in range(1001):
        take(device, BEGIN, dict.fromkeys(CHANNELS, 1.0), BEGIN)
    assert device.parts.settings.sampling.period == 1.0
