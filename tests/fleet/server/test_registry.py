"""`devices.json`, `fleet.toml` and `device.toml`: what is written is read back, and what is wrong is named."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedkad import locks
from fedkad.fleet import flower
from fedkad.fleet.device.settings import load_device
from fedkad.fleet.server import registry, settings
from fedkad.fleet.server.registry import DeviceError, Registry
from fedkad.fleet.server.settings import FleetSettings, ModelSettings, Place, Privacy, TrainingSettings
from fedkad.fleet.shared import devicefolder
from fedkad.fleet.shared.devicefolder import DeviceFolder
from fedkad.fleet.shared.files import FleetFileError
from fedkad.settingerror import SettingError, SettingsError, UnknownSettingError

ODD = ("plain", "with space", "it's", 'a "quoted" one', "both ' and \"", "back\\slash", "ünïcode", "equals=x", "$HOME")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    registry.write(tmp_path / "devices.json", {})
    return tmp_path / "devices.json"


def enter(path: Path, *names: str) -> None:
    with registry.changing(path) as devices:
        for name in names:
            registry.add(devices, name, f"key of {name}")


def test_devices_are_read_back_in_their_order(path: Path) -> None:
    enter(path, "pump-2", "pump-1", "x.y_z")
    assert list(registry.read(path)) == ["pump-2", "pump-1", "x.y_z"]
    assert registry.read(path)["pump-1"].public_key == "key of pump-1"
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["", "a b", "../x", ".", "..", ".hidden", "-rf", "a/b", "ä", "a\n", "x" * 65, "a;b"])
def test_odd_names_are_refused(path: Path, name: str) -> None:
    with pytest.raises(DeviceError, match="cannot be the name"):
        enter(path, name)
    assert registry.read(path) == {}


def test_a_name_stays_taken(path: Path) -> None:
    enter(path, "pump")
    with pytest.raises(DeviceError, match="already registered"):
        enter(path, "pump")
    with registry.changing(path) as devices:
        registry.revoke(devices, "pump")
    with pytest.raises(DeviceError, match="fleet renew"):
        enter(path, "pump")
    assert registry.active(registry.read(path)) == {}


def test_a_renewed_device_takes_part_again_with_its_new_key(path: Path) -> None:
    enter(path, "pump")
    added = registry.read(path)["pump"].added
    with registry.changing(path) as devices:
        registry.revoke(devices, "pump")
        registry.renew(devices, "pump", "another")
    device = registry.active(registry.read(path))["pump"]
    assert (device.public_key, device.added, device.revoked) == ("another", added, None)


def test_unknown_devices_cannot_be_revoked_or_renewed(path: Path) -> None:
    with pytest.raises(DeviceError, match="no device x"), registry.changing(path) as devices:
        registry.revoke(devices, "x")
    with pytest.raises(DeviceError, match="no device x"), registry.changing(path) as devices:
        registry.renew(devices, "x", "key")
    enter(path, "x")
    with registry.changing(path) as devices:
        registry.revoke(devices, "x")
    with pytest.raises(DeviceError, match="already"), registry.changing(path) as devices:
        registry.revoke(devices, "x")


def test_two_devices_never_share_a_key(path: Path) -> None:
    with registry.changing(path) as devices:
        registry.add(devices, "one", "key")
    with pytest.raises(DeviceError, match="that of one"), registry.changing(path) as devices:
        registry.add(devices, "two", "key")
    with pytest.raises(DeviceError, match="the one it has"), registry.changing(path) as devices:
        registry.renew(devices, "one", "key")


def test_nothing_is_written_after_a_failure(path: Path) -> None:
    enter(path, "one")

    def fail(devices: Registry) -> None:
        registry.revoke(devices, "one")
        raise RuntimeError

    with pytest.raises(RuntimeError), registry.changing(path) as devices:
        fail(devices)
    assert registry.read(path)["one"].revoked is None


def test_devices_can_be_added_concurrently(path: Path) -> None:
    threads = [threading.Thread(target=enter, args=(path, f"pump-{k}")) for k in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(registry.read(path)) == 12


def test_a_change_writes_one_line_however_many_devices_there_are(path: Path) -> None:
    enter(path, *(f"pump-{k}" for k in range(3000)))
    before = path.read_bytes()
    enter(path, "late")
    with registry.changing(path) as devices:
        registry.revoke(devices, "pump-7")
    after = path.read_bytes()
    assert after.startswith(before)
    assert len(after) - len(before) < 300
    found = registry.read(path)
    assert (len(found), found["pump-7"].revoked is None) == (3001, False)
    assert list(found)[7] == "pump-7", "it keeps its place"


def test_entries_that_are_replaced_do_not_pile_up(path: Path) -> None:
    enter(path, "a", "b")
    for k in range(50):
        with registry.changing(path) as devices:
            registry.renew(devices, "a", f"key {k}")
    assert path.read_text().count('"a"') <= 4
    assert registry.read(path)["a"].public_key == "key 49"


@pytest.mark.parametrize("torn", ['{"name": "c", "publ', '{"name": "c"}', "{"])
def test_a_line_that_was_not_written_to_its_end_counts_for_nothing(path: Path, torn: str) -> None:
    enter(path, "a", "b")
    with path.open("a") as file:
        file.write(torn)
    assert list(registry.read(path)) == ["a", "b"]
    enter(path, "c")
    assert list(registry.read(path)) == ["a", "b", "c"]


def test_a_list_without_a_last_line_feed_takes_another_device(path: Path) -> None:
    enter(path, "a", "b")
    registry.write(path, registry.read(path))
    path.write_text(path.read_text().rstrip())
    enter(path, "c")
    assert list(registry.read(path)) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "content",
    [
        '{"devices": []}\n{\n',
        "",
        "[]",
        '{"devices": [{"name": "x"}]}',
        '{"devices": [1]}',
        '{"devices": [{"name": "x", "public_key": null, "added": "2026-01-01T00:00:00+00:00"}]}',
    ],
)
def test_a_broken_list_is_named(path: Path, content: str) -> None:
    path.write_text(content)
    with pytest.raises(FleetFileError, match=r"devices\.json: this is not a list of devices"):
        registry.read(path)


def test_a_lock_is_held_by_one_and_lost_with_its_holder(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    assert not locks.is_held(lock)
    with locks.holding(lock, "taken"):
        assert locks.is_held(lock)
        with pytest.raises(locks.HeldError, match="taken"), locks.holding(lock, "taken"):
            pass
    assert not locks.is_held(lock)


# -- settings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channel", ODD)
def test_settings_are_read_back(tmp_path: Path, channel: str) -> None:
    chosen = FleetSettings(
        Place("fd00::1", 20001, 20002), ModelSettings((channel, "b")), TrainingSettings(every="24h", robust=True)
    )
    settings.save(tmp_path, chosen)
    assert settings.load(tmp_path) == chosen


def test_settings_under_their_names_of_the_release_before_are_read_and_written_under_the_present_ones(
    tmp_path: Path,
) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(
        '[model]\nchannels = ["a"]\n[training]\nleast = 4\n[notice]\ninvite = 7\nby_call = false\n', encoding="utf-8"
    )
    before = settings.load(tmp_path)
    assert before.training.min_devices == 4
    assert (before.notice.devices_per_training, before.notice.on_demand) == (7, False)
    settings.save(tmp_path, before)
    assert "min_devices = 4\n" in path.read_text()
    assert settings.load(tmp_path) == before
    path.write_text('[model]\nchannels = ["a"]\n[training]\nleast = 4\nmin_devices = 5\n', encoding="utf-8")
    with pytest.raises(SettingsError, match="least"):
        settings.load(tmp_path)


def test_a_period_that_makes_no_sense_is_named(tmp_path: Path) -> None:
    settings.save(tmp_path, FleetSettings(model=ModelSettings(("a",)), training=TrainingSettings(every="often")))
    with pytest.raises(SettingsError, match=r'fleet\.toml: every = "often" in .training. must be'):
        settings.load(tmp_path)
    for text in ("0h", "-1h", "5", "h", "1 x", "5w"):
        with pytest.raises(SettingError, match="must be"):
            settings.check(FleetSettings(model=ModelSettings(("a",)), training=TrainingSettings(every=text)))


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("address", "https://x", "a host name or an IP address, without a port and without https://"),
        ("address", "", "a host name or an IP address"),
        ("address", "[::1]", "a host name or an IP address"),
        ("bind", "fe80::1", "that does not begin with fe80"),
        ("bind", "fe80::1%lo", "that does not begin with fe80"),
        ("bind", "fd00::1%lo", "an IP address of this machine"),
    ],
)
def test_where_a_server_cannot_be_is_named_when_its_settings_are_read(
    tmp_path: Path, key: str, value: str, words: str
) -> None:
    settings.save(tmp_path, FleetSettings(Place("x"), ModelSettings(("a",))))
    path = tmp_path / settings.FILE
    path.write_text(re.sub(f'^{key} = ".*"', f'{key} = "{value}"', path.read_text(), flags=re.MULTILINE))
    with pytest.raises(SettingError) as told:
        settings.load(tmp_path)
    assert str(told.value).startswith(f'{path}: {key} = "{value}" in [place] must be ')
    assert words in str(told.value)


def test_other_addresses_of_a_machine_can_be_bound_to() -> None:
    for address in ("", "127.0.0.1", "169.254.1.1", "::", "fd00::1"):
        settings.check(FleetSettings(Place(bind=address), ModelSettings(("a",))))


# -- the folder of a device -------------------------------------------------------------------------------------


def test_a_device_folder_is_read_back_and_private(tmp_path: Path) -> None:
    place = tmp_path / "devices" / "pump"
    devicefolder.write(place, "pump", "fleet.example:8443", b"certificate", b"key")
    found = load_device(place)
    assert (found.device, found.server, found.data) == ("pump", "fleet.example:8443", "")
    assert found.key.read_bytes() == b"key"
    assert {file.name: file.stat().st_mode & 0o777 for file in place.iterdir()} == {
        "device.key": 0o600,
        "device.toml": 0o600,
        "ca.crt": 0o600,
    }
    assert place.stat().st_mode & 0o777 == 0o700


def test_what_is_missing_in_a_device_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"device\.toml: there is no such file; copy the folder"):
        load_device(tmp_path)
    devicefolder.write(tmp_path, "pump", "localhost:1", b"certificate", None)
    with pytest.raises(FleetFileError, match=r"device\.key: there is no such file"):
        load_device(tmp_path)
    (tmp_path / "device.toml").write_text('device = "pump"\nserver = 1\n')
    with pytest.raises(SettingError, match=r"device\.toml: server = 1 must be a string"):
        load_device(tmp_path)
    (tmp_path / "device.toml").write_text('device = "pump"\nserver = "localhost"\n')
    with pytest.raises(SettingError, match=r'device\.toml: server = "localhost" must be an address and a port'):
        load_device(tmp_path)
    (tmp_path / "device.toml").write_text('device = "pump"\n[privcy]\nmost_releases = 3\n')
    with pytest.raises(UnknownSettingError, match="has no key 'privcy'; did you mean 'privacy'"):
        load_device(tmp_path)
    (tmp_path / "device.toml").write_text('device = "pump"\n')
    with pytest.raises(FleetFileError, match="server is missing; copy the folder"):
        load_device(tmp_path)
    (tmp_path / "device.toml").write_text("device = ")
    with pytest.raises(SettingsError, match=r"device\.toml: .*correct it"):
        load_device(tmp_path)


def test_data_is_found_beside_the_device_or_where_the_command_says(tmp_path: Path) -> None:
    folder = DeviceFolder(tmp_path, "pump", "localhost:1", "table.csv")
    with pytest.raises(FleetFileError, match="correct data in"):
        folder.data_file(None)
    (tmp_path / "table.csv").touch()
    assert folder.data_file(None) == str(tmp_path / "table.csv")
    with pytest.raises(FleetFileError, match="correct --data"):
        folder.data_file(tmp_path / "other.csv")
    assert replace(folder, data="").data_file(None) == ""


@pytest.mark.parametrize("name", ODD)
def test_any_path_reaches_the_app_unchanged(tmp_path: Path, name: str) -> None:
    pytest.importorskip("flwr", reason="the extra `fleet` is not installed")
    from flwr.common.config import parse_config_args

    root = tmp_path / name
    command = flower.device_command(DeviceFolder(root, "pump", "localhost:1"), str(root / "it's data.csv"))
    told = parse_config_args([command[command.index("--node-config") + 1]])
    assert told == {"folder": str(root), "device": "pump", "data": str(root / "it's data.csv")}
    assert "--insecure" not in command


def test_a_registry_is_plain_json(path: Path) -> None:
    enter(path, "pump")
    assert set(json.loads(path.read_text().splitlines()[-1])) == {"name", "public_key", "added", "revoked"}
    registry.write(path, registry.read(path))  # as earlier releases did
    assert set(json.loads(path.read_text())["devices"][0]) == {"name", "public_key", "added", "revoked"}


@pytest.mark.parametrize(
    ("section", "changes", "words"),
    [
        ("training", {"encoding": "float8"}, r'encoding = "float8" in \[training\] must be one of float64, float32'),
        ("training", {"start": "cold"}, r'start = "cold" in \[training\] must be one of warm, common, random'),
        ("training", {"rounds": 0}, r"rounds = 0 in \[training\] must be at least 1"),
        ("training", {"participation": 1.5}, r"participation = 1.5 in \[training\] must be above 0 and at most 1"),
        ("training", {"quorum": -0.1}, r"quorum = -0.1 in \[training\] must be above 0"),
        ("model", {"rank": 0}, r"rank = 0 in \[model\] must be at least 1"),
        ("privacy", {"noise": -1.0}, r"noise = -1.0 in \[privacy\] must be at least 0"),
        ("privacy", {"clip": 0.0}, r"clip = 0.0 in \[privacy\] must be above 0"),
        ("place", {"port": 99999}, r"port = 99999 in \[place\] must be a port from 1 to 65535"),
        ("place", {"control_port": 0}, r"control_port = 0 in \[place\] must be a port from 1 to 65535"),
        ("place", {"control_port": 8443}, r"control_port = 8443 in \[place\] must be different from port"),
        ("model", {"observables": -1}, r"observables = -1 in \[model\] must be at least 0"),
        ("model", {"seed": -1}, r"seed = -1 in \[model\] must be at least 0"),
        ("model", {"rank": 169}, r"rank = 169 in \[model\] must be at most the lifted dimension 168"),
        ("model", {"channels": ()}, r"channels = \[\] in \[model\] must be the names of all channels"),
        ("model", {"channels": ("a", "a")}, r'channels = \["a", "a"\] in \[model\] must be .* none twice'),
        ("model", {"channels": ("a", "")}, r'channels = \["a", ""\] in \[model\] must be .* none empty'),
    ],
)
def test_a_setting_that_makes_no_sense_is_named(
    tmp_path: Path, section: str, changes: dict[str, Any], words: str
) -> None:
    known = FleetSettings(model=ModelSettings(("a", "b")))
    settings.save(tmp_path, replace(known, **{section: replace(getattr(known, section), **changes)}))
    with pytest.raises(SettingsError, match=rf"fleet\.toml: {words}"):
        settings.load(tmp_path)


@pytest.mark.parametrize(
    ("training", "privacy", "robust", "least", "asked"),
    [
        (TrainingSettings(), Privacy(), True, 3, 5),
        (TrainingSettings(), Privacy(secure_aggregation=True), False, 3, 3),
        (TrainingSettings(min_devices=1), Privacy(), False, 1, 1),
        (TrainingSettings(min_devices=1), Privacy(secure_aggregation=True), False, 3, 3),
        (TrainingSettings(min_devices=1, robust=True), Privacy(), True, 3, 5),
        (TrainingSettings(robust=False), Privacy(), False, 3, 3),
        (TrainingSettings(min_devices=8), Privacy(), True, 8, 8),
    ],
)
def test_a_fleet_takes_the_median_of_three_or_more_unless_replies_are_masked(
    tmp_path: Path, training: TrainingSettings, privacy: Privacy, robust: bool, least: int, asked: int
) -> None:
    settings.save(tmp_path, FleetSettings(model=ModelSettings(("a",)), training=training, privacy=privacy))
    found = settings.load(tmp_path)
    assert (found.robust, found.min_devices, found.asked) == (robust, least, asked)
    assert found.training == training


def test_a_median_and_secure_aggregation_exclude_each_other(tmp_path: Path) -> None:
    both = FleetSettings(
        model=ModelSettings(("a",)), training=TrainingSettings(robust=True), privacy=Privacy(secure_aggregation=True)
    )
    settings.save(tmp_path, both)
    with pytest.raises(SettingsError, match="mutually exclusive"):
        settings.load(tmp_path)


@pytest.mark.parametrize("text", ["model = 3", 'place = "here"', "training = [1]"])
def test_a_section_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "fleet.toml").write_text(f"{text}\n")
    name = text.split()[0]
    with pytest.raises(SettingsError, match=rf"fleet\.toml: {name} = .* must be a section; write \[{name}\]"):
        settings.load(tmp_path)


def test_the_largest_rank_and_the_highest_port_are_fine() -> None:
    settings.check(FleetSettings(Place(port=65535, control_port=1), ModelSettings(("a", "b"), rank=168)))


def test_a_new_key_leaves_the_rest_of_the_folder_unchanged(tmp_path: Path) -> None:
    devicefolder.write(tmp_path, "pump", "localhost:1", b"certificate", b"key")
    (tmp_path / "device.toml").write_text('device = "pump"\nserver = "localhost:2"\ndata = "mine.csv"\n')
    devicefolder.write_key(tmp_path, b"certificate", b"new key")
    found = load_device(tmp_path)
    assert (found.server, found.data, found.key.read_bytes()) == ("localhost:2", "mine.csv", b"new key")
    devicefolder.write_key(tmp_path, b"certificate", None)
    assert not found.key.exists()


def test_devices_are_read_again_only_if_the_file_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "devices.json"
    registry.write(path, {})
    known = registry.ActiveDevices(path)
    first = known.read()
    assert known.read() is first == {}
    with registry.changing(path) as devices:
        registry.add(devices, "a", "key a")
        registry.add(devices, "b", "key b")
        registry.revoke(devices, "b")
    assert list(known.read()) == ["a"]
    path.unlink()
    with pytest.raises(FleetFileError, match="no such file"):
        known.read()
