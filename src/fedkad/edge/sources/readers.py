"""JSON messages in the shapes that devices and gateways send, read without a description of them, and rows of CSV.

A message is used or refused as a whole; only a value that is not a number is dropped alone, and counted. These shapes
are unambiguous and need no configuration:

    {"temperature": 21.3, "occupancy": true, "last_seen": "2024-01-01T12:00:00Z"}           flat, such as zigbee2mqtt
    {"Time": "2024-01-01T12:00:00", "DS18B20": {"Temperature": 19.9}}                       nested, such as Tasmota
    {"ts": 1451649600512, "values": {"temperature": 21.3}}                                  ThingsBoard
    {"name": "cpu", "fields": {"usage_idle": 99.1}, "tags": {}, "timestamp": 1458229140}    Telegraf
    {"metrics": […]} and […]                                                                several of them
    21.5 or {"value": 21.5, "time": …}                                                      the topic names the channel
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import isfinite, nan
from typing import Any

from fedkad.edge.sources.payload import (
    TIME_KEYS,
    PayloadError,
    PayloadReader,
    Sample,
    cut,
    decode_text,
    plain_number,
    quoted,
)
from fedkad.tables.cells import is_missing
from fedkad.tables.csvrows import delimiter_of, strict_reader

MAX_DEPTH = 16
ENVELOPES = ("values", "fields", "metrics")

_MAX_LISTED = 80
_FLOATS = {float}


class JsonReader(PayloadReader):
    """Reads JSON messages; made once and used for every message.

    Parameters
    ----------
    channels
        The channels to look for. A nested one is named by its path, such as ``DS18B20.Temperature``, or by the last
        part of the path if only one path ends with it.
    zone
        Time zone of timestamps without one: "local", "UTC", or a name such as Europe/Berlin.
    device_key
        Where a record names its device, as a path such as ``tags.host``; empty if it does not.
    time_key
        The only place where a record has its timestamp, as such a path; empty for the usual names.

    Examples
    --------
    >>> reader = JsonReader(["temperature", "occupancy"], "UTC", "device")
    >>> reader.read(b'{"device": "hall", "temperature": 21.3, "occupancy": true, "time": "1970-01-02T00:00:00"}')
    [Sample(device='hall', time=86400.0, values={'temperature': 21.3, 'occupancy': 1.0})]
    >>> reader.read(b"21.5", channel="temperature")
    [Sample(device=None, time=None, values={'temperature': 21.5})]
    >>> reader.read(b'{"temperature": "unavailable", "occupancy": null, "battery": 97}')
    []
    >>> reader.left_out
    {'temperature': "'unavailable'"}
    """

    def __init__(self, channels: Sequence[str], zone: str = "local", device_key: str = "", time_key: str = "") -> None:
        super().__init__(channels, zone, device_key, time_key)
        self._endings = frozenset(name.rpartition(".")[2] for name in self.channels)
        # Paths are cut from the left to the length that a configured name may need: no message can make them long.
        self._reach = max([_MAX_LISTED, *map(len, self.channels)]) + 2
        self._ended = lru_cache(1024)(lambda path: tuple(self._names.intersection(_endings(path))))
        firsts = {name.partition(".")[0] for name in self.channels}
        # A channel such as "values.flow" makes "values" an ordinary part of a path.
        self._envelopes = frozenset(ENVELOPES) - firsts

    def read(self, payload: bytes, channel: str | None = None, arrival: float = nan) -> list[Sample]:
        """Read a message; `channel` is the one that its topic names. Empty if it has no configured channel."""
        self.left_out, self._arrival = {}, arrival
        if channel is not None and channel not in self._names:
            return []
        text = decode_text(payload)
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            if channel is None or not isfinite(content := plain_number(text)):  # "+21.5" is not JSON
                raise _not_json(text, error, channel) from None
        try:
            return self._read_all(self._records(content)) if channel is None else self._read_channel(content, channel)
        except RecursionError:  # Telegraf tags may be nested just deep enough that they cannot be compared
            raise _too_deep() from None

    def devices(self, payload: bytes) -> set[str]:
        """The devices that a message names, even without any channel; empty if it cannot be read."""
        try:
            content = json.loads(decode_text(payload))
            names = (self._device(record) for record in self._records(content) if isinstance(record, dict))
            return {name for name in names if name is not None}
        except (ValueError, RecursionError):
            return set()

    def _records(self, content: Any) -> list[Any]:
        """The records of a message: its list, Telegraf's list of metrics, or the message itself."""
        if isinstance(content, list):
            return content
        if not isinstance(content, dict):
            raise PayloadError(
                f"The message is {quoted(content)} and does not name its channel; "
                "send an object with names, or put {channel} into the topic."
            )
        metrics = content.get("metrics") if "metrics" in self._envelopes else None
        if isinstance(metrics, list) and all(isinstance(metric, dict) for metric in metrics):
            return metrics
        return [content]

    def _read_all(self, records: list[Any]) -> list[Sample]:
        samples: list[Sample] = []
        metrics: list[dict[str, Any]] = []
        for record in map(_checked, records):
            is_metric = isinstance(record.get("fields"), dict) and isinstance(record.get("name"), str)
            if is_metric and "fields" in self._envelopes:
                metrics.append(record)
            elif values := self._numbers(self._found(record)):
                samples.append(Sample(self._device(record), self._time(record), values))
        return samples + self._merged(metrics) if metrics else samples

    def _read_channel(self, content: Any, channel: str) -> list[Sample]:
        if not isinstance(content, dict | list):
            content = {"value": content}
        samples = []
        for record in map(_checked, content if isinstance(content, list) else [content]):
            if "value" not in record:
                raise PayloadError(
                    f"The message of channel {quoted(channel)} is an object without 'value'; "
                    'send a bare number or {"value": number}.'
                )
            if values := self._numbers({channel: record["value"]}):
                samples.append(Sample(self._device(record), self._time(record), values))
        return samples

    def _numbers(self, given: dict[str, Any]) -> dict[str, float]:
        """The values that are finite numbers, including true and false; null is missing, anything else is refused."""
        numbers = given.values()
        if set(map(type, numbers)) == _FLOATS and isfinite(sum(numbers)):
            return given  # usually one sum proves that every value is a finite number
        values = {}
        for name, value in given.items():
            if value is None:
                continue
            number = value if type(value) is float else _number(value)
            if isfinite(number):
                values[name] = number
            else:
                self.left_out.setdefault(name, quoted(value))
        return values

    def _found(self, record: dict[str, Any]) -> dict[str, Any]:
        """The values of a record under the configured names."""
        body = record
        if "ts" in record and "values" in self._envelopes and isinstance(record.get("values"), dict):
            body = record["values"]
        try:
            return dict(zip(self.channels, map(body.__getitem__, self.channels), strict=True))
        except KeyError:
            return self._searched(body, body is record)

    def _searched(self, body: dict[str, Any], top: bool) -> dict[str, Any]:
        """The values under the configured names at any depth; a full path takes precedence over its ending."""
        exact: dict[str, Any] = {}
        ending: dict[str, list[tuple[str, Any]]] = {}
        for path, value in self._paths(body, "", 1, top):
            if path in self._names:
                exact.setdefault(path, value)
            if not isinstance(value, dict):
                for name in self._ended(path):
                    ending.setdefault(name, []).append((path, value))
        return {
            name: exact[name] if name in exact else _only(name, ending[name])
            for name in self.channels
            if name in exact or name in ending
        }

    def _paths(self, body: dict[str, Any], prefix: str, depth: int, top: bool) -> Iterator[tuple[str, Any]]:
        """Paths that may end in a configured name, with their values."""
        if depth > MAX_DEPTH:
            raise _too_deep()
        for key, value in body.items():
            nested = isinstance(value, dict)
            is_value = nested or not top or key in self._names
            if not is_value and (key in (self._device_key, self._time_key) or key.lower() in TIME_KEYS):
                continue
            if key.rpartition(".")[2] in self._endings:
                yield (prefix + key)[-self._reach :], value
            if nested:
                yield from self._paths(value, f"{prefix}{key}."[-self._reach :], depth + 1, False)

    def _merged(self, metrics: list[dict[str, Any]]) -> list[Sample]:
        """Telegraf's metrics: those of one device and one time are one sample."""
        merged: dict[tuple[str | None, float | None], dict[str, tuple[Any, Any]]] = {}
        for record in metrics:
            metric, fields = record["name"], dict[str, Any]()
            for field, value in record["fields"].items():  # with or without the name of the metric before them
                fields |= {name: value for name in (field, f"{metric}.{field}") if name in self._names}
            if not fields:
                continue
            series = metric, record.get("tags")
            row = merged.setdefault((self._device(record), self._time(record)), {})
            for name, value in fields.items():
                if row.setdefault(name, (value, series))[1] != series:
                    raise PayloadError(
                        f"The channel {quoted(name)} occurs twice in the message at one time, under different names "
                        "or tags; name it as metric.field, or keep all but one series out of the topic."
                    )
        samples = []
        for (device, time), row in merged.items():
            if values := self._numbers({name: value for name, (value, _) in row.items()}):
                samples.append(Sample(device, time, values))
        return samples

    def _time(self, record: dict[str, Any]) -> float | None:
        if self._time_key:
            value = _at(record, self._time_key)
            return None if value is None else self._timestamp(value, self._time_key)
        for key in self._time_keys(record):
            if record[key] is not None:
                return self._timestamp(record[key], key)
        return None

    def _device(self, record: dict[str, Any]) -> str | None:
        return self._device_name(_at(record, self._device_key)) if self._device_key else None


def _at(record: dict[str, Any], key: str) -> Any:
    """The value of a record under a key, or under the path that the key spells; None without one."""
    value: Any = record.get(key)
    if value is None and "." in key:
        value = record
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
    return value


def _only(name: str, candidates: list[tuple[str, Any]]) -> Any:
    if len(candidates) > 1:
        listed = cut(", ".join(path for path, _ in candidates), _MAX_LISTED)
        raise PayloadError(
            f"The channel {quoted(name)} may be any of {listed} in the message; configure one of these paths."
        )
    return candidates[0][1]


def _not_json(text: str, error: Exception, channel: str | None) -> PayloadError:
    if isinstance(error, RecursionError):
        return _too_deep()
    if channel is not None and "{" not in text:
        return PayloadError(
            f"The message of channel {quoted(channel)} is {quoted(text)}, not a number; "
            'send a bare number or {"value": number}.'
        )
    if not text.strip():
        return PayloadError("The message is empty; send an object with names and numbers.")
    if not isinstance(error, json.JSONDecodeError):
        return PayloadError("A number in the message has thousands of digits; send numbers that a device can measure.")
    where = f"character {error.pos + 1}, {quoted(text[error.pos : error.pos + 20])}"
    return PayloadError(f"The message is not JSON at {where}; send an object with names and numbers.")


def _too_deep() -> PayloadError:
    return PayloadError(f"The message nests deeper than {MAX_DEPTH} levels; send a flatter object.")


def _checked(record: Any) -> dict[str, Any]:
    if isinstance(record, dict):
        return record
    raise PayloadError(f"A list in the message has {quoted(record)} instead of an object; send objects with names.")


def _number(value: Any) -> float:
    """A value as a number, NaN if it is not one."""
    if isinstance(value, str):
        return plain_number(value)
    if not isinstance(value, int | float):
        return nan
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        return nan


def _endings(path: str) -> Iterator[str]:
    """Every ending of a path that begins after a dot."""
    while "." in path:
        path = path.partition(".")[2]
        yield path


class CsvReader(PayloadReader):
    """Reads the rows below one header line.

    Parameters
    ----------
    channels, zone, device_key, time_key
        As for `JsonReader`; `device_key` and `time_key` are columns.
    header
        The first line. The delimiter is the comma, semicolon or tab, whichever occurs most often in it.

    Examples
    --------
    >>> rows = CsvReader(["flow", "heat"], "UTC", "device", "time,flow,heat")
    >>> rows.read(b"1970-01-02T00:00:00,0.5,")
    [Sample(device=None, time=86400.0, values={'flow': 0.5})]
    >>> CsvReader(["flow"], "UTC", "", "time,heat")
    Traceback (most recent call last):
    fedkad.edge.sources.payload.PayloadError: The header has no column 'flow'; its columns are: time, heat; check \
channels in [sampling].
    """

    def __init__(self, channels: Sequence[str], zone: str, device_key: str, header: str, time_key: str = "") -> None:
        super().__init__(channels, zone, device_key, time_key)
        line = header.removeprefix("\ufeff").strip("\r\n")
        self._header = line
        self._delimiter = delimiter_of(line)
        columns = [cell.strip() for cell in self._cells(line)]
        self._width = len(columns)
        self._positions = {name: _position(columns, name) for name in self.channels}
        times = [name for name in columns if name == time_key] if time_key else self._time_keys(columns)
        self._time_column = (columns.index(times[0]), times[0]) if times else None
        self._device_column = columns.index(device_key) if device_key and device_key in columns else None

    def read(self, line: bytes, arrival: float = nan) -> list[Sample]:
        """Read a row; empty if it is blank, has no value, or repeats the header, as restarted loggers do."""
        self.left_out, self._arrival = {}, arrival
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
                self.left_out[name] = quoted(cells[at])
        return [Sample(self._device(cells), self._time(cells), values)] if values else []

    def _cells(self, line: str) -> list[str]:
        try:
            return next(strict_reader([line], self._delimiter), [])
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
    count = columns.count(name)
    if count == 1:
        return columns.index(name)
    if count:
        raise PayloadError(f"The header has {count} columns {quoted(name)}; rename all but one.")
    raise PayloadError(
        f"The header has no column {quoted(name)}; its columns are: {cut(', '.join(columns), 400)}; "
        "check channels in [sampling]."
    )
