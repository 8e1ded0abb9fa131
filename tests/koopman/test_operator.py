"""The operator, the loss and its gradient against snapshot matrices."""

import numpy as np
import pytest
from numpy.typing import NDArray

from fedkad.koopman.lifting import Lifting
from fedkad.koopman.operator import Reduced, cap_spectrum, fit_operator, loss, loss_gradient, relative_ridge
from fedkad.koopman.snapshots import collect
from fedkad.koopman.stiefel import project_grassmann, project_stiefel, random_point, retract_polar, retract_qr
from tests.fixtures import naive

Array = NDArray[np.float64]


class Problem:
    def __init__(self, seed: int, rank: int = 3, length: int = 80) -> None:
        generator = np.random.default_rng(seed)
        t = np.arange(float(length))[:, None]
        self.lifting = Lifting(2, 4, 5, seed=seed)
        series = np.sin(t / [[3.0, 5.0]] + seed) + 0.2 * generator.normal(size=(length, 2))
        self.x, self.y = naive.snapshots(series, self.lifting)
        self.statistics = collect(series, self.lifting)
        self.point = random_point(self.lifting.dimension, rank, generator)
        self.reduced = Reduced.at(self.statistics, self.point)
        self.operator = generator.normal(size=(rank, rank))
        self.generator = generator


@pytest.fixture(params=[0, 1, 2])
def problem(request: pytest.FixtureRequest) -> Problem:
    return Problem(request.param)


def test_loss_is_that_of_the_snapshot_matrices(problem: Problem) -> None:
    expected = naive.loss(problem.x, problem.y, problem.point, problem.operator)
    assert loss(problem.reduced, problem.operator) == pytest.approx(expected, rel=1e-11)


def test_operator_is_the_least_squares_solution(problem: Problem) -> None:
    seen, wanted = problem.point.T @ problem.x, problem.point.T @ problem.y
    expected = np.linalg.lstsq(seen.T, wanted.T, rcond=None)[0].T
    np.testing.assert_allclose(fit_operator(problem.reduced, 0.0), expected, atol=1e-10)
    # A ridge below every eigenvalue of the Gram matrix changes nothing …
    smallest = float(np.linalg.eigvalsh(seen @ seen.T)[0])
    np.testing.assert_allclose(fit_operator(problem.reduced, 0.9 * smallest), expected, atol=1e-10)
    # … one above is added to its diagonal.
    ridge = 1.1 * smallest
    regularised = wanted @ seen.T @ np.linalg.inv(seen @ seen.T + ridge * np.eye(3))
    np.testing.assert_allclose(fit_operator(problem.reduced, ridge), regularised, atol=1e-10)
    assert np.abs(regularised - expected).max() > 1e-6


def test_operator_in_a_degenerate_subspace_needs_the_ridge() -> None:
    lifting = Lifting(2, 3, 0, seed=0)
    series = np.random.default_rng(0).normal(size=(50, 2))
    series[:, 1] = 0.0  # a channel that never moves: three directions of the window without any data
    x, y = naive.snapshots(series, lifting)
    subspace = np.eye(6)[:, [0, 1, 4]]
    reduced = Reduced.at(collect(series, lifting), subspace)
    ridge = relative_ridge(reduced, 1e-2)
    assert ridge == pytest.approx(1e-2 * float(np.sum((subspace.T @ x) ** 2)) / 3.0, rel=1e-12)
    expected = naive.best_operator(x, y, subspace, ridge)
    np.testing.assert_allclose(fit_operator(reduced, ridge), expected, atol=1e-12)
    assert np.abs(expected[:, 1]).max() == 0.0
    empty = Reduced.at(collect(np.zeros((50, 2)), lifting), subspace)
    assert relative_ridge(empty, 1e-2) == 1e-2
    np.testing.assert_array_equal(fit_operator(empty, 1e-2), np.zeros((3, 3)))


def test_gradient_equals_that_of_the_residual(problem: Problem) -> None:
    found = loss_gradient(problem.point, problem.reduced, problem.operator)
    expected = naive.loss_gradient(problem.x, problem.y, problem.point, problem.operator)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-8 * np.abs(expected).max())


@pytest.mark.parametrize("project", [project_grassmann, project_stiefel])
@pytest.mark.parametrize("retract", [retract_qr, retract_polar])
def test_gradient_equals_finite_differences_along_the_manifold(problem: Problem, project, retract) -> None:  # type: ignore[no-untyped-def]
    ambient = loss_gradient(problem.point, problem.reduced, problem.operator)
    gradient = project(problem.point, ambient)
    for _ in range(4):
        direction = project(problem.point, problem.generator.normal(size=problem.point.shape))
        step = 1e-5
        ends = [
            naive.loss(problem.x, problem.y, retract(problem.point + sign * step * direction), problem.operator)
            for sign in (1.0, -1.0)
        ]
        slope = (ends[0] - ends[1]) / (2.0 * step)
        assert slope == pytest.approx(float(np.vdot(gradient, direction)), rel=1e-5, abs=1e-4)
        assert abs(slope) > 1e-2


def test_with_the_best_operator_the_loss_depends_on_the_span_alone(problem: Problem) -> None:
    operator = fit_operator(problem.reduced, 0.0)
    ambient = loss_gradient(problem.point, problem.reduced, operator)
    # No slope along rotations inside the span: both projections agree.
    np.testing.assert_allclose(
        project_grassmann(problem.point, ambient), project_stiefel(problem.point, ambient), atol=1e-8
    )
    turned = problem.point @ retract_qr(problem.generator.normal(size=(3, 3)))
    reduced = Reduced.at(problem.statistics, turned)
    assert loss(reduced, fit_operator(reduced, 0.0)) == pytest.approx(loss(problem.reduced, operator), rel=1e-11)


def test_cap_scales_the_spectrum_only_where_it_is_too_large() -> None:
    generator = np.random.default_rng(0)
    operator = generator.normal(size=(5, 5))
    radius = max(abs(np.linalg.eigvals(operator)))
    assert radius > 0.995
    capped = cap_spectrum(operator, 0.995)
    assert max(abs(np.linalg.eigvals(capped))) == pytest.approx(0.995, rel=1e-12)
    np.testing.assert_allclose(capped, operator * (0.995 / radius), rtol=1e-12)
    small = operator / (2.0 * radius)
    np.testing.assert_array_equal(cap_spectrum(small, 0.995), small)
    np.testing.assert_array_equal(cap_spectrum(np.zeros((2, 2)), 0.995), np.zeros((2, 2)))
    rotation = 2.0 * np.array([[0.0, -1.0], [1.0, 0.0]])  # a complex pair
    np.testing.assert_allclose(cap_spectrum(rotation, 0.5), rotation / 4.0)
