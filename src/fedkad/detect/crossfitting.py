"""What a device learns about its own witnesses: residuals, units, and the scores of normal data.

No row is set aside for this. The kept rows are cut into blocks, and each block is judged by an operator and by places
that were learned without it. An operator needs only the Gram matrices of the coordinates c = ZᵀΦ, so leaving a block
out is a difference of two r × r matrices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.bridging import broken
from fedkad.detect.calibration import HeldOut, ResidualMoments
from fedkad.detect.model import Memory
from fedkad.detect.places import (
    THINNED,
    Bounds,
    Entries,
    Features,
    Places,
    log_spread,
    window_ends,
    window_means,
)
from fedkad.detect.quantiles import channel_quantiles
from fedkad.detect.scoring import BLOCK, SPREAD_FLOOR, Dynamics, Seen, smooth_causally
from fedkad.detect.witnesses import NEVER, UNIT_FLOORS, Sight, WitnessScoring
from fedkad.koopman.operator import Reduced
from fedkad.koopman.scaling import clipped
from fedkad.koopman.snapshots import stretches

Array = NDArray[np.float64]
Fit = Callable[[Reduced], Dynamics]

JUMP = 0.999
"""The share of residuals that a jump exceeds."""

USUAL = 0.99
"""The share of normal data that stays below the unit of a witness."""

MOST_BLOCKS = 20
"""Blocks of cross-fitting, however small a share each is to be: every one costs an operator and a look at places."""


def calibrate_witnesses(fit: Fit, reduced: Reduced, memory: Memory, places: Places) -> tuple[WitnessScoring, Array]:
    """The scoring, and the causal scores of the kept rows, each judged by what the others show; NaN at gaps.

    `fit` makes the dynamics of statistics that are `reduced` to the subspace.
    """
    setup, settings, rows = memory.setup, memory.setup.settings, memory.held_out.rows
    bounds, zeros = places.bounds(setup.scaling), np.zeros((settings.horizon, setup.channels))
    judged = ~bounds.switch & ~bounds.coarse & ~setup.inputs
    scoring = WitnessScoring(fit(reduced), zeros, zeros + 1.0, judged, bounds, zeros[0], np.ones(3))
    sights = _sights(scoring, rows)
    blocks = _blocks(rows, settings.lead, min(max(round(1.0 / settings.validation), 2), MOST_BLOCKS))
    others = [fit(_without(reduced, sights.coordinates, memory.held_out, block)) for block in blocks]
    residuals = np.concatenate(
        [_residuals(dynamics, sights, block) for dynamics, block in zip(others, blocks, strict=True)]
    )
    centre, spread = _usual_residuals(scoring.dynamics, memory, residuals)
    # What is not judged by prediction cannot jump.
    jump = np.where(judged, channel_quantiles(np.abs(residuals[:, -1] - centre[-1]), [JUMP])[:, 0], NEVER)
    scoring = replace(scoring, centre=centre, spread=spread, jump=jump)
    parts = np.full((len(rows), 4), np.nan)
    elsewhere = _bounds_elsewhere(places, sights, memory, blocks)
    runs = broken(rows, settings.lead + 1).entries(settings.lead)
    for block, dynamics, known in zip(blocks, others, elsewhere, strict=True):
        judge = replace(scoring, dynamics=dynamics, bounds=known)
        parts[block] = np.stack(judge.score(*_moments(sights, block, settings.horizon)), axis=-1)
    smooth = smooth_causally(parts, runs, settings.smoothing)
    usual = np.nanquantile(smooth[:, :2], USUAL, axis=0)
    scoring = replace(scoring, units=np.maximum([*usual, 1.0], UNIT_FLOORS))
    return scoring, scoring.combine(list(smooth.T))


def _usual_residuals(dynamics: Dynamics, memory: Memory, crossed: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of the residuals, per step and channel.

    They come from the statistics, which have seen all rows and not only those that are kept; if rows are few, from the
    `crossed` residuals, because an operator fits few rows too well.
    """
    if not memory.held_out.few:
        moments = ResidualMoments.of(dynamics, memory.statistics).calibrated(dynamics)
        return moments.centre, moments.spread
    return crossed.mean(axis=0), np.maximum(crossed.std(axis=0), SPREAD_FLOOR)


def _blocks(rows: Array, lead: int, count: int) -> list[Entries]:
    """The entries that can be judged, in about equally long blocks."""
    entries = np.concatenate(broken(rows, lead + 1).entries(lead))
    return np.array_split(entries, min(count, len(entries)))


def _sights(scoring: WitnessScoring, rows: Array) -> Sight:
    """What is seen at every row, NaN without a full window; of the window only its newest sample is kept.

    It does not depend on the operator, so that one look serves all blocks. Products are of single precision: what they
    are for, spreads, units and a threshold, is known to a few per cent.
    """
    lifting, rank = scoring.dynamics.lifting, scoring.dynamics.subspace.shape[1]
    product, bounded, lead = scoring.dynamics.coordinates.single, clipped(rows), lifting.window - 1
    coordinates, own = (np.full((len(rows), rank), np.nan) for _ in range(2))
    level, square = (np.full(rows.shape, np.nan) for _ in range(2))
    for run in stretches(rows, shortest=lifting.window):
        windows = lifting.windows(bounded[run], dtype=np.float32)
        for start in range(0, len(windows), BLOCK):
            some = np.ascontiguousarray(windows[start : start + BLOCK])
            at = slice(run.start + lead + start, run.start + lead + start + len(some))
            coordinates[at], linear, _ = product(some)
            own[at] = scoring.of_judged(linear, some)
            samples = bounded[at.start - lead : at.stop]
            level[at], square[at] = (window_means(each, lifting.window) for each in (samples, samples * samples))
    return Sight(rows, bounded, coordinates, own, level, square)


def _residuals(dynamics: Dynamics, sights: Sight, block: Entries) -> Array:
    """Of the predicted samples of all steps ahead, `(entries, H, n)`."""
    made = block - dynamics.horizon
    forecasts = [sights.coordinates[made].dot(decoder) for decoder in dynamics.newest_decoders]
    return np.stack([sights.window[made + 1 + h] - forecast for h, forecast in enumerate(forecasts)], axis=1)


def _moments(sights: Sight, block: Entries, horizon: int) -> tuple[Seen, list[Seen]]:
    """What was seen when the entries of a block were predicted, and since."""
    is_run = block[-1] - block[0] == len(block) - 1  # a slice needs no copy
    moments = [slice(block[0] + h, block[-1] + 1 + h) if is_run else block + h for h in range(-horizon, 1)]
    earlier, *since = [tuple(array[at] for array in sights) for at in moments]
    return earlier, since


def _without(reduced: Reduced, coordinates: Array, held_out: HeldOut, block: Entries) -> Reduced:
    """The reduced statistics without the pairs of a block: Σ w c cᵀ and Σ w c₊cᵀ taken away."""
    now, before, weights = coordinates[block], coordinates[block - 1], held_out.weights[block, None]
    gram, cross = before.T @ (weights * before), now.T @ (weights * before)
    return reduced._replace(gram=reduced.gram - gram, cross=reduced.cross - cross)


def _bounds_elsewhere(places: Places, sights: Sight, memory: Memory, blocks: list[Entries]) -> list[Bounds]:
    """For every block the bounds that the other rows show; a single block has no other rows."""
    window, scaling, ties = memory.setup.settings.window, memory.setup.scaling, places.known_ties
    ends = window_ends(sights.values, window)
    levels = sights.level[ends]
    features = Features.at(ends, sights.values[ends], levels, log_spread(sights.square[ends] - levels**2), ties)
    found = []
    for block in blocks:
        # A window that ends soon after the block still holds some of it.
        before, after = np.searchsorted(ends, (block[0], block[-1] + window + 1))
        known = features.without(slice(before, after)) if after - before < len(ends) else features
        found.append(
            replace(Places.of(known.thinned(THINNED), ties), wander=places.wander, step=places.step).bounds(scaling)
        )
    return found
