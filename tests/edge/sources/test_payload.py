"""Messages as devices send them, and bytes that no device sends."""

import json
import os
import time as clock
from collections.abc import Iterator
from datetime import UTC, datetime
from math import isfinite
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkad.edge.sources.payload import MAX_BYTES, PayloadError, Sample, find_zone, read_timestamp
from fedkad.edge.sources.readers import MAX_DEPTH, CsvReader, JsonReader
from tests.fixtures.draws import draws

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC).timestamp()


def reader(*channels: str, zone: str = "UTC", device_key: str = "", time_key: str = "") -> JsonReader:
    return JsonReader(channels, zone, device_key, time_key)


def told(payloads: JsonReader, content: Any, channel: str | None = None) -> list[Sample]:
    return payloads.read(content if isinstance(content, bytes) else json.dumps(content).encode(), channel)


def refusal(payloads: JsonReader, content: Any, channel: str | None = None) -> str:
    with pytest.raises(PayloadError) as caught:
        told(payloads, content, channel)
    message = str(caught.value)
    assert message.endswith(".")
    assert message.isprintable()
    assert len(message) < 350
    return message


# The shapes.


@pytest.mark.parametrize("last_seen", ["2024-01-01T12:00:00.000Z", "2024-01-01T13:00:00+01:00", 1704110400000])
def test_zigbee2mqtt(last_seen: str | int) -> None:
    payloads = reader("temperature", "humidity", "occupancy", "battery")
    content = {
        "temperature": 21.3,
        "humidity": 40,
        "occupancy": True,
        "battery": None,
        "linkquality": 120,
        "last_seen": last_seen,
        "update": {"state": "idle", "installed_version": 16777241},
    }
    values = {"temperature": 21.3, "humidity": 40.0, "occupancy": 1.0}
    assert told(payloads, content) == [Sample(None, NOON, values)]
    assert payloads.left_out == {}
    assert all(type(value) is float for value in told(payloads, content)[0].values.values())


def test_a_flat_message_with_some_of_the_channels() -> None:
    payloads = reader("temperature", "humidity", "pressure")
    assert told(payloads, {"humidity": 40.5, "voltage": 3000}) == [Sample(None, None, {"humidity": 40.5})]
    assert payloads.left_out == {}
    assert told(payloads, {"voltage": 3000, "time": NOON}) == []
    assert payloads.left_out == {}


TASMOTA = {
    "Time": "2024-01-01T12:00:00",
    "DS18B20": {"Id": "0316", "Temperature": 19.9},
    "ANALOG": {"A0": 512},
    "TempUnit": "C",
}


@pytest.mark.parametrize("name", ["DS18B20.Temperature", "Temperature"])
def test_tasmota(name: str) -> None:
    payloads = reader(name, "A0", zone="Europe/Berlin")
    assert told(payloads, TASMOTA) == [Sample(None, NOON - 3600, {name: 19.9, "A0": 512.0})]


def test_tasmota_with_two_sensors_needs_the_path() -> None:
    content = {**TASMOTA, "AM2301": {"Temperature": 21.0, "Humidity": 55.5}}
    message = refusal(reader("Temperature"), content)
    assert "DS18B20.Temperature, AM2301.Temperature" in message
    chosen = told(reader("AM2301.Temperature", "Humidity"), content)
    assert chosen == [Sample(None, NOON, {"AM2301.Temperature": 21.0, "Humidity": 55.5})]
    both = told(reader("AM2301.Temperature", "DS18B20.Temperature"), content)
    assert both[0].values == {"AM2301.Temperature": 21.0, "DS18B20.Temperature": 19.9}


def test_a_whole_path_goes_before_the_end_of_another() -> None:
    payloads = reader("Temperature", "flow")
    assert told(payloads, {"Temperature": 1.5, "inner": {"Temperature": 2.5}})[0].values == {"Temperature": 1.5}
    assert told(reader("a.b"), {"a.b": 3.5})[0].values == {"a.b": 3.5}
    assert told(reader("a.b"), {"a": {"b": {"c": 1}}}) == []
    assert told(reader("b.c"), {"a": {"b": {"c": 4.5}}, "c": 9})[0].values == {"b.c": 4.5}


def test_nobody_looks_into_what_is_beside_all_channels() -> None:
    payload = b'{"a": 1, "x":' + b'{"x":' * 100 + b"1" + b"}" * 101
    assert told(reader("a"), payload) == [Sample(None, None, {"a": 1.0})]


def test_thingsboard() -> None:
    payloads = reader("temperature", "humidity")
    one = {"ts": 1451649600512, "values": {"temperature": 42.2, "humidity": 70, "firmware": "1.2"}}
    expected = Sample(None, 1451649600.512, {"temperature": 42.2, "humidity": 70.0})
    assert told(payloads, one) == [expected]
    later = {"ts": 1451649601512, "values": {"humidity": 71}}
    assert told(payloads, [one, later]) == [expected, Sample(None, 1451649601.512, {"humidity": 71.0})]
    assert told(reader("values.temperature"), one)[0].values == {"values.temperature": 42.2}


def test_arrays_of_flat_objects() -> None:
    content = [{"flow": k, "t": NOON + k, "device": f"pump-{k}"} for k in range(3)]
    samples = told(reader("flow", device_key="device"), content)
    assert samples == [Sample(f"pump-{k}", NOON + k, {"flow": float(k)}) for k in range(3)]
    assert told(reader("flow"), []) == []


def telegraf(name: str, at: int = 1458229140, host: str = "raynor", cpu: str = "", **fields: float) -> dict[str, Any]:
    tags = {"host": host, "cpu": cpu} if cpu else {"host": host}
    return {"fields": fields, "name": name, "tags": tags, "timestamp": at}


def test_telegraf() -> None:
    payloads = reader("usage_idle", "mem.used", device_key="tags.host")
    assert told(payloads, telegraf("cpu", usage_idle=99.1, usage_user=0.5)) == [
        Sample("raynor", 1458229140.0, {"usage_idle": 99.1})
    ]
    batch = [
        telegraf("cpu", usage_idle=99.1),
        telegraf("mem", used=5),
        telegraf("swap", used=6),
        telegraf("cpu", host="kerrigan", usage_idle=7.5),
        telegraf("cpu", at=1458229150, usage_idle=98.5),
    ]
    expected = [
        Sample("raynor", 1458229140.0, {"usage_idle": 99.1, "mem.used": 5.0}),
        Sample("kerrigan", 1458229140.0, {"usage_idle": 7.5}),
        Sample("raynor", 1458229150.0, {"usage_idle": 98.5}),
    ]
    assert told(payloads, {"metrics": batch}) == expected
    assert told(payloads, batch) == expected
    assert told(payloads, {"metrics": []}) == []


def test_telegraf_metrics_of_no_interest_are_passed_over_whatever_they_say() -> None:
    payloads = reader("usage_idle", device_key="tags.host")
    odd = {"name": "net", "fields": {"sent": 1, "lost": 2}, "tags": {"host": 5}, "timestamp": "never"}
    assert len(told(payloads, {"metrics": [odd, telegraf("cpu", usage_idle=9.5)]})) == 1


def test_telegraf_with_one_channel_of_two_series_is_ambiguous() -> None:
    two = {"metrics": [telegraf("cpu", cpu=cpu, usage_idle=9.5) for cpu in ("cpu0", "cpu1")]}
    assert "'usage_idle' occurs twice" in refusal(reader("usage_idle"), two)
    named = {"metrics": [telegraf("mem", used=1.5), telegraf("swap", used=2.5)]}
    assert "'used' occurs twice" in refusal(reader("used"), named)
    assert told(reader("mem.used", "swap.used"), named)[0].values == {"mem.used": 1.5, "swap.used": 2.5}
    twice = {"metrics": [telegraf("mem", used=1.5), telegraf("mem", used=1.5)]}
    assert told(reader("used"), twice)[0].values == {"used": 1.5}


def test_names_that_are_envelopes_elsewhere_may_be_channels() -> None:
    assert told(reader("metrics"), {"metrics": 4.5})[0].values == {"metrics": 4.5}
    assert told(reader("fields.a"), {"name": "x", "fields": {"a": 1.5}})[0].values == {"fields.a": 1.5}
    assert told(reader("flow"), {"metrics": [1, 2], "flow": 2.5})[0].values == {"flow": 2.5}


@pytest.mark.parametrize(
    "payload", [b"21.5", b'"21.5"', b" 21.5\n", b"+21.5", b'{"value": 21.5}', b'{"value": "21.5"}']
)
def test_a_bare_number_of_the_channel_in_the_topic(payload: bytes) -> None:
    assert told(reader("heat", "flow"), payload, "heat") == [Sample(None, None, {"heat": 21.5})]


def test_an_object_of_the_channel_in_the_topic() -> None:
    payloads = reader("heat", device_key="device")
    content = {"value": 21.5, "time": "2024-01-01T12:00:00Z", "device": "hall", "unit": "°C"}
    assert told(payloads, content, "heat") == [Sample("hall", NOON, {"heat": 21.5})]
    assert told(payloads, [content, {"value": False}], "heat")[1] == Sample(None, None, {"heat": 0.0})
    assert "without 'value'" in refusal(payloads, {"heat": 3}, "heat")
    assert "is 'off', not a number; send a bare number" in refusal(payloads, b"off", "heat")
    assert told(payloads, b"null", "heat") == []
    assert payloads.left_out == {}
    assert told(payloads, b'"unavailable"', "heat") == []
    assert list(payloads.left_out) == ["heat"]
    assert told(payloads, b"\xff no matter what", "cold") == []


def test_a_bare_number_without_a_channel_is_refused() -> None:
    assert "{channel}" in refusal(reader("heat"), b"21.5")
    assert "{channel}" in refusal(reader("heat"), b'"21.5"')
    assert "{channel}" in refusal(reader("heat"), b"null")


# Single values.


@pytest.mark.parametrize(
    ("text", "number"),
    [("true", 1.0), ("false", 0.0), ("7", 7.0), ('"21.5"', 21.5), ('" -1e3 "', -1000.0), ("1e308", 1e308), ("-0", 0.0)],
)
def test_what_counts_as_a_number(text: str, number: float) -> None:
    assert told(reader("a"), f'{{"a": {text}}}'.encode())[0].values == {"a": number}


@pytest.mark.parametrize(
    "text",
    [
        *('"on"', '""', '"1_000"', '"21,5"', '"nan"', '"inf"', '"1e400"', '"٣"', "[1]", '{"b": 1}'),
        *("NaN", "Infinity", "-Infinity", "1e400", "1" + "0" * 400, '"' + "1" * 5000 + '"'),
    ],
)
def test_a_value_that_is_no_number_is_left_out_and_the_rest_is_used(text: str) -> None:
    payloads = reader("a", "c")
    for content in (f'{{"a": {text}, "c": 2.5}}', f'{{"x": {{"c": 2.5}}, "a": {text}}}'):
        assert told(payloads, content.encode()) == [Sample(None, None, {"c": 2.5})]
        assert list(payloads.left_out) == ["a"]
    told(payloads, {"a": 1.5})
    assert payloads.left_out == {}


def test_numbers_whose_sum_overflows_are_numbers() -> None:
    assert told(reader("a", "b"), {"a": 1e308, "b": 1e308})[0].values == {"a": 1e308, "b": 1e308}


# Devices.


def test_devices() -> None:
    payloads = reader("a", device_key="tags.host")
    assert told(payloads, {"a": 1.5, "tags": {"host": "x"}})[0].device == "x"
    assert told(payloads, {"a": 1.5, "tags.host": "y"})[0].device == "y"
    nameless: list[dict[str, Any]] = [{}, {"tags": "x"}, {"tags": {}}, {"tags": {"host": None}}]
    for content in nameless:
        assert told(payloads, {"a": 1.5, **content})[0].device is None
    odds: list[Any] = [3, True, [], {}, "", "a\nb", "\ud800", "x" * 201, 10**30]
    for odd in odds:
        assert "'tags.host'" in refusal(payloads, {"a": 1.5, "tags": {"host": odd}})


# Times.


@pytest.mark.parametrize("key", ["time", "Time", "TIMESTAMP", "ts", "t", "Date", "dateTime", "last_seen"])
def test_what_a_time_is_called(key: str) -> None:
    payloads = reader("a")
    assert told(payloads, {"a": 1.5, key: NOON}) == [Sample(None, NOON, {"a": 1.5})]
    assert told(reader("a", key), {"a": 1.5, key: NOON}) == [Sample(None, None, {"a": 1.5, key: NOON})]


def test_the_most_telling_time_counts_and_null_is_none() -> None:
    assert told(reader("a"), {"last_seen": 5, "t": 7, "Time": NOON, "a": 1.5})[0].time == NOON
    assert told(reader("a"), {"last_seen": 5, "t": 7, "Time": None, "a": 1.5})[0].time == 7.0
    assert told(reader("a"), {"inner": {"time": 5}, "a": 1.5})[0].time is None


def test_a_time_of_another_name_goes_before_the_usual_ones() -> None:
    payloads = reader("a", time_key="created_at")
    assert told(payloads, {"a": 1.5, "created_at": "2024-01-01T12:00:00", "time": 5})[0].time == NOON
    for content in ({"time": 5}, {"created_at": None, "time": 5}, {"inner": {"created_at": 5}}):
        assert told(payloads, {"a": 1.5, **content})[0].time is None
    assert told(payloads, {"value": 1.5, "created_at": NOON}, "a")[0].time == NOON
    assert "The time under 'created_at' is 'soon'" in refusal(payloads, {"a": 1.5, "created_at": "soon"})
    nested = reader("a", time_key="meta.at")
    assert told(nested, {"a": 1.5, "meta": {"at": NOON}})[0].time == told(nested, {"a": 1, "meta.at": NOON})[0].time
    metric = {"name": "x", "fields": {"a": 1.5}, "tags": {"at": NOON}, "timestamp": 5}
    assert told(reader("a", time_key="tags.at"), metric)[0].time == NOON


def test_a_time_of_another_name_in_a_column() -> None:
    header = "time,created_at,flow"
    assert CsvReader(("flow",), "UTC", "", header, "created_at").read(b"5,2024-01-01T12:00,1")[0].time == NOON
    assert CsvReader(("flow",), "UTC", "", header, "other").read(b"5,7,1")[0].time is None


@pytest.mark.parametrize(
    "time", ["yesterday", "", "12:00", True, [], {}, -1, "nan", "2500-01-01", "1969-12-31", 2e10, 10**5000 // 10**900]
)
def test_a_record_whose_time_cannot_be_read_is_refused_as_a_whole(time: Any) -> None:
    assert "'Time'" in refusal(reader("a"), f'{{"a": 1.5, "Time": {json.dumps(time)}}}'.encode())
    assert "'Time'" in refusal(reader("a"), [{"a": 1}, {"a": 2, "Time": time}])


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (1704110400, NOON),
        (1704110400.25, NOON + 0.25),
        (1704110400250, NOON + 0.25),
        (1704110400250000, NOON + 0.25),
        (1704110400250000000, NOON + 0.25),
        ("1704110400250000000", NOON + 0.25),
        ("1704110400.25", NOON + 0.25),
        (0, 0.0),
        ("2024-01-01T12:00:00.250Z", NOON + 0.25),
        ("2024-01-01 12:00:00.250000999+00:00", NOON + 0.25),
        ("20240101T130000+0100", NOON),
        ("2024-01-01", NOON - 43200),
    ],
)
def test_moments(value: object, seconds: float) -> None:
    assert read_timestamp(value, UTC) == seconds


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e300, 10**400, None, b"1", "1e999"])
def test_what_is_no_moment(value: object) -> None:
    with pytest.raises(ValueError, match=r"The time under 'ts' is .*; send a number"):
        read_timestamp(value, UTC, "ts")


TURNED = datetime(2026, 10, 25, 1, tzinfo=UTC).timestamp()
"""When clocks in Berlin go from 3:00 back to 2:00."""


def on_the_clock(moments: list[float]) -> list[str]:
    """The moments as a clock in Berlin shows them, without a zone."""
    berlin = ZoneInfo("Europe/Berlin")
    return [datetime.fromtimestamp(moment, berlin).replace(tzinfo=None).isoformat() for moment in moments]


@pytest.mark.parametrize("period", [10.0, 300.0, 900.0, 1800.0])
@pytest.mark.parametrize("table", [True, False])
def test_a_recording_goes_on_forward_through_the_hour_that_comes_twice(period: float, table: bool) -> None:
    moments = [TURNED - 7200.0 + period * k for k in range(int(14400.0 / period))]
    shown = on_the_clock(moments)
    if table:
        rows = CsvReader(["flow"], "Europe/Berlin", "", "time,flow")
        read = [rows.read(f"{each},1".encode(), TURNED + 1e6)[0].time for each in shown]
    else:
        lines = reader("flow", zone="Europe/Berlin")
        read = [lines.read(json.dumps({"time": each, "flow": 1}).encode())[0].time for each in shown]
    assert read == moments


def test_a_live_time_in_the_hour_that_comes_twice_is_the_one_near_its_arrival() -> None:
    for moment in (TURNED - 3000.0, TURNED - 60.0, TURNED + 60.0, TURNED + 3000.0):
        live = reader("flow", zone="Europe/Berlin")  # as after a restart: it has heard nothing before
        for time in (moment, moment - 20.0, moment + 20.0):  # one that is late, too
            (shown,) = on_the_clock([time])
            assert live.read(json.dumps({"time": shown, "flow": 1}).encode(), None, moment + 30.0)[0].time == time


def test_in_the_hour_that_comes_twice_the_first_is_meant() -> None:
    berlin = find_zone("Europe/Berlin")
    assert read_timestamp("2024-10-27T02:30:00", berlin) == read_timestamp("2024-10-27T00:30:00Z", UTC)
    with pytest.raises(ValueError, match="no time zone 'Europe/Atlantis'"):
        find_zone("Europe/Atlantis")
    for name in ("", "../etc/passwd", "/etc/passwd", "a\0b"):
        with pytest.raises(ValueError, match="no time zone"):
            find_zone(name)


@pytest.fixture
def in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = os.environ.get("TZ")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    clock.tzset()
    yield
    monkeypatch.undo()
    assert os.environ.get("TZ") == before
    clock.tzset()


@pytest.mark.usefixtures("in_tokyo")
def test_local_is_the_zone_of_the_machine() -> None:
    assert told(reader("a", zone="local"), {"a": 1.5, "time": "2024-01-01T21:00:00"})[0].time == NOON
    assert told(reader("a", zone="UTC"), {"a": 1.5, "time": "2024-01-01T12:00:00"})[0].time == NOON


# Garbage.


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"", "empty"),
        (b"\xff\xfe", "Byte 0xff at 0"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
        (b"{'a': 1}", "not JSON at character 2"),
        (b'{"a": 1', "not JSON"),
        (b"\x00" * (1 << 20), "not JSON"),
        (b"noise " * (1 << 17), "not JSON"),
        (b'"' + b"x" * (1 << 20), "not JSON"),
        (b'"' + "\U0001f600".encode() * 1000 + b'"', "{channel}"),
        (b" " * (MAX_BYTES + 1), "bytes"),
        (b"[" * 100_000, "deeper"),
        (b'{"x":' * 100_000, "deeper"),
        (b'{"x":' * 100 + b"1" + b"}" * 100, "deeper"),
        (b'{"b": 1, "x":' + b'{"x":' * MAX_DEPTH + b"1" + b"}" * (MAX_DEPTH + 1), "deeper"),
        (b'{"a": ' + b"1" * 5000 + b"}", "thousands of digits"),
        (b"[1, 2]", "has 1 instead"),
        (b"[[]]", "has a list instead"),
        (b'{"metrics": {"a": 1}, "time": "' + b"x" * 10_000 + b'"}', "'time'"),
    ],
)
def test_garbage_is_refused_in_one_sentence(payload: bytes, says: str) -> None:
    assert says in refusal(reader("a"), payload)


def test_long_names_cannot_hold_the_agent_up() -> None:
    """Ten thousand paths of a hundred thousand characters are a gigabyte, were they written out."""
    inner = ",".join(f'"{k}":{{"a":1}}' for k in range(10_000))
    payload = f'{{"{"x" * 100_000}": {{{inner}}}}}'.encode()
    assert "configure one of these paths" in refusal(reader("a"), payload)


def test_the_last_of_a_name_that_stands_twice_counts() -> None:
    assert told(reader("a"), b'\xef\xbb\xbf{"a": 1, "a": 2}')[0].values == {"a": 2.0}


CHANNELS = ("a", "b.c", "c", "time")
KEYS = st.sampled_from(["a", "b", "c", "b.c", "ts", "Time", "values", "fields", "metrics", "name", "tags", "value", ""])
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "1.5", "x", "2024-01-01"])
CONTENT = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=3), inner, max_size=4)
)


def survives(payload: bytes, channel: str | None) -> None:
    payloads = JsonReader(CHANNELS, "UTC", "tags.a")
    try:
        samples = payloads.read(payload, channel)
    except PayloadError as error:
        message = str(error)
    else:
        message = ""
        check(samples)
    assert not message or (message.isprintable() and len(message) < 350)


def check(samples: list[Sample]) -> None:
    for sample in samples:
        assert sample.values.keys() <= set(CHANNELS)
        assert all(type(value) is float and isfinite(value) for value in sample.values.values())
        assert sample.values
        assert sample.time is None or 0.0 <= sample.time < 1e10
        assert sample.device is None or sample.device.isprintable()


@draws(300, derandomize=True)
@given(CONTENT, st.sampled_from([None, None, None, "a"]))
def test_any_json_is_read_or_refused(content: Any, channel: str | None) -> None:
    survives(json.dumps(content).encode(), channel)


@draws(200, derandomize=True)
@given(st.binary(max_size=60), st.sampled_from([None, "a"]))
def test_any_bytes_are_read_or_refused(payload: bytes, channel: str | None) -> None:
    survives(payload, channel)


@draws(200, derandomize=True)
@given(CONTENT, st.data())
def test_a_message_that_was_damaged_on_its_way_is_read_or_refused(content: Any, data: st.DataObject) -> None:
    payload = bytearray(json.dumps({"a": 1.5, "b": content}).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    survives(bytes(payload), None)


# Rows of CSV.


def test_csv() -> None:
    rows = CsvReader(("flow", "heat"), "Europe/Berlin", "device", "\ufeffTime, flow,note,heat,device\r\n")
    assert rows.read(b"2024-01-01T13:00:00,0.5,on,21,pump-1\r\n") == [
        Sample("pump-1", NOON, {"flow": 0.5, "heat": 21.0})
    ]
    assert rows.read(b"1704110400000,,,nan,\n") == []
    assert rows.read(b",,,21,\n") == [Sample(None, None, {"heat": 21.0})]
    assert rows.left_out == {}
    assert rows.read(b'1704110400,"0.5",,error,"a, b"\n') == [Sample("a, b", NOON, {"flow": 0.5})]
    assert rows.left_out == {"heat": "'error'"}
    assert rows.read(b"1704110400,inf,x,1,\n") == [Sample(None, NOON, {"heat": 1.0})]
    assert rows.left_out == {"flow": "'inf'"}
    assert rows.read(b"\n") == rows.read(b"Time, flow,note,heat,device\n") == []


@pytest.mark.parametrize(("separator"), [",", ";", "\t"])
def test_csv_separators(separator: str) -> None:
    rows = CsvReader(("t", "b"), "UTC", "", separator.join(["ts", '"x,;"', "b", "t"]))
    assert rows.read(separator.join(["1704110400", "", "2", "3"]).encode()) == [
        Sample(None, NOON, {"t": 3.0, "b": 2.0})
    ]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"1,2\n", "2 cells, but the header names 3"),
        (b"1,2,3,4\n", "4 cells"),
        (b"soon,2,3\n", "under 'time' is 'soon'"),
        (b'1,"2,3\n', "not CSV"),
        (b"1,2\r1,2,3\n", "not CSV"),
        (b"\xff,2,3\n", "Byte 0xff"),
        (b"x" * (1 << 20), "not CSV"),
        (b"1,2,\x07\n", "under 'name' is"),
    ],
)
def test_rows_that_are_refused(line: bytes, says: str) -> None:
    rows = CsvReader(("flow",), "UTC", "name", "time,flow,name")
    with pytest.raises(PayloadError) as caught:
        rows.read(line)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 250


def test_headers_that_are_refused() -> None:
    with pytest.raises(PayloadError, match=r"no column 'heat'; its columns are: time, flow; check channels in "):
        CsvReader(("flow", "heat"), "UTC", "", "time,flow")
    with pytest.raises(PayloadError, match="2 columns 'flow'"):
        CsvReader(("flow",), "UTC", "", "time,flow,flow")
    with pytest.raises(PayloadError, match="no column 'flow'"):
        CsvReader(("flow",), "UTC", "", "")


@draws(100, derandomize=True)
@given(st.binary(max_size=30) | st.text(max_size=30).map(str.encode))
def test_any_line_is_read_or_refused(line: bytes) -> None:
    rows = CsvReader(("a",), "UTC", "b", "a;b;time")
    try:
        samples = rows.read(line)
    except PayloadError:
        return
    assert all(isfinite(value) for sample in samples for value in sample.values.values())
