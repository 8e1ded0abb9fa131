"""What an operator can tell: read from text and JSON, refused in one sentence, and held until told otherwise."""

import json
from contextlib import suppress
from datetime import UTC

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkad.edge.commands.command import (
    LONGEST_MUTE,
    VERBS,
    Command,
    CommandError,
    Stretch,
    budget_of,
    check,
    mute_of,
    read_command,
    stretch_of,
)
from fedkad.edge.device.overrides import Overrides
from fedkad.edge.settings import Alarm, DeviceSettings

DEVICES = ["pump", "fan"]


def command(verb: str, argument: str = "", **more: str) -> Command:
    return Command(more.get("id", "1"), more.get("device", "pump"), verb, argument, more.get("sender", "anna"), 100.0)


@pytest.mark.parametrize(
    ("verb", "argument"),
    [
        ("normal", ""),
        ("normal", "pump-20260301T080000Z-4"),
        ("normal", "2026-03-01T08:00Z/2026-03-01T10:00+01:30"),
        ("mute", "0"),
        ("mute", "90s"),
        ("mute", "2h"),
        ("acknowledge", ""),
        ("acknowledge", "pump-20260301T080000Z-4"),
        ("relearn", ""),
        ("budget", "2/week"),
        ("budget", "0.5 per day"),
        ("budget", "default"),
        ("undo", ""),
    ],
)
def test_what_can_be_told(verb: str, argument: str) -> None:
    told = command(verb, argument)
    assert check(told, DEVICES) is told


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        (command("silence"), "There is no command 'silence'; tell one of normal, mute"),
        (command(""), "There is no command ''"),
        (command("Mute", "2h"), "There is no command 'Mute'"),
        (command("mute"), "mute '' must be a time such as"),
        (command("mute", "2 weeks"), "mute '2 weeks' must be a time such as"),
        (command("mute", "400d"), "at most a year"),
        (command("mute", "-1h"), "must be a time"),
        (command("budget", "few"), "budget 'few' must be a number of false alarms such as 2/week, or default"),
        (command("budget", "0/week"), "must be a number of false alarms"),
        (command("relearn", "now"), "relearn takes no argument, and not 'now'."),
        (command("undo", "all"), "undo takes no argument"),
        (command("normal", "08:00/soon"), "must be an incident, or two times such as"),
        (command("normal", "2026-03-01T09:00/2026-03-01T08:00"), "must end after it begins"),
        (command("mute", "2h", device="pmup"), "There is no device 'pmup'; the devices are pump, fan."),
        (command("mute", "2h", id=""), "The id of a command must not be empty"),
        (command("mute", "2h", id="x" * 201), "must be at most 200 printable characters"),
        (command("mute", "2h", sender="an\nna"), "The name of the sender 'an\\nna' must be"),
    ],
)
def test_what_cannot_be_told_is_refused_in_one_sentence(told: Command, sentence: str) -> None:
    with pytest.raises(CommandError) as refused:
        check(told, DEVICES)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
    assert str(refused.value).endswith(".")


def test_a_message_is_json_or_text() -> None:
    sent = {"id": "7", "verb": "mute", "argument": "2h", "from": "Anna"}
    assert read_command(json.dumps(sent).encode(), "pump", 5.0) == Command("7", "pump", "mute", "2h", "Anna", 5.0)
    bare = read_command(b" normal\n", "pump", 5.0)
    assert (bare.verb, bare.argument, bare.sender) == ("normal", "", "")
    assert bare.id != read_command(b"normal", "pump", 5.0).id
    assert read_command(b'{"verb": "mute", "argument": 0}', "pump", 5.0).argument == "0"


@pytest.mark.parametrize(
    ("payload", "sentence"),
    [
        (b'{"verb": "mute"', "must be JSON such as"),
        (b'{"verb": "mute", "for": "2h"}', "and not 'for'"),
        (b'{"verb": ["mute"]}', "verb in a command must be a string, not a list"),
        (b'{"verb": true}', "must be a string, not True"),
        (b'{"id": "\\ud800", "verb": "undo"}', "id in a command must be whole characters"),
        (b'{"verb": "normal", "argument": "a\\udfff"}', "argument in a command must be whole characters"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"{" * 100_000, "must be JSON"),
    ],
)
def test_a_message_that_is_no_command_is_refused(payload: bytes, sentence: str) -> None:
    with pytest.raises(CommandError, match=sentence):
        read_command(payload, "pump", 0.0)


@given(st.binary(max_size=200))
def test_no_message_is_more_than_refused(payload: bytes) -> None:
    with suppress(CommandError):
        assert check(read_command(payload, "pump", 0.0), DEVICES).verb in VERBS


def test_arguments() -> None:
    assert stretch_of(command("normal")) == Stretch("")
    assert stretch_of(command("normal", "1970-01-01T00:01 / 1970-01-01T00:02"), UTC) == Stretch("", 60.0, 120.0)
    assert mute_of(command("mute", "366d")) == LONGEST_MUTE
    assert budget_of(command("budget", "default")) == ""
    assert set(VERBS) == {"normal", "mute", "acknowledge", "relearn", "budget", "undo"}


@given(st.floats(0.0, 2e9), st.floats(0.1, 1e6), st.floats(-1e3, 2e9 + 1e6))
def test_mute_is_the_time_from_the_command_on(since: float, seconds: float, moment: float) -> None:
    orders = Overrides(budget="2/week").muted(since, seconds)
    assert orders.is_muted(moment) == (since <= moment < since + seconds)
    assert orders.is_muted(-1.0, moment) == orders.is_muted(moment)
    again = Overrides.restored(json.loads(json.dumps(orders.state())))
    assert again == orders
    assert not orders.muted(moment, 0.0).is_muted(moment)
    assert orders.muted(moment, 0.0).budget == "2/week"


def test_a_budget_replaces_what_is_configured_until_it_is_told_otherwise() -> None:
    settings = DeviceSettings(alarm=Alarm(threshold=7.0, clear_after=3.0))
    told = Overrides(budget="2/week").applied(settings)
    assert (told.alarm.budget, told.alarm.threshold, told.alarm.clear_after) == ("2/week", "", 3.0)
    assert Overrides().applied(settings) is settings
    assert Overrides.restored({}) == Overrides()
