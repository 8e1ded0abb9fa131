"""The settings of an agent, by the sections of `agent.toml`: each key with its kind, what it may be and its default."""

from __future__ import annotations

import math
import re
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from fedkad.detect.detector import KoopmanDetector
from fedkad.edge.settings import rules
from fedkad.edge.settings.rules import EVERY, split_broker, without_login
from fedkad.settingerror import SettingError
from fedkad.settingerror import SettingsError as SettingsError
from fedkad.settingkinds import (
    POSITIVE,
    SHARE,
    Channels,
    FileName,
    IfWritten,
    Seconds,
    UpToAnHour,
    at_least,
    between,
)
from fedkad.settingsfile import FileSection

SHORTEST_PERIOD = 1e-4
"""Seconds; a float of seconds since 1970 is not much finer."""

ENOUGH_ROWS = 700
"""Rows below which a threshold is a guess: they hardly contain the highest normal score."""

INFERRED = 0.0
"""A period that is not written, and follows from the model or from the first samples."""

BY_PERIOD = -1.0
"""A duration that is not written and follows from the period, unlike 0."""

USUAL_WINDOW = 20
"""Rows in a window of a detector, unless its settings say otherwise."""


@dataclass(frozen=True)
class BrokerLogin:
    """How a broker is reached."""

    broker: str = ""
    username: str = ""
    password_file: FileName = ""
    ca_file: FileName = ""
    certificate_file: FileName = ""
    key_file: FileName = ""

    def check_login(self, section: FileSection) -> None:
        """Raise a `SettingsError` for half of a login."""
        if self.password_file and not self.username:
            raise SettingError("username", "", "given where there is a password_file")
        if bool(self.certificate_file) != bool(self.key_file):
            raise SettingsError(f"[{section.name}] has only one of certificate_file and key_file; give both or none.")


@dataclass(frozen=True)
class SourceSettings(BrokerLogin):
    """Where samples come from: lines from standard input or from a file that grows, or messages from a broker.

    Topics have `{device}`, and `{channel}` where a message is a bare number; other levels may be ``+``. Otherwise
    `device_key` is where a message names its device, as a path such as ``tags.host``, and `time_key` where it has its
    time, as such a path or a column; empty for the usual names, such as ``timestamp``.
    """

    kind: Literal["stdin", "file", "mqtt"] = "stdin"
    format: Literal["json", "csv"] = "json"
    path: FileName = ""
    topics: tuple[str, ...] = ()
    device_key: str = "device"
    time_key: str = ""
    client_id: str = ""

    def check(self, section: FileSection) -> None:
        """Raise a `SettingsError` for a source that cannot be read."""
        if self.kind == "file" and not self.path:
            raise SettingError("path", "", "the file to follow")
        if self.kind != "mqtt":
            return
        split_broker(self.broker)
        if not self.topics:
            raise SettingError("topics", [], 'topics such as ["factory/{device}"]')
        for topic in self.topics:
            if not rules.is_topic_pattern(topic):
                levels = "levels of text, +, {device} and {channel}, each of these once, or # as the last of several"
                raise SettingError("topics", topic, levels)
            if "{device}" not in topic.split("/") and not self.device_key:
                raise SettingError("topics", topic, "with a level {device}, unless device_key names the device")
        self.check_login(section)


@dataclass(frozen=True)
class Sampling:
    """The grid that a device's samples are put on.

    The time of a sample is by its `clock` what the message says (its arrival, if nothing), its arrival, or its number.
    """

    channels: Channels = ()  # in the order of the model
    period: Annotated[Seconds, at_least(SHORTEST_PERIOD)] = INFERRED  # between two rows of the grid
    lateness: Seconds = 0.0  # a slot waits so long for late values
    max_gap: Seconds = BY_PERIOD  # a last value stands so long for a missing one; then the window breaks; 0 for never
    stale_after: Seconds = BY_PERIOD  # a device without a sample for so long is stale
    clock: Literal["message", "arrival", "count"] = "message"
    zone: Annotated[str, rules.ZONE] = "local"  # of times without one

    def check(self, section: FileSection) -> None:
        """Raise a `SettingError` where no channel is named, or a device would be stale between two rows."""
        if not self.channels:
            raise SettingError("channels", [], "the names of all channels, none empty and none twice")
        if self.stale_after != BY_PERIOD and self.stale_after < self.period:
            period = f"the period, {self.period:g} s in [{section.place('period')}]"
            raise SettingError("stale_after", self.stale_after, f"at least {period}")

    @property
    def hold(self) -> float:
        """Seconds that a last value stands for a missing one: `max_gap`, or three periods."""
        return 3.0 * self.period if self.max_gap == BY_PERIOD else self.max_gap

    @property
    def silent_after(self) -> float:
        """Seconds without a row after which a device is stale: `stale_after`, or ten periods if that is long enough."""
        return max(10.0 * self.period, 2.0 * self.hold, 10.0) if self.stale_after == BY_PERIOD else self.stale_after


@dataclass(frozen=True)
class Alarm:
    """When an incident begins and ends.

    It also begins when the share `rate_limit` of the samples in `rate_window` is abnormal; 0 for never.
    """

    threshold: Annotated[str | float, rules.THRESHOLD] = ""  # for scores, or a method; empty for the model's own
    budget: Annotated[str, rules.BUDGET] = ""  # false alarms allowed, such as "1/week", instead of a threshold
    min_duration: Seconds = 0.0  # above the threshold before an incident begins
    release: Annotated[float, SHARE] = 0.8  # it continues while the score is above this share of the threshold
    clear_after: Seconds = 60.0  # of quiet after which it ends
    cool_down: Seconds = BY_PERIOD  # after an end before the next may begin, unless it is critical
    rate_window: Seconds = 3600.0
    rate_limit: Annotated[float, between(0, 1)] = 0.2
    critical: Annotated[float, at_least(1)] = 3.0  # a score of so many thresholds is critical, a lower one a warning
    update_every: Seconds = 600.0  # between two updates of an open incident; 0 for only when it gets worse
    settle: Seconds = 86400.0  # an incident that goes on steadily for so long becomes the new normal; 0 for never
    tolerance: Annotated[Mapping[str, float], rules.TOLERANCES] = field(default_factory=dict)  # of no concern

    def pause(self, period: float) -> float:
        """Seconds after an end before the next may begin: `cool_down`, or a usual window, at least five minutes.

        Alarms at most a window apart are one event, because the samples behind them overlap: that is how thresholds
        and budgets count them.
        """
        return max(USUAL_WINDOW * period, 300.0) if self.cool_down == BY_PERIOD else self.cool_down

    def check(self, section: FileSection) -> None:
        """Raise a `SettingsError` for both a budget and a threshold."""
        if self.budget and self.threshold != "":
            places = [f"{key} in [{section.place(key)}]" for key in ("budget", "threshold")]
            raise SettingsError(f"{' and '.join(places)} are mutually exclusive; keep one.")


@dataclass(frozen=True)
class Learning:
    """How a device learns its own dynamics; the model to begin with and the folder may contain `{device}`."""

    model: FileName = ""  # where the device's folder has none
    folder: str = "devices/{device}"  # shared with a fleet client
    cycle: Annotated[Seconds, POSITIVE] = 86400.0  # the first model, without any other, has seen one of them
    first: Annotated[int, rules.FIRST_ROWS] = 0  # or so many rows; 0 for one cycle
    every: Annotated[int, rules.ROWS_OR_NEVER] = 5000  # normal rows after which the dynamics are fitted again
    forgetting: Annotated[float, SHARE] = 1.0  # the weight of what was known, each time; 1 forgets nothing


@dataclass(frozen=True)
class MqttSink(BrokerLogin):
    """States, alerts and availability on a broker: the source's unless another is named."""

    enabled: Annotated[bool, IfWritten(True)] = False
    prefix: Annotated[str, rules.PREFIX] = "fedkad"
    state_every: Seconds = 10.0

    def check(self, section: FileSection) -> None:
        """Raise a `SettingsError` for a broker that cannot be reached so."""
        if self.enabled and self.broker:
            split_broker(self.broker)
        if self.enabled:
            self.check_login(section)


@dataclass(frozen=True)
class HomeAssistant:
    """Discovery: Home Assistant shows each device by itself. Needs [mqtt]."""

    enabled: Annotated[bool, IfWritten(True)] = False
    prefix: Annotated[str, rules.PREFIX] = "homeassistant"


@dataclass(frozen=True)
class WebhookSettings:
    """Alerts by HTTP POST, kept until they are accepted; no url for none. The formats are those of `sinks.services`."""

    url: Annotated[str, rules.WEB_ADDRESS, IfWritten(example='"https://…"')] = ""
    format: Literal["json", "ntfy", "slack", "telegram"] = "json"
    chat: Annotated[str, rules.CHAT] = ""  # of Telegram: its number, or @ and its name
    headers: Annotated[Mapping[str, str], rules.HEADERS] = field(default_factory=dict)
    token_file: FileName = ""
    ca_file: FileName = ""
    timeout: Annotated[UpToAnHour, POSITIVE] = 10.0

    def check(self, section: FileSection) -> None:
        """Raise a `SettingError` for a service that lacks what it needs."""
        if self.format == "ntfy" and not re.fullmatch(r"https?://[^/?]+(/[^?]*)?/[-\w]{1,64}", self.url, re.ASCII):
            allowed = "the address of a topic, such as https://ntfy.sh/topic"
            raise SettingError("url", without_login(self.url), allowed)
        if self.format == "telegram" and not self.token_file:
            raise SettingError("token_file", "", "a file with the token of the bot")
        if self.format == "telegram" and not self.chat:
            raise SettingError("chat", "", rules.CHAT.allowed)
        if self.chat and self.format != "telegram":
            raise SettingError("chat", self.chat, 'left out, or format "telegram"')


@dataclass(frozen=True)
class Prometheus:
    """A page of metrics for Prometheus; port 0 for none."""

    address: Annotated[str, rules.OWN_ADDRESS] = "127.0.0.1"
    port: Annotated[int, rules.PORT_OR_NONE, IfWritten(example="9108")] = 0


@dataclass(frozen=True)
class Stdout:
    """JSON lines on standard output: alerts, and every reading if requested."""

    enabled: bool = True
    readings: bool = False


@dataclass(frozen=True)
class FleetSection:
    """Take part in a fleet with every device whose folder is one of a fleet: no client has to run beside the agent."""

    enabled: Annotated[bool, IfWritten(True)] = False


@dataclass(frozen=True)
class Maintenance:
    """A planned time in which a device, or every one, raises no alarm and learns nothing."""

    start: Annotated[float, rules.MOMENT] = field(metadata={"key": "from"})
    end: Annotated[float, rules.MOMENT] = field(metadata={"key": "until"})
    device: str = ""


@dataclass(frozen=True)
class DeviceSettings:
    """The settings of one device; `detector` has the parameters of a first model that are written."""

    sampling: Sampling = field(default_factory=Sampling)
    alarm: Alarm = field(default_factory=Alarm)
    learning: Learning = field(default_factory=Learning)
    detector: Annotated[Mapping[str, Any], rules.FIRST_MODEL] = field(default_factory=dict)

    @property
    def first_rows(self) -> int:
        """Rows for the first model: as written, or those of one cycle, but enough to set a threshold by."""
        cycle = math.ceil(self.learning.cycle / self.sampling.period) if self.sampling.period != INFERRED else 0
        return self.learning.first or min(max(cycle, ENOUGH_ROWS), rules.MOST_ROWS)

    def of(self, device: str) -> DeviceSettings:
        """The same with the name of the device for `{device}`."""
        # One folder each, whatever levels a name has: "hall/pump" is hall%2Fpump.
        name = device.replace("%", "%25").replace("/", "%2F") if "/" in device else device
        folder, model = (text.replace("{device}", name) for text in (self.learning.folder, self.learning.model))
        return replace(self, learning=replace(self.learning, folder=folder, model=model))

    def check(self, section: FileSection) -> None:
        """Raise a `SettingError` for a rank that no data can have, or for a channel that is not there.

        The rank and the inputs would be found only after all rows are there, a tolerance never.
        """
        detector, channels = KoopmanDetector(**self.detector), len(self.sampling.channels)
        place = section.inner("alarm").place("tolerance")
        if unknown := [name for name in self.alarm.tolerance if name not in self.sampling.channels]:
            raise SettingError("tolerance", unknown[0], "about channels in [sampling]", place)
        if missing := [name for name in detector.inputs if name not in self.sampling.channels]:
            allowed = f"channels in [{section.inner('sampling').place('channels')}]"
            raise SettingError("inputs", missing[0], allowed, section.inner("detector").place("inputs"))
        if self.alarm.tolerance and detector.scoring != "witnesses":
            raise SettingError("tolerance", dict(self.alarm.tolerance), 'left out, or scoring "witnesses"', place)
        most = channels * detector.window + detector.observables
        if detector.rank > most:
            sizes = f"{channels} channel(s) x window {detector.window} + {detector.observables} observables"
            place = section.inner("detector").place("rank", "window", "observables")
            raise SettingError("rank", detector.rank, f"at most {most}, the size of a lifted state ({sizes})", place)


@dataclass(frozen=True)
class AgentSettings:
    """All of `agent.toml`; paths are absolute. `devices` and `maintenance` follow from several sections.

    The settings of every other device that publishes, if it is to be watched, are those of the device ``*``.
    """

    devices: Mapping[str, DeviceSettings]
    maintenance: tuple[Maintenance, ...] = ()
    name: Annotated[str, rules.AGENT_NAME] = field(default_factory=socket.gethostname)
    state: Path = Path("state")
    most_devices: Annotated[int, at_least(1)] = 100
    commit_every: UpToAnHour = 1.0
    source: SourceSettings = field(default_factory=SourceSettings)
    mqtt: MqttSink = field(default_factory=MqttSink)
    homeassistant: HomeAssistant = field(default_factory=HomeAssistant)
    webhook: WebhookSettings = field(default_factory=WebhookSettings)
    prometheus: Prometheus = field(default_factory=Prometheus)
    stdout: Stdout = field(default_factory=Stdout)
    fleet: FleetSection = field(default_factory=FleetSection)

    def check(self, section: FileSection) -> None:
        """Raise a `SettingsError` for a sink that lacks what it needs."""
        if self.mqtt.enabled and not self.mqtt.broker and self.source.kind != "mqtt":
            raise SettingError("broker", "", "such as mqtt://localhost:1883, since the source has none", "mqtt")
        if self.homeassistant.enabled and not self.mqtt.enabled:
            raise SettingsError("[homeassistant] needs [mqtt]; add that section, or remove this one.")

    @property
    def named(self) -> dict[str, DeviceSettings]:
        """The devices that have a name."""
        return {name: device for name, device in self.devices.items() if name != EVERY}

    def why_not(self, device: str) -> str:
        """Why a device that publishes is not watched; empty if it can be."""
        others, named = self.devices.get(EVERY), self.named
        if others is None:
            return "it is not configured; add it to devices, or keep it away"
        if device == EVERY or not rules.is_device_name(device) or not rules.is_short(device):
            return "a device cannot have such a name"
        if len(named) >= self.most_devices:
            return f"{len(named)} devices are watched, and most_devices allows no more; raise it, or list the devices"
        folder = others.of(device).learning.folder
        owner = next((name for name, each in named.items() if each.learning.folder == folder), "")
        return f"its folder is that of {owner}; rename one of them" if owner else ""

    def admitting(self, devices: Iterable[str]) -> AgentSettings:
        """The same with devices that publish, as far as they can be watched."""
        settings = self
        for name in devices:
            if name not in settings.devices and not settings.why_not(name):
                admitted = {**settings.devices, name: settings.devices[EVERY].of(name)}
                settings = replace(settings, devices=admitted)
        return settings
