"""What must hold of a training, whatever carried its messages: one set of checks for every carrier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkad import Federation, KoopmanDetector, federate
from fedkad.federation import wire
from fedkad.federation.settings import Encoding


@dataclass(frozen=True)
class Trained:
    """A finished training: the data it began with, its rounds, and the detectors on the devices."""

    data: Mapping[str, NDArray[np.float64]]
    model: Mapping[str, Any]
    participation: float
    encoding: Encoding
    participants: Sequence[Sequence[str]]
    phases: Sequence[str]
    bytes_up: int
    detectors: Mapping[str, KoopmanDetector]
    delivered: Sequence[str]
    refusals: int
    robust: bool = False

    def replay(self) -> Federation:
        """The same rounds in one process."""
        how = {"encoding": self.encoding, "robust": self.robust, **self.model}
        return federate(self.data, schedule=self.participants, **how)


def nothing_was_refused(trained: Trained) -> None:
    assert trained.refusals == 0
    assert sorted(trained.delivered) == sorted(trained.data)


def every_device_is_asked_before_any_twice(trained: Trained) -> None:
    asked = Counter(chain.from_iterable(trained.participants))
    assert set(asked) == set(trained.data)
    assert max(asked.values()) - min(asked.values()) <= 1


def warm_rounds_come_first_and_are_those_of_a_usual_training(trained: Trained) -> None:
    usual = federate(
        trained.data,
        rounds=len(trained.participants),
        participation=trained.participation,
        encoding=trained.encoding,
        **trained.model,
    )
    assert list(trained.phases) == [record.phase for record in usual.history]
    assert trained.bytes_up == sum(record.bytes_up for record in usual.history)


def bytes_up_are_one_matrix_per_participant(trained: Trained) -> None:
    detector = next(iter(trained.detectors.values()))
    shape = detector.lifting_.dimension, detector.rank  # the device's own directions stay where they are
    replies = sum(map(len, trained.participants))
    assert trained.bytes_up == replies * wire.size((shape[0], shape[1]), trained.encoding)


def every_device_holds_the_numbers_of_one_process(trained: Trained) -> None:
    expected = trained.replay()
    assert set(trained.detectors) == set(expected.detectors)
    for name, detector in trained.detectors.items():
        reference = expected.detectors[name]
        np.testing.assert_array_equal(detector.subspace_, reference.subspace_, err_msg=name)
        np.testing.assert_array_equal(detector.operator_, reference.operator_, err_msg=name)
        assert detector.threshold_ == reference.threshold_, name


CHECKS: tuple[Callable[[Trained], None], ...] = (
    nothing_was_refused,
    every_device_is_asked_before_any_twice,
    warm_rounds_come_first_and_are_those_of_a_usual_training,
    bytes_up_are_one_matrix_per_participant,
    every_device_holds_the_numbers_of_one_process,
)
