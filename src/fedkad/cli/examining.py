"""What models find in new data, and how far their judgement can be relied on."""

from collections.abc import Iterable, Sequence
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
from fedkad.cli.targets import made_folder
from fedkad.detect.events import Gathering, rows_lasting, rows_within
from fedkad.detect.model import Model
from fedkad.detect.modelfile import load_model
from fedkad.detect.threshold import check_threshold
from fedkad.intake import Switches, device_names
from fedkad.report.agreement import Agreement
from fedkad.report.document import write_page
from fedkad.report.examination import Examination, ExaminationRequest, examine_table
from fedkad.report.findings_page import findings_page
from fedkad.tables import DeviceTables, SeriesTable
from fedkad.tables.fleet import device_paths
from fedkad.wording import counted

LEAST_SCORED = 0.5  # share of the rows that must have a score; below it there is a warning


@dataclass(frozen=True, kw_only=True)
class DetectOptions:
    """The options of ``fedkad detect`` that say how data are read and judged."""

    reading: Switches
    labels: Labels | None
    threshold: float | None
    budget: str | None
    merge: float | int | None  # seconds, or rows as an int
    min_duration: float | int | None
    offline: bool  # the score that looks ahead is wanted, too
    shares: bool  # the shares of the channels are wanted, too
    overwrite_ok: bool  # the data are not looked at again

    def gathering(self, period: float | None) -> Gathering:
        """Return how alarms become events where a sample comes every `period` seconds."""
        return Gathering(
            merge=_rows(self.merge, 0, "merge", period),
            shortest=_rows(self.min_duration, 1, "min-duration", period),
        )


def examine_fleet(folder: Path, data: Path, options: DetectOptions) -> tuple[list[Examination], dict[str, str]]:
    """Examine the devices whose models are in a folder; also return why some were skipped."""
    examined: list[Examination] = []
    skipped: dict[str, str] = {}
    models, sources = _models_in(folder), _sources(data, options.reading)
    for name, (path, reading) in sources.items():
        if name not in models:
            skipped[name] = f"there is no model {name}{MODEL_ENDING} in {folder}; fit one or leave the device out."
            continue
        try:
            examined += examine_device(models[name], path, replace(options, reading=reading))
        except ValueError as error:
            skipped[name] = str(error)
    for name in sorted(models.keys() - sources.keys()):
        skipped[name] = f"there is no data for it in {data}; add some or remove its model."
    return examined, skipped


def examine_device(file: Path, path: Path, options: DetectOptions) -> list[Examination]:
    """Judge every table of a device by its model, and warn where the judgement is less than it seems."""
    model, _ = load_model(file, memory=False)
    with shown_progress(brief=True) as progress:
        device = load_device(path, options.reading, wanted=model.setup.names, allow_silent=True, progress=progress)
        files = {table.name: path if len(device.tables) == 1 else path / table.name for table in device.tables}
        period = next((table.period for table in device.tables if table.period is not None), None)
        if options.threshold is not None:
            model = model.with_threshold(options.threshold)
        elif options.budget is not None:
            model = _budgeted(model, options.budget, model.sample_period or period, path)
        # Rows are those of the data, so their own period counts before that of the model.
        gathering = options.gathering(period or model.sample_period)
        request = ExaminationRequest(gathering, options.offline, options.shares, options.overwrite_ok)
        labels, report = options.labels, partial(progress, "judging")
        # All labels are placed before the first table is judged, so that a wrong one is refused without delay.
        marks = [() if labels is None else marks_of(labels, device.name, table) for table in device.tables]
        examined = []
        for table, spans in zip(device.tables, marks, strict=True):
            with naming(path if table.name == device.name else path / table.name):
                examined.append(examine_table(model, device.name, table, request, spans, report))
        check_period(model.settings.sample_period, device, path)
        _check_coverage(model.settings.lead + 1, device, sum(each.scored for each in examined), path, files)
        for table in device.tables:
            _warn_of_missing_channels(table, files[table.name])
    return examined


def write_findings(
    path: Path,
    examined: Sequence[Examination],
    title: str,
    notices: Sequence[str],
    agreed: Agreement | None = None,
) -> None:
    """Write the page of what was found, with how it agrees with labels if there are any."""
    made_folder(path.parent)
    with shown_progress(brief=True) as progress:
        drawing = partial(progress, "drawing")
        write_page(path, findings_page(examined, title, notices=notices, agreement=agreed, report=drawing))


def _sources(data: Path, reading: Switches) -> dict[str, tuple[Path, Switches]]:
    """Return where the data of each device is, and how it is read: a file or folder each, or one file of several."""
    if reading.device is None or data.is_dir():
        return {name: (path, reading) for name, path in device_paths(data).items()}
    names = device_names(data, reading)
    return {name: (data, replace(reading, device=f"{reading.device}={name}")) for name in names}


def _models_in(folder: Path) -> dict[str, Path]:
    models = {path.name.removesuffix(MODEL_ENDING): path for path in sorted(folder.glob(f"*{MODEL_ENDING}"))}
    if not models:
        raise ValueError(f"{folder}: there is no model in the folder; write some with `fedkad federate`.")
    return models


def _budgeted(model: Model, budget: str, period: float | None, path: Path) -> Model:
    """Return the model with the threshold that a budget asks for."""
    if period is None:
        raise ValueError(
            f"{path}: --budget needs a sampling period, and neither the model nor the data has times; name the time "
            "column with --time, or fit the model with --sample-period SECONDS."
        )
    check_threshold(budget, period)
    model = model.with_rule(model.settings.rule(budget, period))
    if model.found is not None and model.found.note:
        warn(f"{path}: {model.found.note}")
    return model


def _rows(length: float | int | None, usual: int, option: str, period: float | None) -> int:
    """Return a length as a number of rows, from rows or from seconds (a float)."""
    if length is None or isinstance(length, int):
        return usual if length is None else length
    if period is None:
        raise ValueError(f"--{option} needs a number of rows where neither the model nor the data has times.")
    return rows_within(length, period) if option == "merge" else rows_lasting(length, period)


# -- what the judgement cannot rely on --------------------------------------------------------------------------


def _warn_of_missing_channels(table: SeriesTable, file: Path) -> None:
    """Warn of channels without values; those without a column were named when the file was read."""
    silent = [name for name in table.silent if name not in table.absent]
    if silent:
        warn(f"{file}: {_without_values(silent)}, so the device is judged by the other channels; check the sensor.")
    heard, channels = len(table.channels) - len(table.silent), len(table.channels)
    if 2 * heard < channels:
        warn(
            f"{file}: only {heard} of {channels} channels of the model have values, so that most faults cannot be "
            "seen; check that this is the file of the device, or fit a model to the channels that it has."
        )


def _without_values(channels: Sequence[str]) -> str:
    listed = ", ".join(map(repr, channels))
    return f"channel{f's {listed} have' if len(channels) > 1 else f' {listed} has'} no value in this file"


def _check_coverage(needed: int, device: DeviceTables, scored: int, path: Path, files: dict[str, Path]) -> None:
    """Refuse a device none of whose rows could be scored; warn if only a few could. A score needs `needed` rows."""
    rows = sum(len(table.values) for table in device.tables)
    gaps = [(time_gaps(device), "gap in time", "gaps in time"), (device.gap_rows, "gap row", "gap rows")]
    interruptions = " and ".join(counted(*gap) for gap in gaps if gap[0])
    interruptions = interruptions and f" ({interruptions})"
    silent = next((table for table in device.tables if table.silent), None)
    if scored == 0 and silent is not None:
        what, remedy = _without_values(silent.silent), "check the sensor"
        if silent.absent:
            what, remedy = absent_channels(silent), "check that this is the file of the device"
        raise ValueError(f"{files[silent.name]}: {what}, so the device cannot be judged; {remedy}.")
    if scored == 0:
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
    """Return the most consecutive complete rows."""
    longest = 0
    for series in stretches:
        gaps = np.flatnonzero(np.isnan(series).any(axis=1))
        longest = max(longest, int(np.diff([-1, *gaps, len(series)]).max()) - 1)
    return longest
