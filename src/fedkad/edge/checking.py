"""What can be checked of a configuration without running it: its files, its models, its libraries."""

from __future__ import annotations

from pathlib import Path

from fedkad.detect.detector import KoopmanDetector
from fedkad.detect.modelfile import ModelFileError
from fedkad.edge.assembly import require_extra
from fedkad.edge.model import check_channels
from fedkad.edge.settings import AgentSettings, DeviceSettings, MqttSink, SettingsError, Source
from fedkad.edge.settingsfile import split_broker


def check(settings: AgentSettings) -> str:
    """Look at every file that the configuration names; returns a sentence about what would be watched."""
    require_extra(settings)
    if settings.source.kind == "mqtt":
        _check_login(settings.source, "source")
    if settings.mqtt.enabled and settings.mqtt.broker:
        _check_login(settings.mqtt, "mqtt")
    if settings.webhook.token_file:
        _check_readable(settings.webhook.token_file, "token_file in [webhook]")
    with_model = sum(_has_model(device) for device in settings.devices.values())
    return _described(settings, with_model)


def _check_login(broker: Source | MqttSink, section: str) -> None:
    from fedkad.edge.mqtt import read_secret, tls_context

    read_secret(broker.password_file, section)
    if split_broker(broker.broker, section)[2]:
        tls_context(broker, section)


def _check_readable(path: str, key: str) -> None:
    if not Path(path).is_file():
        raise SettingsError(f"{path}: there is no such file; {key} must name one.")


def _has_model(device: DeviceSettings) -> bool:
    learning = device.learning
    used = Path(learning.folder) / "model.safetensors"
    if not used.is_file() and learning.model:
        used = Path(learning.model)
        _check_readable(learning.model, "model in [learning]")
    if not used.is_file():
        return False
    try:
        check_channels(KoopmanDetector.load(used), used, device)
    except ModelFileError as error:
        raise SettingsError(str(error)) from None
    return True


def _described(settings: AgentSettings, with_model: int) -> str:
    source, devices = settings.source, settings.devices
    where = {"stdin": "standard input", "file": source.path, "mqtt": source.broker}[source.kind]
    sinks = [name for name in ("stdout", "mqtt", "homeassistant") if getattr(settings, name).enabled]
    sinks += ["webhook"] * bool(settings.webhook.url) + ["prometheus"] * bool(settings.prometheus.port)
    return (
        f"{len(devices)} device(s) from {where}, {with_model} with a model; "
        f"alerts and states go to {', '.join(sinks) or 'nobody'}."
    )
