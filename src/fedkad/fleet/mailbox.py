"""The replies that have come over Flower's grid, and have come whole.

A reply is announced to the server before its content is uploaded. `Grid.pull_messages` takes announced replies off the
list and waits for what is missing: until the upload ends or, when the device was cut off in the middle of it, until
Flower gives the upload up after three minutes; in that time the app neither hears another device nor sees that a round
is over. So here what was announced is looked at again and again, and nobody is waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice
from logging import WARNING
from typing import TypeVar

from flwr.app import Message
from flwr.common import log
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
)
from flwr.superlink.grid.http_grid import HttpGrid

from fedkad.federation.protocol import Header
from fedkad.fleet.envelope import unpacked

T = TypeVar("T")

AT_ONCE = 64
"""Messages pushed or pulled together: a round of any size is held in memory only so many at a time."""

MOST_PARTS = 16
"""Objects that Flower makes of a reply; of ours it makes three."""


class Mailbox:
    """What was answered, by the messages that it answers: a header or, in its place, why there is none."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._announced: dict[str, Announced] = {}  # by the message that is answered

    def collect(self, asked: Collection[str]) -> Iterator[tuple[str, Header | str]]:
        """What has come whole since the last look, in reply to these messages."""
        if isinstance(self._grid, HttpGrid):
            self._look(self._grid, [message for message in asked if message not in self._announced])
            yield from self._fetch(self._grid)
        else:  # a simulation, in whose memory no reply is in pieces
            for some in batched(asked):
                for message in self._grid.pull_messages(some):
                    yield message.metadata.reply_to_message_id, said(message)

    def _look(self, grid: HttpGrid, asked: Iterable[str]) -> None:
        for some in batched(asked):
            found = grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=some))
            for message, tree in zip(found.messages_list, found.message_object_trees, strict=True):
                self._announced[message.metadata.reply_to_message_id] = Announced(tree)

    def _fetch(self, grid: HttpGrid) -> Iterator[tuple[str, Header | str]]:
        for asked, announced in list(self._announced.items()):
            answer = fetch(grid, announced)
            if answer is not None:
                del self._announced[asked]
                yield asked, answer


class Announced:
    """A reply that may not be whole yet: its parts, the one that was found missing first.

    So a device that withholds a part costs a small question at each look, and not all the other parts again.
    """

    def __init__(self, tree: ObjectTree) -> None:
        self.name = tree.object_id
        self.parts = [part.object_id for part in islice(iterate_object_tree(tree), MOST_PARTS + 1)]

    def pulled(self, pull: Callable[[str], bytes]) -> dict[str, bytes] | None:
        """The contents of the parts; None while one is still to come."""
        found = {}
        for place, part in enumerate(self.parts):
            try:
                found[part] = pull(part)
            except ObjectUnavailableError:
                self.parts.insert(0, self.parts.pop(place))
                return None
        return found


def fetch(grid: HttpGrid, announced: Announced) -> Header | str | None:
    """What the reply says; None while a part of it is still to come."""
    if len(announced.parts) > MOST_PARTS:
        return f"The reply has more than {MOST_PARTS} parts."
    run, client = grid.run.run_id, grid._runtime_client
    try:
        parts = announced.pulled(make_pull_object_fn_protobuf(client.PullObject, grid.node, run))
    except ObjectPullError as error:
        return f"The reply was not uploaded whole. {error}"
    if parts is None:
        return None
    client.ConfirmMessageReceived(
        ConfirmMessageReceivedRequest(node=grid.node, run_id=run, message_object_id=announced.name)
    )
    try:
        return said(inflate_object_from_contents(announced.name, parts))
    except Exception as error:  # of any kind, for the device has chosen what the parts are
        log(WARNING, "A reply cannot be read (%s: %s).", type(error).__name__, error)
        return {}


def said(reply: object) -> Header | str:
    """What a reply says."""
    if not isinstance(reply, Message):
        return {}
    return str(reply.error.reason) if reply.has_error() else unpacked(reply)


def batched(items: Iterable[T]) -> Iterator[list[T]]:
    """The items in lists of at most `AT_ONCE`."""
    left = iter(items)
    while batch := list(islice(left, AT_ONCE)):
        yield batch
