"""The least that a program can do between a broker and a decision: `python -m measurements.edge_bare PORT MODEL TOPIC`.

Says "ready" when it listens, and reads from its input for how many messages to wait; says that number when it has seen
them, and so on.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from fedkad import KoopmanDetector
from measurements.edge_rig import NAMES


def main() -> None:
    """Receive, decode, score; messages are acknowledged by the client on its own."""
    port, model, topic = sys.argv[1:]
    detector = KoopmanDetector.load(model, statistics=False)
    stream = detector.stream()
    seen = alarms = wanted = 0

    def tell(what: object) -> None:
        nonlocal wanted
        print(what, flush=True)
        wanted = int(sys.stdin.readline() or sys.exit())

    def take(client: paho.Client, _: Any, message: paho.MQTTMessage) -> None:
        nonlocal seen, alarms
        values = json.loads(message.payload)
        alarms += stream.update([values[name] for name in NAMES]).is_anomaly
        seen += 1
        if seen >= wanted:
            tell(seen)

    client = paho.Client(CallbackAPIVersion.VERSION2, client_id="bare")
    client.on_message = take
    client.on_subscribe = lambda *_: tell("ready")
    client.connect("127.0.0.1", int(port))
    client.subscribe(topic, qos=1)
    client.loop_forever()


if __name__ == "__main__":
    main()
