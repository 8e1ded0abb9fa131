"""The agent and a real Home Assistant: what it makes of the discovery messages, of an incident, and of a kill.

`HASS` names the program, of an installation of its own (`pip install homeassistant paho-mqtt`), as it needs another
Python and much besides. A small integration inside it writes down, every second, which devices and entities it has.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measurements.loopback import free_port
from tests.fixtures.broker import (
    Broker,
    Client,
    Process,
    broken,
    config,
    sample,
    saved_model,
    series,
    wait_for,
)

Entities = dict[str, str]

MANIFEST = {"domain": "spy", "name": "spy", "version": "1.0", "dependencies": ["mqtt"], "codeowners": []}
SPY = """
import json, os
from datetime import timedelta
from homeassistant.core import callback
from homeassistant.helpers import device_registry
from homeassistant.helpers.event import async_track_time_interval

async def async_setup(hass, config):
    @callback
    def write(now):
        states = {state.entity_id: state.state for state in hass.states.async_all()}
        devices = [device.name for device in device_registry.async_get(hass).devices.values()]
        path = hass.config.path("seen.json")
        with open(path + ".new", "w") as file:
            json.dump({"states": states, "devices": devices}, file)
        os.replace(path + ".new", path)
    async_track_time_interval(hass, write, timedelta(seconds=1))
    return True
"""


class HomeAssistant:
    """Home Assistant in a folder, with nothing but MQTT and the spy."""

    def __init__(self, program: str, folder: Path, broker_port: int) -> None:
        self._program, self.folder = program, folder
        spy = folder / "custom_components" / "spy"
        spy.mkdir(parents=True)
        (spy / "manifest.json").write_text(json.dumps(MANIFEST))
        (spy / "__init__.py").write_text(SPY)
        (folder / "configuration.yaml").write_text(
            f"http:\n  server_host: 127.0.0.1\n  server_port: {free_port()}\nspy:\n"
        )
        (folder / ".storage").mkdir()
        (folder / ".storage" / "core.config_entries").write_text(json.dumps(_entries(broker_port)))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run it for a while."""
        (self.folder / "seen.json").unlink(missing_ok=True)
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen([self._program, "-c", str(self.folder)], stdout=log, stderr=log)
        try:
            wait_for((self.folder / "seen.json").exists, "Home Assistant does not start; see its log", 300.0)
            yield
        finally:
            process.terminate()
            process.wait(60)

    def seen(self) -> dict[str, Any]:
        """What the spy wrote last."""
        found: dict[str, Any] = json.loads((self.folder / "seen.json").read_text())
        return found

    def entities(self) -> Entities:
        """The states of what belongs to the devices."""
        return {name: state for name, state in self.seen()["states"].items() if "pump" in name or "boiler" in name}

    def until(self, **expected: str) -> Entities:
        """Wait until entities have these states; returns all."""
        deadline = time.monotonic() + 60.0
        while not self._are(expected):
            if time.monotonic() > deadline:
                sys.exit(f"It is not so: {expected}. Home Assistant has {self.seen()}")
            time.sleep(0.2)
        return self.entities()

    def _are(self, expected: Mapping[str, str]) -> bool:
        found = self.entities()
        return all(any(e.endswith(name) and s == state for e, s in found.items()) for name, state in expected.items())


def _entries(port: int) -> dict[str, Any]:
    """What Home Assistant keeps of an MQTT integration that somebody has set up by hand."""
    moment = "2024-12-01T00:00:00+00:00"
    entry = {
        **{"created_at": moment, "modified_at": moment, "entry_id": 32 * "0", "domain": "mqtt", "title": "broker"},
        **{"data": {"broker": "127.0.0.1", "port": port, "discovery": True}, "options": {}, "version": 1},
        **{"minor_version": 2, "source": "user", "unique_id": None, "disabled_by": None, "discovery_keys": {}},
        **{"pref_disable_new_entities": False, "pref_disable_polling": False},
    }
    return {"version": 1, "minor_version": 4, "key": "core.config_entries", "data": {"entries": [entry]}}


def tell(what: str, entities: Entities) -> None:
    """Print the states."""
    print(f"\n{what}")
    for name, state in sorted(entities.items()):
        print(f"  {name:38} {state}")


def watch(home: HomeAssistant, agent: Process, client: Client) -> None:
    """The story, each part of which must come true."""
    rows = broken(series(80), 40, 50)

    def publish(first: int, end: int) -> None:
        for device in ("pump 1", "boiler"):
            good = rows if device == "pump 1" else series(80)
            client.publish_all(f"in/{device}", [sample(good, row) for row in range(first, end)])

    with home.running():
        agent.wait_for_log("connected.")
        publish(0, 35)
        tell("normal", home.until(pump_1_fedkad_state="ok", boiler_fedkad_state="ok", pump_1_fedkad_problem="off"))
        home.until(pump_1_fedkad_learning_progress="100", pump_1_fedkad_alert="none")
        print(f"  devices: {', '.join(sorted(home.seen()['devices']))}")
        publish(35, 46)
        tell("an incident", home.until(pump_1_fedkad_problem="on", boiler_fedkad_problem="off"))
        publish(46, 80)
        tell("over", home.until(pump_1_fedkad_problem="off", pump_1_fedkad_cause="none"))
        agent.kill()
        tell("the agent was killed", home.until(pump_1_fedkad_problem="unavailable", boiler_fedkad_score="unavailable"))
        agent.start()
        home.until(pump_1_fedkad_problem="off")
        print("\nstarted again: all there again")
    with home.running():
        home.until(pump_1_fedkad_problem="off", boiler_fedkad_problem="off")
        print("Home Assistant was started again: all there again")


def main() -> None:
    """Run it with the program that `HASS` names."""
    program = os.environ.get("HASS", "")
    if not program:
        sys.exit("Set HASS to the program of a Home Assistant, such as HASS=/opt/homeassistant/bin/hass.")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    print(f"Home Assistant {version}, two devices of one agent over Mosquitto")
    with tempfile.TemporaryDirectory() as root, Broker(Path(root)) as broker, broker.client() as client:
        text = config(
            broker.source(),
            devices=("pump 1", "boiler"),
            learning={"model": str(saved_model(Path(root))), "every": 0},
            alarm={"clear_after": 5, "cool_down": 0},
            mqtt={"state_every": 1},
            homeassistant={"enabled": True},
        )
        with Process(Path(root), text) as agent:
            watch(HomeAssistant(program, Path(root) / "home", broker.port), agent, client)


if __name__ == "__main__":
    main()
