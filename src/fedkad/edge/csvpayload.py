"""Rows of a CSV file or stream, read by the names in its header."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from math import isfinite

from fedkad.edge.payload import PayloadError, PayloadReader, Sample, cut, decode_text
from fedkad.edge.timestamps import plain_number, quoted
from fedkad.tables.cells import is_missing

DELIMITERS = ",;\t"


class CsvReader(PayloadReader):
    """Reads the rows below one header line.

    Parameters
    ----------
    channels, zone, device_key, time_key
        As for `fedkad.edge.jsonpayload.JsonReader`; `device_key` and `time_key` are columns.
    header
        The first line. The delimiter is the comma, semicolon or tab, whichever occurs most often in it.

    Examples
    --------
    >>> rows = CsvReader(["flow", "heat"], "UTC", "device", "time,flow,heat")
    >>> rows.read(b"1970-01-02T00:00:00,0.5,")
    [Sample(device=None, time=86400.0, values={'flow': 0.5})]
    >>> CsvReader(["flow"], "UTC", "", "time,heat")
    Traceback (most recent call last):
    fedkad.edge.payload.PayloadError: The header has no column 'flow'; its columns are: time, heat; check channels \
in [sampling].
    """

    def __init__(self, channels: Sequence[str], zone: str, device_key: str, header: str, time_key: str = "") -> None:
        super().__init__(channels, zone, device_key, time_key)
        line = header.removeprefix("\ufeff").strip("\r\n")
        self._header = line
        self._delimiter = max(DELIMITERS, key=re.sub('"[^"]*"', "", line).count)
        columns = [cell.strip() for cell in self._cells(line)]
        self._width = len(columns)
        self._positions = {name: _position(columns, name) for name in self.channels}
        times = [name for name in columns if name == time_key] if time_key else self._time_keys(columns)
        self._time_column = (columns.index(times[0]), times[0]) if times else None
        self._device_column = columns.index(device_key) if device_key and device_key in columns else None

    def read(self, line: bytes) -> list[Sample]:
        """Read a row; empty if it is blank, has no value, or repeats the header, as restarted loggers do."""
        self.left_out = {}
        text = decode_text(line).strip("\r\n")
        if not text.strip() or text == self._header:
            return []
        cells = self._cells(text)
        if len(cells) != self._width:
            raise PayloadError(
                f"The row has {len(cells)} cells, but the header names {self._width} columns; "
                "write one cell per column, empty where a value is missing."
            )
        values = {}
        for name, at in self._positions.items():
            number = plain_number(cells[at])
            if isfinite(number):
                values[name] = number
            elif not is_missing(cells[at]):
                self._leave_out(name, cells[at])
        return [Sample(self._device(cells), self._time(cells), values)] if values else []

    def _cells(self, line: str) -> list[str]:
        try:
            return next(csv.reader([line], delimiter=self._delimiter, strict=True), [])
        except csv.Error:
            raise PayloadError(f"The row {quoted(line)} is not CSV; correct its quotes and delimiters.") from None

    def _time(self, cells: list[str]) -> float | None:
        if self._time_column is None:
            return None
        at, name = self._time_column
        return None if is_missing(cells[at]) else self._timestamp(cells[at], name)

    def _device(self, cells: list[str]) -> str | None:
        return None if self._device_column is None else self._device_name(cells[self._device_column].strip() or None)


def _position(columns: list[str], name: str) -> int:
    found = columns.count(name)
    if found == 1:
        return columns.index(name)
    if found:
        raise PayloadError(f"The header has {found} columns {quoted(name)}; rename all but one.")
    raise PayloadError(
        f"The header has no column {quoted(name)}; its columns are: {cut(', '.join(columns), 400)}; "
        "check channels in [sampling]."
    )
