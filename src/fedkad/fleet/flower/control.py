"""Flower's control interface, reached on the server's own machine: the devices it knows and the runs it has."""

import hashlib
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

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
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab

from fedkad.fleet.shared.keyfiles import read_certificates

PATIENCE = 10.0
NOT_FOUND, SERVER_ERROR = 404, 500
FINISHED = "finished"
UNREGISTERED = "unregistered"
STATES = {"online": "online", "offline": "offline", "registered": "never seen"}


class ControlError(Exception):
    """The control interface cannot be reached or fails."""


class RefusedError(ControlError):
    """The control interface refuses a request."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"{status} {reason}")
        self.status = status


class Node(NamedTuple):
    """A device as Flower knows it."""

    id: int
    name: str
    state: str
    since: str | None


class Control:
    """The few queries and commands that a fleet needs."""

    def __init__(self, client: ControlHttpClient) -> None:
        self._client = client

    def nodes(self) -> dict[str, Node]:
        """Return the registered devices by their public keys, including those that never connected."""
        with _failures():
            infos = self._client.ListNodes(ListNodesRequest()).nodes_info
        nodes = {}
        for info in infos:
            if info.status != UNREGISTERED:
                since = {"online": info.last_activated_at, "offline": info.last_deactivated_at}.get(info.status)
                state = STATES.get(info.status, info.status)
                nodes[info.public_key.decode()] = Node(info.node_id, info.name, state, since or None)
        return nodes

    def register(self, name: str, public_key: str) -> None:
        """Allow a device to connect."""
        with _failures():
            self._client.RegisterNode(RegisterNodeRequest(public_key=public_key.encode(), name=name))

    def unregister(self, node: Node) -> None:
        """Disconnect a device and refuse its key from now on."""
        with _failures():
            self._client.UnregisterNode(UnregisterNodeRequest(node_id=node.id))

    def submit(self, app: Path, config: dict[str, str]) -> int:
        """Start a run of the app in a folder; returns its number."""
        try:
            content = build_fab_from_disk(app)
        except ValueError as error:
            raise ControlError(f"{app}: {error}") from error
        fab = fab_to_proto(Fab(hashlib.sha256(content).hexdigest(), content, {}))
        with _failures():
            started = self._client.StartRun(StartRunRequest(fab=fab, override_config=user_config_to_proto({**config})))
        if not started.HasField("run_id"):
            raise ControlError("Flower did not start the run")
        return started.run_id

    def has_ended(self, run: int) -> bool:
        """Return whether a run is over, successful or not; a run that Flower does not know is over."""
        try:
            with _failures():
                runs = self._client.ListRuns(ListRunsRequest(run_id=run)).run_dict
        except RefusedError as error:
            if error.status == NOT_FOUND:
                return True
            raise
        return bool(runs[run].status.status == FINISHED)

    def log(self, run: int) -> str:
        """Return the output of the server app in a run that is over."""
        with _failures():
            return "".join(part.log_output for part in self._client.StreamLogs(StreamLogsRequest(run_id=run)))

    def stop_all(self) -> None:
        """Stop the runs that are not over."""
        with _failures():
            for number, run in self._client.ListRuns(ListRunsRequest()).run_dict.items():
                if run.status.status != FINISHED:
                    self._client.StopRun(StopRunRequest(run_id=number))


@contextmanager
def open_control(port: int, ca_certificate: Path) -> Iterator[Control]:
    """The control interface of the server that runs on this machine; raises `FleetFileError` for a damaged file."""
    trust = ssl.create_default_context(cadata=read_certificates(ca_certificate).decode())
    client = ControlHttpClient(f"https://127.0.0.1:{port}", verify=trust, timeout=PATIENCE)
    try:
        yield Control(client)
    finally:
        client.close()


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except httpx.HTTPStatusError as error:
        status, text = error.response.status_code, error.response.text.strip()
        if status >= SERVER_ERROR:  # the next attempt may succeed
            raise ControlError(f"{status} {text}") from error
        raise RefusedError(status, text) from error
    except (httpx.HTTPError, OSError) as error:
        raise ControlError(str(error) or type(error).__name__) from error
