"""When a run is started, and what follows from its end; Flower is a list here, and time a number."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from fedkad.fleet import trainings
from fedkad.fleet.trainings import ATTEMPTS, DELIVERY_PAUSE, Trainings

HERE = {"a": True, "b": True}


class Flower:
    """Runs that end when a test says so."""

    def __init__(self) -> None:
        self.jobs: list[str] = []
        self.over: set[int] = set()

    def submit(self, job: str) -> int:
        self.jobs.append(job)
        return len(self.jobs)

    def has_ended(self, run: int) -> bool:
        return run in self.over

    def end(self) -> None:
        self.over.add(len(self.jobs))


class World:
    """A training folder, a clock and what was said."""

    def __init__(self, folder: Path, *, every: float | None = None) -> None:
        self.folder, self.flower, self.now = folder, Flower(), 1000.0
        self.said: list[str] = []
        self.trainings = Trainings(folder, self.flower, self.said.append, every=every, clock=lambda: self.now)

    def status(self, **fields: Any) -> None:
        """What the app writes; after the wish, as the clock of the file system has it."""
        path = self.folder / "status.json"
        path.write_text(json.dumps(fields))
        later = time.time_ns() + 1_000_000_000
        os.utime(path, ns=(later, later))

    def step(self, online: dict[str, bool] | None = None) -> list[str]:
        self.trainings.step(HERE if online is None else online)
        return self.flower.jobs


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_nothing_runs_unless_it_is_wanted(world: World) -> None:
    assert world.step() == []
    trainings.ask(world.folder)
    assert world.step() == ["train"]
    assert world.step() == ["train"]


def test_a_wish_waits_for_somebody_to_train_with(world: World) -> None:
    trainings.ask(world.folder)
    assert world.step({"a": False}) == []
    assert trainings.is_wanted(world.folder)
    assert world.step({"a": True}) == ["train"]


def test_the_wish_is_there_until_a_training_ended_well(world: World) -> None:
    trainings.ask(world.folder)
    world.step()
    assert trainings.is_wanted(world.folder)
    world.status(state="done", delivered=["a", "b"])
    world.flower.end()
    world.step()
    assert not trainings.is_wanted(world.folder)
    assert world.step() == ["train"]


def test_a_training_that_broke_off_goes_on_later_and_later_but_not_for_ever(world: World) -> None:
    trainings.ask(world.folder)
    world.status(state="running", round=3)
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
    assert not trainings.is_wanted(world.folder)
    assert "broke off" in world.said[-1]
    trainings.ask(world.folder)
    assert len(world.step()) == ATTEMPTS + 1


def test_what_an_earlier_training_says_is_no_end_of_this_one(world: World) -> None:
    world.status(state="done", delivered=["a", "b"])
    old = time.time_ns() - 60_000_000_000
    os.utime(world.folder / "status.json", ns=(old, old))
    trainings.ask(world.folder)
    world.step()
    world.flower.end()
    world.step()
    assert trainings.is_wanted(world.folder)


def test_a_wish_survives_the_server(world: World) -> None:
    trainings.ask(world.folder)
    assert world.step() == ["train"]
    again = World(world.folder)
    assert again.step() == ["train"]


def test_trainings_come_at_intervals_and_wait_for_half_of_the_devices(tmp_path: Path) -> None:
    world = World(tmp_path, every=3600.0)
    assert world.step({"a": True, "b": False, "c": False}) == []
    assert world.step({"a": True, "b": True, "c": False}) == ["train"]
    world.status(state="done", delivered=["a", "b", "c"])
    world.flower.end()
    world.step()
    world.now += 3599.0
    assert world.step() == ["train"]
    world.now += 1.0
    assert world.step() == ["train", "train"]


def test_the_interval_survives_the_server(tmp_path: Path) -> None:
    World(tmp_path, every=3600.0).trainings._close()
    assert World(tmp_path, every=3600.0).step() == []


def test_latecomers_are_delivered_to_once_a_minute_at_most(world: World) -> None:
    world.status(state="done", delivered=["a"])
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


def test_nothing_is_delivered_before_a_training_is_done(world: World) -> None:
    world.status(state="running", delivered=[])
    assert world.step() == []
    (world.folder / "status.json").write_text("{")
    assert world.step() == []
