"""What methods that are not our own see of a client: scaled rows to learn from, and held-out ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.heldout import first_spared
from fedkad.koopman.scaling import ChannelMoments, Scaling
from fedkad_bench.methods.interface import VALIDATION, WINDOW, Scale

Array = NDArray[np.float64]

Units = Literal["z-score", "min-max"]
"""Standard deviations clipped at ±10, or those moved into [0, 1] by their range in the rows to learn from.

The second is for networks whose output is a sigmoid: it cannot reproduce z-scores.
"""


@dataclass(frozen=True)
class Prepared:
    """One client: its scaling, the rows to learn from, and the held-out ones with a window of context before."""

    scaling: Scaling
    learning: Array
    held_out: Array
    context: int
    low: Array
    span: Array

    def transform(self, series: Array) -> Array:
        """A series in the units that the method asked for."""
        if series.shape[1] != len(self.low):
            raise ValueError(f"the series has {series.shape[1]} channels; the client learned from {len(self.low)}.")
        moved: Array = (self.scaling.transform(series) - self.low) / self.span
        return moved


def prepare(fleet: Mapping[str, Array], scale: Scale = "device", units: Units = "z-score") -> dict[str, Prepared]:
    """Split and scale every client; everything is learned from the first part of the training rows alone.

    >>> fleet = {"a": np.arange(200.0)[:, None]}
    >>> client = prepare(fleet, units="min-max")["a"]
    >>> client.learning.shape, client.held_out.shape, client.learning.min(), client.learning.max()
    ((170, 1), (49, 1), np.float64(0.0), np.float64(1.0))
    """
    firsts = {name: first_spared(series, VALIDATION) for name, series in fleet.items()}
    pooled = None
    if scale == "global":
        moments = [ChannelMoments.of(series[: firsts[name]]) for name, series in fleet.items()]
        pooled = Scaling.from_moments(reduce(ChannelMoments.merge, moments))
    return {name: _prepare_one(series, firsts[name], pooled, units) for name, series in fleet.items()}


def _prepare_one(series: Array, first: int, pooled: Scaling | None, units: Units) -> Prepared:
    scaling = Scaling.fit(series[:first]) if pooled is None else pooled
    scaled = scaling.transform(series)
    low, span = np.zeros(series.shape[1]), np.ones(series.shape[1])
    if units == "min-max":
        low, high = np.nanmin(scaled[:first], axis=0), np.nanmax(scaled[:first], axis=0)
        # A channel that never moved keeps its unit, as in the z-scores; it starts at 0.
        span = np.where(high > low, high - low, 1.0)
        scaled = (scaled - low) / span
    context = min(first, WINDOW - 1)
    return Prepared(scaling, scaled[:first], scaled[first - context :], context, low, span)
