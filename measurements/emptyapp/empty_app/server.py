"""Rounds with all devices: as many with a short poll as with Flower's own, and the seconds of each in a file."""

import json
import time
from collections.abc import Iterable
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid, ServerApp

TURNS, IN_A_ROW, POLL = 3, 4, 0.5
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Take turns, so that a noisy machine disturbs both alike.

    When a device looks for its next message depends on the round before: so several follow one another, as they do in a
    training, and the first one after a change does not count.
    """
    seconds: dict[str, list[float]] = {"short": [], "usual": []}
    for _ in range(TURNS):
        for name, hold in {"short": hold_briefly, "usual": hold_as_usual}.items():
            for number in range(IN_A_ROW):
                began = time.monotonic()
                check(hold(grid))
                if number:
                    seconds[name].append(time.monotonic() - began)
    status = {"run": "empty", "state": "done", **seconds, "delivered": ["everybody"]}
    (Path(str(context.run_config["folder"])) / "training" / "status.json").write_text(json.dumps(status))


def hold_briefly(grid: Grid) -> list[Message]:
    """A round with a poll as short as ours."""
    replies, waiting = [], set(grid.push_messages(messages(grid)))
    while waiting:
        time.sleep(POLL)
        fresh = list(grid.pull_messages(list(waiting)))
        waiting -= {reply.metadata.reply_to_message_id for reply in fresh}
        replies += fresh
    return replies


def hold_as_usual(grid: Grid) -> list[Message]:
    """A round as Flower holds it."""
    return list(grid.send_and_receive(messages(grid)))


def messages(grid: Grid) -> list[Message]:
    """One for every device."""
    content = RecordDict({"empty": ConfigRecord({"size": 0})})
    return [Message(content, node, MessageType.TRAIN) for node in grid.get_node_ids()]


def check(replies: Iterable[Message]) -> None:
    """Refuse replies of another app than the empty one."""
    if not all(reply.has_content() and "empty" in reply.content for reply in replies):
        raise RuntimeError("A device did not answer with the empty app.")
