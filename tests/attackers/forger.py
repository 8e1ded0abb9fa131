"""A registered device that answers in the name of another: `python -m tests.attackers.forger FACTS.json`.

It signs its requests with its own valid key. From Flower's database it gets everything that the server knows about the
open request to its victim except the ticket: which device was asked, and the id of the message.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import ConfigRecord, RecordDict
from flwr.app.message.message import make_message, remove_content_from_message
from flwr.app.metadata import Metadata
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import PullObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import push_objects
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedkad.federation import wire
from fedkad.federation.coordinator import UNDER_WAY, stored_terms
from fedkad.federation.protocol import Reply, Request
from fedkad.koopman.stiefel import random_point

PATIENCE = 600.0


def main(facts: dict[str, Any]) -> dict[str, Any]:
    """Wait for the round, forge, and report the server's answer to each attempt."""
    key = load_ssh_private_key(Path(facts["key"]).read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    signer = NodeAuthHttpInterceptor(key, key.public_key())
    question = wait_for_question(facts)
    me, victim = question["attacker"], question["victim"]
    with FleetHttpClient.from_server_address(facts["server"], False, facts["ca"], interceptors=[signer]) as client:
        forged = forge(facts, question)
        return {
            "as the victim": status_of(lambda: push(client, forged, victim)),
            "reading the victim's mail": status_of(lambda: client.PullMessages(PullMessagesRequest(node=node(victim)))),
            "reading the question by its id": found(client, me, question),
            "as itself in the victim's name": status_of(lambda: push(client, forged, me)),
        }


def node(number: int) -> Node:
    """A node as requests name it."""
    return Node(node_id=number)


def wait_for_question(facts: dict[str, Any]) -> dict[str, Any]:
    """What Flower's database says about the request to the victim in that round."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        database = sqlite3.connect(f"file:{facts['database']}?mode=ro", uri=True)
        database.row_factory = sqlite3.Row
        try:
            names = {row["name"]: row["node_id"] for row in database.execute("SELECT name, node_id FROM node")}
            rows = database.execute(
                "SELECT * FROM message_ins WHERE dst_node_id = ? AND group_id = ?",
                (names[facts["victim"]], str(facts["round"])),
            ).fetchall()
        finally:
            database.close()
        if rows:
            asked = {key: rows[-1][key] for key in rows[-1].keys()}  # noqa: SIM118
            numbers = {"victim": names[facts["victim"]], "attacker": names[facts["attacker"]]}
            whole = {**asked, **numbers}
            unsigned = ("run_id", "src_node_id", "dst_node_id", "victim", "attacker")
            return {key: value % 2**64 if key in unsigned else value for key, value in whole.items()}
        time.sleep(0.1)
    raise TimeoutError(f"Nobody asked {facts['victim']} for round {facts['round']}.")


def forge(facts: dict[str, Any], question: dict[str, Any]) -> Any:
    """A reply that is correct except for the ticket."""
    terms = stored_terms(Path(facts["training"]), UNDER_WAY)
    assert terms is not None
    request = Request(terms, "admm", facts["round"], secrets.token_hex(16))
    payload = wire.encode(random_point(*terms.shape, np.random.default_rng(7)), terms.encoding)
    header = Reply(facts["victim"], payload, {"seconds": 0.1}).header(request)
    now = time.time()
    metadata = Metadata(
        run_id=question["run_id"],
        message_id="",
        src_node_id=question["victim"],
        dst_node_id=question["src_node_id"],
        reply_to_message_id=question["message_id"],
        group_id=question["group_id"],
        created_at=now,
        ttl=question["created_at"] + question["ttl"] - now,
        message_type=question["message_type"],
    )
    message = make_message(metadata, RecordDict({"fedkad": ConfigRecord(header)}))
    metadata.__dict__["_message_id"] = message.object_id
    return message


def push(client: FleetHttpClient, message: Any, sender: int) -> None:
    """Push a reply as this node."""
    response = client.PushMessages(
        PushMessagesRequest(
            node=node(sender),
            messages_list=[message_to_proto(remove_content_from_message(message))],
            message_object_trees=[get_object_tree(message)],
            clientapp_runtime_list=[0.1],
        )
    )
    put = make_push_object_fn_protobuf(client.PushObject, node(sender), message.metadata.run_id, response.session_id)
    wanted = set(response.objects_to_push)
    if not wanted:
        raise ConnectionRefusedError("the server wants none of it")
    push_objects(get_all_nested_objects(message), put, object_ids_to_push=wanted)


def found(client: FleetHttpClient, me: int, question: dict[str, Any]) -> str:
    """Whether a device that knows the id of a request can read it."""
    request = PullObjectRequest(node=node(me), run_id=question["run_id"], object_id=question["message_id"])
    response = client.PullObject(request)
    return "there" if response.object_found and response.object_available else "gone"


def status_of(attempt: Callable[[], object]) -> str:
    """How the server reacted."""
    try:
        attempt()
    except httpx.HTTPStatusError as error:
        return str(error.response.status_code)
    except ConnectionRefusedError as error:
        return str(error)
    return "taken"


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    try:
        print(json.dumps(main(given)))
    finally:
        Path(given["done"]).touch()
