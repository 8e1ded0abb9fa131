"""The lifting: its numbers, their laws, and their being the same everywhere."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedkad.koopman.lifting import Lifting, exact_log, normal_deviates, uniform_deviates
from tests.fixtures import naive
from tests.fixtures.draws import draws

LARGE = Lifting(channels=8, window=10, observables=400, seed=7)

PINNED = "4eaaca77d9d05c9fbbe4914fcac115e5c85425e3ba801ee1670c8bab4f32b443"
PINNED_WEIGHTS = [
    0.6055166125297546,
    0.3199760913848877,
    0.2781560719013214,
    -0.43372517824172974,
    -0.08006547391414642,
    0.19583703577518463,
]


def test_weights_are_normal_with_variance_one_over_d() -> None:
    d = LARGE.state_size
    weights = LARGE.weights.ravel() * math.sqrt(d)
    assert LARGE.weights.shape == (400, d)
    count = len(weights)
    assert abs(weights.mean()) < 4.0 / math.sqrt(count)
    assert abs(weights.var() - 1.0) < 4.0 * math.sqrt(2.0 / count)
    assert stats.kstest(weights, "norm").pvalue > 1e-3
    # independent of one another: neither neighbours nor rows nor columns are correlated
    assert abs(np.corrcoef(weights[:-1], weights[1:])[0, 1]) < 4.0 / math.sqrt(count)
    assert abs(np.corrcoef(LARGE.weights[:-1].ravel(), LARGE.weights[1:].ravel())[0, 1]) < 4.0 / math.sqrt(count)


def test_offsets_are_uniform_on_minus_one_to_one() -> None:
    bias = Lifting(1, 2, 5000, seed=3).bias
    assert bias.shape == (5000,)
    assert -1.0 < bias.min() < -0.99
    assert 0.99 < bias.max() < 1.0
    assert stats.kstest(bias, stats.uniform(-1.0, 2.0).cdf).pvalue > 1e-3


def test_weights_and_offsets_are_unrelated_streams() -> None:
    # One stream for both would make the offsets of one size the weights of another.
    lifting = Lifting(1, 1, 2000, seed=5)
    assert abs(np.corrcoef(lifting.weights[:, 0], lifting.bias)[0, 1]) < 0.1
    assert np.array_equal(lifting.bias, Lifting(3, 4, 2000, seed=5).bias)


def test_numbers_are_float32_numbers() -> None:
    for array in (LARGE.weights, LARGE.bias):
        assert array.dtype == np.float64
        assert np.array_equal(array, array.astype(np.float32).astype(np.float64))


def test_the_digest_is_the_same_for_the_same_seed_and_no_other() -> None:
    lifting = Lifting(3, 4, 5, seed=1)
    assert lifting.digest == Lifting(3, 4, 5, seed=1).digest
    others = [replace(lifting, seed=2), Lifting(4, 3, 5, 1), Lifting(3, 4, 6, 1), Lifting(3, 5, 5, 1)]
    assert lifting.digest not in {other.digest for other in others}


def test_the_digest_is_that_recorded() -> None:
    """A numpy whose raw bits, or a change of ours, gives other numbers breaks every model file."""
    assert Lifting(channels=2, window=3, observables=4, seed=42).digest == PINNED
    np.testing.assert_array_equal(Lifting(2, 3, 4, seed=42).weights[0], PINNED_WEIGHTS)


def test_the_numbers_follow_from_the_raw_bits_by_hand() -> None:
    bits = np.random.PCG64(42)

    def uniform() -> float:
        return ((int(bits.random_raw()) >> 12) + 0.5) / 2**52

    drawn: list[float] = []
    while len(drawn) < 4 * 6:
        u, v = 2.0 * uniform() - 1.0, 2.0 * uniform() - 1.0
        s = u * u + v * v
        if s < 1.0:
            drawn.append(u * math.sqrt(-2.0 * math.log(s) / s) / math.sqrt(6))
    expected = np.array(drawn).reshape(4, 6)
    np.testing.assert_allclose(Lifting(2, 3, 4, seed=42).weights, expected, rtol=1e-7)


def test_no_observables() -> None:
    lifting = Lifting(2, 3, 0, seed=0)
    assert lifting.weights.shape == (0, 6)
    assert lifting.transform(np.ones((4, 2))).shape == (2, 6)


@draws(300, derandomize=True)
@given(st.floats(min_value=1e-300, max_value=1e300))
def test_exact_log_is_the_logarithm(x: float) -> None:
    assert float(exact_log(np.array([x]))[0]) == pytest.approx(math.log(x), rel=4e-16, abs=4e-16)


def test_uniform_deviates_use_the_raw_bits() -> None:
    raw = [int(word) for word in np.random.PCG64(9).random_raw(50)]
    assert uniform_deviates(np.random.PCG64(9), 50).tolist() == [((word >> 12) + 0.5) / 2**52 for word in raw]


def test_normal_deviates_do_not_depend_on_how_many_are_drawn_later() -> None:
    assert np.array_equal(normal_deviates(np.random.PCG64(4), 10), normal_deviates(np.random.PCG64(4), 1000)[:10])
    assert len(normal_deviates(np.random.PCG64(4), 0)) == 0


@draws(50, derandomize=True)
@given(st.integers(0, 12), st.integers(1, 3), st.integers(1, 4), st.integers(0, 3), st.integers(0, 1000))
def test_transform_lays_out_the_oldest_sample_first_then_the_observables(
    length: int, channels: int, window: int, observables: int, seed: int
) -> None:
    lifting = Lifting(channels, window, observables, seed)
    series = np.random.default_rng(seed).normal(size=(length, channels))
    states = naive.lifted_states(series, lifting)
    found = lifting.transform(series)
    assert found.shape == (max(length - window + 1, 0), channels * window + observables)
    for row, t in enumerate(range(window - 1, length)):
        np.testing.assert_allclose(found[row], states[t], atol=1e-13)
        np.testing.assert_array_equal(found[row, lifting.newest], series[t])
    # a view into every other row of something larger gives the same
    wide = np.repeat(series, 2, axis=0)[::2]
    np.testing.assert_array_equal(lifting.transform(wide), found)


def test_transform_refuses_a_series_of_other_channels() -> None:
    with pytest.raises(ValueError):
        Lifting(channels=2, window=3, observables=1, seed=0).transform(np.ones((10, 1)))
