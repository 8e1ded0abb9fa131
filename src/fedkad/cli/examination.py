"""What a model finds in the recordings of a device, and how far its judgement can be relied on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedkad.cli.failures import naming, warn
from fedkad.cli.recordings import time_gaps
from fedkad.detect.detector import KoopmanDetector
from fedkad.detect.events import Findings, examine
from fedkad.detect.series import Series
from fedkad.report.wording import counted
from fedkad.tables import DeviceTables, SeriesTable

LEAST_SCORED = 0.5
"""Warn if a smaller share of the rows has a score."""

MOST_APART = 1.5
"""Warn if the sample periods of model and data differ by a larger factor."""


@dataclass(frozen=True, eq=False)
class Examined:
    """A table and what was found in it; `rows` holds, for each row of the table, its entry in the findings."""

    device: str
    table: SeriesTable
    findings: Findings
    offline_scores: NDArray[np.float64] | None
    rows: NDArray[np.intp]

    @property
    def scored(self) -> int:
        """The number of rows with a score."""
        return int((~np.isnan(self.findings.scores)).sum())

    def row(self, entry: int) -> int:
        """The row of the table at an entry of the findings; the entry must not be that of a time gap."""
        return int(np.searchsorted(self.rows, entry))


def examine_device(detector: KoopmanDetector, device: DeviceTables, path: Path, *, offline: bool) -> list[Examined]:
    """Judge every table of a device, and warn where the judgement is less than it seems."""
    found = []
    for table in device.tables:
        values, rows = table.with_gaps()
        series = Series(values, table.channels)
        with naming(path if table.name == device.name else path / table.name):
            findings = examine(detector, series)
            offline_scores = detector.score_series(series) if offline else None
        found.append(Examined(device.name, table, findings, offline_scores, np.flatnonzero(rows >= 0)))
    _check_period(detector, device, path)
    _check_coverage(detector, device, sum(entry.scored for entry in found), path)
    return found


def _check_period(detector: KoopmanDetector, device: DeviceTables, path: Path) -> None:
    fitted = detector.parameters_.sample_period
    if fitted is None:
        return
    for period in (table.period for table in device.tables if table.period is not None):
        if not 1.0 / MOST_APART <= period / fitted <= MOST_APART:
            warn(
                f"{path}: there is a sample every {period:g} s, but the model was fitted to one every {fitted:g} s; "
                "resample the data or fit a model to data of this rate."
            )
            return


def _check_coverage(detector: KoopmanDetector, device: DeviceTables, scored: int, path: Path) -> None:
    """Refuse a device none of whose rows could be scored; warn if only a few could."""
    rows = sum(len(table.values) for table in device.tables)
    needed = detector.parameters_.window + detector.parameters_.horizon
    gaps = [(time_gaps(device), "gap in time", "gaps in time"), (device.gap_rows, "gap row", "gap rows")]
    interruptions = " and ".join(counted(*gap) for gap in gaps if gap[0])
    interruptions = interruptions and f" ({interruptions})"
    if scored == 0:
        for table in device.tables:
            if table.silent:
                raise ValueError(
                    f"{path if len(device.tables) == 1 else path / table.name}: channel {table.silent[0]!r} has no "
                    "value in this file, so the device cannot be judged; check the sensor."
                )
        raise ValueError(
            f"{path}: no row could be scored: a window needs {needed} consecutive complete rows, and the longest run "
            f"has {_longest_run(device.series())}{interruptions}; pass a longer recording or fit a model with a "
            "shorter window."
        )
    if scored < LEAST_SCORED * rows:
        warn(
            f"{path}: only {scored} of {rows} rows could be scored{interruptions}; "
            f"at the start and after every gap the first {counted(needed - 1, 'row')} have no score."
        )


def _longest_run(stretches: Iterable[NDArray[np.float64]]) -> int:
    """The most consecutive complete rows."""
    longest = 0
    for series in stretches:
        gaps = np.flatnonzero(np.isnan(series).any(axis=1))
        longest = max(longest, int(np.diff([-1, *gaps, len(series)]).max()) - 1)
    return longest
