"""The shape of a message: which channels it carries, and when.

A message is used whole or refused whole; only a single value that is no number is left out by itself, and counted.
What can be read in one way only needs no configuration:

    {"temperature": 21.3, "occupancy": true, "last_seen": "2024-01-01T12:00:00Z"}           flat, as of zigbee2mqtt
    {"Time": "2024-01-01T12:00:00", "DS18B20": {"Temperature": 19.9}}                       nested, as of Tasmota
    {"ts": 1451649600512, "values": {"temperature": 21.3}}                                  ThingsBoard
    {"name": "cpu", "fields": {"usage_idle": 99.1}, "tags": {}, "timestamp": 1458229140}    Telegraf
    {"metrics": […]} and […]                                                                several of them
    21.5 or {"value": 21.5, "time": …}                                                      the topic names the channel
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from math import isfinite, nan
from typing import Any, NamedTuple

from fedkad.edge.moments import TIME_KEYS, plain_number, quoted, read_moment, zone_called
from fedkad.tables.cells import is_missing

# Far above what any device sends, and low enough that no message can hold the agent up.
MAX_BYTES, MAX_DEPTH, MAX_NAME = 4 << 20, 16, 200
ENVELOPES = ("values", "fields", "metrics")
DELIMITERS = ",;\t"

_LISTED, _WHOLE = 80, 120
_FLOATS = {float}


class PayloadError(ValueError):
    """A message that cannot be used; one sentence that quotes at most some 80 characters of it."""


class Sample(NamedTuple):
    """What one message, or one record of it, says.

    Attributes
    ----------
    device : str or None
        The device that the message names, None if it names none.
    time : float or None
        Seconds since 1970 UTC, None if it says nothing about its time.
    values : dict
        Finite numbers by channel: those configured only, and only those that it carries.
    """

    device: str | None
    time: float | None
    values: dict[str, float]


class _Reader:
    """What messages in JSON and rows in CSV have in common."""

    def __init__(self, channels: Sequence[str], zone: str, device_key: str, time_key: str) -> None:
        self.channels = tuple(channels)
        self.refused = 0
        self.left_out: dict[str, str] = {}
        self._known = frozenset(self.channels)
        self._zone = zone_called(zone)
        self._device_key, self._time_key = device_key, time_key

    def _leave_out(self, name: str, value: object) -> None:
        self.refused += 1
        self.left_out.setdefault(name, quoted(value))

    def _time_keys(self, keys: Iterable[str]) -> list[str]:
        """The keys that name a time and no channel, the most telling first."""
        found = [key for key in keys if key not in self._known and key.lower() in TIME_KEYS]
        return sorted(found, key=lambda key: TIME_KEYS[key.lower()]) if len(found) > 1 else found

    def _moment(self, value: object, key: str) -> float:
        try:
            return read_moment(value, self._zone, key)
        except ValueError as error:
            raise PayloadError(str(error)) from None

    def _name(self, value: object) -> str | None:
        """The device that a message names; what cannot be printed must never reach a topic, a path or a log."""
        if value is None:
            return None
        if isinstance(value, str) and 0 < len(value) <= MAX_NAME and value.isprintable():
            return value
        raise PayloadError(
            f"The device under {quoted(self._device_key)} is {quoted(value)}; "
            f"send its name as plain text of at most {MAX_NAME} characters."
        )


class Payloads(_Reader):
    """A reader of JSON messages, made once and used for each.

    Parameters
    ----------
    channels
        The channels to look for. A nested one is named by its path, such as ``DS18B20.Temperature``, or by the last
        part of that where only one path ends so.
    zone
        Of times without a zone: "local", "UTC", or a name such as Europe/Berlin.
    device_key
        Where a record names its device, as a path such as ``tags.host``; empty if it does not.
    time_key
        Where a record says its time, as such a path, and nowhere else; empty for the usual names.

    Attributes
    ----------
    refused : int
        Values of channels that were no finite number, and were left out.
    left_out : dict
        Those of the last message by channel, as an error quotes them.

    Examples
    --------
    >>> payloads = Payloads(["temperature", "occupancy"], "UTC", "device")
    >>> payloads.read(b'{"device": "hall", "temperature": 21.3, "occupancy": true, "time": "1970-01-02T00:00:00"}')
    [Sample(device='hall', time=86400.0, values={'temperature': 21.3, 'occupancy': 1.0})]
    >>> payloads.read(b"21.5", channel="temperature")
    [Sample(device=None, time=None, values={'temperature': 21.5})]
    >>> payloads.read(b'{"temperature": "unavailable", "occupancy": null, "battery": 97}')
    []
    >>> payloads.refused
    1
    """

    def __init__(self, channels: Sequence[str], zone: str = "local", device_key: str = "", time_key: str = "") -> None:
        super().__init__(channels, zone, device_key, time_key)
        self._endings = frozenset(name.rpartition(".")[2] for name in self.channels)
        # A path is cut from the left to what a configured name may need: no message can make it long.
        self._reach = max([_LISTED, *map(len, self.channels)]) + 2
        self._ended = lru_cache(1024)(lambda path: tuple(self._known.intersection(_endings(path))))
        firsts = {name.partition(".")[0] for name in self.channels}
        # A name such as "values.flow" says that here "values" is a part of the path and nothing else.
        self._envelopes = frozenset(ENVELOPES) - firsts

    def read(self, payload: bytes, channel: str | None = None) -> list[Sample]:
        """Read a message; `channel` is what its topic names. Empty if it carries no configured channel."""
        self.left_out = {}
        if channel is not None and channel not in self._known:
            return []
        text = _text(payload)
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            if channel is None or not isfinite(content := plain_number(text)):  # "+21.5" is no JSON
                raise _not_json(text, error, channel) from None
        try:
            return self._read_all(self._records(content)) if channel is None else self._read_channel(content, channel)
        except RecursionError:  # two of Telegraf's tags may be nested just deep enough not to be comparable
            raise _too_deep() from None

    def devices(self, payload: bytes) -> set[str]:
        """The devices that a message names, also one that carries no channel; what cannot be read names none."""
        try:
            content = json.loads(_text(payload))
            found = (self._device(record) for record in self._records(content) if isinstance(record, dict))
            return {name for name in found if name is not None}
        except (ValueError, RecursionError):
            return set()

    def _records(self, content: Any) -> list[Any]:
        """The records of a message: its list, what Telegraf lists as metrics, or itself."""
        if isinstance(content, list):
            return content
        if not isinstance(content, dict):
            raise PayloadError(
                f"The message is {quoted(content)} and says nowhere of which channel; "
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
            if "fields" in self._envelopes and _is_metric(record):
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

    def _numbers(self, found: dict[str, Any]) -> dict[str, float]:
        """The values that are finite numbers, true and false among them; null is missing, all else is refused."""
        numbers = found.values()
        if set(map(type, numbers)) == _FLOATS and isfinite(sum(numbers)):
            return found  # as a rule one sum tells that every value is a finite number; else look closer
        values = {}
        for name, value in found.items():
            if value is None:
                continue
            number = value if type(value) is float else _number(value)
            if isfinite(number):
                values[name] = number
            else:
                self._leave_out(name, value)
        return values

    def _found(self, record: dict[str, Any]) -> dict[str, Any]:
        """What a record holds under the configured names."""
        body = record
        if "ts" in record and "values" in self._envelopes and isinstance(record.get("values"), dict):
            body = record["values"]
        try:
            return dict(zip(self.channels, map(body.__getitem__, self.channels), strict=True))
        except KeyError:
            return self._searched(body, body is record)

    def _is_about(self, key: str, value: Any) -> bool:
        """Whether a key at the top of a record is about the record and no channel."""
        named = key in (self._device_key, self._time_key) or key.lower() in TIME_KEYS
        return named and not isinstance(value, dict)

    def _searched(self, body: dict[str, Any], top: bool) -> dict[str, Any]:
        """What stands under the configured names at any depth: a whole path goes before the end of one."""
        exact: dict[str, Any] = {}
        ending: dict[str, list[tuple[str, Any]]] = {}
        for path, value in self._paths(body, "", 1, top):
            if path in self._known:
                exact.setdefault(path, value)
            if not isinstance(value, dict):
                for name in self._ended(path):
                    ending.setdefault(name, []).append((path, value))
        return {
            name: exact[name] if name in exact else self._only(name, ending[name])
            for name in self.channels
            if name in exact or name in ending
        }

    def _only(self, name: str, candidates: list[tuple[str, Any]]) -> Any:
        if len(candidates) > 1:
            listed = _cut(", ".join(path for path, _ in candidates))
            raise PayloadError(
                f"The channel {quoted(name)} may be any of {listed} in the message; configure one of these paths."
            )
        return candidates[0][1]

    def _paths(self, body: dict[str, Any], prefix: str, depth: int, top: bool) -> Iterator[tuple[str, Any]]:
        """Paths that may end in a configured name, with what stands there."""
        if depth > MAX_DEPTH:
            raise _too_deep()
        for key, value in body.items():
            nested = isinstance(value, dict)
            if top and key not in self._known and self._is_about(key, value):
                continue
            if key.rpartition(".")[2] in self._endings:
                yield (prefix + key)[-self._reach :], value
            if nested:
                yield from self._paths(value, f"{prefix}{key}."[-self._reach :], depth + 1, False)

    def _merged(self, metrics: list[dict[str, Any]]) -> list[Sample]:
        """Telegraf's metrics: those of one device and one moment are one sample."""
        merged: dict[tuple[str | None, float | None], dict[str, tuple[Any, Any]]] = {}
        for record in metrics:
            carried = self._fields(record["name"], record["fields"])
            if not carried:
                continue
            series = record["name"], record.get("tags")
            found = merged.setdefault((self._device(record), self._time(record)), {})
            for name, value in carried.items():
                if found.setdefault(name, (value, series))[1] != series:
                    raise PayloadError(
                        f"The channel {quoted(name)} stands twice in the message at one time, under different names "
                        "or tags; name it as metric.field, or keep all but one series out of the topic."
                    )
        samples = []
        for (device, time), found in merged.items():
            if values := self._numbers({name: value for name, (value, _) in found.items()}):
                samples.append(Sample(device, time, values))
        return samples

    def _fields(self, metric: str, fields: dict[str, Any]) -> dict[str, Any]:
        """What a metric holds under the configured names, with or without its own before them."""
        carried: dict[str, Any] = {}
        for field, value in fields.items():
            names = [name for name in (field, f"{metric}.{field}") if name in self._known]
            carried |= dict.fromkeys(names, value)
        return carried

    def _time(self, record: dict[str, Any]) -> float | None:
        if self._time_key:
            value = _at(record, self._time_key)
            return None if value is None else self._moment(value, self._time_key)
        for key in self._time_keys(record):
            if record[key] is not None:
                return self._moment(record[key], key)
        return None

    def _device(self, record: dict[str, Any]) -> str | None:
        return self._name(_at(record, self._device_key)) if self._device_key else None


class CsvRows(_Reader):
    """A reader of the rows of a CSV file that grows, made from its header line.

    Parameters
    ----------
    channels, zone, device_key, time_key
        As for :class:`Payloads`; a column that is called `device_key` names the device, one `time_key` the time.
    header
        The first line. Columns are separated by commas, semicolons or tabs, whichever it has most of.

    Examples
    --------
    >>> rows = CsvRows(["flow", "heat"], "UTC", "device", "time,flow,heat")
    >>> rows.read(b"1970-01-02T00:00:00,0.5,")
    [Sample(device=None, time=86400.0, values={'flow': 0.5})]
    >>> CsvRows(["flow"], "UTC", "", "time,heat")
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
        """Read a row; empty if it is blank, carries no value, or repeats the header, as loggers do when restarted."""
        self.left_out = {}
        text = _text(line).strip("\r\n")
        if not text.strip() or text == self._header:
            return []
        cells = self._cells(text)
        if len(cells) != self._width:
            raise PayloadError(
                f"The row has {len(cells)} cells where the header names {self._width} columns; "
                "write one cell for each, empty where the value is missing."
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
            raise PayloadError(f"The row {quoted(line)} is not CSV; correct the quotes and the separators.") from None

    def _time(self, cells: list[str]) -> float | None:
        if self._time_column is None:
            return None
        at, name = self._time_column
        return None if is_missing(cells[at]) else self._moment(cells[at], name)

    def _device(self, cells: list[str]) -> str | None:
        return None if self._device_column is None else self._name(cells[self._device_column].strip() or None)


def shown(payload: bytes) -> str:
    r"""A message as the log shows it: one line of at most 120 characters, all of them printable.

    >>> print(shown(b'{"flow": 1,\n "\x00": 2}'), len(shown(b"x" * 500)))
    {"flow": 1, "?": 2} 120
    """
    text = " ".join(payload[: 8 * _WHOLE].decode(errors="replace").split())
    text = "".join(each if each.isprintable() else "?" for each in text)
    return text if len(text) <= _WHOLE else text[: _WHOLE - 1] + "…"


def _at(record: dict[str, Any], key: str) -> Any:
    """What stands in a record under a key, or else under the path that it is; None if nothing does."""
    value: Any = record.get(key)
    if value is None and "." in key:
        value = record
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
    return value


def _text(payload: bytes) -> str:
    if len(payload) > MAX_BYTES:
        raise PayloadError(f"The message has {len(payload)} bytes, more than {MAX_BYTES}; send fewer records at once.")
    try:
        return payload.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise PayloadError(
            f"Byte 0x{payload[error.start]:02x} at {error.start} of the message is not UTF-8; send text in UTF-8."
        ) from None


def _not_json(text: str, error: Exception, channel: str | None) -> PayloadError:
    if isinstance(error, RecursionError):
        return _too_deep()
    if channel is not None and "{" not in text:
        return PayloadError(
            f"The message of channel {quoted(channel)} is {quoted(text)}, and a number is expected; "
            'send a bare number or {"value": number}.'
        )
    if not text.strip():
        return PayloadError("The message is empty; send an object with names and numbers.")
    if not isinstance(error, json.JSONDecodeError):
        return PayloadError(
            "The message holds a number of thousands of digits; send numbers that a device can measure."
        )
    where = f"character {error.pos + 1}, {quoted(text[error.pos : error.pos + 20])}"
    return PayloadError(f"The message is not JSON at {where}; send an object with names and numbers.")


def _too_deep() -> PayloadError:
    return PayloadError(f"The message nests deeper than {MAX_DEPTH} levels; send a flatter object.")


def _checked(record: Any) -> dict[str, Any]:
    if isinstance(record, dict):
        return record
    raise PayloadError(
        f"A list in the message holds {quoted(record)} where an object belongs; send objects with names."
    )


def _is_metric(record: dict[str, Any]) -> bool:
    return isinstance(record.get("fields"), dict) and isinstance(record.get("name"), str)


def _number(value: Any) -> float:
    """A value as a number, NaN if it is none."""
    if isinstance(value, str):
        return plain_number(value)
    if not isinstance(value, int | float):
        return nan
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        return nan


def _endings(path: str) -> Iterator[str]:
    """Every end of a path that begins after a dot."""
    while "." in path:
        path = path.partition(".")[2]
        yield path


def _position(columns: list[str], name: str) -> int:
    found = columns.count(name)
    if found == 1:
        return columns.index(name)
    if found:
        raise PayloadError(f"The header has {found} columns {quoted(name)}; rename all but one.")
    raise PayloadError(
        f"The header has no column {quoted(name)}; its columns are: {_cut(', '.join(columns), 400)}; "
        "check channels in [sampling]."
    )


def _cut(text: str, length: int = _LISTED) -> str:
    printable = repr(text)[1:-1]
    return printable if len(printable) <= length else printable[: length - 3] + "..."
