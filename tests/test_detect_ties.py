"""Levels that go together, against one regression per channel; and slow faults that nothing else tells."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fedkad import KoopmanDetector
from fedkad.detect.places import Bounds
from fedkad.detect.ties import NOISE, RIDGE, SETTLED, learn_ties
from fedkad.detect.witnesses import WitnessScoring

Array = NDArray[np.float64]


def heating(rows: int, seed: int = 0) -> Array:
    """The flow, the return and the room of a heating; the return follows the flow, the room goes its own way.

    What the return differs by from the flow lasts for some minutes, so that its own past predicts it best.
    """
    generator = np.random.default_rng(seed)
    hours = np.arange(rows) / 60.0
    flow = 40.0 + 5.0 * np.sin(hours) + 2.0 * np.sin(5.3 * hours) + generator.normal(0.0, 0.2, rows)
    room = 20.0 + np.cos(2.0 * np.pi * hours / 24.0) + generator.normal(0.0, 0.1, rows)
    lasting = np.zeros(rows)
    for row, noise in enumerate(generator.normal(0.0, 0.15, rows - 1), 1):
        lasting[row] = 0.9 * lasting[row - 1] + noise
    return np.stack([flow, 0.7 * flow + 4.0 + lasting, room], axis=1)


def test_departures_are_residuals_of_ridge_regressions() -> None:
    generator = np.random.default_rng(0)
    common = generator.normal(size=(900, 2))
    levels = common @ generator.normal(size=(2, 4)) + 0.1 * generator.normal(size=(900, 4)) + 3.0
    ties = learn_ties(levels, 900)
    assert ties.weights.any(axis=1).all()
    centred = levels - levels.mean(axis=0)
    ridge = np.sqrt((RIDGE + NOISE * 4 / 900) * len(levels))
    for channel in range(4):
        others = np.delete(centred, channel, axis=1)
        padded = np.vstack([others, ridge * np.eye(3)])
        weights = np.linalg.lstsq(padded, np.append(centred[:, channel], np.zeros(3)), rcond=None)[0]
        expected = centred[:, channel] - others @ weights
        np.testing.assert_allclose(ties.departures(levels)[:, channel], expected, atol=1e-9)


@pytest.mark.parametrize("change", ["none", "at once", "slowly"])
def test_a_tie_counts_if_it_holds_in_time(change: str) -> None:
    generator = np.random.default_rng(1)
    first = np.sin(np.arange(2000) / 37.0)
    factor = {"none": 1.0, "at once": np.where(np.arange(2000) < 1500, 1.0, 2.0), "slowly": np.linspace(1.0, 2.0, 2000)}
    levels = np.stack([first, factor[change] * first], axis=1) + generator.normal(0.0, 0.05, (2000, 2))
    assert learn_ties(levels, 100).weights.any() == (change == "none")


def test_few_windows_tie_nothing() -> None:
    assert not learn_ties(np.ones((4, 3)), 1).weights.any()
    assert not learn_ties(np.ones((400, 3)), 20).weights.any()


def test_a_slow_drift_at_usual_levels_is_found_and_told() -> None:
    detector = KoopmanDetector(threshold="1/week", sample_period=60.0).fit(heating(8000))
    today = heating(3000, seed=1)
    assert not detector.predict(today).any()
    today[1000:1720, 1] -= np.linspace(0.0, 4.0, 720)  # the return is 31 … 37 as it is on other hours
    found = np.flatnonzero(detector.predict(today))
    assert 1000 < found[0] < 1720
    assert detector.explain(today)[found[0]].argmax() == 1
    stream = detector.stream()
    readings = [stream.update(sample) for sample in today[:1720]]
    assert readings[found[0]].is_anomaly
    assert readings[-1].kind == "place"
    assert readings[-1].sentence.startswith("1 does not match the other channels: ")


def test_ties_rest_while_a_channel_is_missing() -> None:
    detector = KoopmanDetector(threshold="1/week", sample_period=60.0).fit(heating(8000))
    today = heating(600, seed=1)
    today[300:, 0] = np.nan
    today[:, 1] -= 4.0
    flags = detector.predict(today)
    assert flags[100:300].all()
    assert not flags[330:].all()


def test_what_a_day_does_not_show_is_learned_until_it_is_settled() -> None:
    rows = heating(30_000)
    detector = KoopmanDetector(threshold="1/week", sample_period=60.0).fit(rows[:1000])
    assert not any(tied(detector))  # 50 windows of 3 channels
    for start in range(1000, 13_000, 1000):
        detector.learn(rows[start : start + 1000])
    assert tied(detector)[1:] == [True, False]
    before, wrong = bounds_of(detector), rows[13_000:21_000].copy()
    wrong[:, 1] = np.random.default_rng(5).normal(33.0, 3.0, len(wrong))  # the return no longer follows the flow
    detector.learn(wrong)
    after = bounds_of(detector)
    np.testing.assert_array_equal(before.ties, after.ties)  # the last ties that held
    np.testing.assert_array_equal(before.offset, after.offset)
    places = detector.memory_.places
    assert places is not None
    assert places.windows > SETTLED
    assert not len(places.levels)
    detector.learn(rows[21_000:])
    np.testing.assert_array_equal(before.ties, bounds_of(detector).ties)


def bounds_of(detector: KoopmanDetector) -> Bounds:
    scoring = detector.model_.scoring
    assert isinstance(scoring, WitnessScoring)
    return scoring.bounds


def tied(detector: KoopmanDetector) -> list[bool]:
    return [bool(row.any()) for row in bounds_of(detector).ties]


def test_ties_that_come_late_leave_a_confirmed_stretch_normal(tmp_path: Path) -> None:
    rows = heating(8000)
    detector = KoopmanDetector(threshold="1/week", sample_period=60.0).fit(rows[:1000])
    odd = heating(400, seed=3)
    odd[:, 1] -= 6.0
    detector.learn(odd, confirmed=True)
    for start in range(1000, 8000, 1000):
        detector.learn(rows[start : start + 1000])
    assert tied(detector)[1:] == [True, False]
    assert not detector.predict(odd).any()
    detector.save(tmp_path / "model.safetensors")
    again = KoopmanDetector.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(bounds_of(again.learn(rows[:1000])).ties, bounds_of(detector.learn(rows[:1000])).ties)
