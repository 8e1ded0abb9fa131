"""Addresses, topics and names in `agent.toml`: which can be used, and how they may be shown."""

from __future__ import annotations

import re
from ipaddress import ip_address

from fedkad.settingerror import SettingError
from fedkad.settingkinds import split_address

MOST_CHARACTERS, MOST_BYTES = 100, 200
"""Of a name, which becomes a part of topics and the name of a folder."""


EVERY = "*"
"""In the place of a name: every device that publishes."""

BRIDGE, REQUESTS, PRESENCE = "bridge", {"set", "get"}, {"availability", "lwt"}
"""Levels of topics that are about a gateway, about what a device shall do, and about whether it is there."""


def split_broker(url: str, section: str | None = None) -> tuple[str, int, bool]:
    """Host, port and whether TLS is used.

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


def is_header(name: str, value: str) -> bool:
    """Whether it can be a header of a request beside those that its content needs."""
    is_token = re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) is not None
    is_ours = name.lower() in ("content-type", "content-length", "transfer-encoding", "host", "idempotency-key")
    return is_token and not is_ours and re.fullmatch(r"[ -~]*", value) is not None


def is_own_address(text: str) -> bool:
    """Whether it can be an address of this machine to listen on."""
    try:
        return text == "localhost" or bool(ip_address(text))
    except ValueError:
        return False


def without_login(url: str) -> str:
    """An address as it may be shown, without a password.

    >>> without_login("mqtt://me:secret@host:1883"), without_login("mqtt://host")
    ('mqtt://…@host:1883', 'mqtt://host')
    """
    login, at, host = url.rpartition("@")
    scheme, mark, _ = login.partition("://")
    return f"{scheme + mark if mark else ''}…@{host}" if at else url


def is_topic_prefix(text: str) -> bool:
    """Whether topics to publish on can begin with it."""
    return re.fullmatch(r"[^\s\x00-\x1f\x7f+#/]+(/[^\s\x00-\x1f\x7f+#/]+)*", text) is not None


def is_topic_pattern(topic: str) -> bool:
    """Whether it is a topic to subscribe to, with `{device}` and `{channel}` as whole levels, each at most once."""
    levels = topic.split("/")
    marked = [level for level in levels if "{" in level or "}" in level]
    marks_fit = all(level in ("{device}", "{channel}") for level in marked) and len(set(marked)) == len(marked)
    wildcards_fit = all(level in ("+", "#") or not re.search("[+#]", level) for level in levels)
    everything = topic in ("", "#") or "#" in levels[:-1]
    return marks_fit and wildcards_fit and not everything and not re.search(r"[\x00-\x1f\x7f]", topic)


def is_agent_name(name: str) -> bool:
    """Whether an agent can be called so, in topics and as a client of a broker."""
    return bool(name) and not re.search(r"[/+#\s\x00-\x1f\x7f]", name) and is_short(name)


def is_device_name(name: str) -> bool:
    """Whether a device can be called so, in topics and as a folder; it may have several levels."""
    return not re.search(r"[+#\x00-\x1f\x7f{}]", name) and name not in (".", "..") and all(name.split("/"))


def is_service_name(name: str) -> bool:
    """Whether a name of several levels is that of a service beside devices, as zigbee2mqtt has them, and of no device.

    >>> [is_service_name(name) for name in ("bridge/info", "hall/lamp/set", "lamp/get/color", "lamp/availability")]
    [True, True, True, True]
    >>> is_service_name("hall/lamp"), is_service_name("set")
    (False, False)
    """
    first, *others = name.lower().split("/")
    return bool(others) and (first == BRIDGE or not REQUESTS.isdisjoint(others) or others[-1] in PRESENCE)


def hears_below(topic: str) -> bool:
    """Whether a name of several levels can be found in place of `{device}`: it is last, and something is before it.

    >>> [hears_below(topic) for topic in ("zigbee2mqtt/{device}", "hall/{device}/{channel}", "{device}", "+/{device}")]
    [True, False, False, False]
    """
    *before, last = without_share(topic).split("/")
    return last == "{device}" and any(level not in ("+", "{channel}") for level in before)  # or it is all of a broker


def without_share(topic: str) -> str:
    """The topic under which messages of a shared subscription come.

    >>> without_share("$share/agents/plant/{device}")
    'plant/{device}'
    """
    return re.sub(r"^\$share/[^/]+/", "", topic)


def covers(wide: str, narrow: str) -> bool:
    """Whether one filter of topics brings all that the other one does.

    >>> [covers("a/#", each) for each in ("a/b", "a/+/c", "a/#", "b/#")], covers("a/+", "a/b"), covers("a/+", "a/#")
    ([True, True, True, False], True, False)
    """
    given = narrow.split("/")
    for at, level in enumerate(wide.split("/")):
        if level == "#":
            return True
        if at == len(given) or given[at] == "#" or level not in ("+", given[at]):
            return False
    return wide.count("/") == narrow.count("/")


def folder_name(device: str) -> str:
    """The name of a device as that of one folder.

    >>> folder_name("pump-1"), folder_name("hall/pump"), folder_name("100%")
    ('pump-1', 'hall%2Fpump', '100%')
    """
    return device.replace("%", "%25").replace("/", "%2F") if "/" in device else device


def is_short(name: str) -> bool:
    """Whether a name is short enough."""
    return len(name) <= MOST_CHARACTERS and len(name.encode(errors="replace")) <= MOST_BYTES
