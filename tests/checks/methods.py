"""The contract of a benchmark method, as checks that run over every registered one.

A method added to the registry is checked without a test of its own. `UNSEEDED` and `NOT_CAUSAL` declare the exceptions.
Each check takes the name of a method; fits are shared between checks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from fedkad_bench.methods.interface import VALIDATION, WINDOW, Fitted, Method, Scale
from fedkad_bench.methods.koopman import KoopmanMethod
from fedkad_bench.methods.registry import METHODS, make, settings_of

Array = NDArray[np.float64]

ROWS = 720
CLIENT = "pump-1"
UNSEEDED = {"pca", "norm", "range", "persistence"}
"""Nothing in them is random."""

NOT_CAUSAL = {"random"}
"""A number of its stands for the whole series."""


def waves(rows: int, seed: int) -> Array:
    """Three coupled channels with noise."""
    t = np.arange(rows)[:, None] + 100.0 * seed
    clean: Array = np.sin(t / np.array([[5.0 + seed, 7.0, 11.0]]))
    return clean + 0.1 * np.random.default_rng(seed).normal(size=clean.shape)


def small_fleet() -> dict[str, Array]:
    """Four devices that are alike and not the same."""
    return {f"pump-{k}": waves(ROWS, k) for k in range(4)}


def broken_series() -> Array:
    """A test series of `CLIENT` with a stuck sensor."""
    series = waves(600, 1)
    series[400:440, 0] = 4.0
    return series


def small(name: str) -> Method:
    """A method with settings that train in a moment."""
    method = make(name, quick=True)
    return replace(method, rank=6, observables=16) if isinstance(method, KoopmanMethod) else method


@cache
def fitted(name: str, seed: int = 0, scaling: Scale = "device") -> Fitted:
    return small(name).fit(small_fleet(), seed=seed, scaling=scaling)


@cache
def fitted_again(name: str) -> tuple[Fitted, dict[str, Array]]:
    """The same fit once more, and the fleet after it."""
    fleet = small_fleet()
    return small(name).fit(fleet, seed=0), fleet


@cache
def scores_of_broken(name: str, seed: int = 0) -> Array:
    return fitted(name, seed).score(CLIENT, broken_series())


def same(name: str, one: Array, other: Array) -> None:
    """Equal up to rounding, which in networks depends on how many windows are scored at once."""
    near = 1e-4 if METHODS[name].group == "neural" else 1e-9
    np.testing.assert_allclose(one, other, rtol=near, atol=near)


# -- the checks -----------------------------------------------------------------------------------------------


def check_one_score_per_row(name: str) -> None:
    scores = scores_of_broken(name)
    assert scores.shape == (600,)
    assert scores.dtype == np.float64
    first = int(np.flatnonzero(~np.isnan(scores))[0])
    assert first <= WINDOW
    assert np.isfinite(scores[first:]).all()


def check_one_score_per_held_out_row(name: str) -> None:
    for client in small_fleet():
        validation = fitted(name).validation(client)
        assert validation.shape == (int(VALIDATION * ROWS),)
        assert np.isfinite(validation).all()


def check_same_seed_same_scores(name: str) -> None:
    again, _ = fitted_again(name)
    for scores in (fitted(name).score(CLIENT, broken_series()), again.score(CLIENT, broken_series())):
        assert np.array_equal(scores, scores_of_broken(name), equal_nan=True)
    assert np.array_equal(again.validation(CLIENT), fitted(name).validation(CLIENT))


def check_other_seed_other_scores(name: str) -> None:
    alike = np.array_equal(scores_of_broken(name), scores_of_broken(name, seed=1), equal_nan=True)
    assert alike == (name in UNSEEDED)


def check_future_does_not_change_the_past(name: str) -> None:
    if name in NOT_CAUSAL:
        return
    changed = broken_series()
    changed[500:] = 0.0
    same(name, fitted(name).score(CLIENT, changed)[:500], scores_of_broken(name)[:500])
    same(name, fitted(name).score(CLIENT, changed[:500]), scores_of_broken(name)[:500])


def check_gap_has_no_score_and_is_forgotten(name: str) -> None:
    holed = broken_series()
    holed[300] = np.nan
    scores = fitted(name).score(CLIENT, holed)
    assert np.isnan(scores[300])
    after = 300 + 2 * WINDOW
    assert np.isfinite(scores[after:]).all()
    if name not in NOT_CAUSAL:
        same(name, scores[:300], scores_of_broken(name)[:300])
        same(name, scores[after:], scores_of_broken(name)[after:])


def check_held_out_rows_teach_nothing(name: str) -> None:
    changed = small_fleet()
    for series in changed.values():
        series[-int(VALIDATION * ROWS) :] += 3.0
    scores = small(name).fit(changed, seed=0).score(CLIENT, broken_series())
    assert np.array_equal(scores, scores_of_broken(name), equal_nan=True)


def check_one_scaling_for_the_fleet(name: str) -> None:
    assert np.isfinite(fitted(name, scaling="global").score(CLIENT, broken_series())[WINDOW:]).all()


def check_wrong_channels_are_refused(name: str) -> None:
    for channels in (1, 2, 4):
        with pytest.raises(ValueError, match="channel"):
            fitted(name).score(CLIENT, np.zeros((100, channels)))


def check_input_stays_as_it_is(name: str) -> None:
    series = broken_series()
    trained, fleet = fitted_again(name)
    trained.score(CLIENT, series)
    assert all(np.array_equal(fleet[client], before) for client, before in small_fleet().items())
    assert np.array_equal(series, broken_series())


def check_cost_and_settings_can_be_recorded(name: str) -> None:
    cost = fitted(name).cost
    assert (cost.rounds > 0) <= (cost.bytes_up > 0 and cost.bytes_down > 0 and cost.numbers > 0)
    settings = settings_of(small(name))
    assert json.loads(json.dumps(settings)) == settings


CHECKS: tuple[Callable[[str], None], ...] = (
    check_one_score_per_row,
    check_one_score_per_held_out_row,
    check_same_seed_same_scores,
    check_other_seed_other_scores,
    check_future_does_not_change_the_past,
    check_gap_has_no_score_and_is_forgotten,
    check_held_out_rows_teach_nothing,
    check_one_scaling_for_the_fleet,
    check_wrong_channels_are_refused,
    check_input_stays_as_it_is,
    check_cost_and_settings_can_be_recorded,
)
