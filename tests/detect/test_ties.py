"""Levels that go together, against one regression per channel; and slow faults that nothing else tells."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fedkad import KoopmanDetector
from fedkad.detect.modelfile import read_model, write_model
from fedkad.detect.ranges import Bounds
from fedkad.detect.ties import FARTHEST, NOISE, RIDGE, learn_ties, settled_after
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
    places = detector.memory_.ranges
    assert places is not None
    assert places.windows > settled_after(3)
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


def together(rows: int, seed: int, period: float = 23.0) -> Array:
    """Two channels, of which the second is twice the first."""
    generator = np.random.default_rng(seed)
    first = np.sin(2.0 * np.pi * np.arange(rows) / period) + 0.2 * generator.normal(size=rows)
    first += 0.5 * np.repeat(generator.normal(size=rows // 20 + 1), 20)[:rows]
    return np.stack([first, 2.0 * first], axis=1) + 0.02 * generator.normal(size=(rows, 2))


@pytest.mark.filterwarnings("ignore::fedkad.detect.detector.FewRowsWarning")
def test_while_rows_are_few_a_tie_that_held_stays_and_so_does_what_was_confirmed() -> None:
    detector = KoopmanDetector(rank=6, window=10).fit(together(300, 0))
    odd = together(60, 7)
    odd[:, 1] += 1.5
    detector.learn(odd, confirmed=True)
    for seed in range(2, 8):
        before = tied(detector)
        detector.learn(together(60, seed))
        assert detector.model_.few_rows
        assert all(now or not held for now, held in zip(tied(detector), before, strict=True))
        assert not detector.predict(odd).any()
    assert any(tied(detector))


def test_a_confirmed_stretch_full_of_gaps_does_not_stop_learning() -> None:
    detector = KoopmanDetector(rank=6).fit(together(700, 0))
    assert not any(tied(detector))
    odd = together(2500, 7)
    odd[400::15] = np.nan  # the rows that are kept of it hold no whole window
    detector.learn(odd, confirmed=True).learn(together(2400, 2))
    assert all(tied(detector))


@pytest.mark.filterwarnings("ignore::fedkad.detect.detector.FewRowsWarning")
def test_rows_between_gaps_are_no_windows() -> None:
    rows = together(24_000, 0)
    gaps = rows.copy()
    gaps[::15] = np.nan
    gaps[12_000:12_040] = rows[12_000:12_040]
    detector = KoopmanDetector(rank=6).fit(gaps)
    assert not any(tied(detector))
    places = detector.memory_.ranges
    assert places is not None
    assert places.windows < 5.0


def test_many_channels_have_time_to_prove_their_ties() -> None:
    generator = np.random.default_rng(0)
    common = np.repeat(generator.normal(size=(1500, 1)), 5, axis=0)
    rows = common @ generator.normal(size=(1, 60)) + 0.05 * generator.normal(size=(7500, 60))
    detector = KoopmanDetector(rank=4, window=5, observables=8).fit(rows[:2500])
    assert not any(tied(detector))
    assert sum(tied(detector.learn(rows[2500:]))) > 30


def test_a_fault_that_nobody_noticed_opens_a_tie_by_a_range_at_most() -> None:
    detector = KoopmanDetector(rank=6).fit(together(24_000, 0))
    assert all(tied(detector))
    before, wrong = bounds_of(detector), together(12_000, 1)
    wrong[2000:2025, 1] = 2.0  # a few levels far from what the first channel says
    detector.learn(wrong)
    places, after = detector.memory_.ranges, bounds_of(detector)
    assert places is not None
    wider = np.maximum(after.high[3] - before.high[3], before.low[3] - after.low[3])
    seen = np.maximum(places.ranges[3, :, 1] - before.high[3], before.low[3] - places.ranges[3, :, 0])
    assert (seen > 2.0 * before.tightness).any()
    assert (wider < 1.2 * FARTHEST * before.tightness).all()


def test_files_of_the_first_ties_are_read(tmp_path: Path) -> None:
    detector, path = KoopmanDetector().fit(heating(8000)), tmp_path / "model.safetensors"
    assert any(tied(detector))
    detector.save(path)
    header, arrays = read_model(path)
    for prefix in ("witnesses.bounds.", "held_out.places."):  # they had d = T (ℓ − ℓ̄) and kept no levels
        usual = np.linalg.lstsq(arrays[f"{prefix}ties"], arrays.pop(f"{prefix}offset"), rcond=None)[0]
        arrays[f"{prefix}usual"] = usual
    for name in ("levels", "windows"):
        del arrays[f"held_out.places.{name}"]
    write_model(path, header, arrays)
    again, today = KoopmanDetector.load(path), heating(600, seed=1)
    np.testing.assert_allclose(again.decision_function(today), detector.decision_function(today), rtol=1e-6)
    again.learn(heating(4000, seed=2))
    assert all(now or not held for now, held in zip(tied(again), tied(detector), strict=True))
