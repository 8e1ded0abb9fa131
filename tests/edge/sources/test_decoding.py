"""From messages to devices: what is said of those that cannot be used, and of names that nothing comes under."""

import json
from typing import Any

import pytest

from fedkad.edge.settings import DeviceSettings, Sampling, SourceSettings
from fedkad.edge.sources import RawMessage
from fedkad.edge.sources.decoding import EXPECTED_WITHIN, Decoder, UnseenNames
from fedkad.edge.sources.payload import Sample
from fedkad.edge.sources.readers import JsonReader
from tests.fixtures.broker import logged

STDIN = SourceSettings(kind="stdin")
MQTT = SourceSettings(kind="mqtt", topics=("in/{device}", "in/{device}/{channel}", "common"))


class Log:
    """A decoder for some devices, with what it logged and counted."""

    def __init__(self, source: SourceSettings = STDIN, **channels: tuple[str, ...]) -> None:
        self.said, self.counted = list[str](), list[str]()
        devices = {name: DeviceSettings(Sampling(each, zone="UTC")) for name, each in channels.items()}
        self.decoder = Decoder(source, devices, self.counted.append)

    def read(self, content: Any, header: bytes | None = None, **about: str | None) -> list[Sample]:
        payload = content if isinstance(content, bytes) else json.dumps(content).encode()
        with logged() as lines:
            found = self.decoder.decode(RawMessage(payload, 0.0, **about), header)
        self.said += lines
        return found

    def ended(self) -> list[str]:
        """What was said, all of it in whole sentences, and forgets it."""
        said = self.said[:]
        self.said.clear()
        assert all(line.endswith(".") and line.isprintable() for line in said)
        return said


# -- names that nothing comes under ---------------------------------------------------------------------------------


def test_a_channel_that_no_message_has_is_said_once() -> None:
    log = Log(pump=("flow", "presure"))
    for _ in range(EXPECTED_WITHIN - 1):
        log.read({"flow": 1, "pressure": 2.5})
    assert log.ended() == []
    for _ in range(3 * EXPECTED_WITHIN):
        log.read({"flow": 1, "pressure": 2.5})
    assert log.ended() == [
        "pump: none of its first 50 messages has a number under 'presure'; "
        'the last one is {"flow": 1, "pressure": 2.5}; check channels in [sampling].'
    ]
    assert log.counted == []


def test_messages_without_any_channel_are_messages_too() -> None:
    for device in (None, "pump"):
        log = Log(MQTT, pump=("Flow", "Heat"))
        for _ in range(EXPECTED_WITHIN):
            assert log.read({"text": "x" * 200 + "\n"}, device=device) == []
        [line] = log.ended()
        assert line.startswith("pump: none of its first 50 messages has a number under 'Flow' or 'Heat'; the last one")
        assert f'is {{"text": "{"x" * 109}…; check' in line


def test_each_device_of_a_common_input_is_looked_at_by_itself() -> None:
    log = Log(a=("flow",), b=("flow", "heat"), c=("heat",))
    for _ in range(EXPECTED_WITHIN):
        log.read([{"device": "a", "flow": 1}, {"device": "b", "flow": 1}])
        log.read({"device": "c", "heet": 1})
        log.read({"device": "ghost", "heet": 1})
    assert [line.partition(" messages has ")[::2] for line in log.ended()] == [
        (
            "b: none of its first 50",
            "a number under 'heat'; the last one is "
            '[{"device": "a", "flow": 1}, {"device": "b", "flow": 1}]; check channels in [sampling].',
        ),
        (
            "c: none of its first 50",
            'a number under \'heat\'; the last one is {"device": "c", "heet": 1}; check channels in [sampling].',
        ),
    ]


def test_messages_of_others_are_none_of_the_only_device() -> None:
    log = Log(pump=("flow",))
    for _ in range(2 * EXPECTED_WITHIN):
        log.read({"device": "ghost", "flow": 1})
        log.read({"device": "ghost", "heat": 1})
    assert not [line for line in log.ended() if "none of its first" in line]


def test_a_topic_that_names_the_channel_is_said_without_its_payload() -> None:
    log = Log(MQTT, pump=("flow", "presure"))
    for _ in range(EXPECTED_WITHIN):
        log.read(b"1.5", device="pump", channel="flow")
        assert log.ended() == []
        log.read(b"2.5", device="pump", channel="pressure")
    assert log.ended() == [
        "pump: none of its first 100 messages is a number of 'presure'; the last one is of 'pressure'; "
        "check channels in [sampling]."
    ]


def test_once_all_channels_were_seen_nobody_looks_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log(a=("flow",), b=("flow",))
    log.read({"device": "a", "flow": 1})
    log.read({"device": "b", "flow": 1})
    monkeypatch.setattr(UnseenNames, "note", lambda *_: pytest.fail("it looks"))
    monkeypatch.setattr(JsonReader, "devices", lambda *_: pytest.fail("it looks"))
    for _ in range(2 * EXPECTED_WITHIN):
        log.read({"device": "a", "other": 1})
    assert log.ended() == []


def test_a_header_that_lacks_a_channel_is_said_once_and_every_row_is_counted() -> None:
    log = Log(SourceSettings(format="csv"), pump=("flow", "presure"))
    for header in (b"time,flow,pressure", b"flow"):
        for _ in range(2 * EXPECTED_WITHIN):
            assert log.read(b"1,2,3", header) == []
    assert log.ended() == [
        f"pump: The header has no column 'presure'; its columns are: {columns}; check channels in [sampling]."
        for columns in ("time, flow, pressure", "flow")
    ]
    assert len(log.counted) == 4 * EXPECTED_WITHIN
    assert log.read(b"1,2", b"flow,presure") == [Sample("pump", None, {"flow": 1.0, "presure": 2.0})]


# -- times ----------------------------------------------------------------------------------------------------------


def test_the_time_stands_where_the_configuration_says() -> None:
    log = Log(SourceSettings(time_key="created_at"), a=("flow",), b=("flow",))
    content = {"device": "b", "flow": 1, "created_at": 5}
    assert log.read(content) == log.read(content, device="b") == [Sample("b", 5.0, {"flow": 1.0})]
    rows = Log(SourceSettings(format="csv", time_key="created_at"), a=("flow",))
    assert rows.read(b"1,5", b"flow,created_at") == [Sample("a", 5.0, {"flow": 1.0})]


def test_a_time_that_no_message_has_is_said_once_if_it_is_wanted() -> None:
    source, sentence = (
        SourceSettings(time_key="creted_at"),
        (
            "pump: none of its first 50 messages has a time under 'creted_at'; "
            'the last one is {"flow": 1, "created_at": 5}; check time_key in [source].'
        ),
    )
    log = Log(source, pump=("flow",))
    for _ in range(3 * EXPECTED_WITHIN):
        log.read({"flow": 1, "created_at": 5})
    assert log.ended() == [sentence]
    seen = Log(source, pump=("flow",))
    seen.read({"flow": 1, "creted_at": 5})
    devices = {"pump": DeviceSettings(Sampling(("flow",), clock="arrival"))}
    unasked = Log(source, pump=("flow",))
    unasked.decoder = Decoder(source, devices, unasked.counted.append)
    for _ in range(EXPECTED_WITHIN):
        seen.read({"flow": 1})
        unasked.read({"flow": 1})
    assert seen.ended() == unasked.ended() == []


# -- what cannot be used --------------------------------------------------------------------------------------------


def test_the_arrival_says_which_of_two_hours_is_meant() -> None:
    berlin, line = DeviceSettings(Sampling(("flow",), zone="Europe/Berlin")), b'{"time": "2026-10-25T02:30", "flow": 1}'
    first, second = 1792888200.0, 1792891800.0
    table = SourceSettings(kind="stdin", format="csv")
    for arrival in (first, second):
        for source, device, payload, header in (
            (STDIN, None, line, None),
            (MQTT, "a", line, None),
            (table, None, b"2026-10-25T02:30,1", b"time,flow"),
        ):
            message = RawMessage(payload, arrival + 2.0, device)
            (found,) = Decoder(source, {"a": berlin}, print).decode(message, header)
            assert found.time == arrival


def test_values_that_are_no_numbers_are_named_and_the_first_is_quoted() -> None:
    log = Log(pump=("flow", "heat"))
    log.read({"flow": "off", "heat": 1})
    log.read({"flow": 1, "heat": [1]})
    log.read({"heat": "on", "flow": "off"})
    log.read({"flow": 1, "heat": 1})
    assert log.ended() == [
        "pump: 'flow' in a message is 'off', which is not a finite number; send a number, or leave it out.",
        "pump: 'heat' in a message is a list, which is not a finite number; send a number, or leave it out.",
        "pump: 'flow' and 'heat' in a message are not finite numbers, the first is 'off'; "
        "send numbers, or leave them out. Further ones are counted, not logged.",
    ]
    rows = Log(SourceSettings(format="csv"), pump=("flow", "heat"))
    rows.read(b"much,1", b"flow,heat")
    assert rows.ended() == [
        "pump: 'flow' in a message is 'much', which is not a finite number; send a number, or leave it out."
    ]


def test_text_where_a_topic_names_the_channel_should_be_a_number() -> None:
    log = Log(MQTT, pump=("flow",))
    for text, shown in ((b"off", "'off'"), (b"", "''")):
        log.read(text, device="pump", channel="flow")
        assert log.ended() == [
            f"pump: The message of channel 'flow' is {shown}, not a number; "
            'send a bare number or {"value": number}.'
        ]
    log.read(b'{"value": 1', device="pump", channel="flow")
    assert "is not JSON at character" in log.ended()[0]


def test_three_of_each_kind_and_device_are_said() -> None:
    log = Log(a=("flow",), b=("flow",))
    for _ in range(5):
        log.read(b"{")
        log.read({"flow": 1})
        for name in "ab":
            log.read(b"{", device=name)
            log.read({"flow": "off"}, device=name)
    said = log.ended()
    kinds = [
        *("source: The message is not JSON", "source: A message names no device"),
        *(f"{name}: {what}" for name in "ab" for what in ("The message is not JSON", "'flow' in a message is 'off'")),
    ]
    for kind in kinds:
        assert sum(line.startswith(kind) for line in said) == 3
    assert sum(line.endswith(" Further ones are counted, not logged.") for line in said) == len(kinds)
    assert len(said) == 3 * len(kinds)
    assert len(log.counted) == 30


def test_a_message_of_nobody_says_where_its_device_should_stand() -> None:
    log = Log(a=("flow",), b=("flow",))
    log.read({"flow": 1})
    log.read({"flow": 1, "device": "c"})
    assert log.ended() == [
        "source: A message names no device under 'device'; set device_key in [source] to the key that holds the name.",
        "source: A message is from 'c', which is not configured; add it to devices, or keep it away.",
    ]
    nameless = Log(SourceSettings(device_key=""), a=("flow",), b=("flow",))
    nameless.read({"flow": 1})
    assert nameless.ended() == [
        "source: A message names no device; set device_key in [source] to the key that holds the name."
    ]


# -- every device ---------------------------------------------------------------------------------------------------


def test_the_samples_of_any_device_are_found_where_every_one_is_wanted() -> None:
    log = Log(MQTT, **{"*": ("flow",), "pump": ("flow", "heat")})
    line = {"device": "new", "flow": 1, "heat": 2, "time": 5}
    assert log.read(line) == [Sample("new", 5.0, {"flow": 1.0})]
    assert log.read({"flow": 1, "heat": 2}, device="new") == [Sample("new", None, {"flow": 1.0})]
    assert log.read({"flow": 1, "heat": 2}, device="pump") == [Sample("pump", None, {"flow": 1.0, "heat": 2.0})]
    assert log.read({"state": "online"}, device="bridge") == []
    assert (log.ended(), log.counted) == ([], [])
    assert log.read({"flow": 1}) == []
    for number in range(9):  # whoever publishes garbage under many names does not fill the log, nor the memory
        log.read(b"{", device=f"strange-{number}")
    assert len(log.ended()) == 4
    assert log.counted == [""] * 10
    for below in (b"single", b"21.5", b'{"flow": "unknown"}'):  # as zigbee2mqtt has below each device
        assert log.read(below, device="new/action") == []
    assert len(log.counted) == 10
    log.decoder.add("new", DeviceSettings(Sampling(("flow", "heat"))))
    assert log.read({"flow": 1, "heat": 2}, device="new") == [Sample("new", None, {"flow": 1.0, "heat": 2.0})]
