"""The shipped unit of the agent under a real systemd: started, watched, hardened, killed, hung, stopped.

Needs root, Debian's own Python and Mosquitto; see `measurements.booted`.
"""

from __future__ import annotations

import json
import signal
from urllib.request import urlopen

from measurements.booted import Trial, describe, is_active, send_and_wait, stop, until

AGENT = "fedkad-agent"

INSTALL = """
useradd --system fedkad
mkdir -p /etc/fedkad
cp agent.toml /etc/fedkad/
"""
CONFIG = """state = "/var/lib/fedkad"
devices = ["pump"]
commit_every = 0.2
[source]
kind = "mqtt"
broker = "mqtt://127.0.0.1:1883"
topics = ["plant/{device}"]
[sampling]
channels = ["flow", "pressure", "current"]
period = 1
[learning]
first = 400
every = 300
[detector]
window = 6
rank = 5
observables = 16
[mqtt]
[prometheus]
port = 9464
"""


def number(name: str) -> float:
    """One of the agent's numbers; NaN where it does not answer."""
    try:
        page = urlopen("http://127.0.0.1:9464/metrics", timeout=5).read().decode()
    except OSError:
        return float("nan")
    return next((float(line.split()[-1]) for line in page.splitlines() if line.startswith(f"fedkad_{name}{{")), -1.0)


def publish(first: int, end: int) -> None:
    """Samples of these seconds, with a fault after 1500 of them."""
    import numpy as np
    import paho.mqtt.client as paho
    from paho.mqtt.enums import CallbackAPIVersion

    times = np.arange(2000)[:, None]
    rows = np.sin(times / np.array([5.0, 8.0, 11.0])) + 0.05 * np.random.default_rng(0).normal(size=(2000, 3))
    rows[1500:1510, 0] += 4.0
    client = paho.Client(CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", 1883)
    client.loop_start()
    for k in range(first, end):
        values = dict(zip(("flow", "pressure", "current"), map(float, rows[k]), strict=True))
        client.publish(
            "plant/pump", json.dumps({"ts": 1000 * (1_772_366_400 + k), "values": values}), 1
        ).wait_for_publish()
    client.disconnect()
    client.loop_stop()


def probe() -> None:
    """The story, told by systemd and by the agent's own numbers."""
    until("started, and said that it is ready", lambda: is_active(AGENT))
    publish(0, 500)
    until("learnt a first model from 400 rows, under the filter of calls", lambda: number("learnt_total") >= 1)
    publish(500, 1000)
    until("learnt on", lambda: number("learnt_total") >= 2)
    send_and_wait(AGENT, signal.SIGKILL, "killed, and started again")
    publish(1000, 1495)
    until("goes on where it was", lambda: number("rows_total") == 1495)
    incidents = number("incidents_total")
    publish(1495, 1600)
    until("all 1,600 samples are counted, each once", lambda: number("rows_total") == 1600)
    until("the fault began an incident", lambda: number("incidents_total") == incidents + 1)
    send_and_wait(AGENT, signal.SIGSTOP, "hung, and started again by the watchdog")
    describe(AGENT)
    stop(AGENT)


def main() -> None:
    """Boot, and print what was found."""
    Trial(
        module="systemd",
        extra="edge",
        units=(f"{AGENT}.service",),
        started=("mosquitto.service", f"{AGENT}.service"),
        install=INSTALL,
        files={"agent.toml": CONFIG},
        seconds=400,
    ).run(probe)


if __name__ == "__main__":
    main()
