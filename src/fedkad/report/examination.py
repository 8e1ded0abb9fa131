"""A recording, the model that judged it, and what it found: what commands print and pages show."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedkad.detect.bridging import longest_hole
from fedkad.detect.events import AS_THEY_ARE, Findings, Gathering, examine
from fedkad.detect.model import Model
from fedkad.detect.scoring import forecast_series
from fedkad.detect.series import Series
from fedkad.progress import Report, unheard
from fedkad.report.chart import Span
from fedkad.tables import SeriesTable
from fedkad.tables.times import time_text
from fedkad.timesteps import Times

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Examination:
    """A table of a device and what was found in it; `marks` are spans of rows where something is known to be wrong."""

    device: str
    table: SeriesTable
    model: Model
    findings: Findings
    marks: tuple[Span, ...] = ()

    @property
    def scored(self) -> int:
        """Count the rows with a score."""
        return int((~np.isnan(self.findings.scores)).sum())

    @property
    def name(self) -> str:
        """The device, and the table if it has several."""
        return self.device if self.table.name == self.device else f"{self.device} {self.table.name}"

    def moment(self, row: int) -> str:
        """Return the time of a row in the zone of the input, without seconds on the full minute, or its number."""
        times = self.table.wall_times
        if times is None:
            return str(row)
        text = time_text(times[row : row + 1])[0].replace("T", " ")
        return text.removesuffix(":00") if times.dtype.kind == "M" else text

    def axis_times(self, start: int, stop: int) -> Times:
        """Return the times of some rows for an axis, which goes on evenly where the clock of the input is put back.

        Row numbers stand in for missing times.
        """
        times: Times | None = self.table.times
        if times is None or self.table.offsets is None:
            return np.arange(start, stop, dtype=np.float64) if times is None else times[start:stop]
        return np.asarray(times[start:stop] + np.timedelta64(int(self.table.offsets[start]), "m"))

    def unscored_spans(self) -> list[tuple[int, int]]:
        """Return the spans of rows without a score, each as its first row and the row after its last."""
        missing = np.isnan(self.findings.scores).astype(np.int8)
        edges = np.flatnonzero(np.diff(missing, prepend=0, append=0))
        return [(int(start), int(end)) for start, end in edges.reshape(-1, 2)]

    def expected(self, start: int, stop: int) -> Array:
        """Return what was predicted for some of the rows, `(row, channel)`; NaN where there is no score."""
        model, lead = self.model, 2 * self.model.settings.lead + longest_hole(self.model.settings.window)
        first = max(start - lead, 0)
        times = self.table.times
        part = Series(self.table.values[first:stop], self.table.channels, None if times is None else times[first:stop])
        recording = model.setup.record(part)
        expected = model.setup.scaling.restore(forecast_series(model.scoring, recording.series.values))
        return recording.of_rows(expected)[start - first :]


@dataclass(frozen=True)
class ExaminationRequest:
    """What is asked of the examination of a table; `offline` and `shares` are as in `examine`."""

    gathering: Gathering = AS_THEY_ARE
    offline: bool = False
    shares: bool = False
    overwrite_ok: bool = False  # the values of the table may be overwritten, which saves a copy of them


AS_USUAL = ExaminationRequest()


def examine_table(
    model: Model,
    device: str,
    table: SeriesTable,
    request: ExaminationRequest = AS_USUAL,
    marks: tuple[Span, ...] = (),
    report: Report = unheard,
) -> Examination:
    """Judge a table, whose rows are apart in time where its times have gaps."""
    series = Series(table.values, table.channels, table.times, request.overwrite_ok)
    findings = examine(model, series, request.gathering, offline=request.offline, shares=request.shares, report=report)
    return Examination(device, table, model, findings, marks)
