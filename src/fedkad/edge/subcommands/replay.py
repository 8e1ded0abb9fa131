"""``fedkad-agent replay``: what the agent would have alarmed on a recording, with these settings.

The agent itself reads the recording, as lines on its standard input, in a temporary folder that has copies of the
models that the devices have now. Nothing of its state is touched, and no alert is sent.
"""

from __future__ import annotations

import gzip
import logging
import os
import shutil
import tempfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from fedkad.edge.agent import Agent
from fedkad.edge.alarms.stored import open_incident
from fedkad.edge.alerttext import short_number, span
from fedkad.edge.commands.client import StoreClient, with_known
from fedkad.edge.process import log_to_stderr
from fedkad.edge.settings import (
    AgentSettings,
    DeviceSettings,
    HomeAssistant,
    MqttSink,
    Prometheus,
    SettingsError,
    SourceSettings,
    Stdout,
    WebhookSettings,
)
from fedkad.edge.settings.rules import EVERY
from fedkad.edge.store.database import StoreError
from fedkad.edge.subcommands.history import as_they_are, incident_table, table

WEEK = 7 * 86400.0
SUMMARY = ("device", "rows", "scored", "incidents", "per week", "open at the end")


class Replayed(NamedTuple):
    """What a recording would have alarmed; `is_whole` is false if the replay was interrupted before its end."""

    text: str
    is_whole: bool


def replay(settings: AgentSettings, recording: Path) -> Replayed:
    """Run the agent over a recording, to its end or until Ctrl-C: its incidents and a summary for each device."""
    if recording.is_dir():
        raise SettingsError(f"{recording}: this is a folder; name a recording, JSON lines or CSV.")
    if not recording.is_file():
        raise SettingsError(f"{recording}: no such file; name a recording, JSON lines or CSV.")
    with suppress(StoreError):  # then the agent was never started
        settings = with_known(settings)
    log_to_stderr()
    logging.getLogger("fedkad.edge").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="fedkad-replay-") as folder:
        alone = _alone(settings, Path(folder), recording)
        with _unpacked(recording, Path(folder)).open("rb") as file:
            os.dup2(file.fileno(), 0)
        is_whole = _run(alone)
        store = StoreClient(alone.state)
        states = store.states()
        alerts = as_they_are(store.incidents(), states)
    has_rows = any(state.get("seq") for state in states.values())
    if is_whole and not has_rows:
        channels = dict.fromkeys(name for device in settings.devices.values() for name in device.sampling.channels)
        raise SettingsError(
            f"{recording}: there is no row of {', '.join(settings.named) or 'any device'}; a line needs "
            f"{', '.join(channels)} and, unless there is only one device, its name under device_key of [source], "
            f"{settings.source.device_key!r}."
        )
    summaries = [_summary(name, states.get(name, {})) for name in dict.fromkeys((*settings.named, *states))]
    parts = [incident_table(alerts) if alerts else "No incidents.", table(SUMMARY, summaries)]
    if not is_whole:
        parts.insert(0, f"Interrupted: only a part of {recording} was read, and what follows is about that part.")
    return Replayed("\n\n".join(parts), is_whole)


def _run(settings: AgentSettings) -> bool:
    """Run an agent until its input ends; false if it was interrupted before."""
    agent = Agent(settings)
    try:
        agent.run()
        return agent.source.is_finished
    finally:
        agent.close()


def _unpacked(recording: Path, folder: Path) -> Path:
    """A file with the lines of a recording: the recording itself unless it is compressed."""
    if recording.suffix.lower() != ".gz":
        return recording
    unpacked = folder / "recording"
    try:
        with gzip.open(recording) as packed, unpacked.open("wb") as file:
            shutil.copyfileobj(packed, file)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise SettingsError(f"{recording}: the gzip data is damaged ({error}); fetch or compress it again.") from None
    return unpacked


def _alone(settings: AgentSettings, folder: Path, recording: Path) -> AgentSettings:
    """Return the settings of an agent that reads lines, has no sinks, and writes into a folder only."""
    source, is_lines = settings.source, settings.source.kind != "mqtt"
    plain = recording.with_suffix("") if recording.suffix.lower() == ".gz" else recording
    has_rows = plain.suffix.lower() == ".csv" or (is_lines and source.format == "csv")
    read = SourceSettings(
        kind="stdin", format="csv" if has_rows else "json", device_key=source.device_key, time_key=source.time_key
    )
    devices = {
        name: _with_copy(_recorded(device), folder / "devices" / str(number))
        for number, (name, device) in enumerate(settings.named.items())
    }
    if EVERY in settings.devices:
        others = _recorded(settings.devices[EVERY])
        devices[EVERY] = replace(others, learning=replace(others.learning, folder=str(folder / "others" / "{device}")))
    return replace(
        settings,
        devices=devices,
        state=folder / "state",
        source=read,
        mqtt=MqttSink(),
        homeassistant=HomeAssistant(),
        webhook=WebhookSettings(),
        prometheus=Prometheus(),
        stdout=Stdout(enabled=False),
    )


def _recorded(device: DeviceSettings) -> DeviceSettings:
    """The settings of a device whose samples were recorded: the times there say when they arrived."""
    sampling = device.sampling
    return replace(device, sampling=replace(sampling, clock="message")) if sampling.clock == "arrival" else device


def _with_copy(device: DeviceSettings, folder: Path) -> DeviceSettings:
    """The settings of a device whose folder is another, with a copy of its model."""
    folder.mkdir(parents=True)
    present = Path(device.learning.folder, "model.safetensors")
    if present.exists():
        shutil.copyfile(present, folder / present.name)
    given = "" if present.exists() else device.learning.model
    return replace(device, learning=replace(device.learning, folder=str(folder), model=given))


def _summary(name: str, state: Mapping[str, Any]) -> tuple[str, ...]:
    alarms = state.get("alarms", {})
    watched, count = float(alarms.get("watched", 0.0)), int(alarms.get("incidents", 0))
    weekly = short_number(count * WEEK / watched if watched else None)
    opened = open_incident(alarms)
    return name, str(state.get("seq", 0)), span(watched), str(count), weekly, "" if opened is None else opened.id
