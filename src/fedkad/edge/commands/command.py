"""What an operator can tell about a device, as text and as values; nothing here knows how it is carried out.

=============  =========================  =========================================================================
normal         an incident, START/END     its rows are learnt as normal; nothing for what is open, or the last
mute           2h, 0                      no incident begins for so long; 0 ends that
acknowledge    an incident                an incident or fault is known; nothing for what is open, or the last
relearn                                   set the model aside, and fit a first one to new rows
budget         2/week, default            false alarms allowed, instead of those in the configuration
undo                                      take back the last normal, said or settled
=============  =========================  =========================================================================
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any, NamedTuple

from fedkad.detect.threshold import parse_budget
from fedkad.edge.sources.payload import PayloadError, decode_text, quoted, read_timestamp
from fedkad.settingkinds import parse_duration

LONGEST = 200  # characters of an id, an argument or a name
LONGEST_MUTE = 366 * 86400.0
DEFAULT = "default"  # the budget that returns to the configured one
KEYS = ("id", "verb", "argument", "from")


class CommandError(ValueError):
    """A command that cannot be carried out; the message is the reply."""


@dataclass(frozen=True)
class Command:
    """What `sender` told about a device at that `time`; one with the same `key` is the same command, and acts once."""

    id: str
    device: str
    verb: str
    argument: str = ""
    sender: str = ""
    time: float = 0.0  # seconds since 1970

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Device, id, verb and argument."""
        return self.device, self.id, self.verb, self.argument

    def __str__(self) -> str:
        return f"{self.verb} {self.argument}".strip()


class Stretch(NamedTuple):
    """What was normal: an incident by its id, empty for what is open or the last; or all between two times."""

    incident: str = ""
    start: float | None = None
    end: float | None = None


def new_id() -> str:
    """An id for a command that has none."""
    return uuid.uuid4().hex[:12]


def check(command: Command, devices: Collection[str]) -> Command:
    """The same command; raises a `CommandError` if it could never be carried out.

    >>> str(check(Command("1", "pump-1", "mute", "2h"), ["pump-1"]))
    'mute 2h'
    >>> check(Command("1", "pump-1", "quiet"), ["pump-1"])
    Traceback (most recent call last):
    fedkad.edge.commands.command.CommandError: There is no command 'quiet'; tell one of \
normal, mute, acknowledge, relearn, budget, undo.
    """
    if command.device not in devices:
        names = ", ".join(list(devices)[:8])
        raise CommandError(f"There is no device {quoted(command.device)}; the devices are {names}.")
    for name, text in (("id", command.id), ("argument", command.argument), ("name of the sender", command.sender)):
        if len(text) > LONGEST or not text.isprintable():
            raise CommandError(f"The {name} {quoted(text)} must be at most {LONGEST} printable characters.")
    if not command.id:
        raise CommandError("The id of a command must not be empty; leave it out to get one.")
    reader = _ARGUMENTS.get(command.verb)
    if reader is None:
        raise CommandError(f"There is no command {quoted(command.verb)}; tell one of {', '.join(VERBS)}.")
    reader(command)
    return command


def read_command(payload: bytes, device: str, time: float) -> Command:
    """The command in a message about a device: JSON, or the verb and its argument as text.

    >>> read_command(b'{"id": "7", "verb": "mute", "argument": "2h", "from": "Anna"}', "pump-1", 0.0)
    Command(id='7', device='pump-1', verb='mute', argument='2h', sender='Anna', time=0.0)
    >>> read_command(b"mute 2h", "pump-1", 0.0).argument
    '2h'
    """
    try:
        text = decode_text(payload).strip()
    except PayloadError as error:
        raise CommandError(str(error)) from None
    if not text.startswith("{"):
        verb, _, argument = text.partition(" ")
        return Command(new_id(), device, verb, argument.strip(), "", time)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise CommandError('A command must be JSON such as {"verb": "mute", "argument": "2h"}, or text.') from None
    if unknown := [key for key in content if key not in KEYS]:
        raise CommandError(f"A command has {', '.join(KEYS)}, and not {quoted(unknown[0])}.")
    given = {key: _text(key, content.get(key)) for key in KEYS}
    return Command(given["id"] or new_id(), device, given["verb"], given["argument"], given["from"], time)


def _text(key: str, value: Any) -> str:
    """A value as text; numbers are what people write without quotes, as in "argument": 0."""
    if value is None:
        return ""
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise CommandError(f"{key} in a command must be a string, not {quoted(value)}.")
    text = str(value).strip()
    if re.search("[\ud800-\udfff]", text):  # JSON can have them, but neither the store nor a reply
        raise CommandError(f"{key} in a command must be whole characters, not {quoted(text)}.")
    return text


# -- arguments ------------------------------------------------------------------------------------------------------


def stretch_of(command: Command, zone: tzinfo | None = None) -> Stretch:
    """What was normal; times without a zone are in `zone`, None for that of the machine.

    >>> from datetime import UTC
    >>> stretch_of(Command("1", "d", "normal", "2026-03-01T08:00/2026-03-01T08:30"), UTC)
    Stretch(incident='', start=1772352000.0, end=1772353800.0)
    >>> stretch_of(Command("1", "d", "normal", "d-20260301T080000Z-4")).incident
    'd-20260301T080000Z-4'
    """
    first, separator, last = command.argument.partition("/")
    if not separator:
        return Stretch(command.argument)
    try:
        start, end = (read_timestamp(each.strip(), zone) for each in (first, last))
    except PayloadError:
        if command.argument.startswith(f"{command.device}-"):  # an incident of a device whose name has levels
            return Stretch(command.argument)
        raise CommandError(
            f"normal {quoted(command.argument)} must be an incident, or two times "
            "such as 2026-03-01T08:00/2026-03-01T08:30."
        ) from None
    if start >= end:
        raise CommandError(f"normal {quoted(command.argument)} must end after it begins.")
    return Stretch(start=start, end=end)


def mute_of(command: Command) -> float:
    """How long to be mute, in seconds; 0 for no longer.

    >>> mute_of(Command("1", "d", "mute", "1.5h")), mute_of(Command("1", "d", "mute", "0"))
    (5400.0, 0.0)
    """
    seconds = 0.0 if command.argument == "0" else parse_duration(command.argument)
    if seconds is None or seconds > LONGEST_MUTE:
        allowed = "a time such as 90s, 30m, 2h or 1d, at most a year, or 0 to end it"
        raise CommandError(f"mute {quoted(command.argument)} must be {allowed}.")
    return seconds


def budget_of(command: Command) -> str:
    """The false alarms allowed; empty for those in the configuration.

    >>> budget_of(Command("1", "d", "budget", "2/week")), budget_of(Command("1", "d", "budget", "default"))
    ('2/week', '')
    """
    if command.argument == DEFAULT:
        return ""
    if parse_budget(command.argument) is None:
        allowed = f"a number of false alarms such as 2/week, or {DEFAULT} for that in the configuration"
        raise CommandError(f"budget {quoted(command.argument)} must be {allowed}.")
    return command.argument


def incident_of(command: Command) -> str:
    """The id of an incident; empty for what is open, or the last."""
    return command.argument


def nothing_of(command: Command) -> None:
    """Refuse an argument."""
    if command.argument:
        raise CommandError(f"{command.verb} takes no argument, and not {quoted(command.argument)}.")


_ARGUMENTS: dict[str, Callable[[Command], object]] = {
    "normal": stretch_of,
    "mute": mute_of,
    "acknowledge": incident_of,
    "relearn": nothing_of,
    "budget": budget_of,
    "undo": nothing_of,
}

VERBS = tuple(_ARGUMENTS)
