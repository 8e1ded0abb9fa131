"""Sufficient statistics against snapshot matrices that are formed naively."""

from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedkad.koopman import snapshots
from fedkad.koopman.lifting import Lifting
from fedkad.koopman.operator import Reduced
from fedkad.koopman.scaling import Scaling
from fedkad.koopman.snapshots import Statistics, collect, stretches
from fedkad.koopman.subspace import own_subspace, relative_loss
from tests.fixtures import naive
from tests.fixtures.draws import draws

Array = NDArray[np.float64]


class Case(NamedTuple):
    scaled: Array
    lifting: Lifting
    horizon: int
    block: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    channels, window = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    lifting = Lifting(channels, window, draw(st.integers(0, 4)), draw(st.integers(0, 5)))
    length = draw(st.integers(0, 40))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    series: NDArray[Any] = generator.normal(3.0, 20.0, size=(length, channels))
    for channel in range(channels):
        if draw(st.booleans()) and draw(st.booleans()):
            series[:, channel] = 7.25
    series = series.astype(draw(st.sampled_from([np.float64, np.float32, np.int64])))
    scaled = Scaling(np.full(channels, 3.0), np.full(channels, 20.0)).transform(series)
    assert scaled.dtype == np.float64
    for gap in draw(st.lists(st.integers(0, max(length - 1, 0)), max_size=4)):
        if length:
            scaled[gap, draw(st.integers(0, channels - 1))] = np.nan
    return Case(scaled, lifting, draw(st.integers(1, 3)), draw(st.sampled_from([1, 2, 3, 7, 1024])))


def naive_statistics(scaled: Array, lifting: Lifting, horizon: int) -> Statistics:
    x, y = naive.snapshots(scaled, lifting)
    newest = slice((lifting.window - 1) * lifting.channels, lifting.window * lifting.channels)
    ahead, counts = [], []
    for h in range(1, horizon + 1):
        now, later = naive.snapshots(scaled, lifting, ahead=h)
        ahead.append(later[newest] @ now.T)
        counts.append(float(now.shape[1]))
    return Statistics(
        xx=x @ x.T,
        yx=y @ x.T,
        yy=np.diagonal(y @ y.T),
        x_sum=x.sum(axis=1),
        y_sum=y.sum(axis=1),
        ahead=np.array(ahead),
        count=float(x.shape[1]),
        ahead_count=np.array(counts),
    )


def assert_same(found: Statistics, expected: Statistics, tolerance: float = 1e-10) -> None:
    for name, value in expected.as_arrays().items():
        got = getattr(found, name)
        assert np.shape(got) == np.shape(value), name
        scale = max(1.0, float(np.max(np.abs(value), initial=0.0)))
        np.testing.assert_allclose(got, value, rtol=0.0, atol=tolerance * scale, err_msg=name)
    assert found.energy == pytest.approx(expected.energy, rel=1e-10, abs=1e-9)


@draws(120, derandomize=True)
@given(cases())
def test_statistics_equal_snapshot_matrices(case: Case) -> None:
    with patch.object(snapshots, "BLOCK", case.block):
        found = collect(case.scaled, case.lifting, case.horizon)
    assert_same(found, naive_statistics(case.scaled, case.lifting, case.horizon))


def test_statistics_over_several_blocks_of_the_real_size() -> None:
    scaled = np.random.default_rng(3).normal(size=(snapshots.BLOCK * 2 + 77, 2))
    lifting = Lifting(2, 3, 5, seed=1)
    states = lifting.transform(scaled)
    found = collect(scaled, lifting, horizon=3)
    x, y = states[:-1].T, states[1:].T
    assert found.count == x.shape[1]
    np.testing.assert_allclose(found.xx, x @ x.T, rtol=1e-9, atol=1e-8)
    np.testing.assert_allclose(found.yx, y @ x.T, rtol=1e-9, atol=1e-8)
    np.testing.assert_allclose(found.ahead[2], scaled[5:].T @ states[:-3], rtol=1e-9, atol=1e-8)


@draws(40, derandomize=True)
@given(cases(), st.integers(0, 40))
def test_parts_on_both_sides_of_a_gap_add_up_to_the_whole(case: Case, at: int) -> None:
    if len(case.scaled) == 0:
        return
    at = min(at, len(case.scaled) - 1)
    case.scaled[at] = np.nan
    whole = collect(case.scaled, case.lifting, case.horizon)
    parts = collect(case.scaled[:at], case.lifting, case.horizon) + collect(
        case.scaled[at + 1 :], case.lifting, case.horizon
    )
    assert_same(parts, whole)
    assert_same(whole - collect(case.scaled[:at], case.lifting, case.horizon), parts - _first(case, at))


def _first(case: Case, at: int) -> Statistics:
    return naive_statistics(case.scaled[:at], case.lifting, case.horizon)


def test_pairs_never_bridge_a_gap() -> None:
    lifting = Lifting(1, 3, 2, seed=0)
    x = np.arange(12, dtype=np.float64)[:, None]
    x[5] = np.nan
    found = collect(x, lifting, horizon=2)
    assert found.count == (5 - 3) + (6 - 3)
    assert found.ahead_count.tolist() == [5.0, 3.0]
    # Values far apart on both sides: a bridged pair would show a product of both.
    apart = np.concatenate([np.full((5, 1), 1e6), [[np.nan]], np.full((6, 1), 1e-6)])
    linear = Lifting(1, 3, 0, seed=0)
    np.testing.assert_allclose(collect(apart, linear).xx, np.full((3, 3), 2e12 + 3e-12), rtol=1e-12)


def test_forgetting_scales_every_moment() -> None:
    lifting = Lifting(2, 2, 3, seed=0)
    generator = np.random.default_rng(1)
    old, new = generator.normal(size=(30, 2)), generator.normal(size=(20, 2))
    found = collect(old, lifting, 2).scaled(0.25) + collect(new, lifting, 2)
    x_old, y_old = naive.snapshots(old, lifting)
    x_new, y_new = naive.snapshots(new, lifting)
    x, y = np.hstack([x_old / 2.0, x_new]), np.hstack([y_old / 2.0, y_new])  # a weight of ¼ is half the length
    np.testing.assert_allclose(found.xx, x @ x.T, atol=1e-11)
    np.testing.assert_allclose(found.yx, y @ x.T, atol=1e-11)
    assert found.energy == pytest.approx(float((y**2).sum()))
    assert found.count == 0.25 * 28 + 18
    assert found.ahead_count.tolist() == [0.25 * 28 + 18, 0.25 * 27 + 17]


def test_empty_is_the_zero_of_addition() -> None:
    lifting = Lifting(2, 2, 3, seed=0)
    some = collect(np.random.default_rng(0).normal(size=(9, 2)), lifting, 2)
    assert_same(some + Statistics.empty(lifting, 2), some, 0.0)
    assert_same(collect(np.empty((0, 2)), lifting, 2), Statistics.empty(lifting, 2), 0.0)
    assert_same(collect(np.ones((2, 2)), lifting, 2), Statistics.empty(lifting, 2), 0.0)


@draws(60, derandomize=True)
@given(st.lists(st.booleans(), max_size=25), st.integers(1, 4))
def test_stretches_are_the_runs_of_complete_rows(missing: list[bool], shortest: int) -> None:
    series = np.array([[np.nan if gap else 1.0, 2.0] for gap in missing]).reshape(-1, 2)
    expected = [slice(run.start, run.stop) for run in naive.runs(series) if len(run) >= shortest]
    assert list(stretches(series, shortest)) == expected


@pytest.mark.parametrize("horizon", [1, 3])
@pytest.mark.parametrize("missing", [slice(None), [1], [0]])
def test_channels_that_never_move_cost_nothing_and_change_nothing(horizon: int, missing: Any) -> None:
    """Statistics with channels at zero are those of the snapshot matrices, and their core is all there is of them.

    A gap is a gap, also where it is in a channel that never moves.
    """
    lifting = Lifting(channels=5, window=4, observables=6, seed=2)
    x = np.random.default_rng(0).normal(size=(80, 5))
    x[:, [1, 4]] = 0.0
    x[40, missing] = np.nan
    found = collect(x, lifting, horizon)
    parts = [lifting.transform(x[:40]), lifting.transform(x[41:])]
    np.testing.assert_allclose(found.xx, sum(p[:-1].T @ p[:-1] for p in parts), atol=1e-10)
    np.testing.assert_allclose(found.yx, sum(p[1:].T @ p[:-1] for p in parts), atol=1e-10)
    np.testing.assert_allclose(found.yy, sum((p[1:] ** 2).sum(axis=0) for p in parts), atol=1e-10)
    np.testing.assert_allclose(found.x_sum, sum(p[:-1].sum(axis=0) for p in parts), atol=1e-10)
    for h in range(1, horizon + 1):
        expected = sum(p[h:, lifting.newest].T @ p[:-h] for p in parts)
        np.testing.assert_allclose(found.ahead[h - 1], expected, atol=1e-10)
    assert len(found.moving) == 3 * 4 + 6
    subspace = np.linalg.qr(np.random.default_rng(1).normal(size=(lifting.dimension, 3)))[0]
    np.testing.assert_allclose(found.gram(subspace), subspace.T @ found.xx @ subspace, atol=1e-9)
    reduced = Reduced.at(found, subspace)
    np.testing.assert_allclose(reduced.a, found.xx @ subspace, atol=1e-9)
    np.testing.assert_allclose(reduced.b, found.yx @ subspace, atol=1e-9)
    np.testing.assert_allclose(reduced.b_adjoint, found.yx.T @ subspace, atol=1e-9)
    np.testing.assert_allclose(reduced.cross, subspace.T @ found.yx @ subspace, atol=1e-9)
    cut = Statistics(**found.as_arrays())  # type: ignore[arg-type]  # without what `collect` had at hand
    for name, value in cut.core.as_arrays().items():
        np.testing.assert_array_equal(getattr(found.core, name), value)


def test_ones_own_subspace_lies_among_what_moves() -> None:
    lifting = Lifting(channels=6, window=8, observables=10, seed=0)
    x = np.random.default_rng(0).normal(size=(300, 6)).cumsum(axis=0) / 10.0
    x[:, 2:5] = 0.0
    statistics = collect(x, lifting)
    subspace = own_subspace(statistics, 5)
    np.testing.assert_allclose(subspace.T @ subspace, np.eye(5), atol=1e-10)
    still = np.setdiff1d(np.arange(lifting.dimension), statistics.moving)
    assert not subspace[still].any()
    assert relative_loss([statistics], subspace) == pytest.approx(
        relative_loss([statistics.core], subspace[statistics.moving])
    )
    assert own_subspace(collect(np.where(np.arange(6) == 0, x, 0.0)[:, :1], Lifting(1, 8, 0, 0)), 8).shape == (8, 8)


def test_a_device_that_only_ever_read_zero() -> None:
    """Without observables nothing moves at all: everything is zero, and nothing breaks."""
    statistics = collect(np.zeros((60, 2)), Lifting(channels=2, window=4, observables=0, seed=0))
    assert statistics.core is statistics
    subspace = own_subspace(statistics, 3)
    np.testing.assert_allclose(subspace.T @ subspace, np.eye(3), atol=1e-12)
    assert not statistics.gram(subspace).any()
    assert not Reduced.at(statistics, subspace).a.any()
