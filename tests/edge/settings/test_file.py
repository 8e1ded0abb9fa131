"""`agent.toml`: what may be written, and one sentence for what may not."""

import os
import re
import tomllib
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkad.detect.detector import KoopmanDetector
from fedkad.edge.device.grid import SampleGrid
from fedkad.edge.settings import AgentSettings, DeviceSettings, Maintenance
from fedkad.edge.settings.file import load, parse
from fedkad.edge.settings.rules import split_broker
from fedkad.settingerror import SettingsError
from fedkad.settingkinds import DURATION
from fedkad.settingsfile import keys_of

LEAST = 'devices = ["pump-1", "pump-2"]\n[sampling]\nchannels = ["flow", "pressure"]\nperiod = 2\n'
HOOK = LEAST + '[webhook]\nurl = "https://x.example"\n'


def parsed(text: str, home: Path = Path("/etc/fedkad")):  # type: ignore[no-untyped-def]
    return parse(tomllib.loads(text), home)


def test_little_is_enough_and_the_rest_follows() -> None:
    settings = parsed(LEAST)
    sampling = settings.devices["pump-1"].sampling
    assert settings.source.kind == "stdin"
    assert settings.stdout.enabled
    assert not settings.mqtt.enabled
    assert (sampling.hold, sampling.silent_after) == (6.0, 20.0)
    assert settings.state == Path("/etc/fedkad/state")
    assert settings.devices["pump-2"].learning.folder == "/etc/fedkad/state/devices/pump-2"


def test_a_device_may_differ() -> None:
    text = LEAST + '[alarm]\nbudget = "1/week"\n[override.pump-2.alarm]\ncool_down = "2h"\n'
    devices = parsed(text).devices
    assert devices["pump-1"].alarm.pause(2.0) == 300.0
    assert devices["pump-2"].alarm.pause(2.0) == 7200.0
    assert devices["pump-2"].alarm.budget == "1/week"


def test_a_name_may_have_levels_and_its_folder_has_one() -> None:
    settings = parsed(LEAST.replace("pump-2", "hall/pump") + '[learning]\nmodel = "{device}.fedkad"')
    learning = settings.devices["hall/pump"].learning
    assert learning.folder == "/etc/fedkad/state/devices/hall%2Fpump"
    assert learning.model == "/etc/fedkad/hall%2Fpump.fedkad"


def test_every_device_that_publishes_has_settings_as_far_as_there_is_room() -> None:
    planned = '[[maintenance]]\ndevice = "new-1"\nfrom = 2026-03-01T08:00:00Z\nuntil = 2026-03-01T09:00:00Z\n'
    head = 'devices = ["pump-1", "*"]\nmost_devices = 4\n' + LEAST.partition("\n")[2]
    settings = parsed(
        head + '[override."hall/lamp".alarm]\ncritical = 5\n[override."*".alarm]\ncritical = 7\n' + planned
    )
    assert list(settings.named) == ["pump-1", "hall/lamp"]
    assert [settings.devices[name].alarm.critical for name in ("pump-1", "hall/lamp", "*")] == [3.0, 5.0, 7.0]
    grown = settings.admitting(["new-1", "*", "a\n", "pump-1", "x" * 101, "hall%2Flamp", "new-2", "new-3"])
    assert list(grown.named) == ["pump-1", "hall/lamp", "new-1", "new-2"]
    assert grown.devices["new-1"].learning.folder == "/etc/fedkad/state/devices/new-1"
    assert grown.devices["new-1"].alarm.critical == 7.0
    assert "most_devices allows no more" in grown.why_not("new-3")
    assert settings.why_not("hall%2Flamp") == "its folder is that of hall/lamp; rename one of them"
    assert settings.why_not("*") == settings.why_not("a+") == "a device cannot have such a name"
    assert "not configured" in parsed(LEAST).why_not("new-1")
    assert parsed(LEAST).admitting(["new-1"]) == parsed(LEAST)


def test_files_are_relative_to_the_configuration_and_absolute_ones_stay() -> None:
    text = LEAST + '[learning]\nmodel = "models/{device}.fedkad"\nfolder = "/var/fleet/{device}"\n'
    learning = parsed(text).devices["pump-1"].learning
    assert learning.model == "/etc/fedkad/models/pump-1.fedkad"
    assert learning.folder == "/var/fleet/pump-1"


def test_a_section_of_a_sink_is_enough_to_want_it() -> None:
    text = LEAST + '[mqtt]\nbroker = "mqtt://localhost"\n[homeassistant]\n'
    settings = parsed(text)
    assert settings.mqtt.enabled
    assert settings.homeassistant.enabled


def test_maintenance_takes_dates_of_both_kinds() -> None:
    text = LEAST + (
        '[[maintenance]]\ndevice = "pump-1"\nfrom = 2026-03-01T08:00:00Z\nuntil = "2026-03-01T10:00:00+00:00"\n'
    )
    (planned,) = parsed(text).maintenance
    assert planned.end - planned.start == 7200.0


def planned(text: str) -> list[float]:
    """When maintenance begins, in hours of the day in UTC."""
    return [each.start / 3600.0 % 24.0 for each in parsed(text).maintenance]


def test_maintenance_without_a_zone_is_in_that_of_the_samples() -> None:
    for moment in ("2026-03-01T08:00:00", '"2026-03-01T08:00"'):
        entry = f"[[maintenance]]\nfrom = {moment}\nuntil = 2026-03-01T23:00:00Z\n"
        assert planned(LEAST + 'zone = "Asia/Tokyo"\n' + entry) == [23.0]
        assert planned(LEAST + 'zone = "UTC"\n' + entry) == [8.0]
        zones = 'zone = "UTC"\n[override.q.sampling]\nzone = "Asia/Tokyo"\n'
        text = BROKER.replace('["p"]', '["p", "q"]').replace("[source]", zones + "[source]")
        entries = entry + entry + 'device = "p"\n' + entry + 'device = "q"\n'
        assert planned(text + 'topics = ["{device}"]\n' + entries) == [8.0, 8.0, 23.0]
    lost = LEAST.replace(', "pump-2"', "") + 'zone = "Mars"\n[override.pump-1.sampling]\nzone = "UTC"\n'
    with pytest.raises(SettingsError, match=re.escape('zone = "Mars" in [sampling] must be local, UTC')):
        parsed(lost + "[[maintenance]]\nfrom = 2026-03-01T08:00:00\nuntil = 2026-03-01T23:00:00\n")


MQTT = 'devices = ["p"]\n[sampling]\nchannels = ["a"]\n[source]\nkind = "mqtt"\n'
BROKER = MQTT + 'broker = "mqtt://x"\n'
WEB = "must be http://… or https://… with a host, a port from 1 to 65535 if any, and neither a user nor spaces"
LEVELS = "must be levels of text, +, {device} and {channel}, each of these once, or # as the last"
BAD = {
    "devices = 3": "devices = 3 must be a list of names",
    'devices = ["a", "a"]': "names of which none is there twice",
    HOOK
    + 'format = "ntfy"': 'url = "https://x.example" in [webhook] must be the address of a topic, such as https://n',
    HOOK + 'format = "telegram"': 'token_file = "" in [webhook] must be a file with the token of the bot',
    HOOK + 'format = "telegram"\ntoken_file = "t"': 'chat = "" in [webhook] must be the number of a chat, such as "-',
    HOOK + 'chat = "1"': 'chat = "1" in [webhook] must be left out, or format "telegram"',
    HOOK + 'chat = "me"': 'chat = "me" in [webhook] must be the number of a chat',
    HOOK + 'headers = {"X y" = "secret"}': 'headers = ["X y"] in [webhook] must be names of headers',
    HOOK + 'headers = {X = "a\\nb"}': 'headers = ["X"] in [webhook] must be names of headers',
    HOOK + 'headers = {Content-Type = "text/plain"}': "must be names of headers, but none that describes the content",
    'devices = ["a+b"]': 'devices = "a+b" must be a name without + #',
    'devices = ["a//b"]': 'devices = "a//b" must be a name without + # { }, control characters and empty levels',
    'devices = ["a/b", "a%2Fb"]\n[sampling]\nchannels = ["x"]': "must be another than that of a/b in [learning]",
    'devices = ["*"]\n[sampling]\nchannels = ["x"]\n[learning]\nfolder = "one"': "must be with {device}, because dev",
    'devices = ["*"]\n[sampling]\nchannels = ["x"]\n[override."a#".alarm]': 'devices = "a#" must be a name without',
    'devices = ["*"]\nmost_devices = 0\n[sampling]\nchannels = ["x"]': "most_devices = 0 must be at least 1",
    'devices = ["p"]\nwrong = 1': "The file has no key 'wrong'. Valid keys: alarm,",
    'devices = ["p"]': "channels = [] in [sampling] must be the names",
    'devices = ["p"]\nsampling = 3': "sampling = 3 must be a section",
    'devices = ["p"]\n[sampling]\nchannels = ["a", "a"]': "none twice",
    LEAST.replace("period = 2", "period = 5e-324"): "period = 5e-324 in [sampling] must be at least 0.0001",
    LEAST + "lateness = -1": "lateness = -1 in [sampling] must be seconds",
    LEAST.replace("period = 2", "period = 0"): "period = 0 in [sampling] must be at least 0.0001",
    LEAST + 'clock = "atomic"': 'clock = "atomic" in [sampling] must be one of message, arrival, count',
    LEAST + 'zone = "Mars/Olympus"': 'zone = "Mars/Olympus" in [sampling] must be local, UTC',
    LEAST + 'colour = "red"': "[sampling] has no key 'colour'. Valid keys: channels,",
    LEAST + '[alarm]\nbudget = "often"': 'budget = "often" in [alarm] must be a number of false alarms',
    LEAST + '[alarm]\nbudget = "1/week"\nthreshold = 3': "are mutually exclusive; keep one.",
    LEAST + '[alarm]\nthreshold = "magic"': 'threshold = "magic" in [alarm] must be a positive number, or one',
    LEAST + "[alarm]\nthreshold = -1": "threshold = -1 in [alarm] must be a positive number",
    LEAST + "[alarm]\nrelease = 2": "release = 2 in [alarm] must be above 0 and at most 1",
    LEAST + "[alarm]\nthreshold = true": "threshold = true in [alarm] must be a string or a finite number",
    LEAST + "[learning]\nfirst = 10": "first = 10 in [learning] must be 200 to 1,000,000 rows",
    LEAST + "[learning]\nevery = 1.5": "every = 1.5 in [learning] must be an integer",
    LEAST + "[detector]\nwindow = 0": "window = 0 in [detector] must be a",
    LEAST + '[detector]\nthreshold = "pot"': "[detector] has no key 'threshold'",
    LEAST + "[override.pump-9.alarm]\ncool_down = 1": "[override.pump-9] is for an unknown device; the devices",
    LEAST + "[override.pump-1]\nsource = 1": "[override.pump-1] has no key 'source'",
    LEAST + '[source]\nkind = "telepathy"': 'kind = "telepathy" in [source] must be one of stdin, file, mqtt',
    LEAST + '[source]\nkind = "file"': 'path = "" in [source] must be the file to follow',
    LEAST + "[mqtt]\nstate_every = 5": 'broker = "" in [mqtt] must be such as mqtt://',
    LEAST + "[homeassistant]\nenabled = true": "[homeassistant] needs [mqtt]",
    LEAST + '[webhook]\nurl = "example.org"': 'url = "example.org" in [webhook] must be http://',
    LEAST + "[prometheus]\nport = 70000": "port = 70000 in [prometheus] must be a port",
    LEAST + "[[maintenance]]\nfrom = 2026-03-01T08:00:00": "until is missing in [[maintenance]]; it must be a date",
    LEAST + "[[maintenance]]\nfrom = 20:00:00": "from = 20:00:00 in [[maintenance]] must be a date and time such "
    'as "2026-03-01T08:00".',
    LEAST
    + "[alarm]\nthreshold = [true, {a = 2026-03-01T08:00:00}]": "threshold = [true, {a = 2026-03-01T08:00:00}] in",
    LEAST
    + "[[maintenance]]\nfrom = 2026-03-01T08:00:00\nuntil = 2026-03-01T07:00:00": "until = 2026-03-01T07:00:00 in "
    "[[maintenance]] must be after 2026-03-01T08:00:00.",
    'name = "a"': "devices is missing; it must be a list of names",
    LEAST + '[[maintenance]]\nfrom = 2026-03-01T08:00:00\nuntil = "later"': 'until = "later" in [[maintenance]]',
    LEAST + "[prometheus]": "[prometheus] has no port; add port = 9108, or remove the section.",
    LEAST + '[prometheus]\naddress = "localhost"': "[prometheus] has no port; add port = 9108, or remove the section.",
    LEAST + '[webhook]\ntoken_file = "t"': '[webhook] has no url; add url = "https://…", or remove the section.',
    LEAST + '[[maintenance]]\ndevice = "x"\n': 'device = "x" in [[maintenance]] must be one of pump-1, pump-2',
    MQTT: 'broker = "" in [source] must be mqtt://host:port',
    MQTT + 'broker = "http://x"': 'broker = "http://x" in [source] must be mqtt://host:port',
    MQTT + 'broker = "mqtt://x"': "topics = [] in [source] must be topics such as",
    MQTT + 'broker = "mqtt://x"\ntopics = ["a/#/{device}"]': 'topics = "a/#/{device}" in [source] must be levels',
    MQTT + 'broker = "mqtt://x"\ntopics = ["a/x{device}"]': "must be levels of text",
    MQTT + 'broker = "mqtt://x"\ntopics = ["a"]\ndevice_key = ""': "with a level {device}",
    MQTT + 'broker = "mqtt://x"\ntopics = ["{device}"]\npassword_file = "p"': 'username = "" in [source] must be given',
    MQTT + 'broker = "mqtt://x"\ntopics = ["{device}"]\nkey_file = "p"': "only one of certificate_file and key_file",
    # Names.
    f'devices = ["{"x" * 101}"]': "must be a name of at most 100 characters",
    f'devices = ["{"ü" * 100}x"]': "must be a name of at most 100 characters",
    'devices = ["a\\u007f"]': "must be a name without + # { }, control characters and",
    'name = "a b"\n' + LEAST: 'name = "a b" must be a name of at most 100 characters without spaces',
    f'name = "{"x" * 101}"\n' + LEAST: "must be a name of at most 100 characters",
    'state = "a\\u0000b"\n' + LEAST: 'state = "a\\u0000b" must be the name of a folder',
    # Sizes.
    f"commit_every = 3601\n{LEAST}": "commit_every = 3601 must be at most an hour",
    f'commit_every = "2h"\n{LEAST}': 'commit_every = "2h" must be at most an hour',
    LEAST + 'lateness = "3651d"': 'lateness = "3651d" in [sampling] must be at most ten years',
    LEAST + "lateness = inf": "lateness = inf in [sampling] must be at most ten years",
    LEAST + "lateness = nan": "lateness = nan in [sampling] must be seconds, or a string",
    LEAST + f"lateness = 1{'0' * 400}": "0000… in [sampling] must be at most ten years",
    LEAST + f"lateness = 0x{'f' * 9000}": "lateness = … in [sampling] must be at most ten years",
    LEAST + f"[learning]\nfirst = {2**62}": f"first = {2**62} in [learning] must be 200 to 1,000,000 rows",
    LEAST + f"[learning]\nevery = {2**62}": f"every = {2**62} in [learning] must be 100 to 1,000,000 rows, "
    "or 0 for never",
    LEAST + "[alarm]\nrelease = nan": "release = nan in [alarm] must be a finite number",
    LEAST + "[alarm]\ncritical = inf": "critical = inf in [alarm] must be a finite number",
    LEAST + f"[alarm]\ncritical = 1{'0' * 400}": "in [alarm] must be a finite number",
    LEAST + f"[alarm]\nthreshold = 1{'0' * 400}": "in [alarm] must be a string or a finite number",
    LEAST + "[detector]\nrank = 189": "rank = 189 in [detector] must be at most 168, the size of a lifted state "
    "(2 channel(s) x window 20 + 128 observables)",
    # Times.
    LEAST + "stale_after = 1": "stale_after = 1.0 in [sampling] must be at least the period, 2 s in [sampling]",
    LEAST + "stale_after = 0": "stale_after = 0.0 in [sampling] must be at least the period, 2 s in [sampling]",
    LEAST + '[[maintenance]]\ndevice = ["p"]': 'device = ["p"] in [[maintenance]] must be one of pump-1, pump-2',
    LEAST + "[[maintenance]]\ndevice = false": "device = false in [[maintenance]] must be one of pump-1, pump-2",
    LEAST + "[[maintenance]]\nfrom = 0001-01-01T00:00:00\nuntil = 2026-03-01T08:00:00": "from = 0001-01-01T00:00:00 in "
    "[[maintenance]] must be a date and time",
    LEAST
    + '[[maintenance]]\nfrom = "0001-01-01T00:00:00"': 'from = "0001-01-01T00:00:00" in [[maintenance]] must be a',
    LEAST + "[[maintenance]]\nfrom = 2026-03-01": "in [[maintenance]] must be a date and time",
    LEAST + "maintenance = 3": "[sampling] has no key 'maintenance'",
    "maintenance = 3\n" + LEAST: "maintenance = 3 must be a list of sections; write [[maintenance]] above each",
    # Addresses.
    LEAST + '[webhook]\nurl = "http://[::1/x"': f'url = "http://[::1/x" in [webhook] {WEB}',
    LEAST + '[webhook]\nurl = "http:///x"': WEB,
    LEAST + '[webhook]\nurl = "http://:80/x"': WEB,
    LEAST + '[webhook]\nurl = "http://x:65536/"': WEB,
    LEAST + '[webhook]\nurl = "http://x:0/"': WEB,
    LEAST + '[webhook]\nurl = "http://x:port/"': WEB,
    LEAST + '[webhook]\nurl = "http://u:p@x/"': WEB,
    LEAST + '[webhook]\nurl = "http://x/a b"': WEB,
    LEAST + '[webhook]\nurl = "http://x/ü"': WEB,
    LEAST + '[webhook]\nurl = "ftp://x/"': WEB,
    LEAST + "[webhook]\ntimeout = 0": "timeout = 0 in [webhook] must be above 0",
    LEAST + '[webhook]\ntimeout = "1d"': 'timeout = "1d" in [webhook] must be at most an hour',
    LEAST + '[webhook]\nca_file = "a\\u0000b"': 'ca_file = "a\\u0000b" in [webhook] must be a string',
    LEAST + '[prometheus]\naddress = "example.org"': 'address = "example.org" in [prometheus] must be an IP address',
    LEAST + '[prometheus]\naddress = ""': 'address = "" in [prometheus] must be an IP address',
    MQTT + 'broker = "mqtt://x:0"': 'broker = "mqtt://x:0" in [source] must be mqtt://host:port',
    MQTT + 'broker = "mqtt://x:65536"': "must be mqtt://host:port",
    MQTT + 'broker = "mqtt://x?a=b"': "must be mqtt://host:port",
    MQTT + 'broker = "mqtt://x/#a"': "must be mqtt://host:port",
    MQTT
    + 'broker = "mqtt://u@x"': "must be mqtt://host:port or mqtts://host:port, and nothing else; put the user into "
    "username, and the password into the file that password_file names.",
    MQTT + 'broker = "mqtt://x y"': "must be mqtt://host:port",
    MQTT + 'broker = "mqtt://[::1"': "must be mqtt://host:port",
    # Topics.
    BROKER + 'topics = [""]': f'topics = "" in [source] {LEVELS}',
    BROKER + 'topics = ["a+/{device}"]': f'topics = "a+/{{device}}" in [source] {LEVELS}',
    BROKER + 'topics = ["a/b#"]': LEVELS,
    BROKER + 'topics = ["#"]': LEVELS,
    BROKER + 'topics = ["a\\u0007/{device}"]': LEVELS,
    BROKER + 'topics = ["{device}/{device}"]': LEVELS,
    MQTT.replace("[source]", 'clock = "count"\n[source]')
    + 'broker = "mqtt://x"\ntopics = ["{device}/{channel}"]': 'clock = "count" in [sampling] must be message or '
    "arrival, since topics in [source] have {channel}",
}
PREFIXES = ("", "ho+me", "a#", "/a", "a/", "a//b", "a b", "a\\u0001", "a\\t")
for _prefix in PREFIXES:
    for _section in ("mqtt", "homeassistant"):
        BAD[BROKER + f'topics = ["{{device}}"]\n[{_section}]\nprefix = "{_prefix}"'] = (
            f"in [{_section}] must be the beginning of a topic, such as a/b, without +, #, spaces or empty levels"
        )


@pytest.mark.parametrize("number", range(len(BAD)))
def test_what_makes_no_sense_is_refused_by_key_value_and_what_is_allowed(number: int) -> None:
    text, sentence = list(BAD.items())[number]
    with pytest.raises(SettingsError, match=re.escape(sentence)) as refusal:
        parsed(text)
    assert str(refusal.value).endswith(".")


IN_AN_OVERRIDE = {
    "sampling": {
        "colour = 1": "[override.pump-1.sampling] has no key 'colour'. Valid keys: channels,",
        "period = 0": "period = 0 in [override.pump-1.sampling] must be at least 0.0001",
        'zone = "Mars/Olympus"': 'zone = "Mars/Olympus" in [override.pump-1.sampling] must be local, UTC',
        'zone = "UTC"': "same for all devices of one input, and pump-1 has 'UTC' by [override.pump-1.sampling]",
        "channels = []": "channels = [] in [override.pump-1.sampling] must be the names of all channels",
        "stale_after = 1": "stale_after = 1.0 in [override.pump-1.sampling] must be at least the period, 2 s in [s",
    },
    "alarm": {
        "colour = 1": "[override.pump-1.alarm] has no key 'colour'. Valid keys: budget,",
        "release = 2": "release = 2 in [override.pump-1.alarm] must be above 0 and at most 1",
        'release = "2"': 'release = "2" in [override.pump-1.alarm] must be a finite number',
        "cool_down = -1": "cool_down = -1 in [override.pump-1.alarm] must be seconds",
        "tolerance = 0.2": "tolerance = 0.2 in [override.pump-1.alarm] must be a table of numbers",
        "tolerance = {flow = 0}": "tolerance = {flow = 0} in [override.pump-1.alarm] must be positive for",
        "tolerance = {heat = 0.2}": 'tolerance = "heat" in [override.pump-1.alarm] must be about channels in [s',
        'budget = "often"': 'budget = "often" in [override.pump-1.alarm] must be a number of false alarms',
        'threshold = "magic"': 'threshold = "magic" in [override.pump-1.alarm] must be a positive number, or one',
        "threshold = -1": "threshold = -1 in [override.pump-1.alarm] must be a positive number",
        'threshold = 3\nbudget = "1/day"': "budget in [override.pump-1.alarm] and threshold in [over",
    },
    "learning": {
        "first = 10": "first = 10 in [override.pump-1.learning] must be 200 to 1,000,000 rows",
        'folder = "devices/pump-2"': "in [learning] must be another than that of pump-1 in [override.pump-1.learning]: "
        "each device needs its own folder; use {device}",
    },
    "detector": {
        "colour = 1": "[override.pump-1.detector] has no key 'colour'. Valid keys: horizon,",
        "window = 0": "window = 0 in [override.pump-1.detector] must be a",
        'window = "a"': 'window = "a" in [override.pump-1.detector] must be an integer',
        "rank = 500": "rank = 500 in [override.pump-1.detector] must be at most 168",
        "observables = 0\nwindow = 2": "rank = 24 in [override.pump-1.detector] must be at most 4",
        'inputs = ["flow", "flwo"]': 'inputs = "flwo" in [override.pump-1.detector] must be channels in [sampling]',
    },
}


@pytest.mark.parametrize("section", IN_AN_OVERRIDE)
def test_what_is_wrong_in_the_section_of_a_device_is_said_of_that_section(section: str) -> None:
    for text, sentence in IN_AN_OVERRIDE[section].items():
        with pytest.raises(SettingsError, match=re.escape(sentence)):
            parsed(LEAST + f"[override.pump-1.{section}]\n{text}")
    with pytest.raises(SettingsError, match=re.escape(f"override.pump-1.{section} = 3 must be a section")):
        parsed(LEAST + f"[override.pump-1]\n{section} = 3")
    common = "" if section == "sampling" else f"[{section}]\n"
    with pytest.raises(SettingsError, match=re.escape(f"[{section}] has no key 'colour'")):
        parsed(LEAST + f"{common}colour = 1\n[override.pump-1.{section}]")


def test_what_is_wrong_between_two_sections_names_both() -> None:
    with pytest.raises(
        SettingsError, match=re.escape("budget in [alarm] and threshold in [override.pump-1.alarm] are")
    ):
        parsed(LEAST + '[alarm]\nbudget = "1/day"\n[override.pump-1.alarm]\nthreshold = 3')
    with pytest.raises(
        SettingsError,
        match=re.escape("stale_after = 5.0 in [sampling] must be at least the period, 60 s in [override.p"),
    ):
        parsed(LEAST + "stale_after = 5\n[override.pump-1.sampling]\nperiod = 60")
    text = LEAST + '[detector]\ninputs = ["flow"]\n[override.pump-2.sampling]\nchannels = ["heat"]'
    with pytest.raises(SettingsError, match=re.escape('"flow" in [detector] must be channels in [override.pump-2.sam')):
        parsed(text)
    with pytest.raises(SettingsError, match=re.escape('inputs = "flwo" in [detector] must be channels in [sampling]')):
        parsed(LEAST.replace('["pump-1", "pump-2"]', '["*"]') + '[detector]\ninputs = ["flwo"]')
    text = BROKER + 'topics = ["{device}/{channel}"]\n[override.p.sampling]\nclock = "count"'
    with pytest.raises(SettingsError, match=re.escape('clock = "count" in [override.p.sampling] must be message or')):
        parsed(text)


def test_messages_that_say_whose_they_are_only_inside_are_of_one_zone() -> None:
    zones = '[override.p.sampling]\nzone = "UTC"\n[override.q.sampling]\nzone = "Asia/Tokyo"\n'
    both = BROKER.replace('["p"]', '["p", "q"]')
    assert both != BROKER
    parsed(both + f'topics = ["a/{{device}}", "{{device}}/+"]\n{zones}')
    for topics in ('["a/b"]', '["a/{device}", "a/{channel}"]'):
        text = both + f'topics = {topics}\ndevice_key = "device"\n{zones}'
        sentence = 'zone = "Asia/Tokyo" in [override.q.sampling] must be the same for all devices of one input'
        with pytest.raises(SettingsError, match=re.escape(sentence)):
            parsed(text)


def test_every_device_has_a_folder_of_its_own(tmp_path: Path) -> None:
    sentence = re.escape("each device needs its own folder; use {device}")
    for folder in ("devices", "", "{device}/../same"):
        with pytest.raises(SettingsError, match=sentence):
            parsed(LEAST + f'[learning]\nfolder = "{folder}"')
    parsed(LEAST.replace(', "pump-2"', "") + '[learning]\nfolder = "devices"')
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "pump-2").symlink_to("pump-1")
    with pytest.raises(SettingsError, match=sentence):
        parsed(LEAST + '[learning]\nfolder = "{device}"', tmp_path)


def test_no_gap_is_carried_over_if_so_it_is_written() -> None:
    for text, gap, stale in (("", 6.0, 20.0), ("max_gap = 0", 0.0, 20.0), ("max_gap = 60", 60.0, 120.0)):
        sampling = parsed(LEAST + text).devices["pump-1"].sampling
        assert (sampling.hold, sampling.silent_after) == (gap, stale)
    assert parsed(LEAST + "stale_after = 2").devices["pump-1"].sampling.silent_after == 2.0
    text = LEAST + "[override.pump-2.sampling]\nmax_gap = 0\n"
    carried = {}
    for name, device in parsed(text).devices.items():
        grid = SampleGrid(device.sampling)
        for moment, values in ((0.0, {"flow": 1.0, "pressure": 2.0}), (2.0, {"flow": 3.0}), (8.0, {"flow": 4.0})):
            grid.add(moment, values)
        last = grid.flush()[-1].values
        assert last[0] == 4.0
        assert np.isnan(last[1])
        carried[name] = grid.carried
    assert carried["pump-1"] > 0
    assert carried["pump-2"] == 0


@pytest.mark.parametrize(
    "text",
    [
        BROKER + 'topics = ["$share/group/plant/{device}", "/a//{device}/+", "b/{device}/#", "+/{device}"]',
        BROKER + 'topics = ["{device}"]\n[mqtt]\nprefix = "plant/hall-1"\n[homeassistant]\nprefix = "ha"',
        LEAST + '[webhook]\nurl = "https://[::1]:8443/hook?key=1"',
        LEAST + '[webhook]\nurl = "http://bücher.example/x"',
        LEAST + '[prometheus]\naddress = "::1"\nport = 9108',
        LEAST + '[prometheus]\naddress = "localhost"\nport = 9108',
        LEAST + '[prometheus]\naddress = "0.0.0.0"\nport = 0',
        LEAST + '[webhook]\nurl = ""',
        LEAST + '[source]\ntime_key = "created_at"',
        LEAST + 'lateness = "1 min"\nmax_gap = "5min"\nstale_after = "1.5 h"',
        f"commit_every = 3600\n{LEAST}",
        LEAST + 'max_gap = "3650d"',
        LEAST + "[learning]\nfirst = 1000000\nevery = 1000000",
        f'devices = ["{"x" * 100}"]\n[sampling]\nchannels = ["a"]',
        LEAST + "[detector]\nrank = 168",
        LEAST + '[detector]\ninputs = ["pressure"]',
        LEAST.replace('"flow"', '"1"') + '[detector]\ninputs = ["1"]',
        LEAST + '[[maintenance]]\nfrom = "0001-01-01T00:00:00+00:00"\nuntil = 9999-12-31T00:00:00Z',
        BROKER + 'topics = ["{device}"]\n[override.p.sampling]\nclock = "count"',
    ],
)
def test_what_makes_sense_is_taken(text: str) -> None:
    parsed(text)


@pytest.mark.parametrize("user", ["me:secret", "me:se/cret", "me:se@cret", "secret"])
def test_no_error_shows_a_password(user: str) -> None:
    broker = BROKER.replace("//x", "//y") + 'topics = ["{device}"]\n'
    for text in (
        *(MQTT + f'broker = "{scheme}{user}@host"' for scheme in ("mqtt://", "mqtts://", "http://", "")),
        broker + f'[mqtt]\nbroker = "mqtt://{user}@host"',
        LEAST + f'[webhook]\nurl = "https://{user}@host"',
    ):
        with pytest.raises(SettingsError, match="@host") as refusal:
            parsed(text)
        assert "cret" not in str(refusal.value)
        assert ("username" in str(refusal.value)) == ("broker" in str(refusal.value))


def test_a_broker_is_split() -> None:
    assert split_broker("mqtt://[::1]:1884/", "source") == ("::1", 1884, False)
    assert split_broker("mqtts://broker", "source") == ("broker", 8883, True)


# -- types ----------------------------------------------------------------------------------------------------------

SECTIONS = {key: entry.kind for key, entry in keys_of(AgentSettings).items() if isinstance(entry.kind, type)}
OF_A_DEVICE = {key: entry.kind for key, entry in keys_of(DeviceSettings).items() if isinstance(entry.kind, type)}
SECTIONS = {key: kind for key, kind in SECTIONS.items() if is_dataclass(kind)}
DURATIONS = {
    key
    for kind in (AgentSettings, *SECTIONS.values(), *OF_A_DEVICE.values())
    for key, entry in keys_of(kind).items()
    if entry.kind is DURATION
}
DEFAULTS: dict[tuple[str, str], Any] = {
    (section, entry.name): getattr(kind(), entry.name)
    for section, kind in {**SECTIONS, **OF_A_DEVICE}.items()
    for entry in fields(kind)
}
DEFAULTS |= {
    ("detector", key): value
    for key, value in KoopmanDetector().get_params().items()
    if key not in ("threshold", "sample_period")
}
DEFAULTS |= {("", "name"): "", ("", "state"): "", ("", "commit_every"): 1.0, ("", "devices"): ()}
DEFAULTS |= {("maintenance", key): "" for key in keys_of(Maintenance)}
VALUES: tuple[Any, ...] = ("text", 3, -7, 1.5, float("nan"), float("inf"), True, False, [], [3], [["a"]], {}, {"a": 1})


def fits(default: Any, key: str, value: Any) -> bool:
    """Whether a value is of the type of the key."""
    if key == "threshold":
        return type(value) in (str, int, float)
    if key in DURATIONS or isinstance(default, float):
        return type(value) in (int, float)
    if isinstance(default, tuple):
        return bool(value == [])
    return type(value) is type(default)


def with_value(section: str, key: str, value: Any, device: str = "") -> dict[str, Any]:
    document = tomllib.loads(LEAST)
    if section == "maintenance":
        planned = {"from": "2026-03-01T08:00", "until": "2026-03-01T09:00", key: value}
        return {**document, section: [planned]}
    place = document.setdefault("override", {}).setdefault(device, {}) if device else document
    (place.setdefault(section, {}) if section else place)[key] = value
    return document


@pytest.mark.parametrize(("section", "key"), DEFAULTS)
def test_a_value_of_a_wrong_type_is_refused_for_every_key(section: str, key: str) -> None:
    own = section in (*OF_A_DEVICE, "detector")
    wrong = [value for value in VALUES if not fits(DEFAULTS[section, key], key, value)]
    assert len(wrong) >= 7
    for value in wrong:
        for device in ("", "pump-1") if own else ("",):
            with pytest.raises(SettingsError, match=rf"^{key} = ") as refusal:
                parse(with_value(section, key, value, device), Path("/etc/fedkad"))
            place = (
                f"override.{device}.{section}" if device else f"[{section}]" if section == "maintenance" else section
            )
            assert f" in [{place}] must be " in str(refusal.value) or not section
            assert str(refusal.value).endswith(".")


TOML = st.recursive(
    st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.datetimes(), st.dates(), st.times()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
PLACES = [*DEFAULTS, *(("", section) for section, _ in DEFAULTS), ("", "override"), ("override", "pump-1")]


@given(st.sampled_from(PLACES), TOML, st.sampled_from(["", "pump-1"]))
def test_whatever_is_written_is_taken_or_refused(place: tuple[str, str], value: Any, device: str) -> None:
    section, key = place
    own = device if section in (*OF_A_DEVICE, "detector") else ""
    with suppress(SettingsError):  # anything else would reach the operator as a traceback
        parse(with_value(section, key, value, own), Path("/etc/fedkad"))


# -- files ----------------------------------------------------------------------------------------------------------


def test_the_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    with pytest.raises(SettingsError, match="there is no such file"):
        load(path)
    path.write_text("devices = [")
    with pytest.raises(SettingsError, match=re.escape(str(path))):
        load(path)
    path.write_text("devices = 3")
    with pytest.raises(SettingsError, match=re.escape(f"{path}: devices = 3")):
        load(path)
    path.write_text("devices = " + "[" * 5000)
    with pytest.raises(SettingsError, match=re.escape(f"{path}: lists or tables are nested too deeply")):
        load(path)
    path.write_text(f"devices = {'9' * 5000}")
    with pytest.raises(SettingsError, match=re.escape(f"{path}: ") + r".*; correct it\.$"):
        load(path)
    path.write_bytes(b"name = '\xff'")
    with pytest.raises(SettingsError, match=re.escape(f"{path}: ") + r".*; correct it\.$"):
        load(path)


def test_a_folder_or_an_unreadable_file_is_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=re.escape(f"{tmp_path}: Is a directory; name a file that can be read.")):
        load(tmp_path)
    loop = tmp_path / "loop.toml"
    loop.symlink_to(loop)
    with pytest.raises(SettingsError, match=r"loop\.toml: Too many levels .*; name a file that can be read\.$"):
        load(loop)
    closed = tmp_path / "closed.toml"
    closed.write_text(LEAST)
    closed.chmod(0)
    if os.geteuid():  # nothing is closed to root
        with pytest.raises(SettingsError, match=r"closed\.toml: Permission denied; name a file that can be read\.$"):
            load(closed)
