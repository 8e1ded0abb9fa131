"""`agent.toml`: what may be written, and one sentence for what may not."""

import re
import tomllib
from pathlib import Path

import pytest

from fedkad.edge.settings import SettingsError
from fedkad.edge.settingsfile import load, parse

LEAST = 'devices = ["pump-1", "pump-2"]\n[sampling]\nchannels = ["flow", "pressure"]\nperiod = 2\n'


def parsed(text: str, home: Path = Path("/etc/fedkad")):  # type: ignore[no-untyped-def]
    return parse(tomllib.loads(text), home)


def test_little_is_enough_and_the_rest_follows() -> None:
    settings = parsed(LEAST)
    sampling = settings.devices["pump-1"].sampling
    assert settings.source.kind == "stdin"
    assert settings.stdout.enabled
    assert not settings.mqtt.enabled
    assert (sampling.max_gap, sampling.stale_after) == (6.0, 20.0)
    assert settings.state == Path("/etc/fedkad/state")
    assert settings.devices["pump-2"].learning.folder == "/etc/fedkad/state/devices/pump-2"


def test_a_device_may_differ() -> None:
    text = LEAST + '[alarm]\nbudget = "1/week"\n[override.pump-2.alarm]\ncool_down = "2h"\n'
    devices = parsed(text).devices
    assert devices["pump-1"].alarm.cool_down == 300.0
    assert devices["pump-2"].alarm.cool_down == 7200.0
    assert devices["pump-2"].alarm.budget == "1/week"


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


MQTT = 'devices = ["p"]\n[sampling]\nchannels = ["a"]\n[source]\nkind = "mqtt"\n'
BAD = {
    "devices = 3": "devices = 3 must be a list of names",
    'devices = ["a", "a"]': "'a' is there twice",
    'devices = ["a/b"]': "'a/b' must be a name without /",
    'devices = ["p"]\nwrong = 1': "there is no 'wrong'; known are name,",
    'devices = ["p"]': "channels = [] in [sampling] must be the names",
    'devices = ["p"]\nsampling = 3': "sampling = 3 must be a section",
    'devices = ["p"]\n[sampling]\nchannels = ["a", "a"]': "none twice",
    LEAST + "lateness = -1": "lateness = -1 in [sampling] must be seconds",
    LEAST.replace("period = 2", "period = 0"): "period = 0.0 in [sampling] must be above 0",
    LEAST + 'clock = "atomic"': "clock = 'atomic' in [sampling] must be one of message, arrival, count",
    LEAST + 'zone = "Mars/Olympus"': "zone = 'Mars/Olympus' in [sampling] must be local, UTC",
    LEAST + 'colour = "red"': "[sampling] has no 'colour'; it knows channels,",
    LEAST + '[alarm]\nbudget = "often"': "budget = 'often' in [alarm] must be a number of false alarms",
    LEAST + '[alarm]\nbudget = "1/week"\nthreshold = 3': "exclude each other",
    LEAST + '[alarm]\nthreshold = "magic"': "threshold = 'magic' in [alarm] must be a number, or one of pot",
    LEAST + "[alarm]\nthreshold = -1": "threshold = -1 in [alarm] must be above 0",
    LEAST + "[alarm]\nrelease = 2": "release = 2 in [alarm] must be above 0 and at most 1",
    LEAST + "[alarm]\nthreshold = true": "threshold = True in [alarm] must be a number",
    LEAST + "[learning]\nfirst = 10": "first = 10 in [learning] must be 200 rows or more",
    LEAST + "[learning]\nevery = 1.5": "every = 1.5 in [learning] must be a whole number",
    LEAST + "[detector]\nwindow = 0": "[detector]: window=0 must be a whole number above 0",
    LEAST + '[detector]\nthreshold = "pot"': "[detector] has no 'threshold'",
    LEAST + "[override.pump-9.alarm]\ncool_down = 1": "[override.pump-9] is of no device; the devices are pump-1",
    LEAST + "[override.pump-1]\nsource = 1": "[override.pump-1] has no 'source'",
    LEAST + '[source]\nkind = "telepathy"': "kind = 'telepathy' in [source] must be one of stdin, file, mqtt",
    LEAST + '[source]\nkind = "file"': "path = '' in [source] must be the file to follow",
    LEAST + "[mqtt]\nstate_every = 5": "broker = '' in [mqtt] must be such as mqtt://",
    LEAST + "[homeassistant]\nenabled = true": "[homeassistant] needs [mqtt]",
    LEAST + '[webhook]\nurl = "example.org"': "url = 'example.org' in [webhook] must be http://",
    LEAST + "[prometheus]\nport = 70000": "port = 70000 in [prometheus] must be a port",
    LEAST + "[[maintenance]]\nfrom = 2026-03-01T08:00:00": "until = None in [[maintenance]] must be a date",
    LEAST + '[[maintenance]]\ndevice = "x"\n': "device = 'x' in [[maintenance]] must be one of pump-1, pump-2",
    MQTT: "broker = '' in [source] must be mqtt://host:port",
    MQTT + 'broker = "http://x"': "broker = 'http://x' in [source] must be mqtt://host:port",
    MQTT + 'broker = "mqtt://x"': "topics = [] in [source] must be topics such as",
    MQTT + 'broker = "mqtt://x"\ntopics = ["a/#/{device}"]': "topics = 'a/#/{device}' in [source] must be levels",
    MQTT + 'broker = "mqtt://x"\ntopics = ["a/x{device}"]': "must be levels of text",
    MQTT + 'broker = "mqtt://x"\ntopics = ["a"]\ndevice_key = ""': "with a level {device}",
    MQTT + 'broker = "mqtt://x"\ntopics = ["{device}"]\npassword_file = "p"': "username = '' in [source] must be given",
    MQTT + 'broker = "mqtt://x"\ntopics = ["{device}"]\nkey_file = "p"': "certificate_file or key_file alone",
}


@pytest.mark.parametrize("number", range(len(BAD)))
def test_what_makes_no_sense_is_refused_by_key_value_and_what_is_allowed(number: int) -> None:
    text, sentence = list(BAD.items())[number]
    with pytest.raises(SettingsError, match=re.escape(sentence)) as refusal:
        parsed(text)
    assert str(refusal.value).endswith(".")


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
