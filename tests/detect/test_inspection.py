"""What a model says that it rests on."""

from typing import Any

import numpy as np
import pytest

from fedkad import KoopmanDetector
from fedkad.detect.inspection import threshold_origin

ROWS = np.sin(np.arange(900.0)[:, None] / [[5.0, 7.0]]) + 0.1 * np.random.default_rng(0).normal(size=(900, 2))
MODEL: dict[str, Any] = {"window": 4, "rank": 3, "observables": 8}


def test_a_threshold_is_by_hand_whenever_it_was_set() -> None:
    detector = KoopmanDetector(**MODEL).fit(ROWS)
    assert "peaks among 896 scores of normal data, false alarms allowed: 0.0001 events" in threshold_origin(
        detector.model_
    )
    detector.threshold_ = 9.0
    assert threshold_origin(detector.model_) == "by hand"
    assert threshold_origin(KoopmanDetector(**MODEL, threshold=4.2).fit(ROWS).model_) == "by hand"


@pytest.mark.parametrize(("scores", "is_held_out"), [(100, True), (99, False)])
def test_rows_are_held_out_if_they_give_a_hundred_scores(scores: int, is_held_out: bool) -> None:
    detector = KoopmanDetector(**MODEL, validation=scores / 900).prepare(ROWS)
    assert detector.memory_.held_out.few != is_held_out
