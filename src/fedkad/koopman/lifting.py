"""The lifting Φ: a sliding window and fixed random tanh observables of it."""

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import DTypeLike, NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Lifting:
    """Lift a window z(t) = [x(t−W+1), …, x(t)] to Φ(z) = [z; tanh(W_lift z + b)].

    W_lift has entries N(0, 1/d) with d = channels · window, and b is uniform on (−1, 1). Every device draws the
    same numbers from the same seed. Neither is ever sent or stored, only the seed and `digest`, which proves that
    both sides drew the same numbers.

    >>> lifting = Lifting(channels=2, window=3, observables=4, seed=0)
    >>> lifting.transform(np.ones((5, 2))).shape  # (time - window + 1, D)
    (3, 10)
    """

    channels: int
    window: int
    observables: int
    seed: int

    @property
    def state_size(self) -> int:
        """Numbers in a windowed state, d = n · W."""
        return self.channels * self.window

    @property
    def dimension(self) -> int:
        """Numbers in a lifted state, D = d + d_lift."""
        return self.state_size + self.observables

    @property
    def newest(self) -> slice:
        """The position of the window's newest sample in a lifted state."""
        return slice(self.state_size - self.channels, self.state_size)

    @property
    def weights(self) -> Array:
        """W_lift, of shape (observables, channels · window); float32 numbers held as float64."""
        return _draw(self.observables, self.state_size, self.seed)[0]

    @property
    def bias(self) -> Array:
        """The offsets b, of shape (observables,); float32 numbers held as float64."""
        return _draw(self.observables, self.state_size, self.seed)[1]

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the sizes and the float32 bytes of weights and bias."""
        hashed = hashlib.sha256(f"{self.channels} {self.window} {self.observables} ".encode())
        for array in (self.weights, self.bias):
            hashed.update(array.astype("<f4").tobytes())
        return hashed.hexdigest()

    def windows(self, scaled: Array, dtype: DTypeLike = np.float64) -> Array:
        """All windows of a series, oldest sample first, as a read-only view of shape (time − W + 1, n · W)."""
        rows = np.ascontiguousarray(scaled, dtype=dtype)
        if rows.ndim != 2 or rows.shape[1] != self.channels:
            raise ValueError(f"The lifting expects {self.channels} channels, but the series has shape {rows.shape}.")
        count = max(len(rows) - self.window + 1, 0)
        view: Array = np.lib.stride_tricks.as_strided(
            rows,
            (count, self.state_size),
            (rows.strides[0], rows.itemsize),
            writeable=False,
        )
        return view

    def observe(self, windows: Array, out: Array | None = None) -> Array:
        """The observables tanh(W_lift z + b) of every row of `windows`."""
        lifted: Array = np.matmul(windows, self.weights.T, out=out)
        lifted += self.bias
        observed: Array = np.tanh(lifted, out=lifted)
        return observed

    def transform(self, scaled: Array) -> Array:
        """Lifted states Φ of every full window of a scaled series, `(time − window + 1, D)`."""
        windows = np.ascontiguousarray(self.windows(scaled))  # BLAS cannot multiply overlapping rows
        return np.concatenate([windows, self.observe(windows)], axis=1)


def uniform_deviates(bits: np.random.PCG64, count: int) -> Array:
    """Uniform numbers on (0, 1) made of 52 raw bits each, at the middle of their cell so that 0 never occurs."""
    raw: NDArray[np.uint64] = bits.random_raw(count) >> np.uint64(12)
    deviates: Array = (raw.astype(np.float64) + 0.5) * 2.0**-52
    return deviates


def normal_deviates(bits: np.random.PCG64, count: int) -> Array:
    """Standard normal numbers by Marsaglia's polar method, the same to the bit wherever IEEE arithmetic holds.

    For (u, v) uniform in the unit disc and s = u² + v², u √(−2 log s / s) is normal. numpy's own generators may
    change between versions, and log and cos differ in their last bit between libraries and processors; here
    only raw generator bits, + − × ÷ √ and comparisons are used.
    """
    accepted = np.empty(0)
    while len(accepted) < count:
        u, v = 2.0 * uniform_deviates(bits, 2 * (count + 32)).reshape(-1, 2).T - 1.0
        s = u * u + v * v
        inside = s < 1.0
        u, s = u[inside], s[inside]
        accepted = np.concatenate([accepted, u * np.sqrt(-2.0 * exact_log(s) / s)])
    return accepted[:count]


def exact_log(x: Array) -> Array:
    """Natural logarithm from + − × ÷ alone: log m = 2 artanh((m − 1)/(m + 1)) on m in [½√2, √2).

    >>> x = np.array([1e-9, 0.3, 1.0, 7.0])
    >>> bool(np.allclose(exact_log(x), np.log(x), rtol=1e-15, atol=1e-16))
    True
    """
    mantissa, exponent = np.frexp(x)
    low = mantissa < 0.7071067811865476
    mantissa, exponent = np.where(low, 2.0 * mantissa, mantissa), exponent - low
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    square, series = ratio * ratio, np.zeros_like(x)
    for k in range(25, 0, -2):
        series = series * square + 1.0 / k
    result: Array = exponent * 0.6931471805599453 + 2.0 * ratio * series
    return result


@lru_cache(maxsize=16)
def _draw(observables: int, state_size: int, seed: int) -> tuple[Array, Array]:
    """Weights and bias of a seed; all detectors of a fleet in one process share them."""
    weights = normal_deviates(np.random.PCG64(seed), observables * state_size) / np.sqrt(state_size)
    offsets = 2.0 * uniform_deviates(np.random.PCG64([seed, 1]), observables) - 1.0
    drawn = _single(weights).reshape(observables, state_size), _single(offsets)
    for array in drawn:
        array.flags.writeable = False
    return drawn


def _single(values: Array) -> Array:
    return values.astype(np.float32).astype(np.float64)
