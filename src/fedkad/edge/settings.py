"""What an operator decides about an agent, section by section of `agent.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KINDS = ("stdin", "file", "mqtt")
FORMATS = ("json", "csv")
CLOCKS = ("message", "arrival", "count")

BY_PERIOD = -1.0
"""A duration that was not written and follows from the period; 0 is a duration of its own."""


class SettingsError(ValueError):
    """A file that cannot be used; the message says which key, what it says and what is allowed."""


@dataclass(frozen=True)
class Source:
    """Where samples come from.

    Attributes
    ----------
    kind : {"stdin", "file", "mqtt"}
        JSON lines or CSV from standard input, the same from a file that grows, or messages of a broker.
    format : {"json", "csv"}
        How lines are written.
    path : str
        The file that grows.
    broker : str
        ``mqtt://host:port`` or ``mqtts://host:port``.
    topics : tuple of str
        Topics with `{device}`, and with `{channel}` where a message is a bare number; other levels may be ``+``.
    device_key : str
        Where a message names its device, as a path such as ``tags.host``, when its topic does not.
    time_key : str
        Where a message says its time, as such a path or a column; empty for the usual names, such as ``timestamp``.
    username, password_file, ca_file, certificate_file, key_file, client_id : str
        How the broker is reached; files are relative to the configuration.
    """

    kind: str = "stdin"
    format: str = "json"
    path: str = ""
    broker: str = ""
    topics: tuple[str, ...] = ()
    device_key: str = "device"
    time_key: str = ""
    username: str = ""
    password_file: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    client_id: str = ""


@dataclass(frozen=True)
class Sampling:
    """The grid that a device's samples are put on.

    Attributes
    ----------
    channels : tuple of str
        All channels, in the order of the model.
    period : float
        Seconds between two rows of the grid.
    lateness : float
        Seconds that a slot waits for values that come late.
    max_gap : float
        Seconds that a last value stands for a missing one; then the window breaks. 0 for never.
    stale_after : float
        Seconds without a sample after which a device is stale.
    clock : {"message", "arrival", "count"}
        The time of a sample: what the message says (its arrival, if it says nothing), its arrival, or its number.
    zone : str
        Of times without a zone: "local", "UTC", or a name such as Europe/Berlin.

    Notes
    -----
    `max_gap` and `stale_after` are `BY_PERIOD` where nobody has written them, until the period is known that they
    follow from; those of a configuration that was read are seconds.
    """

    channels: tuple[str, ...] = ()
    period: float = 1.0
    lateness: float = 0.0
    max_gap: float = BY_PERIOD
    stale_after: float = BY_PERIOD
    clock: str = "message"
    zone: str = "local"


@dataclass(frozen=True)
class Alarm:
    """When a person is told.

    Attributes
    ----------
    threshold : str or float
        Score above which a sample is abnormal, or a method that sets it; empty for that of the model.
    budget : str
        False alarms allowed, such as "1/week", instead of a threshold.
    min_duration : float
        Seconds that the score must stay above the threshold before an incident begins.
    release : float
        The incident goes on while the score is above this share of the threshold.
    clear_after : float
        Seconds of quiet after which it ends.
    cool_down : float
        Seconds after an end before the next incident may begin, unless it is critical.
    rate_window, rate_limit : float
        An incident also begins when this share of the samples of so many seconds is abnormal; 0 for never.
    critical : float
        Scores of so many thresholds are critical; below, a warning.
    update_every : float
        Seconds between two updates of an incident that goes on; 0 for only when it gets worse.
    """

    threshold: str | float = ""
    budget: str = ""
    min_duration: float = 0.0
    release: float = 0.8
    clear_after: float = 60.0
    cool_down: float = 300.0
    rate_window: float = 3600.0
    rate_limit: float = 0.2
    critical: float = 3.0
    update_every: float = 600.0


@dataclass(frozen=True)
class Learning:
    """How a device's private dynamics are learnt on the device.

    Attributes
    ----------
    model : str
        A model to begin with, where the device's folder has none; may contain `{device}`.
    folder : str
        The device's folder, shared with a fleet client; may contain `{device}`.
    first : int
        Rows that the first model is fitted on, where there is no model at all.
    every : int
        Normal rows after which the dynamics are fitted anew; 0 for never.
    forgetting : float
        What was known weighs so much less at each of these times; 1 forgets nothing.
    """

    model: str = ""
    folder: str = "devices/{device}"
    first: int = 2000
    every: int = 5000
    forgetting: float = 1.0


@dataclass(frozen=True)
class MqttSink:
    """States, alerts and availability on a broker: that of the source unless another is named."""

    enabled: bool = False
    broker: str = ""
    username: str = ""
    password_file: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    prefix: str = "fedkad"
    state_every: float = 10.0


@dataclass(frozen=True)
class HomeAssistant:
    """Discovery: Home Assistant shows each device by itself. Needs [mqtt]."""

    enabled: bool = False
    prefix: str = "homeassistant"


@dataclass(frozen=True)
class Webhook:
    """Alerts by HTTP POST, kept until they are taken; no url for none."""

    url: str = ""
    token_file: str = ""
    ca_file: str = ""
    timeout: float = 10.0


@dataclass(frozen=True)
class Prometheus:
    """A page of numbers for Prometheus to read; port 0 for none."""

    address: str = "127.0.0.1"
    port: int = 0


@dataclass(frozen=True)
class Stdout:
    """JSON lines on standard output: alerts, and every reading if asked."""

    enabled: bool = True
    readings: bool = False


@dataclass(frozen=True)
class Maintenance:
    """A planned stretch of time in which a device, or every one, raises no alarm and learns nothing."""

    start: float
    end: float
    device: str = ""


@dataclass(frozen=True)
class DeviceSettings:
    """What holds for one device."""

    sampling: Sampling = field(default_factory=Sampling)
    alarm: Alarm = field(default_factory=Alarm)
    learning: Learning = field(default_factory=Learning)
    detector: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AgentSettings:
    """All of `agent.toml`; paths are absolute."""

    name: str
    state: Path
    source: Source
    commit_every: float
    devices: dict[str, DeviceSettings]
    mqtt: MqttSink = field(default_factory=MqttSink)
    homeassistant: HomeAssistant = field(default_factory=HomeAssistant)
    webhook: Webhook = field(default_factory=Webhook)
    prometheus: Prometheus = field(default_factory=Prometheus)
    stdout: Stdout = field(default_factory=Stdout)
    maintenance: tuple[Maintenance, ...] = ()
