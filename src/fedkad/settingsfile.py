"""Settings read from TOML into dataclasses, whose annotations say all that a file may contain.

`fedkad.settingkinds` has what annotations are made of. A dataclass may also have a method `check(section)` for what
concerns several keys; a `SettingError` that it raises gets its place here.

>>> from dataclasses import make_dataclass
>>> from fedkad.settingkinds import POSITIVE, Seconds
>>> PumpSettings = make_dataclass("PumpSettings", [("wait", Annotated[Seconds, POSITIVE], 1.0)])
>>> read(PumpSettings, FileSection.of({"wait": "5m"}, "pump"))
PumpSettings(wait=300.0)
>>> read(PumpSettings, FileSection.of({"wait": 0}, "pump"))
Traceback (most recent call last):
    ...
fedkad.settingerror.SettingError: wait = 0 in [pump] must be above 0 and finite.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from fedkad.settingerror import SettingError, SettingsError, UnknownSettingError, toml_text
from fedkad.settingkinds import ArgumentsOf, IfWritten, Rule, Surroundings, ValueKind, kind_of

T = TypeVar("T")


@dataclass(frozen=True)
class FileSection:
    """A section of a file: one table, or several of which a later one overrides an earlier one."""

    name: str
    tables: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    around: Surroundings = field(default_factory=Surroundings)

    @classmethod
    def of(cls, table: Mapping[str, Any], name: str = "", around: Surroundings | None = None) -> FileSection:
        """A section in one table."""
        return cls(name, ((name, table),), around or Surroundings())

    def place(self, *keys: str) -> str:
        """The name of the table that has the last word on one of these keys."""
        return next((name for name, table in reversed(self.tables) if any(key in table for key in keys)), self.name)

    def inner(self, key: str) -> FileSection:
        """The section of that name inside this one."""
        tables = [(_joined(name, key), table[key]) for name, table in self.tables if key in table]
        for name, table in tables:
            if not isinstance(table, dict):
                raise SettingError(name, table, f"a section; write [{name}] and its keys below it", "")
        return FileSection(_joined(self.name, key), tuple(tables), self.around)

    def only(self, keys: Iterable[str]) -> FileSection:
        """The section without any other keys."""
        tables = ((name, {key: table[key] for key in keys if key in table}) for name, table in self.tables)
        return replace(self, tables=tuple(tables))

    def refuse_unknown(self, known: Iterable[str]) -> None:
        """Raise an error for a key that does not exist."""
        for name, table in self.tables:
            for key in table:
                if key not in known:
                    raise UnknownSettingError(key, table[key], ", ".join(sorted(known)), name)

    def read(self, key: str, hint: Any) -> Any:
        """The value of one key, which must be there."""
        return _Key.of(key, hint, is_needed=True).read(key, self)[key]


def read_file(path: Path, remedy: str, parse: Callable[[dict[str, Any]], T]) -> T:
    """Settings from a TOML file; raises `SettingsError`. `remedy` says what to do where there is no such file."""
    document = _document(path, remedy)
    try:
        return parse(document)
    except SettingsError as error:
        raise error.in_file(path) from None


def _document(path: Path, remedy: str) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        wrong = f"there is no such file; {remedy}"
    except OSError as error:
        wrong = f"{error.strerror}; name a file that can be read"
    except RecursionError:
        wrong = "lists or tables are nested too deeply; correct it"
    except ValueError as error:
        wrong = f"{error}; correct it"
    raise SettingsError(f"{path}: {wrong}.")


def read(kind: type[T], section: FileSection, **given: Any) -> T:
    """Settings from a section; a field that is `given` is not read."""
    keys = keys_of(kind)
    section.refuse_unknown(keys)
    written = {key for _, table in section.tables for key in table}
    for key in sorted(keys, key=lambda key: key not in written):  # what is wrong comes before what is missing
        if keys[key].field not in given:
            given |= keys[key].read(key, section)
    settings = kind(**given)
    if hasattr(settings, "check"):
        _placed(section, settings.check, section)
    return settings


def as_text(settings: Any) -> str:
    """Settings that consist of sections as a TOML file, without keys that nobody has decided."""
    lines: list[str] = []
    for name, entry in keys_of(type(settings)).items():
        inner = getattr(settings, entry.field)
        values = {key: getattr(inner, each.field) for key, each in keys_of(type(inner)).items()}
        written = (f"{key} = {toml_text(value)}" for key, value in values.items() if value is not None)
        lines += [f"[{name}]", *written, ""]
    return "\n".join(lines)


def keys_of(kind: type[Any]) -> dict[str, _Key]:
    """The keys of a dataclass: the names of its fields, or `key` in their metadata."""
    return _keys_of(kind)  # type: ignore[arg-type]  # mypy does not see that a class can be hashed


@cache
def _keys_of(kind: type[Any]) -> dict[str, _Key]:
    hints, found = get_type_hints(kind, include_extras=True), {}
    for each in fields(kind):
        is_needed = each.default is MISSING and each.default_factory is MISSING
        found[each.metadata.get("key", each.name)] = _Key.of(each.name, hints[each.name], is_needed=is_needed)
    return found


@dataclass(frozen=True)
class _Key:
    """What may be written under a key, and the field that it fills."""

    field: str
    kind: Any
    rules: tuple[Rule, ...]
    if_written: IfWritten | None
    is_needed: bool

    @classmethod
    def of(cls, field: str, hint: Any, *, is_needed: bool = False) -> _Key:
        plain, *extras = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        kinds = [each for each in extras if isinstance(each, ValueKind | ArgumentsOf)]
        rules = tuple(each for each in extras if isinstance(each, Rule))
        if_written = next((each for each in extras if isinstance(each, IfWritten)), None)
        return cls(field, kinds[0] if kinds else kind_of(plain), rules, if_written, is_needed)

    def read(self, key: str, section: FileSection) -> dict[str, Any]:
        """The field as the section has it; nothing where its default counts."""
        if isinstance(self.kind, ArgumentsOf):
            return {self.field: _read_arguments(self.kind, section.inner(key))}
        if isinstance(self.kind, type):
            return {self.field: read(self.kind, section.inner(key))}
        values = [self.value(key, table[key], name, section) for name, table in section.tables if key in table]
        if values:
            return {self.field: values[-1]}
        if self.is_needed:
            raise SettingError(key, MISSING, self.kind.allowed, section.name)
        if self.if_written is None or not section.tables:
            return {}
        if self.if_written.example:
            add = f"add {key} = {self.if_written.example}, or remove the section"
            raise SettingsError(f"[{section.name}] has no {key}; {add}.")
        return {self.field: self.if_written.value}

    def value(self, key: str, written: Any, place: str, section: FileSection) -> Any:
        """The value of a key, as it was written in one of the section's tables."""
        try:
            value = self.kind.read(written, section.around)
        except (TypeError, ValueError, OverflowError, OSError):
            raise SettingError(key, written, self.kind.allowed, place) from None
        for rule in self.rules:
            if not rule.holds(value):
                raise SettingError(key, rule.shown(written), rule.allowed, place)
        return value


def _read_arguments(kind: ArgumentsOf, section: FileSection) -> dict[str, Any]:
    parameters = inspect.signature(kind.make, eval_str=True).parameters
    keys = {name: _Key.of(name, each.annotation) for name, each in parameters.items() if name not in kind.without}
    section.refuse_unknown(keys)
    found: dict[str, Any] = {}
    for place, table in section.tables:
        found |= {key: keys[key].value(key, value, place, section) for key, value in table.items()}
    _placed(section, kind.make(**found).settings.check)
    return found


def _placed(section: FileSection, check: Any, *arguments: Any) -> None:
    """Check, and name the place of a key in an error that does not."""
    try:
        check(*arguments)
    except SettingError as error:
        place = section.place(error.name) if error.section is None else error.section
        raise type(error)(error.name, error.value, error.allowed, place) from None


def _joined(section: str, key: str) -> str:
    return f"{section}.{key}" if section else key
