"""Requests and answers over Flower's grid, by the names of devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from logging import WARNING
from pathlib import Path

from flwr.app import Message, MessageType
from flwr.common import log
from flwr.serverapp import Grid

from fedkad.federation.protocol import Header, Request, Terms
from fedkad.fleet import registry
from fedkad.fleet.envelope import packed, unpacked
from fedkad.fleet.mailbox import Mailbox, batched

INTRODUCTION = 60.0
"""Seconds that a node without a registered key has to say its name."""


class Carrier:
    """Sends requests to devices and brings their answers, late ones too.

    Who a node is, its registered key says. Without a registry, as in a simulation, a node is asked for its name once,
    and a name that another node holds is not believed.
    """

    def __init__(self, grid: Grid, folder: Path, terms: Terms) -> None:
        self._grid, self._terms, self._mailbox = grid, terms, Mailbox(grid)
        self._registry = folder / "devices.json"
        self._is_registered = self._registry.exists()
        self._names: dict[int, str] = {}
        self._asked: dict[str, str] = {}  # devices by the messages that they have not answered
        self._current: set[str] = set()

    def devices(self) -> list[str]:
        """The devices that are there."""
        self._nodes = {name: node for node, name in self._recognise().items()}
        return sorted(self._nodes)

    def _recognise(self) -> dict[int, str]:
        nodes = list(self._grid.get_nodes())
        if self._is_registered:  # and if the list has gone since, nobody is believed by name alone
            keys = {d.public_key.strip(): d.name for d in registry.read(self._registry).values() if not d.revoked}
            found = {node.node_id: keys.get(node.public_key.decode(errors="replace").strip()) for node in nodes}
            return {node: name for node, name in found.items() if name is not None}
        there = [node.node_id for node in nodes]
        self._introduce([node for node in there if node not in self._names])
        return {node: self._names[node] for node in there if node in self._names}

    def _introduce(self, nodes: list[int]) -> None:
        request = Request(self._terms, "hello", 0, "")
        messages = [self._message(node, request, INTRODUCTION) for node in nodes]
        replies = (self._grid.send_and_receive(some, timeout=INTRODUCTION) for some in batched(messages))
        for message in chain.from_iterable(replies):
            name = unpacked(message).get("device")
            if not isinstance(name, str) or name in self._names.values():
                log(WARNING, "Node %d gave no name of its own (%s).", message.metadata.src_node_id, name)
                continue
            self._names[message.metadata.src_node_id] = name

    def send(self, requests: Mapping[str, Request], deadline: float) -> None:
        """Send requests to devices that `devices` has named; who answers after the deadline is not heard."""
        self._current = set()
        for names in batched(requests):
            messages = [self._message(self._nodes[name], requests[name], deadline) for name in names]
            sent = list(self._grid.push_messages(messages))
            self._current.update(sent)
            self._asked.update(zip(sent, names, strict=True))

    def answers(self) -> Iterator[tuple[str, Header | str | None]]:
        """What has come since the last look: headers, or in their place why none can come; None for one too late."""
        for asked, answer in self._mailbox.collect(list(self._asked)):
            name = self._asked.pop(asked, None)
            if name is None:
                continue
            if asked in self._current:
                yield name, answer
            elif not isinstance(answer, str):  # that an old question will not be answered is no news
                yield name, None

    def _message(self, node: int, request: Request, seconds: float) -> Message:
        return Message(packed(request.header()), node, MessageType.TRAIN, ttl=seconds, group_id=str(request.round))
