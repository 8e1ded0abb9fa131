"""What can be checked of a configuration without running it: its files, its folders, its models, its libraries."""

from __future__ import annotations

import os
import re
import ssl
import stat
from pathlib import Path

from fedkad.detect.detector import KoopmanDetector
from fedkad.detect.modelfile import DamagedFileError, ModelFileError
from fedkad.edge.addresses import split_broker
from fedkad.edge.assembly import require_extra
from fedkad.edge.model import check_channels
from fedkad.edge.payload import CsvRows, PayloadError
from fedkad.edge.settings import AgentSettings, DeviceSettings, MqttSink, SettingsError, SourceSettings, WebhookSettings
from fedkad.edge.sources.lines import first_line

BEYOND_WINDOW = 200
"""Rows that a first model needs besides those of its window and its horizon."""

FEW_ROWS = 700
"""Rows of a first model below which the highest score that is normal has hardly been seen."""

OTHER_PERIOD = 0.01
"""The share by which the period of a model may differ from that of the grid."""


def check(settings: AgentSettings) -> str:
    """Look at everything that the configuration names; returns what would be watched, and what to take note of.

    What the agent could not run with is a `SettingsError`; a note is of what it would get along with.
    """
    require_extra(settings)
    notes: list[str] = []
    if settings.source.kind == "file":
        _check_followed(settings.source.path)
        _note_followed(settings, notes)
    if settings.source.kind == "mqtt":
        _check_login(settings.source, "source")
    if settings.mqtt.enabled and settings.mqtt.broker:
        _check_login(settings.mqtt, "mqtt")
    _check_webhook(settings.webhook)
    _check_folder(settings.state, "state")
    with_model = sum(_has_model(name, device, notes) for name, device in settings.devices.items())
    return "\n".join([_described(settings, with_model), *notes])


# -- files and folders ----------------------------------------------------------------------------------------------


def _check_followed(path: str) -> None:
    """A file that is followed may be written later, its folder not: nobody would see that its name is wrong."""
    folder = Path(path).parent
    if _is_there(path):
        _check_readable(path, "path in [source]")
    elif not os.path.isdir(folder):
        raise SettingsError(f"{path}: there is no folder {folder}; make it, or correct path in [source].")
    elif not os.access(folder, os.X_OK):
        raise SettingsError(f"{path}: the agent may not look into {folder}; let it, or correct path in [source].")


def _note_followed(settings: AgentSettings, notes: list[str]) -> None:
    path, is_csv = settings.source.path, settings.source.format == "csv"
    if not _is_there(path):
        notes.append(f"{path}: it is not there yet; the agent will wait for it.")
    if not is_csv and path.lower().endswith(".csv"):
        notes.append(
            f"{path}: its name ends in .csv, and format in [source] is {settings.source.format}; "
            'set format = "csv" if its lines are rows.'
        )
    if is_csv and os.path.isfile(path):  # a pipe would have to be waited for
        _note_header(settings, notes)


def _note_header(settings: AgentSettings, notes: list[str]) -> None:
    source, devices = settings.source, settings.devices.values()
    with open(source.path, "rb") as file:
        header = first_line(file)
    if header is None:
        return
    channels = dict.fromkeys(name for device in devices for name in device.sampling.channels)
    try:
        CsvRows(list(channels), "UTC", source.device_key, header.decode(errors="replace"))
    except PayloadError as error:
        notes.append(f"{source.path}: {error}")


def _check_login(broker: SourceSettings | MqttSink, section: str) -> None:
    from fedkad.edge.mqtt import read_secret, tls_context

    read_secret(broker.password_file, section)
    for key in ("ca_file", "certificate_file", "key_file"):
        _check_readable(getattr(broker, key), f"{key} in [{section}]")
    if split_broker(broker.broker, section)[2]:
        tls_context(broker, section)


def _check_webhook(webhook: WebhookSettings) -> None:
    _check_readable(webhook.token_file, "token_file in [webhook]")
    _check_readable(webhook.ca_file, "ca_file in [webhook]")
    # What cannot be decoded is no such word either, and the token itself is not to be shown.
    if webhook.token_file and not re.fullmatch(rb"[!-~]+", Path(webhook.token_file).read_bytes().strip()):
        raise SettingsError(f"{webhook.token_file}: token_file in [webhook] must hold one word of plain characters.")
    if webhook.ca_file:
        try:
            ssl.create_default_context(cafile=webhook.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise SettingsError(
                f"{webhook.ca_file}: {error}; ca_file in [webhook] must name a file of certificates."
            ) from None


def _check_readable(path: str, key: str) -> None:
    """Refuse a name, unless it is empty, of something that is no file or cannot be read."""
    if not path:
        return
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # does not wait for who writes to a pipe
    except FileNotFoundError:
        raise SettingsError(f"{path}: there is no such file; {key} must name one.") from None
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}; {key} must name a file that can be read.") from None
    try:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise SettingsError(f"{path}: this is a folder; {key} must name a file.")
    finally:
        os.close(descriptor)


def _check_folder(path: Path, key: str) -> None:
    """Refuse a folder that neither can be written to nor made."""
    there = path
    while not _is_there(there) and there != there.parent:
        there = there.parent
    if not os.path.isdir(there):
        raise SettingsError(f"{path}: {there} is no folder; {key} must name one.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise SettingsError(f"{path}: the agent may not write to {there}; let it, or set another {key}.")


def _is_there(path: str | Path) -> bool:
    """Whether there is anything of that name, as far as one may know; a link that leads nowhere is something."""
    return os.path.lexists(path)


# -- models ---------------------------------------------------------------------------------------------------------


def _has_model(name: str, device: DeviceSettings, notes: list[str]) -> bool:
    """Whether a device begins with a model: that in its folder, or else the one that the configuration names."""
    folder = Path(device.learning.folder)
    _check_folder(folder, f"folder of {name}")
    own = _own_model(name, folder / "model.safetensors", device, notes)
    named = _named_model(name, device, notes, needed=own is None)
    used = own or named
    if used is None:
        _check_first(name, device)
        _note_first(name, device, notes)
    else:
        _note_period(name, used, device, notes)
    return used is not None


def _own_model(name: str, path: Path, device: DeviceSettings, notes: list[str]) -> KoopmanDetector | None:
    if not _is_there(path):
        return None
    try:
        found = KoopmanDetector.load(path, statistics=False)
    except DamagedFileError as error:
        notes.append(f"{name}: {error} The agent will set it aside and go on without it.")
        return None
    except ModelFileError as error:  # it may be somebody's, and the agent puts nothing in its place
        raise SettingsError(f"{name}: {error}") from None
    check_channels(found, path, device)
    return found


def _named_model(name: str, device: DeviceSettings, notes: list[str], *, needed: bool) -> KoopmanDetector | None:
    """The model that a device begins with; where it has begun, one that has gone since is no reason to stop."""
    path = device.learning.model
    if not path:
        return None
    try:
        _check_readable(path, f"model of {name}")
        found = KoopmanDetector.load(path, statistics=False)
        check_channels(found, Path(path), device)
    except (ModelFileError, SettingsError) as error:
        if needed:
            raise SettingsError(str(error)) from None
        notes.append(f"{name}: {error} The device has a model of its own and goes on with that.")
        return None
    return found


def _check_first(name: str, device: DeviceSettings) -> None:
    detector = KoopmanDetector(**device.detector)
    least = detector.window + detector.horizon + BEYOND_WINDOW
    if device.learning.first < least:
        raise SettingsError(
            f"{name}: first = {device.learning.first} must be at least {least} rows: window {detector.window} "
            f"+ horizon {detector.horizon} + {BEYOND_WINDOW}."
        )


def _note_first(name: str, device: DeviceSettings, notes: list[str]) -> None:
    first = device.learning.first
    if first < FEW_ROWS and isinstance(device.alarm.threshold, str):  # else somebody knows the threshold
        notes.append(
            f"{name}: first = {first}, and a threshold from fewer than about {FEW_ROWS} rows is a guess: "
            "expect false alarms, or set a larger first in [learning]."
        )


def _note_period(name: str, model: KoopmanDetector, device: DeviceSettings, notes: list[str]) -> None:
    learnt, period = model.parameters_.sample_period, device.sampling.period
    if learnt is not None and abs(period - learnt) > OTHER_PERIOD * learnt:
        notes.append(
            f"{name}: the model was fitted on samples {learnt:g} s apart, and period is {period:g} s; "
            "its scores mean little unless the two agree."
        )


# -- what would be watched ------------------------------------------------------------------------------------------


def _described(settings: AgentSettings, with_model: int) -> str:
    source, devices = settings.source, settings.devices
    where = {"stdin": "standard input", "file": source.path, "mqtt": source.broker}[source.kind]
    stdout, brokers = settings.stdout, [name for name in ("mqtt", "homeassistant") if getattr(settings, name).enabled]
    alerts = ["stdout"] * stdout.enabled + brokers + ["webhook"] * bool(settings.webhook.url)
    states = ["stdout"] * (stdout.enabled and stdout.readings) + brokers
    states += ["prometheus"] * bool(settings.prometheus.port)
    return (
        f"{len(devices)} device(s) from {where}, {with_model} with a model; "
        f"alerts go to {', '.join(alerts) or 'nobody'}; states go to {', '.join(states) or 'nobody'}."
    )
