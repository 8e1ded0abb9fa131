"""What a device learns about its own witnesses: residuals, units, and the scores of normal data.

No row is set aside for this. The kept rows are cut into blocks, and each block is judged by an operator and by ranges
that were learned without it. An operator needs only the Gram matrices of the coordinates c = ZᵀΦ, so leaving a block
out is a difference of two r × r matrices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.bridging import broken
from fedkad.detect.calibration import ResidualMoments
from fedkad.detect.dynamics import Dynamics
from fedkad.detect.explanations import explain_witnesses
from fedkad.detect.features import Entries, Features, log_spread, window_ends, window_means
from fedkad.detect.heldout import HeldOut
from fedkad.detect.model import Fit, Memory, Setup
from fedkad.detect.place import NEVER
from fedkad.detect.quantiles import channel_quantiles
from fedkad.detect.ranges import THINNED, Bounds, KnownRanges, absurd_in_training
from fedkad.detect.scoring import BLOCK, SPREAD_FLOOR, Explanation, ScoredWindow, Steps, smooth_causally
from fedkad.detect.steps import witness_steps
from fedkad.detect.witnesses import WitnessFeatures, WitnessScoring
from fedkad.koopman.operator import Reduced
from fedkad.koopman.scaling import clipped
from fedkad.koopman.snapshots import stretches

Array = NDArray[np.float64]

JUMP = 0.999  # the share of residuals that a jump exceeds
USUAL = 0.99  # the share of normal data that stays below the unit of a witness
UNIT_FLOORS = np.array([1.0, 0.1, 1.0])  # the smallest units: a device that never moved in training has no others

MOST_BLOCKS = 20
"""Blocks of cross-fitting, however small a share each is to be: each costs an operator and a set of bounds."""

STORED = ("judged", "jump", "units")  # fields of the scoring that are stored under their own names

STORED_BOUNDS = {name: "relief" if name == "discounts" else name for name in Bounds._fields}
"""The names of the bounds in files."""


class WitnessMethod:
    """Motion, fit and place: all rows are learned from, and cross-fitted."""

    name: ClassVar[str] = "witnesses"
    least_threshold: ClassVar[float] = 1.0  # what 99 % of normal data stays below in one of them is no alarm
    holds_out: ClassVar[bool] = False
    bridges: ClassVar[bool] = True
    has_private: ClassVar[bool] = True
    is_comparable: ClassVar[bool] = True
    always_regularised: ClassVar[bool] = True

    def cleaned(self, values: Array) -> Array:
        """The training values without those that are impossible in the light of the others."""
        wrong = absurd_in_training(values)
        return np.where(wrong, np.nan, values) if wrong.any() else values

    def ranges(self, setup: Setup, scaled: Array) -> KnownRanges | None:
        """Where the device has been."""
        size = np.abs(setup.scaling.mean) / setup.scaling.scale
        return KnownRanges.learnt(scaled, setup.settings.window, size)

    def calibrate(self, memory: Memory, subspace: Array, fit: Fit) -> tuple[WitnessScoring, Array]:
        """The scoring, and the causal scores of the kept rows, each judged by what the others show; NaN at gaps."""
        assert memory.ranges is not None
        return calibrate_witnesses(fit, Reduced.at(memory.statistics, subspace), memory, memory.ranges)

    def steps(self, scoring: WitnessScoring) -> Steps:
        """The scoring one sample at a time."""
        return witness_steps(scoring)

    def explain(
        self, setup: Setup, scoring: WitnessScoring, windows: Sequence[ScoredWindow], sample: Array
    ) -> Explanation:
        """Explain the score by the witness that leads."""
        return explain_witnesses(setup, scoring, windows)

    def to_arrays(self, scoring: WitnessScoring) -> dict[str, NDArray[Any]]:
        """What a file keeps of the scoring beside its dynamics."""
        arrays = {"residual.centre": scoring.centre, "residual.spread": scoring.spread}
        arrays |= {f"witnesses.{name}": getattr(scoring, name) for name in STORED}
        return arrays | {
            f"witnesses.bounds.{stored}": getattr(scoring.bounds, name) for name, stored in STORED_BOUNDS.items()
        }

    def from_arrays(self, dynamics: Dynamics, arrays: Mapping[str, NDArray[Any]]) -> WitnessScoring:
        """The scoring that a file has kept."""
        bounds = Bounds(*(arrays[f"witnesses.bounds.{stored}"] for stored in STORED_BOUNDS.values()))
        own: dict[str, Any] = {name: arrays[f"witnesses.{name}"] for name in STORED}
        return WitnessScoring(dynamics, arrays["residual.centre"], arrays["residual.spread"], bounds=bounds, **own)


def calibrate_witnesses(
    fit: Fit, reduced: Reduced, memory: Memory, ranges: KnownRanges
) -> tuple[WitnessScoring, Array]:
    """The scoring, and the causal scores of the kept rows, each judged by what the others show; NaN at gaps.

    `fit` makes the dynamics of statistics that are `reduced` to the subspace.
    """
    setup, settings, rows = memory.setup, memory.setup.settings, memory.held_out.rows
    bounds, zeros = ranges.bounds(setup.scaling), np.zeros((settings.horizon, setup.channels))
    judged = bounds.predictable & ~setup.inputs
    scoring = WitnessScoring(fit(reduced), zeros, zeros + 1.0, judged, bounds, zeros[0], np.ones(3))
    features = _features(scoring, rows)
    blocks = _blocks(rows, settings.lead, min(max(round(1.0 / settings.validation), 2), MOST_BLOCKS))
    others = [fit(_without(reduced, features.coordinates, memory.held_out, block)) for block in blocks]
    residuals = np.concatenate(
        [_residuals(dynamics, features, block) for dynamics, block in zip(others, blocks, strict=True)]
    )
    centre, spread = _usual_residuals(scoring.dynamics, memory, residuals)
    # What is not judged by prediction cannot jump.
    jump = np.where(judged, channel_quantiles(np.abs(residuals[:, -1] - centre[-1]), [JUMP])[:, 0], NEVER)
    scoring = replace(scoring, centre=centre, spread=spread, jump=jump)
    terms = np.full((len(rows), 4), np.nan)
    elsewhere = _bounds_elsewhere(ranges, features, memory, blocks)
    runs = broken(rows, settings.lead + 1).entries(settings.lead)
    for block, dynamics, bounds in zip(blocks, others, elsewhere, strict=True):
        other = replace(scoring, dynamics=dynamics, bounds=bounds)
        terms[block] = np.stack(other.score(*_moments(features, block, settings.horizon)), axis=-1)
    smooth = smooth_causally(terms, runs, settings.smoothing)
    usual = np.nanquantile(smooth[:, :2], USUAL, axis=0)
    scoring = replace(scoring, units=np.maximum([*usual, 1.0], UNIT_FLOORS))
    return scoring, scoring.combine(list(smooth.T))


def _usual_residuals(dynamics: Dynamics, memory: Memory, crossed: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of the residuals, per step and channel.

    They come from the statistics, which have seen all rows and not only those that are kept; if rows are few, from the
    `crossed` residuals, because an operator fits few rows too well.
    """
    if not memory.held_out.few:
        return ResidualMoments.of(dynamics, memory.statistics).centre_and_spread
    return crossed.mean(axis=0), np.maximum(crossed.std(axis=0), SPREAD_FLOOR)


def _blocks(rows: Array, lead: int, count: int) -> list[Entries]:
    """The entries that can be judged, in about equally long blocks."""
    entries = np.concatenate(broken(rows, lead + 1).entries(lead))
    return np.array_split(entries, min(count, len(entries)))


def _features(scoring: WitnessScoring, rows: Array) -> WitnessFeatures:
    """The features at every row, NaN without a full window; of the window only its newest sample is kept.

    They do not depend on the operator, so that they serve all blocks. Products are of single precision: what they
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
            own[at] = scoring.fit.of_judged(linear, some)
            samples = bounded[at.start - lead : at.stop]
            level[at], square[at] = (window_means(each, lifting.window) for each in (samples, samples * samples))
    return WitnessFeatures(rows, bounded, coordinates, own, level, square)


def _residuals(dynamics: Dynamics, features: WitnessFeatures, block: Entries) -> Array:
    """Of the predicted samples of all steps ahead, `(entries, H, n)`."""
    predicted_at = block - dynamics.horizon
    forecasts = [features.coordinates[predicted_at].dot(decoder) for decoder in dynamics.newest_decoders]
    return np.stack([features.window[predicted_at + 1 + h] - forecast for h, forecast in enumerate(forecasts)], axis=1)


def _moments(features: WitnessFeatures, block: Entries, horizon: int) -> tuple[WitnessFeatures, list[WitnessFeatures]]:
    """The features of the moments at which the entries of a block were predicted, and of those since."""
    is_run = block[-1] - block[0] == len(block) - 1  # a slice needs no copy
    moments = [slice(block[0] + h, block[-1] + 1 + h) if is_run else block + h for h in range(-horizon, 1)]
    earlier, *since = [WitnessFeatures(*(array[at] for array in features)) for at in moments]
    return earlier, since


def _without(reduced: Reduced, coordinates: Array, held_out: HeldOut, block: Entries) -> Reduced:
    """The reduced statistics without the pairs of a block: Σ w c cᵀ and Σ w c₊cᵀ taken away."""
    now, before, weights = coordinates[block], coordinates[block - 1], held_out.weights[block, None]
    gram, cross = before.T @ (weights * before), now.T @ (weights * before)
    return reduced._replace(gram=reduced.gram - gram, cross=reduced.cross - cross)


def _bounds_elsewhere(
    ranges: KnownRanges, features: WitnessFeatures, memory: Memory, blocks: list[Entries]
) -> list[Bounds]:
    """For every block the bounds that the other rows show; a single block has no other rows."""
    window, scaling, ties = memory.setup.settings.window, memory.setup.scaling, ranges.known_ties
    ends = window_ends(features.values, window)
    levels = features.level[ends]
    spreads = log_spread(features.square[ends] - levels**2)
    everywhere = Features.at(ends, features.values[ends], levels, spreads, ties)
    bounds = []
    for block in blocks:
        # A window that ends soon after the block still holds some of it.
        before, after = np.searchsorted(ends, (block[0], block[-1] + window + 1))
        others = everywhere.without(slice(before, after)) if after - before < len(ends) else everywhere
        elsewhere = replace(KnownRanges.of(others.thinned(THINNED), ties), wander=ranges.wander, step=ranges.step)
        bounds.append(elsewhere.bounds(scaling))
    return bounds
