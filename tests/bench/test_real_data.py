"""On the public datasets, where they are at hand: the loaders, and how near a few rounds come to the optimum."""

from pathlib import Path

import numpy as np
import pytest

from fedkad import FewRowsWarning, KoopmanDetector, federate
from fedkad.koopman.subspace import descend, leading_directions, relative_loss
from fedkad_bench.data.datasets import data_folder, read_nasa, read_smd


@pytest.fixture(scope="module")
def folder() -> Path:
    found = data_folder()
    if found is None:
        pytest.skip("the public datasets are not here: name their folder in FEDKAD_DATA")
    return found


@pytest.mark.parametrize(
    ("spacecraft", "channels", "entities", "train", "test", "anomalous"),
    [("MSL", 55, 27, 58_317, 73_729, 10.53), ("SMAP", 25, 54, 138_004, 435_826, 12.84)],
)
def test_nasa_has_the_published_totals(
    folder: Path, spacecraft: str, channels: int, entities: int, train: int, test: int, anomalous: float
) -> None:
    found = list(read_nasa(folder / "NASA", spacecraft))
    assert len(found) == entities
    assert {entity.train.shape[1] for entity in found} == {channels}
    assert sum(len(entity.train) for entity in found) == train
    assert sum(len(entity.test) for entity in found) == test
    labels = np.concatenate([entity.labels for entity in found])
    assert 100.0 * labels.mean() == pytest.approx(anomalous, abs=0.005)


def test_a_server_has_its_published_shape(folder: Path) -> None:
    machine = next(read_smd(folder / "SMD", "machine-1-1"))
    assert machine.train.shape == machine.test.shape == (28_479, 38)
    assert len(machine.labels) == len(machine.test)
    assert 0.0 <= machine.train.min() <= machine.train.max() <= 1.0


def test_five_rounds_come_within_two_percent_of_the_centralised_optimum(folder: Path) -> None:
    fleet = {entity.name: entity.train for entity in list(read_nasa(folder / "NASA", "SMAP"))[::3]}
    with pytest.warns(FewRowsWarning, match="of 18 devices"):  # some of the telemetry is short
        federation = federate(fleet, rounds=5)
    devices = [detector.memory_.statistics for detector in federation.detectors.values()]
    mean = np.sum([device.xx / device.energy for device in devices], axis=0) / len(devices)
    optimum = descend(devices, leading_directions(mean, 24).vectors, most=200, tolerance=1e-4)
    assert optimum.gradient_norm < 1e-4
    assert relative_loss(devices, federation.subspace) < 1.02 * optimum.loss


def test_a_server_is_scored_without_looking_ahead_and_its_anomalies_stand_out(folder: Path) -> None:
    machine = next(read_smd(folder / "SMD", "machine-1-1"))
    detector = KoopmanDetector().fit(machine.train[:12_000])
    scores = detector.decision_function(machine.test)
    early = detector.decision_function(machine.test[:9_000])
    np.testing.assert_allclose(early, scores[:9_000], rtol=1e-9, equal_nan=True)
    valid = ~np.isnan(scores)
    assert np.median(scores[valid & machine.labels]) > 1.5 * np.median(scores[valid & ~machine.labels])
