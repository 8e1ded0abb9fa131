"""One monitored thing with everything that a benchmark needs of it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Labels = NDArray[np.bool_]


class Entity(NamedTuple):
    """One monitored thing: a training series, a test series and the test labels, `(time, channel)`."""

    name: str
    train: Array
    test: Array
    labels: Labels
