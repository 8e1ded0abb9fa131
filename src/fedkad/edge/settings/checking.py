"""Check a configuration without running it: its files, its folders, its models, its libraries."""

from __future__ import annotations

import os
from pathlib import Path

from fedkad.detect.detector import KoopmanDetector
from fedkad.detect.learning import FEWEST_PAIRS
from fedkad.detect.model import Model
from fedkad.detect.modelfile import DamagedFileError, ModelFileError, load_model
from fedkad.edge.assembly import require_extra
from fedkad.edge.device.modelfolder import check_model, outgrown_note, period_note
from fedkad.edge.membership import member_folders
from fedkad.edge.settings import (
    ENOUGH_ROWS,
    AgentSettings,
    DeviceSettings,
    MqttSink,
    SettingsError,
    SourceSettings,
)
from fedkad.edge.settings.credentials import check_readable, read_password, read_token, tls_context
from fedkad.edge.settings.rules import EVERY, split_broker
from fedkad.edge.sinks.prometheus import check_port
from fedkad.edge.sources.lines import first_line
from fedkad.edge.sources.payload import PayloadError
from fedkad.edge.sources.readers import CsvReader
from fedkad.fleet.shared.files import FleetFileError
from fedkad.locks import is_held


def check(settings: AgentSettings) -> str:
    """Check everything that the configuration names; returns what would be watched, and notes about it.

    Anything that the agent cannot run with is a `SettingsError`; notes are about what it can cope with.
    """
    require_extra(settings)
    notes: list[str] = []
    if settings.source.kind == "file":
        _check_followed(settings, notes)
    if settings.source.kind == "mqtt":
        _check_login(settings.source, "source")
    if settings.mqtt.enabled and settings.mqtt.broker:
        _check_login(settings.mqtt, "mqtt")
    read_token(settings.webhook.token_file, "webhook")
    tls_context("webhook", settings.webhook.ca_file)
    _check_folder(settings.state, "state")
    if settings.prometheus.port:
        _check_metrics(settings, notes)
    with_model = sum(_has_model(name, device, notes) for name, device in settings.named.items())
    if EVERY in settings.devices:
        _check_others(settings.devices[EVERY], notes)
    if settings.fleet.enabled:
        _check_members(settings, notes)
    return "\n".join([_described(settings, with_model), *notes])


# -- files and folders ----------------------------------------------------------------------------------------------


def _check_followed(settings: AgentSettings, notes: list[str]) -> None:
    """The file may be created later, but not its folder: a misspelled path would never be noticed."""
    path, is_csv = settings.source.path, settings.source.format == "csv"
    folder = Path(path).parent
    if os.path.lexists(path):
        check_readable(path, "path in [source]")
    elif not os.path.isdir(folder):
        raise SettingsError(f"{path}: there is no folder {folder}; create it, or correct path in [source].")
    elif not os.access(folder, os.X_OK):
        raise SettingsError(f"{path}: the agent may not read {folder}; allow it, or correct path in [source].")
    else:
        notes.append(f"{path}: does not exist yet; the agent will wait for it.")
    if not is_csv and path.lower().endswith(".csv"):
        notes.append(
            f"{path}: its name ends in .csv, but format in [source] is {settings.source.format}; "
            'set format = "csv" if its lines are rows.'
        )
    if is_csv and os.path.isfile(path):  # reading a pipe would block
        _note_header(settings, notes)


def _note_header(settings: AgentSettings, notes: list[str]) -> None:
    source, devices = settings.source, settings.devices.values()
    with open(source.path, "rb") as file:
        header = first_line(file)
    if header is None:
        return
    channels = dict.fromkeys(name for device in devices for name in device.sampling.channels)
    try:
        CsvReader(list(channels), "UTC", source.device_key, header.decode(errors="replace"))
    except PayloadError as error:
        notes.append(f"{source.path}: {error}")


def _check_login(broker: SourceSettings | MqttSink, section: str) -> None:
    read_password(broker.password_file, section)
    for key in ("ca_file", "certificate_file", "key_file"):  # also where TLS is not used
        check_readable(getattr(broker, key), f"{key} in [{section}]")
    if split_broker(broker.broker, section)[2]:
        tls_context(section, broker.ca_file, broker.certificate_file, broker.key_file)


def _check_folder(path: Path, key: str) -> None:
    """Refuse a folder that can neither be written to nor created."""
    there = path
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    if not os.path.isdir(there):
        raise SettingsError(f"{path}: {there} is not a folder; {key} must name one.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise SettingsError(f"{path}: the agent may not write to {there}; allow it, or set another {key}.")


def _check_metrics(settings: AgentSettings, notes: list[str]) -> None:
    """Refuse a port that is in use, unless it may be the agent itself that uses it."""
    try:
        check_port(settings.prometheus)
    except SettingsError as error:
        if not is_held(settings.state / "agent.lock"):
            raise
        notes.append(f"{error} It may be the agent that is running with this state.")


# -- models ---------------------------------------------------------------------------------------------------------


def _has_model(name: str, device: DeviceSettings, notes: list[str]) -> bool:
    """Whether a device starts with a model: that in its folder, or else the configured one."""
    folder = Path(device.learning.folder)
    _check_folder(folder, f"folder of {name}")
    own = _own_model(name, folder / "model.safetensors", device, notes)
    named = _named_model(name, device, notes, needed=own is None)
    used = own or named
    if used is None:
        _check_first(name, device, notes)
    elif note := period_note(used, device):
        notes.append(f"{name}: {note}")
    return used is not None


def _check_others(device: DeviceSettings, notes: list[str]) -> None:
    """Check what devices that are not known yet begin with, as far as it does not depend on their names."""
    if not device.learning.model:
        _check_first(EVERY, device, notes)
    elif "{device}" not in device.learning.model:
        _named_model(EVERY, device, notes, needed=True)


def _own_model(name: str, path: Path, device: DeviceSettings, notes: list[str]) -> Model | None:
    if not os.path.lexists(path):
        return None
    try:
        model, _ = load_model(path, memory=False)
    except DamagedFileError as error:
        notes.append(f"{name}: {error} The agent will rename it and continue without it.")
        return None
    except ModelFileError as error:  # it may be in use elsewhere, and the agent must not replace it
        raise SettingsError(f"{name}: {error}") from None
    if note := outgrown_note(model, path, device):
        notes.append(f"{name}: {note} The agent will rename it and learn again.")
        return None
    check_model(model, path, device)
    return model


def _named_model(name: str, device: DeviceSettings, notes: list[str], *, needed: bool) -> Model | None:
    """The configured model; if it is not needed any more, a note is enough when it cannot be used."""
    path = device.learning.model
    if not path:
        return None
    try:
        check_readable(path, f"model of {name}")
        model, _ = load_model(path, memory=False)
        check_model(model, Path(path), device)
    except (ModelFileError, SettingsError) as error:
        if needed:
            raise SettingsError(str(error)) from None
        notes.append(f"{name}: {error} The device has its own model and continues with that.")
        return None
    return model


def _check_first(name: str, device: DeviceSettings, notes: list[str]) -> None:
    first, detector = device.first_rows, KoopmanDetector(**device.detector)
    least = detector.window + detector.horizon - 1 + FEWEST_PAIRS
    if first < least:
        raise SettingsError(
            f"{name}: first = {first} must be at least {least} rows, because window {detector.window} "
            f"and horizon {detector.horizon} leave fewer than {FEWEST_PAIRS} windows to fit a model to."
        )
    if first < ENOUGH_ROWS and isinstance(device.alarm.threshold, str):  # a number was chosen by someone
        notes.append(
            f"{name}: first = {first}, but a threshold from fewer than about {ENOUGH_ROWS} rows is a guess: "
            "expect false alarms, or set a larger first in [learning]."
        )


def _check_members(settings: AgentSettings, notes: list[str]) -> None:
    """Refuse a fleet that no device is in, and folders that cannot be used; note who is not in it."""
    from fedkad.fleet.device.settings import load_device

    members = member_folders(settings)
    if not members:
        raise SettingsError(
            "[fleet] is there, but no device has the folder of a fleet; let folder in [learning] name what "
            "`fedkad fleet add` or `fedkad fleet join` created."
        )
    for name, folder in members.items():
        try:
            load_device(folder).data_file(None)
        except FleetFileError as error:
            raise SettingsError(f"{name}: {error}") from None
    if others := [name for name in settings.named if name not in members]:
        notes.append(f"not in a fleet: {', '.join(others)}, whose folders have no device.toml.")


# -- what would be watched ------------------------------------------------------------------------------------------


def _described(settings: AgentSettings, with_model: int) -> str:
    source = settings.source
    devices = f"{len(settings.named)} device(s)"
    if EVERY in settings.devices:
        devices += f" and every other one, up to {settings.most_devices},"
    where = {"stdin": "standard input", "file": source.path, "mqtt": source.broker}[source.kind]
    stdout, brokers = settings.stdout, [name for name in ("mqtt", "homeassistant") if getattr(settings, name).enabled]
    alerts = ["stdout"] * stdout.enabled + brokers + ["webhook"] * bool(settings.webhook.url)
    states = ["stdout"] * (stdout.enabled and stdout.readings) + brokers
    states += ["prometheus"] * bool(settings.prometheus.port)
    return (
        f"{devices} from {where}, {with_model} with a model; "
        f"alerts go to {', '.join(alerts) or 'nobody'}; states go to {', '.join(states) or 'nobody'}."
    )
