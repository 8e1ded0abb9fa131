"""Runs that end while a device receives a message, and apps that do not answer: Flower's own loop, with fake ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="a fleet needs Flower: pip install 'fedkad[fleet]'")

from flwr.app import Message, MessageType
from flwr.app.message import remove_content_from_message
from flwr.app.message.message import make_message
from flwr.app.metadata import Metadata
from flwr.common.constant import Status, SubStatus
from flwr.common.serde import message_from_proto
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullAppMessagesRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supernode import start_client_internal as flower
from flwr.supernode.nodestate import NodeStateFactory
from flwr.supernode.servicer.runtime import runtime_handlers

from fedkad.fleet.flower import reception
from fedkad.fleet.flower.reception import OverdueError, UnansweredError, stay_in_step
from fedkad.fleet.flower.supernodelog import LONGEST_ANSWER
from fedkad.fleet.shared.envelope import packed
from fedkad.fleet.shared.progress import EVERY, ProgressMark, ProgressWatch

DEVICE, ENDED, RUNNING = 1, 7, 8
PULLING, CONFIRMING, ANSWERED = "pulling", "confirming", "confirming what the app has answered already"


class NoMoreMessagesError(Exception):
    """Ends the loop of the SuperNode, which has no end."""


def request(run: int, number: int) -> Message:
    metadata = Metadata(
        run_id=run,
        message_id="",
        src_node_id=0,
        dst_node_id=DEVICE,
        reply_to_message_id="",
        group_id=str(number),
        created_at=0.0,
        ttl=60.0,
        message_type=MessageType.TRAIN,
    )
    message = make_message(metadata, content=packed({"run": run, "number": number}))
    message.metadata.__dict__["_message_id"] = message.object_id
    return message


class Device:
    """A SuperNode that cannot receive the one message of a first run, and then gets three messages of a second run.

    Whenever the SuperNode waits, the app gets its turn; so nothing here depends on time.
    """

    def __init__(self, failing: str, failure: BaseException) -> None:
        self.failing, self.failure = failing, failure
        self.messages = [request(ENDED, 0), *(request(RUNNING, number) for number in (1, 2, 3))]
        self.inbox: list[Message | None] = [self.messages[0], None, *self.messages[1:], None]
        self.parts = {
            name: part.deflate() for message in self.messages for name, part in get_all_nested_objects(message).items()
        }
        self.sent: list[str] = []
        self.now, self.mark = 0.0, Path(os.devnull)
        self.factory = NodeStateFactory(ObjectStoreFactory())
        self.state = self.factory.state()
        for run in (ENDED, RUNNING):
            self.state.store_run(Run.create_empty(run))

    @contextmanager
    def connect(self, *_: Any) -> Iterator[tuple[Any, ...]]:
        """What Flower's connection offers, in its order."""
        yield DEVICE, self.receive, self.send, None, None, self.pull_object, lambda *_: None, self.confirm

    def receive(self) -> tuple[Message, ObjectTree] | None:
        if not self.inbox:
            raise NoMoreMessagesError
        message = self.inbox.pop(0)
        return None if message is None else (remove_content_from_message(message), get_object_tree(message))

    def pull_object(self, run: int, part: str) -> bytes:
        if run == ENDED and self.failing == PULLING:
            raise self.failure
        return self.parts[part]

    def confirm(self, run: int, message: str) -> None:
        if run == ENDED and self.failing == ANSWERED:
            self.app()
        if run == ENDED:
            raise self.failure

    def send(self, reply: Message, tree: ObjectTree, seconds: float) -> tuple[set[str], str]:
        self.sent.append(reply.metadata.reply_to_message_id)
        return set(), "session"

    def app(self, seconds: float = 0.0) -> None:
        """Answer the message of the next task, as Flower's apps do; one whose parts are missing has no answer."""
        wanted = AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP])
        found = runtime_handlers.acquire_task(wanted, self.state)
        if not found.HasField("task"):
            return
        pulled = runtime_handlers.pull_messages(PullAppMessagesRequest(), self.state, found.task)
        (message,), (tree,) = map(message_from_proto, pulled.messages_list), pulled.message_object_trees
        store = self.state.object_store
        if all(store.get(part.object_id) for part in iterate_object_tree(tree)):
            store.delete(tree.object_id)
            flower._insert_message(Message(packed({"device": "pump"}), reply_to=message), self.state, store)
            self.state.activate_task(task_id=found.task.task_id)
            self.state.finish_task(found.task.task_id, SubStatus.COMPLETED, "")


@pytest.fixture
def patched(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(flower, "register_signal_handlers", lambda **_: None)
    for name in ("_pull_and_store_message", "_push_messages"):
        monkeypatch.setattr(flower, name, getattr(flower, name))  # to be restored
    return monkeypatch


def run(device: Device, patched: pytest.MonkeyPatch, end: type[Exception]) -> None:
    patched.setattr(flower, "http_request_response", device.connect)
    for module in (flower, reception):
        patched.setattr(module, "time", SimpleNamespace(sleep=device.app))
    stay_in_step(ProgressMark(device.mark, timer=lambda: device.now), timer=lambda: device.now)
    with pytest.raises(end):
        flower.start_client_internal(
            state_factory=device.factory, server_address="127.0.0.1:1", node_config={}, isolation="process"
        )


@pytest.mark.parametrize("failure", [RunNotRunningException, RuntimeError])
@pytest.mark.parametrize("failing", [PULLING, CONFIRMING, ANSWERED])
def test_a_device_answers_the_next_run_after_one_that_ended_while_it_received_a_message(
    patched: pytest.MonkeyPatch, failing: str, failure: type[BaseException]
) -> None:
    device = Device(failing, failure("on purpose"))
    run(device, patched, NoMoreMessagesError)
    assert device.sent == [message.metadata.message_id for message in device.messages[1:]]
    assert len(device.state.object_store) == 0
    assert not device.state.get_messages_legacy()
    assert {task.status.status for task in device.state.get_tasks()} == {Status.FINISHED}


class Failing(Device):
    """A device whose app ends without an answer, or in the middle of one."""

    def __init__(self, part_of_an_answer: bool) -> None:
        super().__init__(PULLING, RuntimeError("on purpose"))
        self.part_of_an_answer = part_of_an_answer

    def app(self, seconds: float = 0.0) -> None:
        tasks = self.state.get_tasks(statuses=[Status.PENDING])
        if not tasks:
            return
        (task,) = tasks
        self.state.claim_task(task.task_id)
        self.state.activate_task(task_id=task.task_id)
        if self.part_of_an_answer:
            message = next(each for each in self.messages if each.metadata.run_id == task.run_id)
            reply = Message(packed({"device": "pump"}), reply_to=message)
            reply.metadata.__dict__["_message_id"] = reply.object_id
            self.state.store_message(reply)
            self.state.object_store.preregister(task.run_id, get_object_tree(reply))
        self.state.finish_task(task.task_id, SubStatus.FAILED, "on purpose")


@pytest.mark.parametrize("part_of_an_answer", [False, True])
def test_a_device_whose_app_ends_without_an_answer_does_not_wait_forever(
    patched: pytest.MonkeyPatch, part_of_an_answer: bool
) -> None:
    device = Failing(part_of_an_answer)
    run(device, patched, UnansweredError)
    assert not device.sent


class Hanging(Device):
    """A device whose app takes so many seconds until it answers."""

    def __init__(self, seconds: float, mark: Path) -> None:
        super().__init__(PULLING, RuntimeError("on purpose"))
        self.inbox = self.inbox[2:]
        self.seconds, self.mark, self.marks = seconds, mark, set[int]()

    def app(self, seconds: float = 0.0) -> None:
        self.now += EVERY
        if self.mark.exists():
            self.marks.add(self.mark.stat().st_mtime_ns)
        if self.now > self.seconds:
            super().app()


def test_a_device_does_not_wait_forever_for_an_app_that_hangs(patched: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device = Hanging(10 * LONGEST_ANSWER, tmp_path / "mark")
    run(device, patched, OverdueError)
    assert LONGEST_ANSWER < device.now < 2 * LONGEST_ANSWER
    assert not device.sent


def test_an_app_that_computes_for_most_of_an_hour_is_waited_for_and_its_device_looks_alive(
    patched: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    device = Hanging(0.9 * LONGEST_ANSWER, tmp_path / "mark")
    run(device, patched, NoMoreMessagesError)
    assert len(device.sent) == len(device.messages) - 1
    assert len(device.marks) > 10


def test_work_that_marks_nothing_for_long_is_stuck_and_a_mark_or_a_restart_helps(tmp_path: Path) -> None:
    now = 0.0
    mark = ProgressMark(tmp_path / "mark", timer=lambda: now)
    watch = ProgressWatch(tmp_path / "mark", patience=100.0, timer=lambda: now)
    assert not watch.is_stuck()
    now = 101.0
    assert watch.is_stuck()
    mark.step()
    assert not watch.is_stuck()
    now = 202.0
    assert watch.is_stuck()
    watch.restart()
    assert not watch.is_stuck()
