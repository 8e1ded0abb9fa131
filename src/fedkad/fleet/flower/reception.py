"""Keeps a device from falling one message behind, and from waiting for an answer that never comes.

A SuperNode handles one message at a time: it receives the message, waits for an answer, sends it, and asks for the next
message. It does not check which message an answer belongs to. If one is left over from an earlier message, it is sent
in place of the next answer, which is left over in turn: the device is online, but every answer misses its round, until
the SuperNode is restarted.

An answer is left over because Flower stores a message before all of it has arrived. If receiving it then fails with an
`Exception`, Flower forgets the message again; but `RunNotRunningException`, which says that the run has ended, is a
`BaseException`. Flower logs that it ignores the message, yet keeps it, and an app answers it.

An answer never comes if its app ends without one, as when it is asked to with SIGTERM, or hangs while its heartbeat
goes on. Flower waits for it forever, and the device is online and silent; so the SuperNode ends, and the client starts
another. An app that computes for long does not hang: it has an hour beyond the time that the server gives it.
"""

import math
import time
from collections.abc import Callable
from functools import partial, wraps
from logging import INFO
from typing import Any, ParamSpec, TypeVar

from flwr.app import Message
from flwr.common import log
from flwr.common.constant import Status
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.object_store import ObjectStore
from flwr.supercore.run import RunNotRunningException
from flwr.supernode import start_client_internal as flower
from flwr.supernode.nodestate import NodeState

from fedkad.fleet.flower.supernodelog import LONGEST_ANSWER, SuperNodeEvent
from fedkad.fleet.shared.progress import ProgressMark

P = ParamSpec("P")
T = TypeVar("T")

UNFINISHED = (Status.PENDING, Status.STARTING, Status.RUNNING)
LOOK = 0.1  # seconds between two looks whether an app is done


class RunEndedError(Exception):
    """The run of a message ended before the message was received."""


class UnansweredError(Exception):
    """An app ended without an answer."""


class OverdueError(Exception):
    """An app hangs."""


def stay_in_step(mark: ProgressMark, *, timer: Callable[[], float] = time.monotonic) -> None:
    """Make the SuperNode of this process forget messages of ended runs, and end without an answer to one.

    Call this before it starts.
    """
    reception = Reception(mark, timer)
    vars(flower)["_pull_and_store_message"] = partial(reception.receive, flower._pull_and_store_message)
    vars(flower)["_push_messages"] = partial(reception.send, flower._push_messages)


class Reception:
    """The two steps of a SuperNode's loop, which it marks, and until when the answer in progress may take."""

    def __init__(self, mark: ProgressMark, timer: Callable[[], float]) -> None:
        self.mark, self.timer = mark, timer
        self.overdue = math.inf

    def receive(
        self,
        pull_and_store: Callable[..., int | None],
        *,
        state: NodeState,
        object_store: ObjectStore,
        receive: Callable[[], tuple[Message, ObjectTree] | None],
        pull_object: Callable[[int, str], bytes],
        confirm_message_received: Callable[[int, str], None],
        **others: Any,
    ) -> int | None:
        """Receive a message as Flower does, but without anything left over from earlier ones."""
        self.mark.step()
        _drop_answers(state, object_store)

        def timed() -> tuple[Message, ObjectTree] | None:
            received = receive()
            if received is not None:
                self.overdue = self.timer() + received[0].metadata.ttl + LONGEST_ANSWER
            return received

        return pull_and_store(
            state=state,
            object_store=object_store,
            receive=timed,
            pull_object=_failing_with_run(pull_object),
            confirm_message_received=_failing_with_run(confirm_message_received),
            **others,
        )

    def send(self, push: Callable[..., None], *, state: NodeState, object_store: ObjectStore, **others: Any) -> None:
        """Send an answer as Flower does, once its app is done; raises an error if there is none, or none in time."""
        while state.get_tasks(statuses=UNFINISHED):
            self.mark.step()
            if self.timer() > self.overdue:
                raise OverdueError(SuperNodeEvent.OVERDUE.value)
            time.sleep(LOOK)
        answers = state.get_messages_legacy(is_reply=True)
        if not answers or not all(_is_complete(answer, object_store) for answer in answers):
            raise UnansweredError(SuperNodeEvent.UNANSWERED.value)
        for answer in answers:  # Flower finds a message once: let it find these again
            state.delete_messages(message_ids=[answer.metadata.message_id])
            state.store_message(answer)
        push(state=state, object_store=object_store, **others)


def _failing_with_run(call: Callable[P, T]) -> Callable[P, T]:
    """Report the end of a run as an error that makes Flower forget the message, its objects and its task."""

    @wraps(call)
    def checked(*arguments: P.args, **keywords: P.kwargs) -> T:
        try:
            return call(*arguments, **keywords)
        except RunNotRunningException:
            raise RunEndedError("its run has ended") from None

    return checked


def _drop_answers(state: NodeState, object_store: ObjectStore) -> None:
    """Drop the answers that are there although no message is being answered.

    Even a message that was not received may have one: its task is offered to apps first, and a server that is away
    can delay the last step of receiving it for longer than an app takes to answer.
    """
    for answer in state.get_messages_legacy(is_reply=True):
        names = answer.metadata
        log(INFO, "Dropping the answer to message %s, which the server no longer expects.", names.reply_to_message_id)
        state.delete_messages(message_ids=[names.message_id, names.reply_to_message_id])
        object_store.delete(names.message_id)


def _is_complete(answer: Message, object_store: ObjectStore) -> bool:
    """Return whether all parts of an answer are there; Flower would wait for them."""
    parts = iterate_object_tree(object_store.get_object_tree(answer.metadata.message_id))
    return all(object_store.get(part.object_id) for part in parts)
