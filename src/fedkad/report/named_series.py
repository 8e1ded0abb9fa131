"""Values with the names of their channels: what a detector needs to learn the names, without a DataFrame library."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class NamedSeries:
    """Values `(time, channel)` with the names of their columns, in the form in which a detector takes a DataFrame.

    >>> from fedkad.detect.series import as_series
    >>> as_series(NamedSeries(("flow", "heat"), np.ones((3, 2)))).names
    ('flow', 'heat')
    """

    columns: tuple[str, ...]
    values: NDArray[np.float64]

    def to_numpy(self) -> NDArray[np.float64]:
        """The values alone."""
        return self.values
