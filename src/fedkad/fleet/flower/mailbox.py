"""Replies as they arrive over Flower's grid, each taken only once it is complete.

A reply is announced to the server before its content is uploaded. `Grid.pull_messages` takes announced replies off the
list and then waits for the content: until the upload ends or, if the device was cut off in the middle of it, until
Flower gives up after three minutes. Until then the app neither hears other devices nor notices the end of a round.
This mailbox checks announced replies again and again instead, and waits for none of them.
"""

from collections.abc import Collection, Iterable, Iterator
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
from fedkad.fleet.shared.envelope import unpacked

T = TypeVar("T")

AT_ONCE = 64  # messages pushed or pulled together; bounds the memory that a round needs
MOST_PARTS = 16  # objects that a reply may consist of; ours have three


class Mailbox:
    """The answers to messages: a header, or the reason why there is none."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._uploads: dict[str, Upload] = {}  # by the message that they answer

    def collect(self, asked: Collection[str]) -> Iterator[tuple[str, Header | str]]:
        """Yield the answers to these messages that have become complete since the last call."""
        if not isinstance(self._grid, HttpGrid):  # in a simulation replies are never partial
            for some in batched(asked):
                for reply in self._grid.pull_messages(some):
                    yield reply.metadata.reply_to_message_id, answer_in(reply)
            return
        for some in batched(message for message in asked if message not in self._uploads):
            pulled = self._grid._runtime_client.PullMessages(PullAppMessagesRequest(message_ids=some))
            for announced, tree in zip(pulled.messages_list, pulled.message_object_trees, strict=True):
                self._uploads[announced.metadata.reply_to_message_id] = Upload(self._grid, tree)
        for message, upload in list(self._uploads.items()):
            answer = upload.fetch()
            if answer is not None:
                del self._uploads[message]
                yield message, answer


class Upload:
    """A reply that may not be complete yet.

    The part that was missing last is asked for first. So a device that withholds a part costs one small request per
    look, rather than all the other parts again.
    """

    def __init__(self, grid: HttpGrid, tree: ObjectTree) -> None:
        self._grid, self._reply = grid, tree.object_id
        self._parts = [part.object_id for part in islice(iterate_object_tree(tree), MOST_PARTS + 1)]

    def fetch(self) -> Header | str | None:
        """Return the answer in the reply; None while a part is missing."""
        if len(self._parts) > MOST_PARTS:
            return f"The reply has more than {MOST_PARTS} parts."
        client, node, run = self._grid._runtime_client, self._grid.node, self._grid.run.run_id
        pull, contents = make_pull_object_fn_protobuf(client.PullObject, node, run), {}
        for position, part in enumerate(self._parts):
            try:
                contents[part] = pull(part)
            except ObjectUnavailableError:
                self._parts.insert(0, self._parts.pop(position))
                return None
            except ObjectPullError as error:
                return f"The reply was not uploaded completely. {error}"
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=self._reply)
        )
        try:
            return answer_in(inflate_object_from_contents(self._reply, contents))
        except Exception as error:  # any kind, since the device chose the content
            log(WARNING, "A reply cannot be read (%s: %s).", type(error).__name__, error)
            return {}


def answer_in(reply: object) -> Header | str:
    """Return the header in a reply, or the reason why Flower has none."""
    if not isinstance(reply, Message):
        return {}
    return str(reply.error.reason) if reply.has_error() else unpacked(reply)


def batched(items: Iterable[T]) -> Iterator[list[T]]:
    """Yield the items in lists of at most `AT_ONCE`."""
    left = iter(items)
    while batch := list(islice(left, AT_ONCE)):
        yield batch
