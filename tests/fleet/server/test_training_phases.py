"""The phases of a training as the docs draw them, beside what server, app and command line do to its files."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from docs.pictures import TRAINING_ARROWS
from fedkad import locks
from fedkad.federation.coordinator import Coordinator, TrainingPlan
from fedkad.federation.training_files import APP_LOCK, BECOMES, UNDER_WAY, WANTED, TrainingPhase, phase_of
from fedkad.federation.training_state import stored_terms
from fedkad.fleet.server.requests import cancel_training, request_training
from fedkad.fleet.server.trainings import TrainingRules, Trainings
from fedkad.fleet.shared.files import FleetFileError
from tests.fixtures.trainings import Fleet, make_terms, prepared

__all__ = ["prepared"]

ACTIONS = {"ask": 4, "cancel": 2, "server": 8, "app": 12, "die": 2, "break": 1, "change settings": 1}
"""What may happen, and how often."""

HOUR = 3600.0


class Walker:
    """A server, the app of its runs and its command line over one folder, each of which acts at random."""

    def __init__(self, folder: Path, prepared: dict[str, Path], seed: int) -> None:
        self.fleet = Fleet(folder, prepared, make_terms(), TrainingPlan())
        self.folder, self.random, self.now = folder / "server", random.Random(seed), 0.0
        self.trainings = Trainings(
            self.folder,
            self,
            TrainingRules(every=HOUR if seed % 2 else None),
            clock=lambda: self.now,
            timer=lambda: self.now,
        )
        self.numbers, self.has_ended_run, self.has_new_settings = itertools.count(), True, False
        self.app: Iterator[None] = iter(())
        self.held = ExitStack()

    # -- what `Trainings` asks of Flower ---------------------------------------------------------------------------

    def submit(self, job: str) -> int:
        self.has_ended_run, self.app = False, self._run(job)
        self.held = ExitStack()
        self.held.enter_context(locks.holding(self.folder / APP_LOCK, "another run"))
        return next(self.numbers)

    def has_ended(self, run: int) -> bool:
        return self.has_ended_run

    def stop(self) -> None:
        self._end_app()

    def _run(self, job: str) -> Iterator[None]:
        """What the app does, one step at a time."""
        terms = stored_terms(self.folder, UNDER_WAY)
        if job != "train":
            return
        plan = TrainingPlan(rounds=self.random.choice((1, 2, 2)))
        if terms is None or self.has_new_settings:
            self.has_new_settings = False
            training = Coordinator(make_terms(f"run-{next(self.numbers):03}"), plan, self.folder)
        else:
            training = Coordinator(terms, plan, self.folder)
            training.restore()
        self.fleet.training = training
        while not training.finished:
            yield
            self.fleet.round(["a"])
        yield
        if self.random.random() < 0.3:
            training.state.gate = {"judges": 1, "ratio": 2.0, "worse": True}
            training.delivery.keep_back()
        else:
            training.delivery.finish()

    def _end_app(self) -> None:
        self.held.close()
        self.has_ended_run, self.app = True, iter(())

    # -- what happens ----------------------------------------------------------------------------------------------

    def act(self, action: str) -> Iterator[None]:
        """Do something; between two of its steps others may look at the files."""
        self.now += self.random.choice((1.0, 100.0, HOUR))
        if action == "ask":
            with suppress(FleetFileError):  # the one that was cancelled has not ended
                request_training(self.folder)
        elif action == "cancel":
            cancel_training(self.folder)
        elif action == "server":
            self.trainings.step({"a": True})
        elif (action == "app" and next(self.app, self) is self) or action == "die":
            self._end_app()
        elif action == "break":
            for _ in range(12):  # each run of a training breaks off
                yield
                self.now += 100.0
                self._end_app()
                self.trainings.step({"a": True})
        elif action == "change settings":
            self.has_new_settings = True
        yield

    def walk(self, steps: int) -> Iterator[tuple[TrainingPhase, TrainingPhase]]:
        """Every change of the phase."""
        before = phase_of(self.folder)
        for action in self.random.choices(list(ACTIONS), list(ACTIONS.values()), k=steps):
            for _ in self.act(action):
                after = phase_of(self.folder)
                if after is not before:
                    yield before, after
                before = after
        self.held.close()


def test_a_training_goes_through_the_phases_of_the_table_and_through_all_of_them(
    tmp_path: Path, prepared: dict[str, Path]
) -> None:
    seen: set[tuple[TrainingPhase, TrainingPhase]] = set()
    for seed in range(12):
        seen.update(Walker(tmp_path / str(seed), prepared, seed).walk(150))
    assert seen == {(before, after) for before, following in BECOMES.items() for after in following}


def test_the_picture_of_the_phases_has_the_arrows_of_the_table() -> None:
    drawn = {(TrainingPhase(arrow.start), TrainingPhase(arrow.end)) for arrow in TRAINING_ARROWS}
    assert drawn == {(before, after) for before, following in BECOMES.items() for after in following}
    assert len(drawn) == len(TRAINING_ARROWS)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"after": 1}'])
def test_an_unreadable_request_is_one_that_was_made_just_now(tmp_path: Path, content: str) -> None:
    (tmp_path / WANTED).write_text(content)
    assert phase_of(tmp_path) is TrainingPhase.REQUESTED
    assert not request_training(tmp_path)
