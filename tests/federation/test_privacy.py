"""Clipping, noise and accounting against scipy's normal distribution and looser published bounds."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar
from scipy.special import erfcx
from scipy.stats import norm

from fedkad.federation.privacy import _mills_ratio, add_noise, clip, epsilon, log_delta
from tests.fixtures.draws import draws

Array = NDArray[np.float64]
MULTIPLIERS = st.floats(0.05, 1e4)
DELTAS = st.sampled_from([1e-9, 1e-6, 1e-5, 1e-3, 0.1, 0.6])
RELEASES = st.integers(1, 500)


def brute_delta(eps: float, mu: float) -> float:
    """The formula as it stands, good where e^ε is a number and δ not tiny."""
    return float(norm.cdf(-eps / mu + mu / 2.0) - np.exp(eps) * norm.cdf(-eps / mu - mu / 2.0))


def integrated_delta(eps: float, mu: float) -> float:
    """From the definition: ∫ max(0, p(x) − e^ε q(x)) dx for p = N(μ, 1) and q = N(0, 1), as a sum."""
    x = np.linspace(-12.0, mu + 12.0, 400_001)
    p, q = norm.pdf(x - mu), norm.pdf(x)
    return float(np.trapezoid(np.maximum(p - np.exp(eps) * q, 0.0), x))


@given(arrays(np.float64, (3, 4), elements=st.floats(-1e300, 1e300)), st.floats(1e-3, 1e3))
def test_clipping_bounds_the_norm_and_keeps_the_direction(matrix: Array, bound: float) -> None:
    clipped = clip(matrix, bound)
    assert np.linalg.norm(clipped) <= bound * (1.0 + 1e-12)
    largest = np.abs(matrix).max()
    if largest <= bound / math.sqrt(matrix.size):
        np.testing.assert_array_equal(clipped, matrix)
    elif largest > bound:
        assert np.linalg.norm(clipped) == pytest.approx(bound)
        np.testing.assert_allclose(clipped / np.abs(clipped).max(), matrix / largest, atol=1e-12)


def test_the_noise_has_the_deviation() -> None:
    matrix = np.arange(200_000, dtype=np.float64).reshape(-1, 4)
    added = add_noise(matrix, 0.3, np.random.default_rng(0)) - matrix
    assert np.std(added) == pytest.approx(0.3, rel=0.01)  # six deviations of the estimate
    assert abs(np.mean(added)) < 0.004
    assert abs(np.corrcoef(added[:-1, 0], added[1:, 1])[0, 1]) < 0.03
    np.testing.assert_array_equal(add_noise(matrix, 0.0, np.random.default_rng(0)), matrix)


@pytest.mark.parametrize("multiplier", [0.7, 2.0, 10.0, 50.0])
@pytest.mark.parametrize("releases", [1, 8, 30])
@pytest.mark.parametrize("delta", [1e-7, 1e-5, 0.01])
def test_epsilon_solves_the_formula(multiplier: float, releases: int, delta: float) -> None:
    mu = 2.0 * math.sqrt(releases) / multiplier
    ours = epsilon(multiplier, releases, delta)
    if ours == 0.0:
        assert brute_delta(0.0, mu) <= delta
    elif ours < 30.0:
        expected = brentq(lambda eps: brute_delta(eps, mu) - delta, 0.0, 60.0, xtol=1e-12)
        assert ours == pytest.approx(expected, rel=1e-7)
    else:  # in the log domain, where e^ε would be too large
        a, b = -ours / mu + mu / 2.0, -ours / mu - mu / 2.0
        assert norm.logcdf(a) + math.log1p(-math.exp(ours + norm.logcdf(b) - norm.logcdf(a))) == pytest.approx(
            math.log(delta), rel=1e-9
        )


@pytest.mark.parametrize(("eps", "mu"), [(0.0, 1.0), (0.5, 1.0), (1.0, 0.4), (3.0, 2.0), (6.0, 1.5)])
def test_delta_is_what_its_definition_says(eps: float, mu: float) -> None:
    assert math.exp(log_delta(eps, mu)) == pytest.approx(integrated_delta(eps, mu), rel=1e-6)


def test_known_values() -> None:
    """Total variation of two unit normals at distance 1 is 2 Φ(½) − 1; no noise, no privacy; much noise, all."""
    assert math.exp(log_delta(0.0, 1.0)) == pytest.approx(0.38292492254802624, rel=1e-14)
    assert epsilon(0.0, 1, 1e-5) == math.inf
    assert epsilon(1e-200, 1, 1e-5) == math.inf
    assert epsilon(1e9, 1, 1e-5) == 0.0


@pytest.mark.parametrize("target", [0.1, 0.5, 0.99])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-3])
def test_less_noise_than_the_classical_bound(target: float, delta: float) -> None:
    """Dwork & Roth 2014, theorem A.1: σ = s √(2 log(1.25/δ))/ε suffices for ε < 1."""
    classical = 2.0 * math.sqrt(2.0 * math.log(1.25 / delta)) / target  # s = 2
    assert epsilon(classical, 1, delta) < target < epsilon(classical / 3.0, 1, delta)


@pytest.mark.parametrize("multiplier", [1.0, 5.0, 20.0])
@pytest.mark.parametrize("releases", [1, 8, 1000])
def test_at_most_what_renyi_accounting_says(multiplier: float, releases: int) -> None:
    """Rényi divergence α μ²/2 of order α, converted as by Canonne, Kamath & Steinke 2020, proposition 12."""
    mu, delta = 2.0 * math.sqrt(releases) / multiplier, 1e-5

    def bound(log_order: float) -> float:
        order = 1.0 + math.exp(log_order)
        return float(order * mu * mu / 2.0 + math.log1p(-1.0 / order) - math.log(delta * order) / (order - 1.0))

    renyi = minimize_scalar(bound, bounds=(-8.0, 8.0), method="bounded").fun
    ours = epsilon(multiplier, releases, delta)
    assert ours <= renyi
    assert ours >= 0.85 * renyi


@given(MULTIPLIERS, st.floats(1.01, 3.0), RELEASES, DELTAS)
@draws(80)
def test_it_is_monotone(multiplier: float, factor: float, releases: int, delta: float) -> None:
    here = epsilon(multiplier, releases, delta)
    assert epsilon(factor * multiplier, releases, delta) <= here
    assert epsilon(multiplier, releases + 1, delta) >= here
    assert epsilon(multiplier, releases, delta / 2.0) >= here
    assert math.isfinite(here)
    # Only the sum of squares matters.
    assert epsilon(multiplier, 4 * releases, delta) == pytest.approx(
        epsilon(multiplier / 2.0, releases, delta), rel=1e-9
    )


@given(st.floats(0.0, 1e6))
def test_mills_ratio_is_scipys(t: float) -> None:
    assert _mills_ratio(t) == pytest.approx(math.sqrt(math.pi / 2.0) * float(erfcx(t / math.sqrt(2.0))), rel=1e-14)


def test_what_makes_no_sense_is_refused() -> None:
    matrix = np.ones((2, 2))
    with pytest.raises(ValueError, match="bound"):
        clip(matrix, 0.0)
    with pytest.raises(ValueError, match="not finite"):
        clip(np.array([[np.nan]]), 1.0)
    with pytest.raises(ValueError, match="deviation"):
        add_noise(matrix, -1.0, np.random.default_rng())
    for wrong in ({"releases": 0}, {"releases": 1.5}, {"delta": 0.0}, {"delta": 1.0}):
        given_ = {"releases": 1, "delta": 1e-5, **wrong}
        with pytest.raises(ValueError, match=next(iter(wrong))):
            epsilon(1.0, **given_)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="noise_multiplier"):
        epsilon(-1.0, 1, 1e-5)
