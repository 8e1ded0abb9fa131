"""The reader of settings: what is written is read back, and what is wrong is named by file, key and value."""

import math
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedkad.edge.settings import Alarm, HomeAssistant, Learning, Prometheus, Stdout
from fedkad.fleet.device.settings import DeviceFile
from fedkad.fleet.server.settings import FILE, FleetSettings, load
from fedkad.settingerror import SettingError, SettingsError, UnknownSettingError, shown, toml_text
from fedkad.settingkinds import FileName, IfWritten, Seconds, Surroundings, at_least
from fedkad.settingsfile import FileSection, as_text, keys_of, read, read_file

WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
BY_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    float: NUMBERS,
    int: st.integers(),
    str: WORDS,
    tuple[str, ...]: st.lists(WORDS, min_size=1, max_size=3).map(tuple),
    str | float: NUMBERS,
    Mapping[str, float]: st.dictionaries(WORDS, NUMBERS, max_size=2),
    Mapping[str, str]: st.dictionaries(WORDS, WORDS, max_size=2),
}
GOOD: tuple[Any, ...] = (0, 1, 0.25, 200, 5000, 2.5, "24h", "1/week", "a/b", "::1", "", ("a", "b"), {"a": 0.5})


def settings(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Settings of a kind, of which each value is allowed."""
    hints = get_type_hints(kind)
    return st.builds(kind, **{entry.field: values(hints[entry.field], entry) for entry in keys_of(kind).values()})


def values(hint: Any, entry: Any) -> st.SearchStrategy[Any]:
    """Values of a type; those that are not allowed are replaced by one that is."""
    if isinstance(entry.kind, type):
        return settings(entry.kind)
    if hint not in BY_TYPE:
        return st.from_type(hint)

    def is_good(value: Any) -> bool:
        try:
            return bool(entry.value("", list(value) if type(value) is tuple else value, "", FileSection("")) == value)
        except SettingsError:
            return False

    good = [value for value in GOOD if is_good(value)]
    return st.tuples(BY_TYPE[hint], st.sampled_from(good or [None])).map(
        lambda pair: pair[0] if is_good(pair[0]) else pair[1]
    )


def is_accepted(chosen: Any) -> bool:
    try:
        chosen.check(FileSection(""))
    except SettingsError:
        return False
    return True


@dataclass(frozen=True)
class SectionsOfAnAgent:
    """Sections whose values mean the same wherever the file is."""

    alarm: Alarm = field(default_factory=Alarm)
    learning: Learning = field(default_factory=Learning)
    homeassistant: HomeAssistant = field(default_factory=HomeAssistant)
    prometheus: Prometheus = field(default_factory=Prometheus)
    stdout: Stdout = field(default_factory=Stdout)


@given(settings(FleetSettings))
def test_the_settings_of_a_fleet_are_read_back(chosen: FleetSettings) -> None:
    if all(map(is_accepted, (chosen, chosen.place, chosen.model))):
        assert read(FleetSettings, FileSection.of(tomllib.loads(as_text(chosen)))) == chosen


@given(settings(SectionsOfAnAgent))
def test_the_sections_of_an_agent_are_read_back(chosen: SectionsOfAnAgent) -> None:
    chosen = replace(chosen, learning=replace(chosen.learning, model=""))
    if is_accepted(chosen.alarm):
        assert read(SectionsOfAnAgent, FileSection.of(tomllib.loads(as_text(chosen)))) == chosen


WRONG: dict[str, tuple[Any, ...]] = {
    "true or false": ("yes", 1, 0.5, [], {}),
    "an integer": ("1", 1.5, True, [1], {}),
    "a finite number": ("1", True, math.nan, math.inf, 10**400, []),
    "a string": (1, True, 0.5, ["a"], {}, "a\0b"),
    "a list of strings": ("a", 1, [1], [["a"]], {}),
    "one of warm, common, random": ("cold", 1, True, ["warm"]),
    "one of float64, float32, float16, int8": ("float8", 32, []),
}
KEYS = [
    (section, key, entry.kind.allowed)
    for section, each in keys_of(FleetSettings).items()
    for key, entry in keys_of(each.kind).items()
]


@pytest.mark.parametrize(("section", "key", "allowed"), KEYS)
def test_a_wrong_value_is_named_by_file_section_key_and_value(
    section: str, key: str, allowed: str, tmp_path: Path
) -> None:
    path = tmp_path / FILE
    for value in WRONG[allowed]:
        text = f"{key} = {toml_text(value)}"
        head = "" if section == "model" else '[model]\nchannels = ["a"]\n'
        path.write_text(f"{head}[{section}]\n{text}\n")
        with pytest.raises(SettingError) as refused:
            load(tmp_path)
        error = refused.value
        assert (error.file, error.section, error.name, error.allowed) == (str(path), section, key, allowed)
        assert shown(error.value) == shown(value)
        assert str(error) == f"{path}: {key} = {shown(value)} in [{section}] must be {allowed}."


ANYTHING = st.recursive(
    st.one_of(WORDS, st.integers(), NUMBERS, st.booleans(), st.datetimes(), st.dates(), st.times()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)


@given(ANYTHING)
def test_what_toml_text_writes_is_read_back(value: Any) -> None:
    assert tomllib.loads(f"x = {toml_text(value)}")["x"] == value


PLACES = [(kind, key) for kind in (FleetSettings, DeviceFile) for key in keys_of(kind)]


@given(st.sampled_from(PLACES), st.dictionaries(WORDS, ANYTHING, max_size=2), ANYTHING)
def test_whatever_is_written_is_taken_or_refused(
    place: tuple[type[Any], str], document: dict[str, Any], value: Any
) -> None:
    kind, key = place
    for written in ({key: value}, {**document, key: value}):
        with suppress(SettingsError):
            read(kind, FileSection.of(written))


# -- single rules ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tank:
    """A section with one key of each kind that the files above do not have."""

    level: Annotated[int, at_least(1)]
    mode: Literal["on", "off"] = "on"
    wait: Seconds = 1.0
    log: FileName = ""
    watched: Annotated[bool, IfWritten(True)] = False
    start: str = field(default="", metadata={"key": "from"})

    def check(self, section: FileSection) -> None:
        if self.mode == "off" and self.wait:
            raise SettingError("wait", self.wait, f"0, since mode in [{section.place('mode')}] is off")


def tank(**written: Any) -> Tank:
    return read(Tank, FileSection.of(written, "tank", Surroundings(Path("/etc"))))


def test_keys_become_fields() -> None:
    assert tank(**{"level": 2, "wait": "5m", "log": "tank.log", "from": "x"}) == Tank(
        2, wait=300.0, log="/etc/tank.log", watched=True, start="x"
    )
    assert tank(level=1, log="/var/tank.log", watched=False) == Tank(1, log="/var/tank.log")


def test_a_missing_key_is_named() -> None:
    with pytest.raises(SettingError, match=r"^level is missing in \[tank\]; it must be an integer\.$") as refused:
        tank(mode="on")
    assert refused.value.value is MISSING


def test_an_unknown_key_is_answered_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UnknownSettingError, match=r"^\[tank\] has no key 'levle'; did you mean 'level'\? Valid keys:"):
        tank(levle=1)
    (tmp_path / "x.toml").write_text("[trainig]\nrounds = 3\n")
    with pytest.raises(UnknownSettingError, match=r"x\.toml: The file has no key 'trainig'; did you mean 'training'\?"):
        read_file(tmp_path / "x.toml", "make it", lambda document: read(FleetSettings, FileSection.of(document)))


def test_a_later_table_overrides_an_earlier_one_and_is_named() -> None:
    common, own = ("tank", {"level": 1, "mode": "off", "wait": 0}), ("own.tank", {"wait": "1m"})
    with pytest.raises(SettingError, match=r"^wait = 60.0 in \[own.tank\] must be 0, since mode in \[tank\] is off\.$"):
        read(Tank, FileSection("tank", (common, own)))
    assert read(Tank, FileSection("tank", (common, ("own.tank", {"level": 5})))).level == 5
    with pytest.raises(SettingError, match=r"^level = 0 in \[own.tank\] must be at least 1\.$"):
        read(Tank, FileSection("tank", (common, ("own.tank", {"level": 0}))))


def test_each_front_end_has_its_own_words() -> None:
    error = SettingError("rank", 0, "a positive integer")
    assert str(error) == "rank=0 must be a positive integer."
    assert str(error.in_file("x.toml")) == "x.toml: rank = 0 must be a positive integer."
    assert (error.name, error.value, error.allowed) == ("rank", 0, "a positive integer")


def test_every_key_of_a_device_is_there_once() -> None:
    assert [each.name for each in fields(DeviceFile)] == list(keys_of(DeviceFile))
