"""Requests and answers over Flower's grid, addressed by device name."""

from collections.abc import Iterator, Mapping
from logging import WARNING
from pathlib import Path

from flwr.app import Message, MessageType
from flwr.common import log
from flwr.serverapp import Grid

from fedkad.federation.protocol import Header, Request, Terms
from fedkad.fleet.flower.mailbox import Mailbox, batched
from fedkad.fleet.server import registry
from fedkad.fleet.shared.envelope import packed, unpacked
from fedkad.fleet.shared.progress import MARK, ProgressMark

INTRODUCTION = 60.0  # seconds in which a node without a registered key must give its name


class Carrier:
    """Sends requests to devices and collects their answers; of a late one it only says that it came.

    A node is identified by its registered key. Without a registry, as in a simulation, each node is asked for its name
    once, and a name that another node already holds is refused. Whoever holds rounds asks the carrier again and again,
    which marks each of these steps: a server that sees no mark for long knows that they hang.
    """

    def __init__(self, grid: Grid, folder: Path, terms: Terms) -> None:
        self._grid, self._terms, self._mailbox = grid, terms, Mailbox(grid)
        self._progress = ProgressMark(folder / "training" / MARK)
        self._registry = folder / "devices.json"
        self._is_registered = self._registry.exists()
        self._names: dict[int, str] = {}
        self._nodes: dict[str, int] = {}
        self._asked: dict[str, str] = {}  # devices by the messages that they have not answered
        self._current: set[str] = set()

    def devices(self) -> list[str]:
        """Return the devices that are connected."""
        self._progress.step()
        names = self._registered_names() if self._is_registered else self._given_names()
        self._nodes = {name: node for node, name in names.items()}
        return sorted(self._nodes)

    def _registered_names(self) -> dict[int, str]:
        """Return the names of the connected nodes by their keys; if the registry has since disappeared, this fails."""
        names = {d.public_key.strip(): d.name for d in registry.active(registry.read(self._registry)).values()}
        keys = {node.node_id: node.public_key.decode(errors="replace").strip() for node in self._grid.get_nodes()}
        return {node: names[key] for node, key in keys.items() if key in names}

    def _given_names(self) -> dict[int, str]:
        """Return the names that the connected nodes give themselves."""
        connected = [node.node_id for node in self._grid.get_nodes()]
        hello = Request(self._terms, "hello", 0, "")
        for nodes in batched(node for node in connected if node not in self._names):
            messages = [_message(node, hello, INTRODUCTION) for node in nodes]
            for reply in self._grid.send_and_receive(messages, timeout=INTRODUCTION):
                node, name = reply.metadata.src_node_id, unpacked(reply).get("device")
                if isinstance(name, str) and name not in self._names.values():
                    self._names[node] = name
                else:
                    log(WARNING, "Node %d did not give a name of its own (%s).", node, name)
        return {node: self._names[node] for node in connected if node in self._names}

    def send(self, requests: Mapping[str, Request], deadline: float) -> None:
        """Send requests to devices that `devices` has named; Flower drops those not answered in `deadline` seconds."""
        self._current = set()
        for names in batched(requests):
            messages = [_message(self._nodes[name], requests[name], deadline) for name in names]
            sent = list(self._grid.push_messages(messages))
            self._current.update(sent)
            self._asked.update(zip(sent, names, strict=True))

    def answers(self) -> Iterator[tuple[str, Header | str | None]]:
        """Yield new answers: a header, the reason why there is none, or None for a late one: to an earlier `send`."""
        self._progress.step()
        for message, answer in self._mailbox.collect(list(self._asked)):
            name = self._asked.pop(message, None)
            if name is None:
                continue
            if message in self._current:
                yield name, answer
            elif not isinstance(answer, str):  # that an old request stays unanswered is not news
                yield name, None


def _message(node: int, request: Request, seconds: float) -> Message:
    return Message(packed(request.header()), node, MessageType.TRAIN, ttl=seconds, group_id=str(request.round))
