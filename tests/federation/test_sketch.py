"""The warm start from a sum of sketches against the exact leading directions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.linalg import subspace_angles

from fedkad import KoopmanDetector
from fedkad.federation import sketch as sketching
from fedkad.federation.client import Client
from fedkad.federation.settings import Consensus
from fedkad.federation.sketch import leading_from_sketch, sketch
from fedkad.koopman.stiefel import random_point
from fedkad.koopman.subspace import leading_directions, relative_loss
from fedkad.simulate import simulate_fleet
from tests.fixtures.draws import draws

Array = NDArray[np.float64]


def exact(matrix: Array, rank: int) -> Array:
    return np.asarray(np.linalg.eigh(matrix)[1][:, ::-1][:, :rank])


def positive(dimension: int, values: Array, seed: int) -> Array:
    """A symmetric matrix with these eigenvalues."""
    basis = random_point(dimension, len(values), np.random.default_rng(seed))
    return np.asarray((basis * values) @ basis.T)


@pytest.mark.parametrize(("rank", "spectrum"), [(4, 4), (4, 12), (1, 3), (20, 50)])
def test_exact_when_the_rank_is_small_enough(rank: int, spectrum: int) -> None:
    matrix = positive(60, np.linspace(2.0, 0.5, spectrum), seed=spectrum)
    Omega = sketching.probe_matrix(60, rank, seed=0)
    found = leading_from_sketch(matrix @ Omega, Omega, rank)
    assert subspace_angles(found, exact(matrix, rank)).max() < 1e-6
    np.testing.assert_allclose(found.T @ found, np.eye(rank), atol=1e-12)


def test_it_is_the_nystroem_approximation() -> None:
    """Against the formula with a pseudo-inverse, on a spectrum that the sketch cannot hold."""
    matrix = positive(40, np.asarray(1.0 / np.arange(1.0, 41.0), dtype=np.float64), seed=1)
    Omega = sketching.probe_matrix(40, 5, seed=3)
    total = matrix @ Omega
    naive = total @ np.linalg.pinv(Omega.T @ total) @ total.T
    assert subspace_angles(leading_from_sketch(total, Omega, 5), exact(naive, 5)).max() < 1e-6


def test_sketches_add_up() -> None:
    generator = np.random.default_rng(2)
    messages = [generator.standard_normal((30, 3)) for _ in range(4)]
    Omega = sketching.probe_matrix(30, 3, seed=0)
    total = np.asarray(sum(sketch(message, Omega) for message in messages))
    np.testing.assert_allclose(total, sum(message @ message.T for message in messages) @ Omega, atol=1e-12)


@given(st.integers(0, 1000), st.integers(1, 4))
@draws(40)
def test_no_entry_of_a_sketch_is_larger_than_said(seed: int, rank: int) -> None:
    generator = np.random.default_rng(seed)
    message = generator.standard_normal((40, rank)) ** 5  # uneven, so that some come near the bound
    Omega = sketching.probe_matrix(40, 2, seed)
    largest = (np.linalg.norm(Omega, axis=0) + np.abs(Omega)).max() / 2.0
    assert np.abs(sketch(message / np.linalg.norm(message), Omega)).max() <= largest * (1.0 + 1e-12)


def test_the_probe_matrix_is_reproducible_and_normal() -> None:
    Omega = sketching.probe_matrix(500, 24, seed=7)
    assert Omega.shape == (500, 72)
    np.testing.assert_array_equal(Omega, sketching.probe_matrix(500, 24, seed=7))
    assert np.abs(Omega - sketching.probe_matrix(500, 24, seed=8)).max() > 0.1
    assert np.std(Omega) == pytest.approx(1.0 / np.sqrt(72), rel=0.03)
    assert sketching.probe_matrix(10, 6, seed=0).shape == (10, 10)


def test_degenerate_sums() -> None:
    Omega = sketching.probe_matrix(20, 3, seed=0)
    for total in (np.zeros_like(Omega), positive(20, np.ones(1), seed=0) @ Omega, -1e-3 * Omega):
        found = leading_from_sketch(total, Omega, 3)
        np.testing.assert_allclose(found.T @ found, np.eye(3), atol=1e-10)


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="rank=21"):
        sketching.probe_matrix(20, 21, seed=0)


@pytest.fixture(scope="module")
def clients() -> list[Client]:
    train = simulate_fleet(6, train_rows=1500, test_rows=500).train
    consensus = Consensus(rank=12)
    return [
        Client(name, KoopmanDetector(rank=12, window=10).prepare(series).memory_.statistics, consensus)
        for name, series in train.items()
    ]


def summed(messages: list[Array], Omega: Array, bits: int | None) -> Array:
    """The sum of all sketches, each rounded to so many bits over the range it can have."""
    sent = [sketch(message, Omega) for message in messages]
    if bits is not None:
        step = 8.0 / 2**bits
        sent = [step * np.rint(entries / step) for entries in sent]
    return np.asarray(sum(sent))


@pytest.mark.parametrize("bits", [None, 21])
@pytest.mark.parametrize("seed", range(3))
def test_a_fleet_loses_little_by_it(clients: list[Client], bits: int | None, seed: int) -> None:
    """The loss at the sketched start, entries quantised or not, against that at the exact one."""
    messages = [client.warm_message() for client in clients]
    devices = [client.statistics for client in clients]
    total = np.asarray(sum(message @ message.T for message in messages))
    reference = relative_loss(devices, leading_directions(total, 12, tolerance=1e-9).vectors)
    Omega = sketching.probe_matrix(len(total), 12, seed)
    found = leading_from_sketch(summed(messages, Omega, bits), Omega, 12)
    assert relative_loss(devices, found) / reference < 1.02


@pytest.mark.parametrize("bits", [24, 16])
def test_quantised_sketches_of_few_directions(bits: int) -> None:
    """A sketch wider than the rank of A has nothing but errors in its other columns; they must not be found."""
    generator = np.random.default_rng(6)
    message = random_point(200, 8, generator) * np.sqrt(np.linspace(0.2, 0.05, 8))
    for seed in range(5):
        Omega = sketching.probe_matrix(200, 8, seed)
        found = leading_from_sketch(summed([message], Omega, bits), Omega, 8)
        assert subspace_angles(found, message).max() < {24: 1e-3, 16: 0.1}[bits]
