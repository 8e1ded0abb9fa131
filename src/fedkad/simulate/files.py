"""A simulated fleet as files: a CSV file per device and part, and a list of the faults."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedkad.simulate.fleet import Fleet
from fedkad.simulate.pump import CHANNELS
from fedkad.simulate.recursion import FloatArray
from fedkad.tables import write_table


def write_fleet(fleet: Fleet, folder: str | Path) -> None:
    """Write a fleet as CSV files.

    - ``train/NAME.csv`` and ``test/NAME.csv`` for every device: a column ``time`` (ISO 8601, UTC) and one
      per channel, with six significant digits; a missing value is an empty cell.
    - ``faults.csv``: device, kind, channels (separated by ``;``), start and end, the half-open range of rows
      of the test file, counted from 0.

    Existing files of these names are replaced, other files are left alone.

    >>> from tempfile import TemporaryDirectory
    >>> from fedkad.simulate import simulate_fleet
    >>> with TemporaryDirectory() as folder:
    ...     write_fleet(simulate_fleet(1, train_rows=600, test_rows=500), folder)
    ...     sorted(path.name for path in Path(folder).rglob("*.csv"))
    ['faults.csv', 'pump-01.csv', 'pump-01.csv']
    """
    folder = Path(folder)
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for device in fleet.train:
        _write_series(folder / "train" / f"{device}.csv", fleet.train_times(device), fleet.train[device])
        _write_series(folder / "test" / f"{device}.csv", fleet.test_times(device), fleet.test[device])
    rows = [(fault.device, fault.kind, ";".join(fault.channels), fault.start, fault.end) for fault in fleet.faults]
    names = ("device", "kind", "channels", "start", "end")
    write_table(folder / "faults.csv", {name: [row[at] for row in rows] for at, name in enumerate(names)})


def _write_series(path: Path, times: npt.NDArray[np.datetime64], series: FloatArray) -> None:
    # One format for a whole row: formatting is nearly all the work of a large fleet.
    row_format = "%s" + ",%.6g" * series.shape[1]
    moments = np.datetime_as_string(times, unit="s", timezone="UTC").tolist()
    lines = [row_format % (moment, *row) for moment, row in zip(moments, series.tolist(), strict=True)]
    body = "\n".join(lines).replace("nan", "")
    path.write_text(",".join(("time", *CHANNELS)) + "\n" + body + "\n", encoding="utf-8", newline="\n")
