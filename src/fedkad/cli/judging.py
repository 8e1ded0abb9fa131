"""What models find in new data, and how far their judgement can be relied on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedkad.cli.failures import naming, warn
from fedkad.cli.federate import MODEL_ENDING
from fedkad.cli.labels import Labels, marks_of
from fedkad.cli.output import shown_progress
from fedkad.cli.recordings import absent_channels, check_period, load_device, time_gaps
from fedkad.detect.events import Gathering, rows_lasting, rows_within
from fedkad.detect.model import Model
from fedkad.detect.modelfile import load_model
from fedkad.detect.threshold import check_threshold
from fedkad.intake import Switches, device_names
from fedkad.report.chart import Span
from fedkad.report.examination import Examination
from fedkad.tables import DeviceTables, SeriesTable
from fedkad.tables.fleet import device_paths
from fedkad.wording import counted

LEAST_SCORED = 0.5  # share of the rows that must have a score; below it there is a warning


@dataclass(frozen=True, kw_only=True)
class Judging:
    """How data are read and judged, by the options of ``fedkad detect``; `look` examines one table."""

    reading: Switches
    labels: Labels | None
    threshold: float | None
    budget: str | None
    merge: float | int | None
    min_duration: float | int | None
    look: Callable[..., Examination]

    def judge_all(self, model: Path, data: Path) -> tuple[list[Examination], dict[str, str]]:
        """What is found in the data of one device or, with a folder of models, of many; and why some were skipped."""
        if not model.is_dir():
            return self._judge(model, data, self.reading), {}
        examined: list[Examination] = []
        skipped: dict[str, str] = {}
        models, sources = _models_in(model), _sources(data, self.reading)
        for name, (path, reading) in sources.items():
            if name not in models:
                skipped[name] = f"there is no model {name}{MODEL_ENDING} in {model}; fit one or leave the device out."
                continue
            try:
                examined += self._judge(models[name], path, reading)
            except ValueError as error:
                skipped[name] = str(error)
        for name in sorted(models.keys() - sources.keys()):
            skipped[name] = f"there is no data for it in {data}; add some or remove its model."
        return examined, skipped

    def _judge(self, file: Path, path: Path, reading: Switches) -> list[Examination]:
        """What a model finds in the data of one device."""
        model, _ = load_model(file, memory=False)
        with shown_progress(brief=True) as progress:
            device = load_device(path, reading, wanted=model.setup.names, allow_silent=True, progress=progress)
            own = next((table.period for table in device.tables if table.period is not None), None)
            period = model.sample_period or own
            if self.threshold is not None:
                model = model.with_threshold(self.threshold)
            elif self.budget is not None:
                model = _budgeted(model, self.budget, period, path)
            step, labels = own or period, self.labels
            apart, least = _rows(self.merge, 0, "merge", step), _rows(self.min_duration, 1, "min-duration", step)
            marks = {} if labels is None else {each.name: marks_of(labels, device.name, each) for each in device.tables}
            look = partial(self.look, report=partial(progress, "judging"))
            return _examine_device(model, device, path, Gathering(apart, least), marks, look)


def _sources(data: Path, reading: Switches) -> dict[str, tuple[Path, Switches]]:
    """Where the data of each device is, and how it is read: a file or folder each, or one file of several."""
    if reading.device is None or data.is_dir():
        return {name: (path, reading) for name, path in device_paths(data).items()}
    names = device_names(data, reading)
    return {name: (data, replace(reading, device=f"{reading.device}={name}")) for name in names}


def _budgeted(model: Model, budget: str, period: float | None, path: Path) -> Model:
    """The model with the threshold that a budget asks for."""
    if period is None:
        raise ValueError(
            f"{path}: --budget needs a sampling period, and neither the model nor the data has times; name the time "
            "column with --time, or fit the model with --sample-period SECONDS."
        )
    check_threshold(budget, period)
    model = model.judged_by(model.settings.rule(budget, period))
    if model.found is not None and model.found.note:
        warn(f"{path}: {model.found.note}")
    return model


def _rows(length: float | int | None, usual: int, option: str, period: float | None) -> int:
    """A number of rows, or of seconds (a float): at most so far apart, and at least so long."""
    if length is None or isinstance(length, int):
        return usual if length is None else length
    if period is None:
        raise ValueError(f"--{option} needs a number of rows where neither the model nor the data has times.")
    return rows_within(length, period) if option == "merge" else rows_lasting(length, period)


def _examine_device(
    model: Model,
    device: DeviceTables,
    path: Path,
    gathering: Gathering,
    marks: Mapping[str, Sequence[Span]],
    look: Callable[..., Examination],
) -> list[Examination]:
    """Judge every table of a device, and warn where the judgement is less than it seems."""
    found = []
    for table in device.tables:
        with naming(path if table.name == device.name else path / table.name):
            found.append(look(model, device.name, table, gathering, marks.get(table.name, ())))
    check_period(model.settings.sample_period, device, path)
    _check_coverage(model.settings.lead + 1, device, sum(entry.scored for entry in found), path)
    for table in device.tables:
        _report_missing_channels(table, path if len(device.tables) == 1 else path / table.name)
    return found


def _report_missing_channels(table: SeriesTable, path: Path) -> None:
    """Say which channels the device is judged without; columns that are not there were told when it was read."""
    silent = [name for name in table.silent if name not in table.absent]
    if silent:
        warn(f"{path}: {_silent(silent)}, so the device is judged by the other channels; check the sensor.")
    known, channels = len(table.channels) - len(table.silent), len(table.channels)
    if 2 * known < channels:
        warn(
            f"{path}: only {known} of {channels} channels of the model have values, so that most faults cannot be "
            "seen; check that this is the file of the device, or fit a model to the channels that it has."
        )


def _silent(channels: Sequence[str]) -> str:
    listed = ", ".join(map(repr, channels))
    return (
        f"channel{'s' * (len(channels) > 1)} {listed} {'has' if len(channels) == 1 else 'have'} no value in this file"
    )


def _check_coverage(needed: int, device: DeviceTables, scored: int, path: Path) -> None:
    """Refuse a device none of whose rows could be scored; warn if only a few could. A score needs `needed` rows."""
    rows = sum(len(table.values) for table in device.tables)
    gaps = [(time_gaps(device), "gap in time", "gaps in time"), (device.gap_rows, "gap row", "gap rows")]
    interruptions = " and ".join(counted(*gap) for gap in gaps if gap[0])
    interruptions = interruptions and f" ({interruptions})"
    if scored == 0:
        for table in device.tables:
            if table.silent:
                file = path if len(device.tables) == 1 else path / table.name
                what, remedy = _silent(table.silent), "check the sensor"
                if table.absent:
                    what, remedy = absent_channels(table), "check that this is the file of the device"
                raise ValueError(f"{file}: {what}, so the device cannot be judged; {remedy}.")
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


def _models_in(folder: Path) -> dict[str, Path]:
    models = {path.name.removesuffix(MODEL_ENDING): path for path in sorted(folder.glob(f"*{MODEL_ENDING}"))}
    if not models:
        raise ValueError(f"{folder}: there is no model in the folder; write some with `fedkad federate`.")
    return models
