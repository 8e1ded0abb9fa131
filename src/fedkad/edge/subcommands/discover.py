"""``fedkad-agent discover``: listen to a broker for a while, list what publishes, and write a first agent.toml."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fedkad.edge.process import log_to_stderr
from fedkad.edge.settings import SettingsError, SourceSettings
from fedkad.edge.subcommands.survey import Survey

if TYPE_CHECKING:
    from paho.mqtt.client import MQTTMessage

POLL = 0.2


def discover(source: SourceSettings, topic: str, seconds: float, output: Path, show: Callable[[str], None]) -> None:
    """Listen to a topic for so many seconds, show what was published, and write what an agent would follow.

    Ctrl-C ends the listening early, and what was heard until then is shown and written.
    """
    if find_spec("paho") is None:
        raise SettingsError("discover needs pip install 'fedkad[edge]'.")
    _check_output(output)
    log_to_stderr()
    survey = listen(source, topic, seconds, show)
    show(f"{survey.table()}\n")
    output.write_text(survey.plan().text(source), encoding="utf-8")
    show(f"{output} is written; look at it, and then try fedkad-agent --check {output}.")


def _check_output(output: Path) -> None:
    """Refuse, before anything is heard, a file that could not be written after it."""
    if output.exists():
        raise SettingsError(f"{output}: there is such a file already; name another one with --output.")
    if not output.parent.is_dir():
        raise SettingsError(f"{output}: there is no folder {output.parent}; create it, or name another --output.")
    if not os.access(output.parent, os.W_OK | os.X_OK):
        raise SettingsError(f"{output}: you may not write to {output.parent}; name another --output.")


def listen(source: SourceSettings, topic: str, seconds: float, show: Callable[[str], None]) -> Survey:
    """What is published within so many seconds after the connection was made, retained messages included."""
    from fedkad.edge.connection import Connection

    survey, connection = Survey(), Connection(source, "source", f"fedkad-discover-{uuid.uuid4().hex[:8]}")

    def note(message: MQTTMessage) -> None:
        connection.acknowledge([message])
        survey.note(message.topic, bytes(message.payload), time.monotonic())

    connection.subscribe([topic], note)
    deadline = time.monotonic() + seconds
    while not connection.is_connected and time.monotonic() < deadline:
        connection.poll(POLL)
    if not connection.is_connected:
        raise SettingsError(f"{source.broker}: there is no connection after {seconds:g} s; see above.")
    begun = time.monotonic()
    try:
        while time.monotonic() < begun + seconds:
            connection.poll(POLL)
    except KeyboardInterrupt:
        show(f"Interrupted after {time.monotonic() - begun:.0f} of {seconds:g} s; this was published until then.\n")
    connection.close()
    return survey
