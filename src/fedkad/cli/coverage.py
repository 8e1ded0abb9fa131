"""How much of a device's data could be judged, and whether it is the kind of data that the model knows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedkad import KoopmanDetector
from fedkad.cli.examination import Examined
from fedkad.cli.failures import warn
from fedkad.cli.recordings import time_gaps
from fedkad.report.wording import counted
from fedkad.tables import Device

LEAST_SCORED = 0.5
"""A smaller share of rows with a score is worth a warning."""

MOST_APART = 1.5
"""A larger ratio of the sample periods of model and data is worth a warning."""


def scored_rows(examined: Sequence[Examined]) -> tuple[int, int]:
    """The number of rows that have a score, and of all rows."""
    scored = sum(int((~np.isnan(entry.findings.scores)).sum()) for entry in examined)
    return scored, sum(len(entry.rows) for entry in examined)


def check_coverage(detector: KoopmanDetector, device: Device, examined: Sequence[Examined], path: Path) -> None:
    """Refuse a device of which no row could be scored, and warn about one of which few could."""
    scored, rows = scored_rows(examined)
    needed = detector.parameters_.window + detector.parameters_.horizon
    silent = [(table.name, channel) for table in device.tables for channel in table.silent]
    if scored == 0 and silent:
        where = path if len(device.tables) == 1 else path / silent[0][0]
        raise ValueError(
            f"{where}: channel {silent[0][1]!r} has no value in this file: the sensor is silent, "
            "and the device cannot be judged without it; check the sensor."
        )
    interruptions = _interruptions(device)
    if scored == 0:
        raise ValueError(
            f"{path}: no row could be scored: a window needs {needed} consecutive complete rows, and the longest run "
            f"has {_longest_run(device)}{interruptions}; pass a longer recording or fit a model with a shorter window."
        )
    if scored < LEAST_SCORED * rows:
        warn(
            f"{path}: only {scored} of {rows} rows could be scored{interruptions}; "
            f"at the start and after every gap the first {counted(needed - 1, 'row')} have no score."
        )


def check_period(detector: KoopmanDetector, device: Device, path: Path) -> None:
    """Warn about data that is sampled at another rate than the training data was."""
    fitted = detector.parameters_.sample_period
    if fitted is None:
        return
    for table in device.tables:
        if table.period is not None and not 1.0 / MOST_APART <= table.period / fitted <= MOST_APART:
            warn(
                f"{path}: there is a sample every {table.period:g} s, and the model was fitted to one every "
                f"{fitted:g} s; resample the data or fit a model to data of this rate."
            )
            return


def _interruptions(device: Device) -> str:
    counts = [(time_gaps(device), "gap in time", "gaps in time"), (device.gap_rows, "gap row", "gap rows")]
    told = [counted(*count) for count in counts if count[0]]
    return f" ({' and '.join(told)})" if told else ""


def _longest_run(device: Device) -> int:
    """The most consecutive complete rows in a table of a device."""
    longest = 0
    for series in device.series():
        gaps = np.flatnonzero(np.isnan(series).any(axis=1))
        bounds = np.concatenate([[-1], gaps, [len(series)]])
        longest = max(longest, int(np.diff(bounds).max()) - 1)
    return longest
