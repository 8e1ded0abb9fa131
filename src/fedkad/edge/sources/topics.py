"""Topics of a broker: which to subscribe to, and what device and channel the topic of a message names."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable

from fedkad.edge.settings.rules import EVERY

BRIDGE, REQUESTS, PRESENCE = "bridge", {"set", "get"}, {"availability", "lwt"}
"""Levels of topics that are about a gateway, about what a device shall do, and about whether it is there."""

Place = tuple[str | None, str | None]
"""The device and the channel that a topic names."""


class Topics:
    """Which topics to subscribe to, and what they name; what `is_own` says to be an agent's own names no device.

    With the device ``*`` a name may have several levels if it ends the topic. What another pattern names is never such
    a name, and neither is a service beside the devices.

    >>> topics = Topics(["zigbee2mqtt/{device}", "hall/{device}/+/{channel}"], ["pump-1"])
    >>> topics.filters
    ['zigbee2mqtt/pump-1', 'hall/pump-1/+/+']
    >>> topics.place("zigbee2mqtt/pump-1"), topics.place("hall/pump-1/x/flow"), topics.place("other")
    (('pump-1', None), ('pump-1', 'flow'), None)
    >>> every = Topics(["in/{device}", "in/{device}/{channel}"], ["*"])
    >>> every.filters, every.covered
    (['in/#'], ['in/+/+'])
    >>> [every.place(f"in/{name}") for name in ("lamp", "lamp/flow", "hall/1/lamp", "hall/lamp/set")]
    [('lamp', None), ('lamp', 'flow'), ('hall/1/lamp', None), None]
    """

    def __init__(
        self, patterns: Iterable[str], devices: Collection[str], is_own: Callable[[str], bool] = lambda topic: False
    ) -> None:
        self._exact: dict[str, Place] = {}
        self._wild: list[tuple[re.Pattern[str], str | None]] = []
        self._deep: list[re.Pattern[str]] = []
        self._is_own = is_own
        asked: dict[str, None] = {}
        for pattern in patterns:
            named: Iterable[str | None] = devices if "{device}" in pattern else (None,)
            for device in named:
                every = "#" if hears_below(pattern) else "+"
                level = every if device == EVERY else device or ""
                asked[pattern.replace("{device}", level).replace("{channel}", "+")] = None
                self._add(pattern if device == EVERY else pattern.replace("{device}", device or ""), device)
        # Brokers may send twice what two filters ask for.
        wider = {each: any(other != each and covers(other, each) for other in asked) for each in asked}
        self.filters = [each for each in asked if not wider[each]]
        self.covered = [each for each in asked if wider[each]]

    def _add(self, pattern: str, device: str | None) -> None:
        pattern = without_share(pattern)
        if re.search(r"[+#]|\{(channel|device)\}", pattern) is None:
            self._exact[pattern] = (device, None)
            return
        self._wild.append((_expression(pattern, "[^/]+"), device))
        if hears_below(pattern):
            self._deep.append(_expression(pattern, "[^/]+(?:/[^/]+)+"))

    def place(self, topic: str) -> Place | None:
        """The device and channel of a topic; None for a topic that was not subscribed to."""
        place = self._exact.get(topic)
        if place is not None:
            return place
        for pattern, device in self._wild:
            if match := pattern.fullmatch(topic):
                names = match.groupdict()
                return names.get("device", device), names.get("channel")
        for pattern in self._deep:  # a device whose name has several levels
            match = pattern.fullmatch(topic)
            if match and not is_service_name(match["device"]) and not self._is_own(topic):
                return match["device"], match.groupdict().get("channel")
        return None


def _expression(pattern: str, device: str) -> re.Pattern[str]:
    """The topics of a pattern, with an expression for the name of a device."""
    text = re.escape(pattern).replace(r"\{channel\}", "(?P<channel>[^/]+)")
    text = text.replace(r"\{device\}", f"(?P<device>{device})")
    return re.compile(text.replace(r"\+", "[^/]*").replace(r"/\#", "(?:/.*)?").replace(r"\#", ".*"))


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
