"""Input checks: what users pass becomes a `(time, channel)` float array, or one clear sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Series(NamedTuple):
    """Values `(time, channel)`, NaN where a row is missing, and the channel names if the data has them.

    Without pandas, pass one of these to a detector that should know the channel names.
    """

    values: Array
    names: tuple[str, ...] | None


def as_series(data: Any, gap: int = 1) -> Series:
    """Read an array or a DataFrame, or a list of separate stretches of them, joined with `gap` missing rows in between.

    >>> as_series([np.ones((2, 1)), np.zeros((1, 1))]).values.ravel()
    array([ 1.,  1., nan,  0.])
    """
    if isinstance(data, list | tuple) and not isinstance(data, Series) and data and all(map(_is_table, data)):
        pieces = [_read(piece, f"stretch {k}: ") for k, piece in enumerate(data)]
        first = pieces[0]
        for k, (values, names) in enumerate(pieces):
            try:
                check_channels(values.shape[1], names, first.values.shape[1], first.names, than="those of stretch 0")
            except ValueError as error:
                raise ValueError(f"stretch {k}: {error}") from None
        return Series(join_stretches([piece.values for piece in pieces], gap), first.names)
    return _read(data, "")


def sampling_period(data: Any) -> float | None:
    """The median step of a DataFrame's DatetimeIndex in seconds; None for other data."""
    index: Any = getattr(data, "index", None)
    kind = getattr(getattr(index, "dtype", None), "kind", "")
    if kind != "M" or len(index) < 2:
        return None
    steps = np.diff(np.asarray(index.values, dtype="datetime64[ns]").astype(np.int64))
    period = float(np.median(steps)) / 1e9
    return period if period > 0.0 else None


def check_channels(
    channels: int,
    names: Sequence[str] | None,
    expected: int,
    expected_names: Sequence[str] | None,
    than: str = "those in training",
) -> None:
    """Refuse channels other than the expected ones in the expected order; names count if both sides have them."""
    if names is not None and expected_names is not None and list(names) != list(expected_names):
        raise ValueError(f"The channels differ from {than}: {_difference(names, expected_names)}.")
    if channels != expected:
        raise ValueError(
            f"The series has {channels} channel(s), but {than} are {expected}; pass the same ones in the same order."
        )


def _difference(names: Sequence[str], expected: Sequence[str]) -> str:
    missing = [name for name in expected if name not in names]
    unknown = [name for name in names if name not in expected]
    if not missing and not unknown:
        return f"they come as {', '.join(names)} instead of {', '.join(expected)}; put them in that order"
    both = (("missing", missing), ("unknown", unknown))
    parts = " and ".join(f"{word} {', '.join(map(repr, found))}" for word, found in both if found)
    return f"{parts}; select the same channels in the same order"


def check_sample(sample: Any, names: tuple[str, ...], *, named: bool) -> Array:
    """One sample of a stream as a float vector; the labels of a DataFrame's row must be the channels."""
    if named and hasattr(sample, "index") and not callable(sample.index):
        check_channels(len(sample), [str(label) for label in sample.index], len(names), names)
    try:
        values = np.array(sample, dtype=np.float64)  # a copy: a reading keeps it, and callers may reuse their array
    except (TypeError, ValueError):
        raise ValueError(f"The sample {sample!r} does not consist of numbers; pass one number per channel.") from None
    if values.ndim != 1:
        values = values.reshape(-1)
    if len(values) != len(names):
        raise ValueError(
            f"The sample has {len(values)} values but the detector has {len(names)} channels; pass one per channel."
        )
    return values


def _is_table(piece: Any) -> bool:
    return isinstance(piece, Series) or hasattr(piece, "columns") or getattr(piece, "ndim", 0) == 2


def _read(data: Any, where: str) -> Series:
    names = _names_of(data, where)
    if isinstance(data, Series):
        data = data.values
    if isinstance(data, np.ma.MaskedArray):
        data = np.ma.filled(data.astype(np.float64), np.nan)
    try:
        raw = data.to_numpy() if hasattr(data, "to_numpy") else np.asarray(data)
    except ValueError:
        raise ValueError(
            f"{where}A series must be (time, channel), but the rows of this one differ in length; "
            "pass separate stretches as a list of arrays."
        ) from None
    if raw.ndim != 2:
        raise ValueError(
            f"{where}A series must be (time, channel), but this one has {raw.ndim} dimension(s); "
            "use x.reshape(-1, 1) for a single channel."
        )
    values = _as_floats(raw, names, where)
    if values.shape[1] == 0:
        raise ValueError(f"{where}The series has no channel; pass at least one column of numbers.")
    for row, channel in np.argwhere(np.isinf(values)):
        raise ValueError(
            f"{where}Row {row} of channel {_name(names, channel)} is infinite; "
            "replace infinite values by NaN where a value is missing."
        )
    return Series(values, names)


def _names_of(data: Any, where: str) -> tuple[str, ...] | None:
    """Names of a `Series` or of the columns of a frame; Arrow tables keep theirs under another name."""
    labels = getattr(data, "column_names", getattr(data, "columns", None))
    names = data.names if isinstance(data, Series) else labels
    if names is None:
        return None
    texts = tuple(str(name) for name in names)
    twice = [name for name in texts if texts.count(name) > 1]
    if twice:
        raise ValueError(f"{where}Two channels are called {twice[0]!r}; give every channel its own name.")
    return texts


def _as_floats(raw: NDArray[Any], names: tuple[str, ...] | None, where: str) -> Array:
    if raw.dtype.kind in "biuf":
        return np.array(raw, dtype=np.float64, order="C")
    if raw.dtype.kind not in "OUS":
        raise ValueError(f"{where}The series holds {raw.dtype} values; pass real numbers, with NaN for missing ones.")
    values = np.empty(raw.shape)
    for (row, channel), cell in np.ndenumerate(raw):
        try:
            # None, or pandas' NA, which is neither equal nor unequal to itself.
            missing = cell is None or type(cell).__name__ in ("NAType", "NaTType")
            values[row, channel] = np.nan if missing else cell
        except (TypeError, ValueError, OverflowError):
            raise ValueError(
                f"{where}Row {row} of channel {_name(names, channel)} is {str(cell)!r}, not a number; "
                "drop the column or turn it into numbers."
            ) from None
    return values


def refuse_empty_channels(series: Series) -> None:
    """Refuse training data without rows, or with a channel that has no value at all."""
    if len(series.values) == 0:
        raise ValueError("The series has no rows; pass training data.")
    for channel in np.flatnonzero(np.isnan(series.values).all(axis=0)):
        raise ValueError(f"Channel {_name(series.names, int(channel))} has no value at all; drop the column.")


def _name(names: tuple[str, ...] | None, channel: int) -> str:
    return repr(names[channel]) if names else str(channel)


def join_stretches(pieces: Sequence[Array], gap: int = 1) -> Array:
    """One series of several stretches, with rows of NaN between two so that no window reaches across."""
    missing = np.full((gap, pieces[0].shape[1]), np.nan)
    return np.concatenate([part for piece in pieces for part in (missing, piece)][1:])
