"""Every configuration in `examples/` is run, with the message that its comments show, and takes it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedkad.edge.settings.file import load
from measurements.loopback import free_port
from tests.fixtures.broker import Broker, Process, rows_committed, wait_for

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CONFIGS = sorted(path.name for path in EXAMPLES.glob("*.toml"))


def shown(text: str) -> list[tuple[str, str]]:
    """Topics and messages in the comments; lines have no topic."""
    topic, found = "", []
    for kind, content in re.findall(r"^# (topic|message): (.+)$", text, flags=re.MULTILINE):
        if kind == "topic":
            topic = content
        else:
            found.append((topic, content))
    return found


def adapted(text: str, broker: Broker | None) -> str:
    """The same configuration on free ports of this machine."""
    text = re.sub(r"^port = \d+", lambda _: f"port = {free_port()}", text, flags=re.MULTILINE)
    if broker is not None:
        text = re.sub(r"mqtts?://localhost:\d+", broker.url, text)
    return text


@pytest.mark.parametrize("name", CONFIGS)
def test_an_example_takes_the_message_that_it_shows(name: str, tmp_path: Path) -> None:
    text = (EXAMPLES / name).read_text()
    messages = shown(text)
    assert messages
    if "mqtt" not in load(EXAMPLES / name).source.kind:
        run_with_lines(tmp_path, text, [message for _, message in messages])
        return
    secure = "mqtts://" in text
    users = {"fedkad": "a secret"} if "username" in text else None
    with Broker(tmp_path, tls=secure, users=users, lasting=False) as broker:
        if users:
            (tmp_path / "password").write_text("a secret\n")
        if secure:
            (tmp_path / "ca.crt").write_bytes(broker.authority.read_bytes())
        agent = Process(tmp_path, adapted(text, broker))
        login = {"username": "fedkad", "password": "a secret"} if users else {}
        with agent, broker.client(**login) as client:
            agent.wait_for_log("connected")
            for topic, message in messages:
                client.publish(topic, message)
            # What is shown is one moment of one device: no later one closes it, and so time must.
            device = wait_for(lambda: taken(tmp_path), f"{name}: nothing was taken\n{agent.log}")
        assert device in load(EXAMPLES / name).devices


def run_with_lines(folder: Path, text: str, lines: list[str]) -> None:
    (folder / "agent.toml").write_text(text)
    if path := re.search(r'^path = "(.+)"', text, flags=re.MULTILINE):
        (folder / path[1]).write_text("\n".join(lines) + "\n")
        agent = Process(folder, text)
        with agent:
            wait_for(lambda: taken(folder), "nothing was taken")
        return
    command = [Path(sys.executable).parent / "fedkad-agent", folder / "agent.toml"]
    done = subprocess.run(command, input="\n".join(lines) + "\n", text=True, capture_output=True, check=True)
    assert taken(folder), done.stderr


def taken(folder: Path) -> str | None:
    """The device of which a row was committed."""
    return next((name for name in load(folder / "agent.toml").devices if rows_committed(folder / "state", name)), None)


def test_there_is_an_example_for_every_source() -> None:
    assert {load(EXAMPLES / name).source.kind for name in CONFIGS} == {"stdin", "file", "mqtt"}


def test_the_service_is_sound() -> None:
    unit = (EXAMPLES / "systemd" / "fedkad-agent.service").read_text()
    wanted = ("Type=notify", "WatchdogSec=", "MemoryMax=", "ProtectSystem=strict", "Restart=always")
    for needed in (*wanted, "SystemCallErrorNumber=EPERM"):
        assert needed in unit
    try:
        found = subprocess.run(
            ["systemd-analyze", "verify", EXAMPLES / "systemd" / "fedkad-agent.service"], capture_output=True, text=True
        )
    except FileNotFoundError:
        pytest.skip("There is no systemd-analyze on this machine to check the unit with.")
    # What the filter refuses must not kill: numpy's library makes such a call as soon as it is used.
    complaints = [line for line in found.stderr.splitlines() if "fedkad-agent.service" in line]
    assert all("is not executable" in line for line in complaints), complaints
