"""Scaling: z-scores, the clip, constant channels, and pooled moments."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkad.koopman.scaling import CLIP, ChannelMoments, Scaling
from tests.fixtures.draws import draws


def test_scaling_is_the_z_score_of_the_complete_rows() -> None:
    x = np.random.default_rng(0).normal([5.0, -300.0], [2.0, 0.01], size=(400, 2))
    x[7, 0] = np.nan
    whole = np.delete(x, 7, axis=0)
    scaling = Scaling.fit(x)
    np.testing.assert_allclose(scaling.mean, whole.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(scaling.scale, whole.std(axis=0), rtol=1e-9)
    scaled = scaling.transform(x)
    assert np.isnan(scaled[7, 0])
    np.testing.assert_allclose(
        np.delete(scaled, 7, axis=0), (whole - whole.mean(axis=0)) / whole.std(axis=0), atol=1e-7
    )


def test_values_are_clipped_at_ten_standard_deviations() -> None:
    assert CLIP == 10.0
    scaling = Scaling(np.array([1.0]), np.array([2.0]))
    found = scaling.transform(np.array([[1e9], [-1e9], [21.0], [21.5], [-18.0], [np.nan]]))
    np.testing.assert_array_equal(found[:, 0], [10.0, -10.0, 10.0, 10.0, -9.5, np.nan])


@pytest.mark.parametrize("level", [0.0, 0.1, -7.3, 1e12, 1e-12])
def test_a_constant_channel_keeps_its_own_units(level: float) -> None:
    scaling = Scaling.fit(np.full((1001, 1), level))
    assert scaling.scale.tolist() == [1.0]
    assert abs(scaling.transform(np.array([[level]]))[0, 0]) < 1e-3
    assert scaling.transform(np.array([[level + 4.0]]))[0, 0] == pytest.approx(4.0, abs=1e-3)


def test_a_small_channel_is_no_constant_one() -> None:
    x = np.array([[1e-9], [2e-9], [3e-9]])
    np.testing.assert_allclose(Scaling.fit(x).transform(x)[:, 0], [-np.sqrt(1.5), 0.0, np.sqrt(1.5)], atol=1e-9)


@draws(80, derandomize=True)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.integers(0, 2**32 - 1), st.floats(-1e6, 1e6))
def test_merged_moments_are_those_of_the_pool(sizes: list[int], seed: int, offset: float) -> None:
    generator = np.random.default_rng(seed)
    parts = [offset + generator.normal(k, 1.0 + k, size=(size, 2)) for k, size in enumerate(sizes)]
    merged = ChannelMoments.of(parts[0])
    for part in parts[1:]:
        merged = merged.merge(ChannelMoments.of(part))
    pool = np.concatenate(parts)
    assert merged.rows == len(pool)
    np.testing.assert_allclose(merged.mean, pool.mean(axis=0), rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(merged.centred, ((pool - pool.mean(axis=0)) ** 2).sum(axis=0), rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(Scaling.from_moments(merged).scale, Scaling.fit(pool).scale, rtol=1e-7)
