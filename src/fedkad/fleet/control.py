"""Flower's control interface, reached on the server's own machine: the devices it knows and the runs it has."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, TypeVar

import httpx
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import fab_to_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    StreamLogsRequest,
    UnregisterNodeRequest,
)
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab

T = TypeVar("T")

PATIENCE = 10.0
GONE, SERVER_ERROR = 404, 500
FINISHED = "finished"
UNREGISTERED = "unregistered"
STATES = {"online": "online", "offline": "offline", "registered": "never seen"}


class ControlError(Exception):
    """The control interface cannot be reached or says no."""


class RefusedError(ControlError):
    """It says no."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status} {reason}")
        self.status = status


class Node(NamedTuple):
    """A device as Flower knows it: by its key."""

    id: int
    name: str
    public_key: str
    state: str
    since: str | None


class Control:
    """The few questions and orders that a fleet needs."""

    def __init__(self, port: int, ca_certificate: Path) -> None:
        trust = ssl.create_default_context(cafile=str(ca_certificate))
        self._client = ControlHttpClient(f"https://127.0.0.1:{port}", verify=trust, timeout=PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def nodes(self) -> list[Node]:
        """The devices that are registered, seen or not."""
        found = _asked(lambda: self._client.ListNodes(ListNodesRequest())).nodes_info
        return [_node(info) for info in found if info.status != UNREGISTERED]

    def register(self, name: str, public_key: str) -> None:
        """Let a device in."""
        _asked(lambda: self._client.RegisterNode(RegisterNodeRequest(public_key=public_key.encode(), name=name)))

    def unregister(self, node: Node) -> None:
        """Keep a device out."""
        _asked(lambda: self._client.UnregisterNode(UnregisterNodeRequest(node_id=node.id)))

    def submit(self, app: Path, config: dict[str, str]) -> int:
        """Start a run of the app in a folder; its number."""
        try:
            content = build_fab_from_disk(app)
        except ValueError as error:
            raise ControlError(f"{app}: {error}") from error
        fab = fab_to_proto(Fab(hashlib.sha256(content).hexdigest(), content, {}))
        request = StartRunRequest(fab=fab, override_config=user_config_to_proto({**config}))
        started = _asked(lambda: self._client.StartRun(request))
        if not started.HasField("run_id"):
            raise ControlError("Flower did not start the run")
        return started.run_id

    def has_ended(self, run: int) -> bool:
        """Tell whether a run is over, well or not; one that Flower does not know is."""
        try:
            found = _asked(lambda: self._client.ListRuns(ListRunsRequest(run_id=run))).run_dict
        except RefusedError as error:
            if error.status == GONE:
                return True
            raise
        return bool(found[run].status.status == FINISHED)

    def log(self, run: int) -> str:
        """What the server app of a run that is over has said."""
        return _asked(
            lambda: "".join(part.log_output for part in self._client.StreamLogs(StreamLogsRequest(run_id=run)))
        )

    def stop_all(self) -> None:
        """End the runs that are not over."""
        found = _asked(lambda: self._client.ListRuns(ListRunsRequest())).run_dict
        for number, run in found.items():
            if run.status.status != FINISHED:
                request = StopRunRequest(run_id=number)
                _asked(partial(self._client.StopRun, request))


def _node(info: NodeInfo) -> Node:
    since = {"online": info.last_activated_at, "offline": info.last_deactivated_at}.get(info.status)
    return Node(info.node_id, info.name, info.public_key.decode(), STATES.get(info.status, info.status), since or None)


def _asked(question: Callable[[], T]) -> T:
    try:
        return question()
    except httpx.HTTPStatusError as error:
        status, text = error.response.status_code, error.response.text.strip()
        if status >= SERVER_ERROR:  # it may answer the next time
            raise ControlError(f"{status} {text}") from error
        raise RefusedError(status, text) from error
    except (httpx.HTTPError, OSError) as error:
        raise ControlError(str(error) or type(error).__name__) from error
