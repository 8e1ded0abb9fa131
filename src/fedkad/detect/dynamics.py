"""The dynamics of a device: the lifting Φ, the subspace Z and the private operator Q, and what they predict.

A prediction made at t − H says, for h = 1 … H, where the lifted state will be: Z Q^h c(t−H) with c = ZᵀΦ.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedkad.koopman.lifting import Lifting
from fedkad.koopman.scaling import CLIP

Array = NDArray[np.float64]

ANCHOR = 0.01
"""λ, how much more a known cell counts than a prediction when missing ones are filled.

Healthy simulated pumps that lost one of their eight channels for 2,800 rows had 4 rows of alarm, all channels together;
with predictions alone 5,797 (`python -m measurements.gaps`).
"""

LINE = 64  # bytes of a cache line


class LiftedProduct:
    """Φ(z) M + a for windows z, without forming Φ: the tanh block needs only the rows of M that belong to it."""

    weights: Array  # products with a window, those of the observables first
    offset: Array  # added to them
    split: int  # how many observables there are
    right: Array  # product with the observables, added to the rest

    def __init__(self, lifting: Lifting, matrix: Array, offset: Array | None = None) -> None:
        self.split = lifting.observables
        # Both products with a window as one: [W_lift; M_windowᵀ], one row per output.
        self.weights = _aligned(np.concatenate([lifting.weights, matrix[: lifting.state_size].T]))
        self.right = np.ascontiguousarray(matrix[lifting.state_size :].T)
        self.offset = np.zeros(len(self.weights))
        self.offset[: self.split] = lifting.bias
        if offset is not None:
            self.offset[self.split :] = offset

    def __call__(self, windows: Array) -> tuple[Array, Array, Array]:
        """The product, the part of it without the observables, and these, of one window or of every row of windows."""
        # The rows of both matrices are contiguous in memory, which is faster for one window and for many.
        if windows.ndim == 1:
            products = self.weights.dot(windows)
            products += self.offset
            observed, linear = products[: self.split], products[self.split :]
            np.tanh(observed, observed)
            return linear + self.right.dot(observed), linear, observed
        products = windows.dot(self.weights.T)
        products += self.offset
        observed, linear = products[:, : self.split], products[:, self.split :]
        np.tanh(observed, out=observed)
        return linear + observed.dot(self.right.T), linear, observed

    @property
    def single(self) -> LiftedProduct:
        """The same product in single precision, of windows in single precision."""
        rounded = copy(self)
        for name in ("weights", "offset", "right"):
            setattr(rounded, name, getattr(self, name).astype(np.float32))
        return rounded


def _aligned(matrix: Array) -> Array:
    """A copy that begins at a cache line: a product with one window takes a fifth longer if it does not."""
    memory = np.empty(matrix.size + LINE // matrix.itemsize)
    first = -memory.ctypes.data % LINE // matrix.itemsize
    copy = memory[first : first + matrix.size].reshape(matrix.shape)
    copy[:] = matrix
    return copy


@dataclass(frozen=True)
class Dynamics:
    """A device's model: the lifting Φ, the subspace Z, the private operator Q and how far ahead it predicts."""

    lifting: Lifting
    subspace: Array
    operator: Array
    horizon: int

    @property
    def lead(self) -> int:
        """Entries before the first score, W + H − 1."""
        return self.lifting.window + self.horizon - 1

    @cached_property
    def coordinates(self) -> LiftedProduct:
        """C = ZᵀΦ of a window."""
        return LiftedProduct(self.lifting, self.subspace)

    def reconstruct(self, samples: Array, missing: NDArray[np.bool_]) -> Array:
        """The newest of W + 1 samples side by side, scaled, from what is not `missing` in the last W of them.

        The first W predict the coordinates a = Q c of the window that the last W are. What is known of that window
        corrects them: with z_k its known cells and Z_k their rows of Z,

            a ← a + (Z_kᵀZ_k + λ I)⁻¹ Z_kᵀ (z_k − Z_k a).

        A prediction that lives on itself would drift away; corrected, it stays where the other channels say.
        """
        channels, is_known = self.lifting.channels, ~missing
        operator, rows = self._contiguous
        predicted = operator.dot(self.coordinates(samples[:-channels])[0])
        corrected = predicted + self._gain(is_known).dot((samples[channels:] - rows.dot(predicted))[is_known])
        newest: Array = rows[-channels:].dot(corrected)
        return newest.clip(-CLIP, CLIP)

    @cached_property
    def _contiguous(self) -> tuple[Array, Array]:
        """Q, and the rows of Z that belong to a window, in one layout: it decides about the last bit."""
        return np.ascontiguousarray(self.operator), np.ascontiguousarray(self.subspace[: self.lifting.state_size])

    def _gain(self, is_known: NDArray[np.bool_]) -> Array:
        """(Z_kᵀZ_k + λ I)⁻¹ Z_kᵀ; a channel that is dead for long asks for the same one again and again."""
        key = is_known.tobytes()
        if key not in self._gains:
            rows = self._contiguous[1][is_known]
            self._gains.clear()
            gain = np.linalg.solve(rows.T @ rows + ANCHOR * np.eye(rows.shape[1]), rows.T)
            self._gains[key] = gain.astype(np.float64, copy=False)
        return self._gains[key]

    @cached_property
    def _gains(self) -> dict[bytes, Array]:
        """The last gain that was asked for."""
        return {}

    @cached_property
    def powers(self) -> list[Array]:
        """Q, Q², … Q^H."""
        powers = [self.operator]
        while len(powers) < self.horizon:
            powers.append(powers[-1] @ self.operator)
        return powers

    @cached_property
    def newest_decoders(self) -> list[Array]:
        """(Z_newest Q^h)ᵀ: from coordinates c = ZᵀΦ to the sample predicted h steps ahead."""
        rows = self.subspace[self.lifting.newest]
        return [(rows @ power).T for power in self.powers]
