"""Projections and retractions against pymanopt's."""

import numpy as np
import pytest
from numpy.typing import NDArray
from pymanopt.manifolds import Grassmann, Stiefel

from fedkad.koopman.stiefel import project_grassmann, project_stiefel, random_point, retract_polar, retract_qr

Array = NDArray[np.float64]
SIZES = [(5, 1), (7, 3), (30, 8), (4, 4)]


@pytest.fixture(params=SIZES, ids=str)
def case(request: pytest.FixtureRequest) -> tuple[Array, Array]:
    dimension, rank = request.param
    generator = np.random.default_rng(dimension)
    point = random_point(dimension, rank, generator)
    return point, generator.normal(size=point.shape)


def test_projections_are_pymanopts(case: tuple[Array, Array]) -> None:
    point, gradient = case
    if point.shape[0] > point.shape[1]:
        expected = Grassmann(*point.shape).projection(point, gradient)
        np.testing.assert_allclose(project_grassmann(point, gradient), expected, atol=1e-13)
    expected = Stiefel(*point.shape).projection(point, gradient)
    np.testing.assert_allclose(project_stiefel(point, gradient), expected, atol=1e-13)


def test_projections_are_tangent_and_idempotent(case: tuple[Array, Array]) -> None:
    point, gradient = case
    horizontal, tangent = project_grassmann(point, gradient), project_stiefel(point, gradient)
    np.testing.assert_allclose(point.T @ horizontal, 0.0, atol=1e-13)
    np.testing.assert_allclose(point.T @ tangent, -(tangent.T @ point), atol=1e-13)
    np.testing.assert_allclose(project_stiefel(point, tangent), tangent, atol=1e-13)
    np.testing.assert_allclose(project_grassmann(point, horizontal), horizontal, atol=1e-13)


@pytest.mark.parametrize("length", [1e-3, 0.5, 20.0])
def test_retractions_are_pymanopts(case: tuple[Array, Array], length: float) -> None:
    point, gradient = case
    step = length * project_stiefel(point, gradient)
    by_qr = Stiefel(*point.shape, retraction="qr").retraction(point, step)
    by_polar = Stiefel(*point.shape, retraction="polar").retraction(point, step)
    np.testing.assert_allclose(retract_qr(point + step), by_qr, atol=1e-12)
    np.testing.assert_allclose(retract_polar(point + step), by_polar, atol=1e-12)


def test_an_orthonormal_matrix_retracts_to_itself(case: tuple[Array, Array]) -> None:
    point, gradient = case
    for flipped in (point, -point):
        np.testing.assert_allclose(retract_qr(flipped), flipped, atol=1e-13)
        np.testing.assert_allclose(retract_polar(flipped), flipped, atol=1e-13)
    for retract in (retract_qr, retract_polar):
        result = retract(gradient)
        np.testing.assert_allclose(result.T @ result, np.eye(point.shape[1]), atol=1e-12)


def test_the_polar_factor_is_the_nearest_orthonormal_matrix(case: tuple[Array, Array]) -> None:
    matrix = case[1]
    dimension, rank = matrix.shape
    generator = np.random.default_rng(1)
    distance = np.linalg.norm(matrix - retract_polar(matrix))
    others = [np.linalg.norm(matrix - random_point(dimension, rank, generator)) for _ in range(50)]
    assert distance <= min([*others, np.linalg.norm(matrix - retract_qr(matrix))]) + 1e-12


def test_random_points_are_uniform() -> None:
    generator = np.random.default_rng(0)
    points = np.array([random_point(4, 2, generator) for _ in range(4000)])
    np.testing.assert_allclose(points[0].T @ points[0], np.eye(2), atol=1e-13)
    # On the uniform law the entries have mean 0 and variance 1/D.
    assert np.abs(points.mean(axis=0)).max() < 5 * 0.5 / np.sqrt(4000)
    np.testing.assert_allclose((points**2).mean(axis=0), 0.25, atol=0.02)
