"""Input checks: what users pass becomes a `(time, channel)` float array, or one clear sentence."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.frames import columns_of_times, is_frame
from fedkad.timesteps import Times, grid_positions, missing_before, steps_between

Array = NDArray[np.float64]


class Series(NamedTuple):
    """Values `(time, channel)`, NaN where a row is missing, and the channel names and the times if the data has them.

    Without pandas, pass one of these to a detector that should know the channel names. Times must increase; where a
    step is much longer than usual, rows are missing.
    """

    values: Array
    names: tuple[str, ...] | None
    times: Times | None = None
    overwrite_ok: bool = False  # whether the values may be overwritten: it saves a copy of a long series


class Recording(NamedTuple):
    """A series as a detector takes it: with rows of NaN where time shows a gap, which results leave out."""

    series: Series
    present: NDArray[np.bool_] | None = None  # which entries came in; None if all did
    positions: NDArray[np.int64] | None = None  # of the rows that came in, counted in sampling steps

    def of_rows(self, by_entry: NDArray[Any]) -> NDArray[Any]:
        """The results of the rows that came in, from those of all entries."""
        return by_entry if self.present is None else by_entry[self.present]

    @property
    def entries(self) -> NDArray[np.intp]:
        """The entry of each row that came in."""
        return np.arange(len(self.series.values)) if self.present is None else np.flatnonzero(self.present)


def as_series(data: Any) -> Series:
    """The series of `as_recording`, gaps included.

    >>> as_series([np.ones((2, 1)), np.zeros((1, 1))]).values.ravel()
    array([ 1.,  1., nan,  0.])
    """
    return as_recording(data).series


def as_recording(data: Any, gap: int = 1) -> Recording:
    """Read an array or a frame, or a list of separate stretches of them, joined with `gap` missing rows in between.

    Where the times of a frame or of a `Series` show a gap, there are as many missing rows as it is long, but at most
    `gap`: no window needs more to know that it is broken.

    >>> times = np.array([0.0, 1.0, 2.0, 9.0])
    >>> recording = as_recording(Series(np.ones((4, 1)), None, times), gap=2)
    >>> recording.series.values.ravel(), recording.positions
    (array([ 1.,  1.,  1., nan, nan,  1.]), array([0, 1, 2, 9]))
    """
    if not _is_list_of_stretches(data):
        return _read_stretch(data, "", gap)
    pieces = [_read_stretch(piece, f"stretch {k}: ", gap) for k, piece in enumerate(data)]
    first = pieces[0].series
    for k, (series, *_) in enumerate(pieces):
        try:
            channels, expected = series.values.shape[1], first.values.shape[1]
            check_channels(channels, series.names, expected, first.names, than="those of stretch 0")
        except ValueError as error:
            raise ValueError(f"stretch {k}: {error}") from None
    joined = Series(join_stretches([piece.series.values for piece in pieces], gap), first.names, overwrite_ok=True)
    if all(piece.present is None for piece in pieces):
        return Recording(joined)
    between = np.ones(gap, dtype=np.bool_)  # what lies between two stretches is shown, as it is for arrays
    marks = [np.ones(len(p.series.values), dtype=np.bool_) if p.present is None else p.present for p in pieces]
    return Recording(joined, np.concatenate([part for mark in marks for part in (between, mark)][1:]))


def _is_list_of_stretches(data: Any) -> bool:
    several = isinstance(data, list | tuple) and not isinstance(data, Series)
    return several and len(data) > 0 and all(map(_is_table, data))


def sampling_period(data: Any) -> float | None:
    """The median step in seconds of a frame whose index has times, over all stretches of a list; None for other data.

    >>> times = np.array(["2026-01-01T00:00", "2026-01-01T00:05"], dtype="datetime64[m]")
    >>> sampling_period(Series(np.ones((2, 1)), None, times)), sampling_period(np.ones((2, 1)))
    (300.0, None)
    """
    pieces = data if _is_list_of_stretches(data) else [data]
    clocks = [_times_of(piece, "") for piece in pieces]
    dated = [times for times in clocks if times is not None and times.dtype.kind in "mM"]
    steps = np.concatenate([np.empty(0), *(np.diff(times) / np.timedelta64(1, "s") for times in dated)])
    return float(np.median(steps)) if len(steps) else None


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
    parts = " and ".join(f"{word} {', '.join(map(repr, names))}" for word, names in both if names)
    return f"{parts}; select the same channels in the same order"


def check_sample(sample: Any, names: tuple[str, ...], *, named: bool) -> Array:
    """One sample of a stream as a float vector; the labels of a frame's row must be the channels, keys are names."""
    if not isinstance(sample, np.ndarray) and isinstance(sample, Mapping):  # the second takes longer to tell
        sample = _by_name(sample, names)
    elif named and hasattr(sample, "index") and not callable(sample.index):
        check_channels(len(sample), [str(label) for label in sample.index], len(names), names)
    try:
        values = np.array(sample, np.float64)  # a copy: a reading keeps it, and callers may reuse their array
    except (TypeError, ValueError):
        raise ValueError(f"The sample {sample!r} does not consist of numbers; pass one number per channel.") from None
    if values.ndim != 1:
        values = values.reshape(-1)
    if len(values) != len(names):
        raise ValueError(
            f"The sample has {len(values)} values but the detector has {len(names)} channels; pass one per channel."
        )
    return values


def _by_name(sample: Mapping[Any, Any], names: tuple[str, ...]) -> list[Any]:
    """The values in the order of the channels; None is missing, as it is in JSON."""
    values = {str(name): value for name, value in sample.items()}
    wrong = [("no", name) for name in names if name not in values]
    wrong += [("an unknown", name) for name in values if name not in names]
    for word, name in wrong:
        raise ValueError(
            f"The sample has {word} channel {name!r}; the channels are {', '.join(names)}, and a missing value is NaN."
        )
    return [np.nan if values[name] is None else values[name] for name in names]


def _is_table(piece: Any) -> bool:
    return isinstance(piece, Series) or hasattr(piece, "columns") or getattr(piece, "ndim", 0) == 2


def _read_stretch(data: Any, where: str, gap: int) -> Recording:
    _refuse_what_is_no_table(data, where)
    names, times = _names_of(data, where), _times_of(data, where)
    overwrite_ok = isinstance(data, Series) and data.overwrite_ok
    values = _as_floats(_matrix(data.values if isinstance(data, Series) else data, where), names, where)
    if values.shape[1] == 0:
        raise ValueError(
            f"{where}The series has no channel: 0 feature(s) (shape={values.shape}) while a minimum of 1 is required."
        )
    for row, channel in np.argwhere(np.isinf(values)):
        raise ValueError(
            f"{where}Row {row} of channel {_name(names, channel)} is infinite; "
            "replace infinite values by NaN where a value is missing."
        )
    return _with_gaps(Series(values, names, times, overwrite_ok), gap)


def _refuse_what_is_no_table(data: Any, where: str) -> None:
    if data is None or isinstance(data, str | bytes):
        what = "nothing" if data is None else f"the text {data!r}"
        raise ValueError(
            f"{where}A series must be (time, channel) numbers, but this is {what}; read a file first, "
            "e.g. with pandas.read_csv(path, index_col=0, parse_dates=True)."
        )
    if hasattr(data, "toarray"):
        raise ValueError(f"{where}Sparse data is not supported; pass data.toarray().")
    for column in columns_of_times(data):
        raise ValueError(
            f"{where}Channel {column!r} holds times, not numbers; drop the column, or let it count with "
            f"frame.to_pandas().set_index({column!r})."
        )


def _matrix(data: Any, where: str) -> NDArray[Any]:
    """The values of an array or a frame, of whatever type, with two dimensions."""
    if isinstance(data, np.ma.MaskedArray):
        data = np.ma.filled(data.astype(np.float64), np.nan)
    try:
        raw: NDArray[Any] = data.to_numpy() if hasattr(data, "to_numpy") else np.asarray(data)
    except TypeError:
        raise ValueError(
            f"{where}A series must be (time, channel) numbers, but this is of the type {type(data).__name__}; pass an "
            "array or a frame."
        ) from None
    except ValueError:
        raise ValueError(
            f"{where}A series must be (time, channel), but the rows of this one differ in length; "
            "pass separate stretches as a list of arrays."
        ) from None
    if raw.ndim != 2:
        single = "Reshape your data with x.reshape(-1, 1) if it is a single channel."
        remedy = single if raw.ndim == 1 else "Pass separate stretches as a list."
        raise ValueError(f"{where}A series must be (time, channel), but this one has {raw.ndim} dimension(s). {remedy}")
    return raw


def _with_gaps(series: Series, gap: int) -> Recording:
    values, names, times, overwrite_ok = series
    missing = missing_before(times, gap)
    if times is None or not len(missing):
        return Recording(Series(values, names, overwrite_ok=overwrite_ok))
    present = np.insert(np.ones(len(values), dtype=np.bool_), missing, False)
    return Recording(
        Series(np.insert(values, missing, np.nan, axis=0), names, overwrite_ok=True), present, grid_positions(times)
    )


def _times_of(data: Any, where: str) -> Times | None:
    """The times of a `Series`, or of a frame whose index has times; they must increase."""
    labels: Any = None
    if isinstance(data, Series):
        labels = times = data.times
    elif is_frame(data) and data.index.dtype.kind in "mM":
        labels, times = data.index, np.asarray(data.index.values)  # without their zone: in UTC
    if labels is None or times is None:
        return None
    for row in np.flatnonzero(np.isnan(times)):
        raise ValueError(f"{where}The time of row {row} is missing; drop the row.")
    for row in np.flatnonzero(steps_between(times) <= 0.0) + 1:
        if times[row] == times[row - 1]:
            raise ValueError(
                f"{where}Rows {row - 1} and {row} have the same time, {labels[row]}; keep one of them, "
                "e.g. with frame[~frame.index.duplicated()]."
            )
        raise ValueError(
            f"{where}The time of row {row}, {labels[row]}, is before that of row {row - 1}, {labels[row - 1]}; "
            "sort the rows, e.g. with frame.sort_index()."
        )
    return times


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
        return np.ascontiguousarray(raw, dtype=np.float64)
    if raw.dtype.kind not in "OUS":
        what = "Complex data not supported: the" if raw.dtype.kind == "c" else "The"  # as scikit-learn has it
        raise ValueError(
            f"{where}{what} series holds {raw.dtype} values; pass real numbers, with NaN for missing ones."
        )
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
    if len(series.values) == 1:
        raise ValueError("Too few rows: 1 sample is no series; pass more training data.")
    for channel in np.flatnonzero(np.isnan(series.values).all(axis=0)):
        raise ValueError(f"Channel {_name(series.names, int(channel))} has no value at all; drop the column.")


def _name(names: tuple[str, ...] | None, channel: int) -> str:
    return repr(names[channel]) if names else str(channel)


def join_stretches(pieces: Sequence[Array], gap: int = 1) -> Array:
    """One series of several stretches, with rows of NaN between two so that no window reaches across."""
    missing = np.full((gap, pieces[0].shape[1]), np.nan)
    return np.concatenate([part for piece in pieces for part in (missing, piece)][1:])
