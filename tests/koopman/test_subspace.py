"""Leading directions against numpy's eigh; the descent against pymanopt's solver and lower bounds from kooplearn."""

from itertools import pairwise

import numpy as np
import pymanopt
import pytest
from kooplearn.linear_model._regressors import estimator_risk, reduced_rank
from numpy.typing import NDArray
from pymanopt.manifolds import Grassmann
from pymanopt.optimizers import ConjugateGradient

from fedkad.koopman.lifting import Lifting
from fedkad.koopman.snapshots import Statistics, collect
from fedkad.koopman.stiefel import random_point
from fedkad.koopman.subspace import (
    OWN_STEPS,
    descend,
    leading_directions,
    own_subspace,
    predicted_directions,
    relative_loss,
)
from tests.fixtures import naive

Array = NDArray[np.float64]
LIFTING = Lifting(channels=2, window=3, observables=6, seed=0)
RANK = 3


def series(seed: int, length: int = 200) -> Array:
    generator = np.random.default_rng(seed)
    t = np.arange(float(length))[:, None]
    return np.asarray(np.sin(t / [[2.0 + seed, 5.0]]) + 0.3 * generator.normal(size=(length, 2)))


@pytest.fixture(scope="module")
def fleet() -> list[tuple[Array, Array, Statistics]]:
    return [(*naive.snapshots(series(k), LIFTING), collect(series(k), LIFTING)) for k in range(3)]


def gram_with(values: Array, seed: int = 0) -> Array:
    basis, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(values), len(values))))
    return np.asarray(basis * values @ basis.T)


@pytest.mark.parametrize(("size", "rank"), [(6, 2), (10, 10), (36, 3), (90, 4), (160, 24), (200, 1)])
@pytest.mark.parametrize("decay", [0.5, 0.9, 0.97])
def test_leading_directions_are_the_leading_eigenvectors(size: int, rank: int, decay: float) -> None:
    gram = gram_with(decay ** np.arange(size, dtype=np.float64))
    values, vectors = np.linalg.eigh(gram)
    found = leading_directions(gram, rank, tolerance=1e-13, most=2000)
    assert found.vectors.shape == (size, rank)
    np.testing.assert_allclose(found.vectors.T @ found.vectors, np.eye(rank), atol=1e-10)
    np.testing.assert_allclose(found.values, values[::-1][:rank], rtol=1e-6, atol=1e-9)
    assert np.all(np.diff(found.values) <= 1e-12)
    exact = vectors[:, ::-1][:, :rank]
    overlap = np.linalg.svd(exact.T @ found.vectors, compute_uv=False)
    assert overlap.min() > 1.0 - 1e-4


@pytest.mark.parametrize("size", [100, 200])
def test_default_tolerance_captures_nearly_all_of_the_energy(size: int) -> None:
    gram = gram_with(1.0 / np.arange(1, size + 1, dtype=np.float64) ** 2)
    found = leading_directions(gram, 8)
    best = np.linalg.eigvalsh(gram)[::-1][:8].sum()
    captured = np.trace(found.vectors.T @ gram @ found.vectors)
    assert best - captured < 1e-4 * np.trace(gram)
    assert found.values.sum() == pytest.approx(captured, rel=1e-6)


@pytest.mark.parametrize(("most", "tolerance"), [(1, 0.0), (3, 0.0), (60, 1e-9)])
def test_leading_directions_are_orthonormal_even_when_the_iteration_runs_out(most: int, tolerance: float) -> None:
    gram = gram_with(1.0 - 0.1 * np.arange(200, dtype=np.float64) / 200.0)  # hardly any gap in the spectrum
    found = leading_directions(gram, 4, most=most, tolerance=tolerance)
    np.testing.assert_allclose(found.vectors.T @ found.vectors, np.eye(4), atol=1e-10)
    np.testing.assert_allclose(found.vectors.T @ gram @ found.vectors, np.diag(found.values), atol=1e-10)


def test_leading_directions_of_a_singular_matrix_stay_orthonormal() -> None:
    tall = np.random.default_rng(0).normal(size=(150, 2))
    for gram in (tall @ tall.T, np.zeros((150, 150))):
        found = leading_directions(gram, 5)
        np.testing.assert_allclose(found.vectors.T @ found.vectors, np.eye(5), atol=1e-10)
        np.testing.assert_allclose(found.values, np.linalg.eigvalsh(gram)[::-1][:5], atol=1e-8)


def least_squares(x: Array, y: Array, subspace: Array) -> Array:
    solved = np.linalg.lstsq((subspace.T @ x).T, (subspace.T @ y).T, rcond=None)[0]
    return np.asarray(solved.T, dtype=np.float64)


def naive_relative_loss(devices: list[tuple[Array, Array, Statistics]], subspace: Array) -> float:
    total = 0.0
    for x, y, _ in devices:
        operator = least_squares(x, y, subspace)
        total += naive.loss(x, y, subspace, operator) / float(np.sum(y**2))
    return total / len(devices)


def test_relative_loss_is_the_mean_of_the_unexplained_shares(fleet: list[tuple[Array, Array, Statistics]]) -> None:
    point = random_point(LIFTING.dimension, RANK, np.random.default_rng(0))
    found = relative_loss([device[2] for device in fleet], point)
    assert found == pytest.approx(naive_relative_loss(fleet, point), rel=1e-7)
    still = collect(np.zeros((200, 2)), Lifting(channels=2, window=3, observables=0, seed=0))
    assert relative_loss([still], random_point(len(still.yy), RANK, np.random.default_rng(3))) == 0.0


def naive_gradient(devices: list[tuple[Array, Array, Statistics]], subspace: Array) -> Array:
    total = np.zeros_like(subspace)
    for x, y, _ in devices:
        operator = least_squares(x, y, subspace)
        total += naive.loss_gradient(x, y, subspace, operator) / float(np.sum(y**2)) / len(devices)
    return total


def test_descent_ends_where_pymanopts_solver_ends(fleet: list[tuple[Array, Array, Statistics]]) -> None:
    manifold = Grassmann(LIFTING.dimension, RANK)

    @pymanopt.function.numpy(manifold)
    def cost(point: Array) -> float:
        return naive_relative_loss(fleet, point)

    @pymanopt.function.numpy(manifold)
    def gradient(point: Array) -> Array:
        return naive_gradient(fleet, point)

    start = leading_directions(np.sum([device[2].xx / device[2].energy for device in fleet], axis=0), RANK).vectors
    found = descend([device[2] for device in fleet], start, most=2000, tolerance=1e-7)
    problem = pymanopt.Problem(manifold, cost, euclidean_gradient=gradient)
    solver = ConjugateGradient(max_iterations=1000, min_gradient_norm=1e-7, verbosity=0)
    solved = solver.run(problem, initial_point=start)
    assert found.loss == pytest.approx(solved.cost, rel=1e-6)
    assert found.loss == pytest.approx(naive_relative_loss(fleet, found.subspace), rel=1e-7)
    assert found.gradient_norm <= 1e-5
    horizontal = manifold.projection(found.subspace, naive_gradient(fleet, found.subspace))
    assert np.linalg.norm(horizontal) == pytest.approx(found.gradient_norm, abs=1e-6)
    np.testing.assert_allclose(found.subspace.T @ found.subspace, np.eye(RANK), atol=1e-10)


def test_every_step_of_the_descent_goes_down(fleet: list[tuple[Array, Array, Statistics]]) -> None:
    devices = [device[2] for device in fleet]
    start = random_point(LIFTING.dimension, RANK, np.random.default_rng(5))
    losses = [descend(devices, start, most=most).loss for most in range(8)]
    assert losses[0] == pytest.approx(naive_relative_loss(fleet, start), rel=1e-7)
    assert all(later < earlier for earlier, later in pairwise(losses))
    assert descend(devices, start, most=7).steps == 7
    assert np.array_equal(descend(devices, start, most=0).subspace, start)


def closed_form_reduced_rank(x: Array, y: Array, rank: int) -> float:
    """The least ‖Y − KX‖² over all K of this rank: project the least-squares fit on its leading directions."""
    fitted = y @ x.T @ np.linalg.pinv(x @ x.T) @ x
    left, values, right = np.linalg.svd(fitted, full_matrices=False)
    best = left[:, :rank] * values[:rank] @ right[:rank]
    return float(np.linalg.norm(y - best) ** 2)


@pytest.mark.parametrize("rank", [1, 3, 6])
def test_reduced_rank_regression_bounds_the_loss_from_below(
    fleet: list[tuple[Array, Array, Statistics]], rank: int
) -> None:
    x, y, statistics = fleet[0]
    energy, pairs = float(np.sum(y**2)), x.shape[1]
    bound = closed_form_reduced_rank(x, y, rank) / energy
    cov_x, cov_y, cov_xy = x @ x.T / pairs, y @ y.T / pairs, x @ y.T / pairs
    fitted = reduced_rank(cov_x.copy(), cov_xy, 1e-12, rank, svd_solver="dense")
    by_kooplearn = estimator_risk(fitted, cov_x, cov_y, cov_xy, cov_xy) * pairs / energy
    assert by_kooplearn == pytest.approx(bound, rel=1e-5)
    found = descend([statistics], leading_directions(statistics.xx, rank).vectors, most=500, tolerance=1e-8).loss
    assert found >= bound - 1e-9
    assert found <= bound + 0.25  # PQPᵀ is not just anything: it comes near


def test_own_subspace_is_a_short_descent_from_the_leading_directions(
    fleet: list[tuple[Array, Array, Statistics]],
) -> None:
    statistics = fleet[1][2]
    _, vectors = np.linalg.eigh(statistics.xx)
    start = vectors[:, ::-1][:, :RANK]
    own = own_subspace(statistics, RANK)
    np.testing.assert_allclose(own.T @ own, np.eye(RANK), atol=1e-10)
    expected = descend([statistics], start, most=OWN_STEPS).loss
    assert naive_relative_loss(fleet[1:2], own) == pytest.approx(expected, rel=1e-6)
    assert expected < naive_relative_loss(fleet[1:2], start)


def test_predicted_directions_are_the_principal_ones_of_the_predictions(
    fleet: list[tuple[Array, Array, Statistics]],
) -> None:
    x, y, statistics = fleet[2]
    point = random_point(LIFTING.dimension, RANK, np.random.default_rng(1))
    operator = np.linalg.lstsq((point.T @ x).T, (point.T @ y).T, rcond=None)[0].T
    predicted = point @ operator @ point.T @ x
    found = predicted_directions(statistics, point)
    expected = predicted @ predicted.T / float(np.sum(y**2))
    np.testing.assert_allclose(found.vectors * found.values @ found.vectors.T, expected, atol=1e-9)
    np.testing.assert_allclose(found.values, np.linalg.eigvalsh(expected)[::-1][:RANK], atol=1e-9)
    np.testing.assert_allclose(found.vectors.T @ found.vectors, np.eye(RANK), atol=1e-10)
