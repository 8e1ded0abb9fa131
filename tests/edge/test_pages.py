"""The pages about the agent and about Home Assistant: their commands are typed, with a real broker and a real agent."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.broker import PATIENCE, Broker, Client, broken, series, wait_for
from tests.fixtures.pages import PAGES, REPOSITORY, Desk, blocks, follow

SECRET = "a secret"
HOUSE = {
    "zigbee2mqtt/boiler-room": {"temperature": 21.4, "humidity": 43.2, "battery": 97, "linkquality": 120},
    "zigbee2mqtt/cellar": {"temperature": 14.1, "humidity": 61, "battery": 88, "linkquality": 70},
    "zigbee2mqtt/bridge/state": {"state": "online"},
}


class House:
    """A broker with sensors, and somebody at a desk who types what a page says."""

    def __init__(self, folder: Path, broker: Broker, client: Client) -> None:
        self.desk, self._broker, self.client = Desk(folder), broker, client
        self._agent: subprocess.Popen[bytes] | None = None
        (folder / "password").write_text(SECRET)
        self.publish(retain=True)

    def publish(self, *, retain: bool = False) -> None:
        """What every sensor says; a broker keeps what is retained for those who come later, but it is no sample."""
        for topic, message in HOUSE.items():
            self.client.publish(topic, json.dumps(message), retain=retain)

    def type(self, text: str) -> str:
        """Run commands with the address of this broker, and without the patience of five minutes."""
        text = text.replace("mqtt://homeassistant.local", self._broker.url).replace(
            "mqtt://localhost", self._broker.url
        )
        text = text.replace("--seconds 300", "--seconds 2")
        return self.desk.run(text, notes=True).replace(self._broker.url, "mqtt://homeassistant.local")

    def leave_running(self, text: str) -> str:
        """Start an agent, and wait until Home Assistant could know of its devices and it has a sample of each."""
        self.client.subscribe("homeassistant/#")
        log = self.desk.root / "agent.log"
        self._agent = self.desk.start(text.strip(), self.desk.root, log)
        wait_for(lambda: len(self.introduced) == 2, f"Home Assistant heard nothing: {log.read_text()}")
        self.publish()
        asked = "fedkad-agent status agent.toml"
        wait_for(lambda: "no sample yet" not in self.desk.run(asked), f"no sample was taken: {log.read_text()}")
        return ""

    @property
    def introduced(self) -> dict[str, Any]:
        """What Home Assistant is told of each device, by its name there."""
        told = [heard.content for heard in list(self.client.heard) if heard.topic.endswith("/config")]
        return {content["dev"]["name"]: content for content in told}

    def stop(self) -> None:
        if self._agent is not None:
            os.killpg(self._agent.pid, signal.SIGTERM)
            self._agent.wait(PATIENCE)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    login = {"username": "fedkad", "password": SECRET}
    with Broker(tmp_path, users={"fedkad": SECRET}, lasting=False) as broker, broker.client(**login) as client:
        made = House(tmp_path / "desk", broker, client)
        yield made
        made.stop()


def test_home_assistant_hears_of_every_device_when_the_page_is_followed(house: House) -> None:
    page = PAGES / "home-assistant.md"
    follow(page, house.desk, {"": house.type, "left running": house.leave_running})
    assert house.introduced.keys() == {"boiler-room (FedKAD)", "cellar (FedKAD)"}
    names = {part["name"] for part in house.introduced["cellar (FedKAD)"]["cmps"].values()}
    table = page.read_text().partition("| in Home Assistant |")[2].partition("\n\n")[0]
    shown = {name for row in table.splitlines() for name in re.findall(r"\*([^*]+)\*", row.split(" | ")[0])}
    assert shown <= names
    assert len(shown) > 8


def test_the_automation_names_entities_as_home_assistant_does() -> None:
    (text,) = (block.text for block in blocks(PAGES / "home-assistant.md") if block.language == "yaml")
    recorded = (REPOSITORY / "results" / "homeassistant.txt").read_text()
    entities = re.findall(r"\w+\.cellar_fedkad_\w+", text)
    assert len(entities) == 2
    for entity in entities:
        assert entity.replace("cellar", "boiler") in recorded


def test_the_commands_of_the_page_about_the_agent_run(tmp_path: Path) -> None:
    rows = broken(series(400), 300, 310)[:, :2]
    lines = [json.dumps({"time": 1_772_366_400 + k, "flow": row[0], "pressure": row[1]}) for k, row in enumerate(rows)]
    with Broker(tmp_path, lasting=False) as broker, broker.client() as client:
        house = House(tmp_path / "desk", broker, client)
        house.desk.program("some-logger", f'cat "{house.desk.root}/lines"')
        (house.desk.root / "lines").write_text("\n".join(lines) + "\n")
        table = [f"{1_772_366_400 + k},{row[0]},{row[1]}" for k, row in enumerate(rows)]
        (house.desk.root / "last-month.csv").write_text("\n".join(["time,flow,pressure", *table]) + "\n")
        (house.desk.root / "other").mkdir()
        elsewhere = {"": house.type, "with a broker": lambda text: house.type(f"cd other\n{text}")}
        follow(PAGES / "agent.md", house.desk, elsewhere)
    assert 'devices = ["boiler-room", "cellar"]' in (house.desk.root / "other" / "agent.toml").read_text()
    status = house.desk.run("fedkad-agent status agent.toml")
    assert "400" in status
