"""A small Flower app that asks every device once, for tests of a fleet's operation without any mathematics."""

from __future__ import annotations

from pathlib import Path

PROJECT = """\
[project]
name = "tinyapp"
version = "1.0.0"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "fedkad"
[tool.flwr.app.components]
serverapp = "tinyapp.server:app"
clientapp = "tinyapp.client:app"
[tool.flwr.app.config]
folder = ""
job = "train"
"""

SERVER = """\
import json, os, time
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

app = ServerApp()


def write(training, status):
    part = training / "status.json.part"
    part.write_text(json.dumps(status))
    os.replace(part, training / "status.json")


@app.main()
def main(grid, context):
    training = Path(context.run_config["folder"]) / "training"
    write(training, {"state": "running", "process": os.getpid(), "job": context.run_config["job"]})
    while (training / "hold").exists():  # a test that wants to meet the app alive
        time.sleep(0.1)
    content = RecordDict({"job": ConfigRecord({"job": context.run_config["job"]})})
    asked = [Message(content, dst_node_id=node, message_type="train") for node in grid.get_node_ids()]
    waiting, names, end = set(grid.push_messages(asked)), [], time.monotonic() + 20.0
    while waiting and time.monotonic() < end:
        for reply in grid.pull_messages(waiting):
            waiting.discard(reply.metadata.reply_to_message_id)
            if reply.has_content():
                names.append(reply.content["who"]["device"])
        time.sleep(0.2)
    print("asked", len(asked))
    write(training, {"state": "done", "round": 1, "rounds": 1, "delivered": sorted(names)})
"""

CLIENT = """\
import os
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    folder = Path(context.node_config["folder"])
    (folder / "model.part").write_text(context.node_config["data"])
    os.replace(folder / "model.part", folder / "model.safetensors")
    return Message(RecordDict({"who": ConfigRecord({"device": context.node_config["device"]})}), reply_to=message)
"""


def write_app(folder: Path) -> Path:
    """Write the app; returns its folder."""
    package = folder / "tinyapp"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    for name, content in {"__init__": "", "server": SERVER, "client": CLIENT}.items():
        (package / f"{name}.py").write_text(content)
    return folder
