"""A whole fleet of simulated pumps: normal series to train on, series with faults to test on, also as files."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedkad.simulate.faults import Fault
from fedkad.simulate.placement import damage, rows_needed
from fedkad.simulate.pump import CHANNELS, draw_pump, run_pump
from fedkad.simulate.recursion import FloatArray
from fedkad.tables import write_table

START = np.datetime64("2025-01-06T00:00:00", "s")
"""Time of the first training sample of every device (UTC): a Monday, midnight."""


@dataclass(frozen=True)
class Fleet:
    """The series of all devices, by name, and what is wrong with them.

    The columns are :data:`fedkad.simulate.CHANNELS`. The test continues the training without a break. Rows of NaN are
    missing.
    """

    train: dict[str, FloatArray]
    test: dict[str, FloatArray]
    faults: tuple[Fault, ...]  # of all devices; their rows are rows of the test
    period: float  # seconds from one sample to the next

    def faults_of(self, device: str) -> tuple[Fault, ...]:
        """Return the faults of one device, in order of time."""
        return tuple(fault for fault in self.faults if fault.device == device)

    def labels_of(self, device: str) -> npt.NDArray[np.bool_]:
        """Mark the test rows of one device at which a fault is present."""
        present = np.zeros(len(self.test[device]), dtype=np.bool_)
        for fault in self.faults_of(device):
            present[fault.start : fault.end] = True
        return present

    def train_times(self, device: str) -> npt.NDArray[np.datetime64]:
        """Return the times of the training rows of one device (UTC)."""
        return timestamps(len(self.train[device]), self.period)

    def test_times(self, device: str) -> npt.NDArray[np.datetime64]:
        """Return the times of the test rows of one device (UTC)."""
        before = len(self.train[device])
        return timestamps(before + len(self.test[device]), self.period)[before:]


def simulate_fleet(
    devices: int = 12,
    *,
    train_rows: int = 10_000,
    test_rows: int = 2000,
    faults_per_device: int = 2,
    period: float = 60.0,
    seed: int = 0,
) -> Fleet:
    """Simulate a fleet of pumps, ``pump-01``, ``pump-02`` and so on.

    All pumps obey the same physics with their own parameters and duties. Training series are normal; in the test,
    two devices of three have faults of the kinds in :data:`fedkad.simulate.FAULTS`, and one device of five loses
    some rows. With the default of two faults per device, four devices meet every kind.

    A device depends only on the seed and its own number: a large fleet begins with the same devices, bit for
    bit, as a small one. The faults do not change the healthy part of a series.

    The fleet shows the product at work. It is not evidence of how well faults are found: real data has more
    ways to be normal and more ways to be wrong.

    Parameters
    ----------
    devices : int
        Number of devices, at least 1.
    train_rows, test_rows : int
        Samples in each training and test series. A duty takes two to nine hours to repeat; a shorter training
        series does not cover everything that is normal.
    faults_per_device : int
        Faults in the test of a device that does not stay healthy; 0 leaves all devices healthy.
    period : float
        Seconds from one sample to the next, at least 1. Physics and duties are in seconds; the durations of
        faults and outages are in rows.
    seed : int
        Not negative.

    Examples
    --------
    >>> fleet = simulate_fleet(2, train_rows=600, test_rows=500)
    >>> list(fleet.train), fleet.test["pump-02"].shape
    (['pump-01', 'pump-02'], (500, 8))
    >>> [fault.kind for fault in fleet.faults]
    ['drift', 'lag', 'decoupling', 'spikes']
    """
    _check_sizes(devices, train_rows, test_rows, faults_per_device, period)
    train, test = {}, {}
    faults: list[Fault] = []
    for number in range(devices):
        device = f"pump-{number + 1:02d}"
        signal_seed, fault_seed = np.random.SeedSequence(seed, spawn_key=(number,)).spawn(2)
        generator = _generator(signal_seed)
        series = run_pump(draw_pump(generator), train_rows + test_rows, period, generator)
        train[device] = series[:train_rows].copy()
        test[device], own_faults = damage(
            device, number, train[device], series[train_rows:], faults_per_device, _generator(fault_seed)
        )
        faults.extend(own_faults)
    return Fleet(train, test, tuple(faults), period)


def timestamps(rows: int, period: float) -> npt.NDArray[np.datetime64]:
    """Return the times of equally spaced samples from the start on, to the second.

    >>> timestamps(2, period=90.0)
    array(['2025-01-06T00:00:00', '2025-01-06T00:01:30'], dtype='datetime64[s]')
    """
    seconds = np.rint(np.arange(rows) * period).astype("timedelta64[s]")
    times: npt.NDArray[np.datetime64] = START + seconds
    return times


def _generator(seed: np.random.SeedSequence) -> np.random.Generator:
    # PCG64 is named because numpy's default generator may change.
    return np.random.Generator(np.random.PCG64(seed))


def _check_sizes(devices: int, train_rows: int, test_rows: int, faults_per_device: int, period: float) -> None:
    if devices < 1:
        raise ValueError(f"devices must be at least 1, got {devices}")
    if train_rows < 2:
        raise ValueError(f"train_rows must be at least 2, got {train_rows}")
    if faults_per_device < 0:
        raise ValueError(f"faults_per_device must not be negative, got {faults_per_device}")
    if test_rows < rows_needed(faults_per_device):
        needed = rows_needed(faults_per_device)
        raise ValueError(f"{faults_per_device} faults per device need test_rows >= {needed}, got {test_rows}")
    if not period >= 1.0:
        raise ValueError(f"period must be at least one second, got {period}")


def write_fleet(fleet: Fleet, folder: str | Path) -> None:
    """Write a fleet as CSV files.

    - ``train/NAME.csv`` and ``test/NAME.csv`` for every device: a column ``time`` (ISO 8601, UTC) and one
      per channel, with six significant digits; a missing value is an empty cell.
    - ``faults.csv``: device, kind, channels (separated by ``;``), start and end, the half-open range of rows
      of the test file, counted from 0.

    Existing files of these names are replaced, other files are left alone.

    >>> from tempfile import TemporaryDirectory
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
