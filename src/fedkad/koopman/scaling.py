"""Channels on one scale: z-scores from training data, clipped, with a floor for channels that never move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

CLIP = 10.0  # scaled values are clipped to ±CLIP standard deviations, as in the paper

CONSTANT = 1e-9
"""A channel whose spread is below this share of its mean counts as constant: such a spread is mere rounding."""


class ChannelMoments(NamedTuple):
    """Count, mean and centred second moment of every channel: enough to scale a device, or to pool a fleet."""

    rows: float
    mean: Array
    centred: Array

    @classmethod
    def of(cls, series: Array) -> ChannelMoments:
        """Moments of the rows of `series` that are complete (a row with NaN is a gap)."""
        rows = complete_rows(series)
        with np.errstate(over="ignore", invalid="ignore"):  # `from_moments` names the channel
            mean = rows.mean(axis=0)
            centred = np.subtract(rows, mean, out=None if rows is series else rows)  # what is a copy may change
            centred *= centred
            return cls(float(len(rows)), mean, centred.sum(axis=0))

    def merge(self, other: ChannelMoments) -> ChannelMoments:
        """Moments of both sets of rows together (the parallel update of Chan, Golub and LeVeque).

        >>> x = np.arange(12.0).reshape(6, 2) ** 2
        >>> whole, parts = ChannelMoments.of(x), ChannelMoments.of(x[:2]).merge(ChannelMoments.of(x[2:]))
        >>> bool(np.allclose(whole.centred, parts.centred))
        True
        """
        count = self.rows + other.rows
        shift = other.mean - self.mean
        mean = self.mean + shift * (other.rows / count)
        centred = self.centred + other.centred + shift**2 * (self.rows * other.rows / count)
        return ChannelMoments(count, mean, centred)


@dataclass(frozen=True, eq=False)
class Scaling:
    """z-score of every channel, clipped at ±10 standard deviations.

    A channel that is constant in training has no spread to divide by. It keeps the unit scale, so that a later
    change is seen in the channel's own units (and clipped like any other).

    >>> scaling = Scaling.fit(np.array([[1.0, 5.0], [3.0, 5.0]]))
    >>> scaling.transform(np.array([[4.0, 5.5], [900.0, 5.0]]))
    array([[ 2. ,  0.5],
           [10. ,  0. ]])
    """

    mean: Array
    scale: Array

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Scaling):
            return NotImplemented
        return np.array_equal(self.mean, other.mean) and np.array_equal(self.scale, other.scale)

    __hash__ = None  # type: ignore[assignment]  # equality is by value, and arrays have no hash

    @classmethod
    def fit(cls, series: Array) -> Scaling:
        """Scaling from the complete rows of a training series `(time, channel)`."""
        return cls.from_moments(ChannelMoments.of(series))

    @classmethod
    def from_moments(cls, moments: ChannelMoments) -> Scaling:
        """Scaling from moments, those of one device or those of a fleet merged."""
        spread = np.sqrt(moments.centred / moments.rows)
        for channel in np.flatnonzero(~np.isfinite(spread + moments.mean)):
            raise ValueError(f"The values of channel {channel} are too large to square; express them in a larger unit.")
        constant = spread <= CONSTANT * np.abs(moments.mean)
        return cls(moments.mean, np.where(constant, 1.0, spread))

    def transform(self, series: Array) -> Array:
        """Scaled and clipped values; NaN stays NaN."""
        return clipped(self.standardise(series))

    def standardise(self, series: Array, out: Array | None = None) -> Array:
        """Scaled values as far as they go, not clipped; `out` takes them, and may be the series itself."""
        values = np.asarray(series, dtype=np.float64)
        if values.shape[-1] != len(self.mean):
            raise ValueError(f"The scaling expects {len(self.mean)} channels, but the series has shape {values.shape}.")
        scaled: Array = np.subtract(values, self.mean, out=out)
        scaled /= self.scale
        return scaled

    def restore(self, scaled: Array) -> Array:
        """Scaled values back in the units of the series."""
        values: Array = scaled * self.scale + self.mean
        return values


def clipped(scaled: Array) -> Array:
    """Scaled values within ±CLIP; NaN stays NaN.

    The array itself if nothing lies beyond, as is usual: a copy of a long series takes as much memory again.
    """
    least, greatest = np.fmin.reduce(scaled, axis=None, initial=0.0), np.fmax.reduce(scaled, axis=None, initial=0.0)
    return scaled if least >= -CLIP and greatest <= CLIP else np.clip(scaled, -CLIP, CLIP)


def complete_rows(series: Array) -> Array:
    """The rows in which nothing is missing; the array itself if there are no others."""
    missing = incomplete(series)
    return series[~missing] if missing.any() else series


def incomplete(series: Array) -> NDArray[np.bool_]:
    """Which rows miss a value, `(time,)`.

    >>> incomplete(np.array([[1.0, 2.0], [np.nan, 4.0]]))
    array([False,  True])
    """
    # Mostly none does, and one sum tells that in a fraction of the time that a look at every value takes.
    with np.errstate(over="ignore", invalid="ignore"):
        is_whole = not np.isnan(series.sum())
    return np.zeros(len(series), dtype=np.bool_) if is_whole else np.asarray(np.isnan(series).any(axis=1))
