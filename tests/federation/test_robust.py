"""The geometric median against direct minimisation, who pulls alone against a naive formula, and both against liars."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.optimize import minimize

from fedkad.federation.robust import (
    LEAST_LOSS,
    MOST_PULL,
    combine_replies,
    geometric_median_weights,
    pull,
    pulling_alone,
)
from fedkad.federation.server import Server
from fedkad.federation.settings import Consensus
from fedkad.koopman.stiefel import random_point
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
    with pytest.raises(ValueError, match="at least one array"):
        combine_replies([])
    with pytest.raises(ValueError, match="same shape"):
        combine_replies([np.ones((3, 2)), np.ones((3, 1))])


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


RANK = 3


def warm_fleet(count: int, seed: int, dimension: int = 20) -> list[Array]:
    """Warm messages of devices that share most directions, each with a little of its own."""
    generator = np.random.default_rng(seed)
    common = random_point(dimension, 5, generator) * np.sqrt([0.9, 0.08, 0.015, 0.001, 0.001])
    return [common + 0.003 * generator.standard_normal(common.shape) for _ in range(count)]


def naive_loss(message: Array, subspace: Array) -> float:
    """What a device loses of its energy, 1, in a subspace; of a message longer than 1, of its norm."""
    product = message @ message.T
    return float(max(1.0, np.trace(product)) - np.trace(subspace @ subspace.T @ product))


def naive_directions(messages: list[Array], rank: int) -> Array:
    vectors: Array = np.linalg.eigh(np.asarray(sum(message @ message.T for message in messages)))[1][:, -rank:]
    return vectors


def naive_pull(messages: list[Array], chosen: tuple[int, ...], rank: int) -> float:
    rest = [message for k, message in enumerate(messages) if k not in chosen]
    with_them, without = naive_directions(messages, rank), naive_directions(rest, rank)
    losses = [(naive_loss(message, with_them), naive_loss(message, without)) for message in rest]
    cost = sum(worse - usual for worse, usual in losses) / len(chosen)
    return cost / max(sum(usual for _, usual in losses) / len(rest), LEAST_LOSS)


@given(SEEDS, st.floats(0.0, 1.5))
@draws(40)
def test_a_pull_is_what_one_costs_the_others(seed: int, strength: float) -> None:
    messages = warm_fleet(5, seed)
    messages[1] = strength * random_point(20, 5, np.random.default_rng(seed + 1)) / np.sqrt(5.0)
    for chosen in ((1,), (0, 1), (2, 4)):
        assert pull(messages, chosen, RANK) == pytest.approx(naive_pull(messages, chosen, RANK), rel=1e-6, abs=1e-9)


@given(SEEDS)
@draws(25)
def test_honest_devices_do_not_pull_alone(seed: int) -> None:
    assert pulling_alone(warm_fleet(8, seed), RANK) == []


@given(SEEDS, st.sets(st.integers(0, 7), min_size=1, max_size=2), st.booleans())
@draws(40)
def test_one_or_two_liars_are_left_out_whether_they_agree_or_not(seed: int, liars: set[int], agree: bool) -> None:
    messages = warm_fleet(8, seed, 100)
    for k in liars:
        messages[k] = random_point(100, 5, np.random.default_rng([seed, 1 if agree else 1 + k])) / np.sqrt(5.0)
    assert pulling_alone(messages, RANK) == sorted(liars)


@given(SEEDS, st.floats(0.0, 1.0))
@draws(60)
def test_what_is_taken_in_costs_the_others_no_more_than_the_limit(seed: int, strength: float) -> None:
    """Two liars of any strength, in directions of their own beside the fleet's."""
    honest, generator = warm_fleet(6, seed), np.random.default_rng(seed + 1)
    lie = np.concatenate([honest[0][:, :3], strength * random_point(20, 2, generator)], axis=1)
    messages = [*honest, lie, lie]
    left = pulling_alone(messages, RANK)
    kept = [message for k, message in enumerate(messages) if k not in left]
    found, best = naive_directions(kept, RANK), naive_directions(honest, RANK)
    worst, usual = (sum(naive_loss(message, subspace) for message in honest) for subspace in (found, best))
    assert worst <= (1.0 + MOST_PULL * 2 / 6) * usual + 1e-9


def test_three_that_agree_are_what_the_fleet_is_like() -> None:
    messages = warm_fleet(8, seed=1)
    other = random_point(20, 5, np.random.default_rng(2)) * 0.4
    assert pulling_alone([*messages[:5], other, other, other], RANK) == []
    assert pulling_alone([*messages[:6], other, other], RANK) == [6, 7]


def test_less_than_half_are_left_out() -> None:
    strangers = [random_point(60, 5, np.random.default_rng(k)) * 0.4 for k in range(7)]
    for count in (1, 2, 3, 4, 7):
        assert len(pulling_alone(strangers[:count], RANK)) <= (count - 1) // 2


def test_nobody_is_left_out_for_next_to_nothing() -> None:
    """Devices that lose a millionth lose many times as much by one with another, as weak, direction: so what."""
    lead, second, third = np.eye(6)[:, :1], np.eye(6)[:, 1:2], np.eye(6)[:, 2:3]
    usual = np.concatenate([np.sqrt(1.0 - 1e-5) * lead, np.sqrt(1e-5) * second], axis=1)
    other = np.concatenate([np.sqrt(1.0 - 1e-4) * lead, np.sqrt(1e-4) * third], axis=1)
    messages = [usual, usual, usual, usual, other]
    assert naive_directions(messages, 2)[2].max() > 0.9 or naive_directions(messages, 2)[2].min() < -0.9
    assert pulling_alone(messages, 2) == []


def test_liars_are_among_the_suspects_of_a_large_fleet() -> None:
    messages = warm_fleet(30, seed=3)
    messages[11] = messages[23] = random_point(20, 5, np.random.default_rng(4)) / np.sqrt(5.0)
    messages[11] = messages[23] = np.sqrt(10.0) * messages[11]  # two of thirty have to be louder to be heard
    assert pulling_alone(messages, RANK) == [11, 23]


def warm_server(messages: dict[str, Array], *, robust: bool, rounds: int = 1) -> Server:
    """After warm rounds with these messages; a robust one is restarted between two of them."""
    server = Server(20, Consensus(rank=RANK), robust=robust)
    for names in np.array_split(list(messages), rounds):
        assert server.begin_round(names)
        for name in names:
            server.receive(name, messages[name])
        server.close_round()
        again = Server(20, Consensus(rank=RANK), robust=robust)
        again.restore(*server.state())
        again.left_out, server = server.left_out, again
    return server


@pytest.mark.parametrize("rounds", [1, 2])
def test_an_honest_fleet_begins_exactly_where_the_mean_begins(rounds: int) -> None:
    messages = {f"pump-{k}": message for k, message in enumerate(warm_fleet(8, seed=5))}
    plain, robust = (warm_server(messages, robust=robust, rounds=rounds) for robust in (False, True))
    np.testing.assert_array_equal(plain.shared, robust.shared)
    assert robust.left_out == ()


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_fleet_with_liars_begins_where_the_others_alone_begin(rounds: int) -> None:
    messages = {f"pump-{k}": message for k, message in enumerate(warm_fleet(8, seed=6))}
    lie = random_point(20, 5, np.random.default_rng(7)) / np.sqrt(5.0)
    others = warm_server({name: messages[name] for name in list(messages)[:6]}, robust=False).shared
    robust = warm_server({**messages, "pump-6": lie, "pump-7": lie}, robust=True, rounds=rounds)
    assert robust.left_out == ("pump-6", "pump-7")
    np.testing.assert_allclose(robust.shared @ robust.shared.T, others @ others.T, atol=1e-9)


def test_a_training_that_an_earlier_release_began_goes_on() -> None:
    """It kept the warm replies by their number, and no sum of them."""
    messages = {f"pump-{k}": message for k, message in enumerate(warm_fleet(8, seed=5))}
    began = warm_server({name: messages[name] for name in list(messages)[:4]}, robust=True)
    facts, arrays = began.state()
    stored = {f"warm_reply.{k}": messages[f"pump-{k}"] for k in range(4)}
    server = Server(20, Consensus(rank=RANK), robust=True)
    server.restore(facts, {"shared": arrays["shared"], **stored})
    assert server.begin_round([f"pump-{k}" for k in range(4, 8)])
    for k in range(4, 8):
        server.receive(f"pump-{k}", messages[f"pump-{k}"])
    server.close_round()
    expected = warm_server(messages, robust=True).shared
    np.testing.assert_allclose(server.shared @ server.shared.T, expected @ expected.T, atol=1e-9)


def test_any_order_of_replies_gives_the_same() -> None:
    replies, _ = fleet(4, seed=5)
    replies[0] = replies[0] * 50.0
    results = [combine_replies(list(order)) for order in itertools.permutations(replies)]
    for result in results:
        np.testing.assert_allclose(result, results[0], atol=1e-8)
