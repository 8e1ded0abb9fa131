"""Rounds with all devices: as many with a short poll as with Flower's own, and the seconds of each in a file."""

import json
import time
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

ROUNDS, POLL = 5, 0.5
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Take turns, so that a noisy machine disturbs both alike."""
    short, usual = [], []
    for _ in range(ROUNDS):
        began = time.monotonic()
        waiting = set(grid.push_messages(messages(grid)))
        while waiting:
            time.sleep(POLL)
            waiting -= {reply.metadata.reply_to_message_id for reply in grid.pull_messages(list(waiting))}
        short.append(time.monotonic() - began)
        began = time.monotonic()
        list(grid.send_and_receive(messages(grid)))
        usual.append(time.monotonic() - began)
    status = {"run": "empty", "state": "done", "short": short, "usual": usual, "delivered": ["everybody"]}
    (Path(str(context.run_config["folder"])) / "training" / "status.json").write_text(json.dumps(status))


def messages(grid: Grid) -> list[Message]:
    """One for every device."""
    content = RecordDict({"empty": ConfigRecord({"size": 0})})
    return [Message(content, node, MessageType.TRAIN) for node in grid.get_node_ids()]
