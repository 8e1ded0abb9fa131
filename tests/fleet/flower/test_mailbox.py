"""Replies that arrive in pieces, from a fake SuperLink."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("flwr", reason="a fleet needs Flower: pip install 'fedkad[fleet]'")

from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.app.message.message import make_message
from flwr.app.metadata import Metadata
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.run import Run
from flwr.superlink.grid.http_grid import HttpGrid

from fedkad.fleet.flower.mailbox import AT_ONCE, Mailbox
from fedkad.fleet.shared.envelope import packed

RUN = 7


class Link:
    """Announces each reply once, and holds its parts: None is still to come; a part that is absent never comes."""

    def __init__(self) -> None:
        self.announced: dict[str, Message] = {}
        self.parts: dict[str, bytes | None] = {}
        self.asked: list[list[str]] = []
        self.confirmed: list[str] = []
        self.pulled: list[str] = []

    def announce(self, content: RecordDict) -> tuple[str, Callable[[], None]]:
        """Announce a reply without uploading it; returns the message it answers, and a function that uploads it."""
        asked = f"request {len(self.parts)}"
        metadata = Metadata(
            run_id=RUN,
            message_id="",
            src_node_id=1,
            dst_node_id=0,
            reply_to_message_id=asked,
            group_id="",
            created_at=0.0,
            ttl=60.0,
            message_type=MessageType.TRAIN,
        )
        reply = make_message(metadata, content=content)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        self.announced[asked] = reply
        whole = {part: found.deflate() for part, found in get_all_nested_objects(reply).items()}
        self.parts |= dict.fromkeys(whole)
        return asked, lambda: self.parts.update(whole)

    def PullMessages(self, request: Any) -> PullAppMessagesResponse:  # noqa: N802
        self.asked.append(list(request.message_ids))
        found = [self.announced.pop(asked) for asked in request.message_ids if asked in self.announced]
        return PullAppMessagesResponse(
            messages_list=[message_to_proto(message) for message in found],
            message_object_trees=[get_object_tree(message) for message in found],
        )

    def PullObject(self, request: Any) -> PullObjectResponse:  # noqa: N802
        self.pulled.append(request.object_id)
        found = request.object_id in self.parts
        content = self.parts.get(request.object_id)
        return PullObjectResponse(
            object_found=found, object_available=content is not None, object_content=content or b""
        )

    def ConfirmMessageReceived(self, request: Any) -> None:  # noqa: N802
        self.confirmed.append(request.message_object_id)


@pytest.fixture
def link() -> Link:
    return Link()


@pytest.fixture
def mailbox(link: Link) -> Mailbox:
    grid = HttpGrid(token="none")
    grid.set_run(Run.create_empty(RUN))
    grid._client = link  # type: ignore[assignment]
    return Mailbox(grid)


def test_a_partial_reply_does_not_delay_others_and_arrives_once_it_is_complete(link: Link, mailbox: Mailbox) -> None:
    half, finish = link.announce(packed({"device": "slow"}))
    whole, upload = link.announce(packed({"device": "fast"}))
    upload()
    assert dict(mailbox.collect([half, whole])) == {whole: {"device": "fast"}}
    assert not list(mailbox.collect([half]))
    finish()
    assert dict(mailbox.collect([half])) == {half: {"device": "slow"}}
    assert link.asked == [[half, whole]], (
        "a reply that was announced must not be asked for again: the server no longer lists it"
    )
    assert len(link.confirmed) == 2, "Flower keeps a reply until it is confirmed"


def test_a_withheld_part_costs_one_request_per_look(link: Link, mailbox: Mailbox) -> None:
    asked, finish = link.announce(packed({"device": "sly"}))
    finish()
    last = list(link.parts)[-1]
    content, link.parts[last] = link.parts[last], None
    for _ in range(10):
        assert not list(mailbox.collect([asked]))
    assert len(link.pulled) <= len(link.parts) + 9
    link.parts[last] = content
    assert dict(mailbox.collect([asked])) == {asked: {"device": "sly"}}


def test_a_reply_of_many_parts_is_refused(link: Link, mailbox: Mailbox) -> None:
    asked, finish = link.announce(RecordDict({f"{k}": ConfigRecord({"device": f"{k}"}) for k in range(50)}))
    finish()
    assert dict(mailbox.collect([asked])) == {asked: "The reply has more than 16 parts."}
    assert not link.pulled


def test_a_reply_that_flower_gave_up_yields_a_reason(link: Link, mailbox: Mailbox) -> None:
    asked, _ = link.announce(packed({"device": "gone"}))
    assert not list(mailbox.collect([asked]))
    link.parts.clear()
    ((_, reason),) = mailbox.collect([asked])
    assert isinstance(reason, str)
    assert "not uploaded completely" in reason


def test_an_unreadable_reply_is_empty_and_does_no_harm(link: Link, mailbox: Mailbox) -> None:
    broken, _ = link.announce(packed({"device": "broken"}))
    other, upload = link.announce(RecordDict({"other": ConfigRecord({"device": "other"})}))
    link.parts |= dict.fromkeys(link.parts, b"nonsense")
    upload()
    assert dict(mailbox.collect([broken, other])) == {broken: {}, other: {}}


def test_many_replies_are_asked_for_in_batches(link: Link, mailbox: Mailbox) -> None:
    names = [str(k) for k in range(AT_ONCE + 1)]
    assert not list(mailbox.collect(names))
    assert link.asked == [names[:AT_ONCE], names[AT_ONCE:]]
