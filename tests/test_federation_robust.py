"""The geometric median against direct minimisation, and against clients that try to carry it away."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.optimize import minimize

from fedkad.federation.robust import (
    combine_directions,
    combine_replies,
    geometric_median_weights,
    supported_directions,
)
from fedkad.koopman.stiefel import random_point
from fedkad.koopman.subspace import leading_directions
from tests.fixtures.draws import draws

Array = NDArray[np.float64]
SEEDS = st.integers(0, 10_000)


def cost(points: Array, middle: Array) -> float:
    return float(np.linalg.norm(points - middle, axis=1).sum())


def median(points: Array) -> Array:
    middle: Array = geometric_median_weights(points @ points.T) @ points
    return middle


def minimised(points: Array) -> Array:
    """By a general solver, from the mean and from every point, since the cost has kinks at the points."""
    starts = [points.mean(axis=0), *points]
    found = [minimize(lambda m: cost(points, m), start, method="Nelder-Mead", options=OPTIONS).x for start in starts]
    best: Array = min(found, key=lambda m: cost(points, m))
    return best


OPTIONS = {"xatol": 1e-10, "fatol": 1e-14, "maxiter": 4000, "maxfev": 4000}


@pytest.mark.parametrize(("count", "dimension"), [(3, 2), (4, 2), (5, 3), (9, 2)])
@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_minimiser(count: int, dimension: int, seed: int) -> None:
    points = np.random.default_rng([count, seed]).standard_normal((count, dimension)) + 3.0
    middle, expected = median(points), minimised(points)
    assert cost(points, middle) <= cost(points, expected) + 1e-12
    np.testing.assert_allclose(middle, expected, atol=1e-6)


@given(arrays(np.float64, st.tuples(st.integers(1, 7), st.just(3)), elements=st.integers(-3, 3).map(float)))
@draws(200)
def test_no_direction_leads_down(points: Array) -> None:
    """The subgradient condition, points on a grid so that they coincide, stand in line and hide the median."""
    middle = median(points)
    distances = np.linalg.norm(points - middle, axis=1)
    at = distances < 1e-4
    pull = ((points[~at] - middle) / distances[~at, None]).sum(axis=0)
    assert np.linalg.norm(pull) <= at.sum() + 1e-3
    lowest = min(cost(points, point) for point in points)
    assert cost(points, middle) <= lowest + 1e-9


@given(SEEDS, st.integers(1, 9), st.integers(2, 5))
@draws(60)
def test_order_rotation_and_place_do_not_matter(seed: int, count: int, dimension: int) -> None:
    """From two dimensions on; of an even number of points in a line, all between the middle ones are medians."""
    generator = np.random.default_rng(seed)
    points = generator.standard_normal((count, dimension))
    order, turn = generator.permutation(count), random_point(dimension, dimension, generator)
    away = generator.standard_normal(dimension)
    moved = 7.0 * (points @ turn)[order] + away
    np.testing.assert_allclose(median(moved), 7.0 * median(points) @ turn + away, atol=1e-5)


@given(SEEDS, st.integers(1, 9))
@draws(40)
def test_weights_are_a_mean(seed: int, count: int) -> None:
    points = np.random.default_rng(seed).standard_normal((count, 4))
    weights = geometric_median_weights(points @ points.T)
    assert weights.shape == (count,)
    assert (weights >= 0.0).all()
    assert weights.sum() == pytest.approx(1.0)


def test_few_and_equal_points() -> None:
    np.testing.assert_array_equal(geometric_median_weights(np.array([[4.0]])), [1.0])
    np.testing.assert_array_equal(geometric_median_weights(np.diag([1.0, 9.0])), [0.5, 0.5])
    np.testing.assert_array_equal(geometric_median_weights(np.full((4, 4), 2.0)), np.full(4, 0.25))
    np.testing.assert_array_equal(geometric_median_weights(np.zeros((3, 3))), np.full(3, 1.0 / 3.0))


def test_a_point_that_is_the_median_is_found_exactly() -> None:
    corners = np.array([[1.0, 0.0], [-0.5, 0.8], [-0.5, -0.8], [0.1, 0.05]])
    weights = geometric_median_weights(corners @ corners.T)
    np.testing.assert_array_equal(weights, [0.0, 0.0, 0.0, 1.0])


def test_a_start_at_a_point_that_is_not_the_median_is_left() -> None:
    """Weiszfeld's own iteration stays at the mean if that is a data point."""
    points = np.array([[-1.0, 0.0], [0.0, 0.0], [0.2, 1.0], [0.8, -1.0], [10.0, 5.0], [-10.0, -5.0]])
    points = np.vstack([points, -points.sum(axis=0)])
    assert cost(points, median(points)) <= cost(points, minimised(points)) + 1e-9


def test_what_is_no_set_of_points_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        geometric_median_weights(np.empty((0, 0)))
    with pytest.raises(ValueError, match="not finite"):
        geometric_median_weights(np.array([[np.inf]]))
    for combine in (combine_replies, combine_directions):
        with pytest.raises(ValueError, match="at least one array"):
            combine([])
        with pytest.raises(ValueError, match="same shape"):
            combine([np.ones((3, 2)), np.ones((3, 1))])


@given(SEEDS, st.integers(1, 4), st.sampled_from([1.0, 1e3, 1e8, 1e14]))
@draws(60)
def test_the_bound_of_breakdown_holds(seed: int, poisoned: int, size: float) -> None:
    """Honest within distance 1 of a point: the median within (1 − α)/√(1 − 2α), however large the poison."""
    generator = np.random.default_rng(seed)
    honest = generator.standard_normal((6, 5))
    honest *= generator.uniform(size=(6, 1)) / np.linalg.norm(honest, axis=1, keepdims=True)
    place = generator.standard_normal(5)
    poison = size * (generator.standard_normal(5) + 0.1 * generator.standard_normal((poisoned, 5)))
    middle = median(np.vstack([honest + place, poison]))
    share = poisoned / (6 + poisoned)
    assert np.linalg.norm(middle - place) <= (1.0 - share) / np.sqrt(1.0 - 2.0 * share) + 1e-6


def fleet(count: int, seed: int) -> tuple[list[Array], Array]:
    """Replies near one subspace, and that subspace."""
    generator = np.random.default_rng(seed)
    common = random_point(40, 4, generator)
    return [common + 0.02 * generator.standard_normal(common.shape) for _ in range(count)], common


@pytest.mark.parametrize("size", [3.0, 1e3, 1e12])
def test_poisoned_replies_do_not_carry_it_away(size: float) -> None:
    honest, common = fleet(6, seed=1)
    other = size * random_point(40, 4, np.random.default_rng(9))
    replies = [other, *honest[:3], other, *honest[3:], other, other]  # 40 % of ten
    spread = max(float(np.linalg.norm(reply - common)) for reply in honest)
    assert np.linalg.norm(combine_replies(replies) - common) < 2.0 * spread
    assert np.linalg.norm(np.mean(replies, axis=0) - common) > 0.4 * np.linalg.norm(other - common) - spread


def test_replies_are_the_median_of_their_entries_as_one_vector() -> None:
    replies, _ = fleet(5, seed=2)
    flat = np.array([reply.ravel() for reply in replies])
    np.testing.assert_allclose(combine_replies(replies).ravel(), median(flat), atol=1e-14)


def test_directions_are_the_median_of_the_matrices() -> None:
    generator = np.random.default_rng(3)
    messages = [0.3 * generator.standard_normal((7, 2)) for _ in range(5)]
    products = np.array([(message @ message.T).ravel() for message in messages])
    expected = len(messages) * median(products).reshape(7, 7)
    np.testing.assert_allclose(combine_directions(messages), expected, atol=1e-12)
    np.testing.assert_allclose(combine_directions(messages[:1] * 3), 3.0 * messages[0] @ messages[0].T, atol=1e-14)


@given(SEEDS)
@draws(25)
def test_directions_turn_with_the_coordinates_and_not_with_the_bases(seed: int) -> None:
    generator = np.random.default_rng(seed)
    messages = [generator.standard_normal((6, 2)) for _ in range(4)]
    turn = random_point(6, 6, generator)
    turned = [turn @ message @ random_point(2, 2, generator) for message in messages]
    expected = turn @ combine_directions(messages) @ turn.T
    np.testing.assert_allclose(combine_directions(turned), expected, atol=1e-5)


def test_colluding_directions_do_not_carry_the_warm_start_away() -> None:
    generator = np.random.default_rng(4)
    common, other = np.split(random_point(40, 8, generator), 2, axis=1)
    honest = [common / 2.0 + 0.02 * generator.standard_normal(common.shape) for _ in range(6)]
    for size in (1.0, 30.0):
        messages = honest + 4 * [size * other]
        plain = leading_directions(np.asarray(sum(message @ message.T for message in messages)), 4).vectors
        robust = leading_directions(combine_directions(messages), 4).vectors
        assert captured(plain, common) < 0.1
        assert captured(robust, common) > 0.9


def test_what_two_have_gives_way_to_what_three_have() -> None:
    generator = np.random.default_rng(7)
    common, rare, other = np.split(random_point(80, 12, generator), 3, axis=1)
    # Strong directions that all share, weaker ones of three devices, some that each has alone; and those of colluders.
    own = [0.5 * random_point(80, 4, generator) for _ in range(6)]
    messages = [np.concatenate([common, 0.4 * rare * (k < 3), own[k]], axis=1) for k in range(6)]
    messages += 2 * [np.concatenate([common, other, 0.0 * rare], axis=1)]
    combined = combine_directions(messages)
    assert captured(leading_directions(combined, 8).vectors, other) > 0.6
    chosen = supported_directions(messages, leading_directions(combined, 16).vectors, 8)
    np.testing.assert_allclose(chosen.T @ chosen, np.eye(8), atol=1e-9)
    assert captured(chosen, common) > 0.99
    assert captured(chosen, rare) > 0.6
    assert captured(chosen, other) < 0.25


@given(SEEDS)
@draws(10)
def test_devices_that_agree_choose_the_leading_directions(seed: int) -> None:
    generator = np.random.default_rng(seed)
    message = random_point(12, 6, generator) * np.linspace(2.0, 1.0, 6)
    messages = [message @ random_point(6, 6, generator) for _ in range(5)]
    found = leading_directions(combine_directions(messages), 6).vectors
    chosen = supported_directions(messages, found, 3)
    assert captured(chosen, found[:, :3]) > 1.0 - 1e-9


def captured(subspace: Array, common: Array) -> float:
    """Mean squared cosine of the principal angles."""
    return float(np.linalg.norm(subspace.T @ common) ** 2 / common.shape[1])


def test_any_order_of_replies_gives_the_same() -> None:
    replies, _ = fleet(4, seed=5)
    replies[0] = replies[0] * 50.0
    results = [combine_replies(list(order)) for order in itertools.permutations(replies)]
    for result in results:
        np.testing.assert_allclose(result, results[0], atol=1e-8)
