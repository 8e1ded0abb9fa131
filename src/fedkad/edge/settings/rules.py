"""The kinds of the values in `agent.toml`, and the rules that each of them has to keep."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from ipaddress import ip_address
from typing import Annotated, Any

from fedkad.detect.detector import KoopmanDetector
from fedkad.detect.threshold import METHODS, parse_budget
from fedkad.edge.sources.payload import find_zone
from fedkad.settingerror import SettingError
from fedkad.settingkinds import PLAIN, ArgumentsOf, Rule, Surroundings, ValueKind, is_web_address, split_address

EVERY = "*"
"""In the place of a name: every device that publishes."""

MOST_ROWS = 1_000_000
"""Rows that are gathered before the agent learns from them; they are kept on the disk, and then loaded into memory."""

MOST_CHARACTERS, MOST_BYTES = 100, 200
"""Of a name, which becomes a part of topics and the name of a folder."""

# -- names ------------------------------------------------------------------------------------------------------------


def is_short(name: str) -> bool:
    """Whether a name is short enough."""
    return len(name) <= MOST_CHARACTERS and len(name.encode(errors="replace")) <= MOST_BYTES


def is_device_name(name: str) -> bool:
    """Whether a device can be called so, in topics and as a folder; it may have several levels."""
    return not re.search(r"[+#\x00-\x1f\x7f{}]", name) and name not in (".", "..") and all(name.split("/"))


def _is_agent_name(name: str) -> bool:
    """Whether an agent can be called so, in topics and as a client of a broker."""
    return bool(name) and not re.search(r"[/+#\s\x00-\x1f\x7f]", name) and is_short(name)


def _each(holds: Callable[[str], bool], allowed: str) -> Rule:
    """A rule for every name in a list; a message shows the first that breaks it."""
    return Rule(
        lambda names: all(map(holds, names)),
        allowed,
        shown=lambda names: next(name for name in names if not holds(name)),
    )


NAMES = 'a list of names, such as ["pump-1"]'
DeviceNames = Annotated[
    tuple[str, ...],
    ValueKind(PLAIN[tuple[str, ...]].read, NAMES),
    Rule(lambda names: names and all(names), NAMES),
    Rule(lambda names: len(set(names)) == len(names), "names of which none is there twice"),
    _each(is_device_name, "a name without + # { }, control characters and empty levels"),
    _each(is_short, f"a name of at most {MOST_CHARACTERS} characters"),
]
AGENT_NAME = Rule(_is_agent_name, f"a name of at most {MOST_CHARACTERS} characters without spaces, / + and #")

# -- addresses and topics ---------------------------------------------------------------------------------------------


def split_broker(url: str, section: str | None = None) -> tuple[str, int, bool]:
    """Return host, port and whether TLS is used.

    >>> split_broker("mqtts://broker.example")
    ('broker.example', 8883, True)
    """
    parts = split_address(url)
    if parts is None or parts.scheme not in ("mqtt", "mqtts") or parts.path.strip("/") or re.search("[?#]", url):
        allowed = "mqtt://host:port or mqtts://host:port, and nothing else"
        if "@" in url:
            allowed += "; put the user into username, and the password into the file that password_file names"
        raise SettingError("broker", without_login(url), allowed, section)
    secure = parts.scheme == "mqtts"
    return str(parts.hostname), parts.port or (8883 if secure else 1883), secure


def without_login(url: str) -> str:
    """Return an address as it may be shown, without a password.

    >>> without_login("mqtt://me:secret@host:1883"), without_login("mqtt://host")
    ('mqtt://…@host:1883', 'mqtt://host')
    """
    login, at, host = url.rpartition("@")
    scheme, mark, _ = login.partition("://")
    return f"{scheme + mark if mark else ''}…@{host}" if at else url


def is_topic_pattern(topic: str) -> bool:
    """Whether it is a topic to subscribe to, with `{device}` and `{channel}` as whole levels, each at most once."""
    levels = topic.split("/")
    marked = [level for level in levels if "{" in level or "}" in level]
    marks_fit = all(level in ("{device}", "{channel}") for level in marked) and len(set(marked)) == len(marked)
    wildcards_fit = all(level in ("+", "#") or not re.search("[+#]", level) for level in levels)
    everything = topic in ("", "#") or "#" in levels[:-1]
    return marks_fit and wildcards_fit and not everything and not re.search(r"[\x00-\x1f\x7f]", topic)


def _is_own_address(text: str) -> bool:
    try:
        return text == "localhost" or bool(ip_address(text))
    except ValueError:
        return False


def _is_header(name: str, value: str) -> bool:
    """Whether it can be a header of a request beside those that its content needs."""
    is_token = re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) is not None
    is_ours = name.lower() in ("content-type", "content-length", "transfer-encoding", "host", "idempotency-key")
    return is_token and not is_ours and re.fullmatch(r"[ -~]*", value) is not None


PREFIX = Rule(
    lambda text: re.fullmatch(r"[^\s\x00-\x1f\x7f+#/]+(/[^\s\x00-\x1f\x7f+#/]+)*", text) is not None,
    "the beginning of a topic, such as a/b, without +, #, spaces or empty levels",
)
PORT_OR_NONE = Rule(lambda port: 0 <= port < 65536, "a port from 1 to 65535, or 0 for none")
OWN_ADDRESS = Rule(_is_own_address, "an IP address of this machine, or localhost")
WEB_ADDRESS = Rule(
    lambda url: not url or is_web_address(url),
    "http://… or https://… with a host, a port from 1 to 65535 if any, and neither a user nor spaces",
    shown=without_login,
)
HEADERS = Rule(
    lambda headers: all(_is_header(name, value) for name, value in headers.items()),
    "names of headers, but none that describes the content, with values of plain characters",
    shown=list,  # a value may be a secret
)
CHAT = Rule(
    lambda chat: re.fullmatch(r"(-?\d+|@\w+)?", chat, re.ASCII) is not None,
    'the number of a chat, such as "-1001234", or the @name of a channel',
)

# -- times, thresholds and rows ---------------------------------------------------------------------------------------


def _is_zone(name: str) -> bool:
    try:
        find_zone(name)
    except ValueError:
        return False
    return True


def _is_threshold(value: str | float) -> bool:
    return value in ("", *METHODS) if isinstance(value, str) else value > 0.0


def _moment(value: Any, around: Surroundings) -> float:
    """Seconds since 1970 of a date and time, or of a string with one."""
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(value)
    return (moment if moment.tzinfo else moment.replace(tzinfo=around.zone)).timestamp()


THRESHOLD = Rule(_is_threshold, f"a positive number, or one of {', '.join(METHODS)}; a budget goes into the key budget")
BUDGET = Rule(lambda text: not text or parse_budget(text) is not None, 'a number of false alarms, such as "1/week"')
ROWS_OR_NEVER = Rule(lambda rows: rows == 0 or 100 <= rows <= MOST_ROWS, f"100 to {MOST_ROWS:,} rows, or 0 for never")
FIRST_ROWS = Rule(
    lambda rows: rows == 0 or 200 <= rows <= MOST_ROWS, f"200 to {MOST_ROWS:,} rows, or 0 for those of one cycle"
)
ZONE = Rule(_is_zone, "local, UTC, or a name such as Europe/Berlin")
TOLERANCES = Rule(lambda by_channel: all(each > 0.0 for each in by_channel.values()), "positive for every channel")
MOMENT = ValueKind(_moment, 'a date and time such as "2026-03-01T08:00"')
FIRST_MODEL = ArgumentsOf(KoopmanDetector, without=("threshold", "sample_period"))
