"""When a run is started, and what follows from its end; Flower is a list here, and time a number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedkad import locks
from fedkad.federation import training_files
from fedkad.fleet.server import requests
from fedkad.fleet.server.requests import ATTEMPTS, TrainingEnd, outcome_of
from fedkad.fleet.server.trainings import DELIVERY_PAUSE, TrainingRules, Trainings
from fedkad.fleet.shared.files import FleetFileError

HERE = {"a": True, "b": True}


class Flower:
    """Runs that end when a test says so."""

    def __init__(self) -> None:
        self.jobs: list[str] = []
        self.over: set[int] = set()
        self.stopped = 0

    def submit(self, job: str) -> int:
        self.jobs.append(job)
        return len(self.jobs)

    def has_ended(self, run: int) -> bool:
        return run in self.over

    def stop(self) -> None:
        self.stopped += 1

    def end(self) -> None:
        self.over.add(len(self.jobs))


class World:
    """A training folder, a clock that can be changed, a timer, and what was logged."""

    def __init__(
        self,
        folder: Path,
        caplog: pytest.LogCaptureFixture,
        *,
        every: float | None = None,
        rules: TrainingRules | None = None,
    ) -> None:
        self.folder, self.flower, self.now, self.shift = folder, Flower(), 1000.0, 0.0
        caplog.set_level("INFO", "fedkad")
        self.caplog = caplog
        self.trainings = Trainings(
            folder,
            self.flower,
            rules or TrainingRules(every=every),
            clock=lambda: self.now + self.shift,
            timer=lambda: self.now,
        )

    @property
    def last_logged(self) -> str:
        return self.caplog.messages[-1]

    def status(self, **fields: Any) -> None:
        """What the app writes; the result of a training that is done stays beside it."""
        (self.folder / "status.json").write_text(json.dumps(fields))
        if fields.get("state") == "done":
            result = {"run": fields["run"], "delivered": fields.get("delivered", ["a", "b"])}
            (self.folder / "result.json").write_text(json.dumps(result))

    def train(self, run: str) -> None:
        """A whole training, from its start to its end."""
        before = len(self.flower.jobs)
        assert self.step() == [*self.flower.jobs[:before], "train"]
        self.status(run=run, state="done")
        self.flower.end()
        self.step()

    def step(self, online: dict[str, bool] | None = None) -> list[str]:
        self.trainings.step(HERE if online is None else online)
        return self.flower.jobs


@pytest.fixture
def world(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> World:
    return World(tmp_path, caplog)


def test_nothing_runs_without_a_request(world: World) -> None:
    assert world.step() == []
    requests.request_training(world.folder)
    assert world.step() == ["train"]
    assert world.step() == ["train"]


def test_a_request_waits_for_a_device(world: World) -> None:
    requests.request_training(world.folder)
    assert world.step({"a": False}) == []
    assert training_files.is_requested(world.folder)
    assert world.step({"a": True}) == ["train"]


def test_a_request_stays_until_a_training_has_succeeded(world: World) -> None:
    requests.request_training(world.folder)
    world.step()
    assert training_files.is_requested(world.folder)
    world.status(run="r", state="done", delivered=["a", "b"])
    world.flower.end()
    world.step()
    assert not training_files.is_requested(world.folder)
    assert not (world.folder / "wanted").exists()
    assert world.step() == ["train"]


def test_a_training_that_broke_off_is_retried_after_growing_waits_but_not_forever(world: World) -> None:
    requests.request_training(world.folder)
    world.status(run="r", state="training", round=3)
    waits = []
    for attempt in range(1, ATTEMPTS + 1):
        assert world.step() == ["train"] * attempt
        world.flower.end()
        world.step()
        began = world.now
        while attempt < ATTEMPTS and len(world.step()) == attempt:
            world.now += 1.0
        waits.append(world.now - began)
    assert waits == [5.0, 10.0, 20.0, 40.0, 0.0]
    assert not training_files.is_requested(world.folder)
    assert "broke off" in world.last_logged
    requests.request_training(world.folder)
    assert len(world.step()) == ATTEMPTS + 1
    world.flower.end()
    world.step()
    assert training_files.is_requested(world.folder), "its failures count by themselves"


def test_the_status_of_an_earlier_training_does_not_end_this_one(world: World) -> None:
    world.status(run="old", state="done")
    requests.request_training(world.folder)
    world.step()
    world.flower.end()
    world.step()
    assert training_files.is_requested(world.folder)
    assert "broke off" in world.last_logged


def test_a_request_survives_the_server(world: World) -> None:
    requests.request_training(world.folder)
    assert world.step() == ["train"]
    again = World(world.folder, world.caplog)
    assert again.step() == ["train"]


def test_trainings_come_at_intervals_and_wait_for_half_of_the_devices(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, caplog, every=3600.0)
    for _ in range(3):
        assert world.step({"a": True, "b": False, "c": False}) == []
    assert caplog.text.count("train: is due, and waits for devices; 1 of 3 online, 2 needed") == 1
    assert world.step({"a": False, "b": False, "c": False}) == []
    assert training_files.read_waits(tmp_path) == "is due, and waits for devices; 0 of 3 online, 2 needed"
    assert caplog.text.count("waits for devices") == 1
    assert world.step({"a": True, "b": True, "c": False}) == ["train"]
    assert training_files.read_waits(tmp_path) is None
    world.status(run="r", state="done", delivered=["a", "b", "c"])
    world.flower.end()
    world.step()
    world.now += 3599.0
    assert world.step() == ["train"]
    world.now += 1.0
    assert world.step() == ["train", "train"]


def test_the_interval_survives_the_server(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    World(tmp_path, caplog, every=3600.0).train("r")
    assert World(tmp_path, caplog, every=3600.0).step() == []


def test_latecomers_get_a_delivery_once_a_minute_at_most(world: World) -> None:
    world.status(run="r", state="done", delivered=["a"])
    assert world.step({"a": True, "b": False}) == []
    assert world.step() == ["deliver"]
    world.flower.end()
    world.step()
    assert world.step() == ["deliver"]
    assert world.step({"a": True, "b": True, "c": True}) == ["deliver", "deliver"]
    world.flower.end()
    world.step()
    world.now += DELIVERY_PAUSE
    assert len(world.step({"a": True, "b": True, "c": True})) == 3


def test_failed_deliveries_are_retried_less_and_less_often_until_another_device_comes(world: World) -> None:
    world.status(run="r", state="done", delivered=["a"])
    for _ in range(24 * 60):
        world.step()
        world.flower.end()
        world.step()
        world.now += 60.0
    assert 20 <= len(world.flower.jobs) <= 32, "each hour, after the first few"
    before = len(world.flower.jobs)
    three = {**HERE, "c": True}
    assert len(world.step(three)) == before + 1
    world.flower.end()
    world.step(three)
    world.now += DELIVERY_PAUSE
    assert len(world.step(three)) == before + 2


def test_a_training_waits_for_enough_devices_and_logs_that_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, caplog, rules=TrainingRules(min_devices=3))
    requests.request_training(world.folder)
    for _ in range(3):
        assert world.step() == []
    assert caplog.messages == ["train: waits for devices; 2 online, 3 needed"]
    assert world.step({**HERE, "c": True}) == ["train"]


def test_nothing_is_delivered_before_a_training_is_done(world: World) -> None:
    world.status(run="r", state="training", delivered=[])
    assert world.step() == []
    (world.folder / "status.json").write_text("{")
    (world.folder / "result.json").write_text("{")
    assert world.step() == []


def test_the_last_result_is_delivered_after_another_training_was_given_up(world: World) -> None:
    world.status(run="good", state="done", delivered=["a"])
    world.status(run="bad", state="training", delivered=[])
    assert world.step() == ["deliver"]


def test_what_the_app_waits_for_is_logged_once(world: World) -> None:
    requests.request_training(world.folder)
    world.step()
    for came in (1, 2):
        (world.folder / "waits").write_text(f"waits for usable answers; {came} came, 3 needed")
        world.step()
    assert world.last_logged == "train: waits for usable answers; 1 came, 3 needed"
    (world.folder / "waits").unlink()
    world.step()
    (world.folder / "waits").write_text("waits for devices; 0 online, 1 needed")
    world.step()
    assert world.last_logged == "train: waits for devices; 0 online, 1 needed"
    world.flower.end()  # the app died, and another follows
    world.step()
    world.now += 100.0
    world.step()
    assert training_files.read_waits(world.folder) is None


# -- a training that is cancelled ------------------------------------------------------------------------------------


def test_a_training_under_way_that_is_cancelled_leaves_nothing_and_the_next_one_begins_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world = World(tmp_path, caplog, every=3600.0)
    assert requests.cancel_training(tmp_path) is None
    world.step()
    world.status(run="r", state="training", round=1)
    (tmp_path / "training.safetensors").write_bytes(b"one round")
    world.step()
    stopped = world.flower.stopped
    request = requests.cancel_training(tmp_path)
    assert request is not None
    assert requests.cancel_training(tmp_path) is None
    assert not training_files.is_requested(tmp_path)
    with pytest.raises(FleetFileError, match="has not ended yet"):
        requests.request_training(tmp_path)
    assert outcome_of(tmp_path, request) is None
    world.step()
    assert (stopped, world.flower.stopped) == (0, 1)
    world.flower.end()
    world.step()
    assert world.last_logged == "train: run 1 is cancelled"
    with locks.holding(tmp_path / "app.lock", ""):  # Flower is faster than the app
        assert world.step() == ["train"]
        assert training_files.read_waits(tmp_path) == "is cancelled, and waits for its app to end"
        assert (tmp_path / "training.safetensors").exists()
    assert world.step() == ["train"], "the next one is due in an hour"
    assert training_files.read_waits(tmp_path) is None
    outcome = outcome_of(tmp_path, request)
    assert outcome is not None
    assert outcome.state == TrainingEnd.CANCELLED
    assert not (tmp_path / "training.safetensors").exists()
    assert training_files.read_status(tmp_path) == {"run": "r", "state": "cancelled", "round": 1}
    assert requests.request_training(tmp_path)
    assert world.step() == world.step() == ["train", "train"]
    assert world.flower.stopped == 1


def test_a_request_that_is_cancelled_while_it_waits_is_closed_even_by_a_later_server(world: World) -> None:
    requests.request_training(world.folder)
    assert world.step({"a": False}) == []
    assert requests.cancel_training(world.folder) is not None
    again = World(world.folder, world.caplog)
    assert again.step() == []
    assert not (world.folder / "wanted").exists()


def test_an_unreadable_request_can_be_cancelled(world: World) -> None:
    (world.folder / "wanted").write_text("")
    assert requests.cancel_training(world.folder) is not None
    assert world.step() == []


def test_a_training_that_was_done_before_it_could_be_cancelled_is_done(world: World) -> None:
    requests.request_training(world.folder)
    world.step()
    request = requests.cancel_training(world.folder)
    assert request is not None
    world.status(run="r", state="done")
    world.flower.end()
    world.step()
    outcome = outcome_of(world.folder, request)
    assert outcome is not None
    assert outcome.state == TrainingEnd.DONE


# -- no request is lost, none is fulfilled twice ---------------------------------------------------------------------


def test_a_request_while_one_is_pending_or_under_way_is_reported_as_such(world: World) -> None:
    assert requests.request_training(world.folder)
    assert not requests.request_training(world.folder)
    world.step()
    world.status(run="r", state="training", round=1)
    assert not requests.request_training(world.folder)
    world.status(run="r", state="done")
    world.flower.end()
    world.step()
    assert world.step() == ["train"]


def test_a_request_between_the_end_of_a_training_and_its_notice_is_kept(world: World) -> None:
    requests.request_training(world.folder)
    world.step()
    world.status(run="first", state="done")
    assert not training_files.is_requested(world.folder)
    assert requests.request_training(world.folder)
    assert not requests.request_training(world.folder)
    world.flower.end()
    world.step()
    assert world.last_logged == "train: run 1 is done"
    world.train("second")
    assert not training_files.is_requested(world.folder)
    assert world.step() == ["train", "train"]


def test_setting_back_the_clock_neither_repeats_a_training_nor_lengthens_a_wait(world: World) -> None:
    requests.request_training(world.folder)
    world.shift = -1e6
    world.train("first")
    assert world.step() == ["train"]
    requests.request_training(world.folder)
    world.step()
    world.flower.end()
    world.step()  # broke off
    world.shift = -2e6
    world.now += 5.0
    assert len(world.step()) == 3


def test_a_server_that_dies_before_it_notices_the_end_does_not_train_twice(world: World) -> None:
    requests.request_training(world.folder)
    world.step()
    world.status(run="r", state="done")
    again = World(world.folder, world.caplog, every=3600.0)
    assert again.step() == []
    assert not (world.folder / "wanted").exists()
    assert again.step() == []


def test_an_app_that_dies_between_its_last_two_files_has_trained(world: World) -> None:
    requests.request_training(world.folder)
    world.step()
    world.status(run="r", state="done")
    (world.folder / "status.json").write_text(json.dumps({"run": "r", "state": "delivering"}))
    world.flower.end()
    world.step()
    assert not training_files.is_requested(world.folder)
    assert world.step() == ["train"]


def test_an_end_in_the_future_does_not_end_the_intervals(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "ended").write_text("4000000000.0\n")
    world = World(tmp_path, caplog, every=3600.0)
    world.train("r")
    assert world.step() == ["train"]
    assert (tmp_path / "ended").read_text() == "1000.0\n"


def test_failures_count_anew_after_a_round_was_gained(world: World) -> None:
    requests.request_training(world.folder)
    for number in range(3 * ATTEMPTS):
        world.now += 1000.0
        world.step()
        world.status(run="r", state="training", round=1 + number // 2)
        world.flower.end()
        world.step()
        assert ("continues in 5 s", "continues in 10 s")[number % 2] in world.last_logged
    assert training_files.is_requested(world.folder)


def test_trainings_that_begin_anew_each_time_gain_nothing(world: World) -> None:
    requests.request_training(world.folder)
    for number in range(ATTEMPTS):
        world.now += 1000.0
        world.step()
        world.status(run=f"run {number}", state="training", round=0)
        world.flower.end()
        world.step()
    assert "attempt 5 of 5" in world.last_logged
    assert not training_files.is_requested(world.folder)


def test_a_request_is_not_fulfilled_by_the_loss_of_the_last_result(world: World) -> None:
    requests.request_training(world.folder)
    world.train("run-1")
    requests.request_training(world.folder)
    (world.folder / "result.json").write_text('{"run": "ru')
    assert world.step() == ["train", "train"]


@pytest.mark.parametrize("content", ["", "[]", "{}"])
def test_an_unreadable_request_is_a_request(world: World, content: str) -> None:
    world.status(run="old", state="done")
    (world.folder / "wanted").write_text(content)
    world.train("new")
    assert world.step() == ["train"]


def test_damaged_notes_of_a_training_end_no_server(world: World) -> None:
    for name in ("cancelled", "waits"):
        (world.folder / name).write_bytes(b"\x91\xff")
    requests.request_training(world.folder)
    assert world.step() == ["train"]
    (world.folder / "waits").write_bytes(b"\x91\xff")
    world.step()
    assert training_files.read_waits(world.folder) is not None
    assert requests.cancel_training(world.folder) is not None


def test_a_request_names_the_last_training_done_even_if_another_was_abandoned(world: World) -> None:
    world.status(run="done", state="done")
    world.status(run="given up", state="training")
    requests.request_training(world.folder)
    world.status(run="done", state="done")  # a delivery says so again
    assert training_files.is_requested(world.folder)
    world.train("given up")
    assert not training_files.is_requested(world.folder)


# -- where devices connect only when they are called --------------------------------------------------------------

MANY = {f"pump-{k}": False for k in range(1000)}


def there(count: int) -> dict[str, bool]:
    return {name: k < count for k, name in enumerate(MANY)}


@pytest.fixture
def calling(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> World:
    return World(tmp_path, caplog, rules=TrainingRules(min_devices=3, devices_per_training=64, patience=100.0))


def called(world: World, online: dict[str, bool]) -> int:
    """How many a step has called."""
    world.trainings.step(online, on_demand=True)
    return world.trainings.call.called if world.trainings.call else 0


def test_nobody_is_called_without_a_training(calling: World) -> None:
    assert called(calling, MANY) == 0
    requests.request_training(calling.folder)
    assert called(calling, MANY) == 64
    request = training_files.read_request(calling.folder)
    assert request is not None
    assert calling.trainings.call is not None
    assert calling.trainings.call.token == request.token


def test_a_training_begins_when_all_that_it_called_are_there(calling: World) -> None:
    requests.request_training(calling.folder)
    assert called(calling, MANY) == called(calling, there(63)) == 64
    assert calling.flower.jobs == []
    assert called(calling, there(64)) == 64
    assert calling.flower.jobs == ["train"]


def test_half_of_them_will_do_after_a_while_and_fewer_have_more_called(calling: World) -> None:
    requests.request_training(calling.folder)
    assert called(calling, there(31)) == 64
    calling.now += 100.0
    assert called(calling, there(31)) == 128
    assert calling.last_logged == "train: only 31 of 64 came; calls 128"
    calling.now += 99.0
    assert called(calling, there(32)) == 128
    assert calling.flower.jobs == []
    calling.now += 1.0
    assert called(calling, there(32)) == 128
    assert calling.flower.jobs == ["train"]


def test_more_are_called_if_half_of_them_are_too_few_for_a_round(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calling = World(tmp_path, caplog, rules=TrainingRules(min_devices=3, devices_per_training=4, patience=100.0))
    requests.request_training(calling.folder)
    assert called(calling, there(2)) == 4
    calling.now += 100.0
    assert called(calling, there(2)) == 8
    calling.now += 100.0
    assert called(calling, there(3)) == 8
    assert calling.flower.jobs == ["train"]


def test_once_all_are_called_as_few_as_a_round_needs_will_do(calling: World) -> None:
    requests.request_training(calling.folder)
    seen = []
    while called(calling, there(2)) < 1000:
        calling.now += 100.0
        seen.append(called(calling, there(2)))
    assert seen == [128, 256, 512, 1000]
    calling.now += 1000.0
    called(calling, there(2))
    assert calling.flower.jobs == []
    called(calling, there(3))
    assert calling.flower.jobs == ["train"]


def test_a_call_lasts_as_long_as_its_training_and_no_delivery_follows(calling: World) -> None:
    requests.request_training(calling.folder)
    called(calling, there(64))
    assert called(calling, there(64)) == 64
    calling.status(run="r", state="done", delivered=["pump-1"])
    calling.flower.end()
    assert called(calling, there(64)) == 64  # in this step the end is noticed
    assert called(calling, there(64)) == 0
    assert not calling.trainings.is_open
    assert calling.flower.jobs == ["train"], "devices fetch the result by themselves"


def test_a_training_that_broke_off_calls_the_same_devices(calling: World) -> None:
    requests.request_training(calling.folder)
    called(calling, there(64))
    before = calling.trainings.call
    calling.flower.end()
    called(calling, there(64))
    assert called(calling, there(40)) == 64
    assert calling.trainings.call == before
    calling.now += 5.0
    called(calling, there(64))
    assert calling.flower.jobs == ["train", "train"]


def test_a_later_server_goes_on_with_the_call_of_the_training_that_is_open(calling: World) -> None:
    requests.request_training(calling.folder)
    request = training_files.read_request(calling.folder)
    assert request is not None
    for token, expected in (("another", 64), (request.token, 256)):
        calling.trainings.call = None
        calling.trainings.resume(token, 256, 1000)
        assert called(calling, there(0)) == expected


def test_a_training_at_an_interval_need_not_wait_for_anybody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = World(tmp_path, caplog, every=3600.0)
    assert called(world, MANY) == 64


def test_a_fleet_that_grows_goes_over_to_calls(calling: World) -> None:
    requests.request_training(calling.folder)
    calling.trainings.step(there(2))
    assert calling.trainings.call is None
    assert called(calling, there(2)) == 64
