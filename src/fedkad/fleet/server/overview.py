"""A fleet at a glance, for those who look after it: where its devices are, what its privacy is, when keys expire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from fedkad.federation.privacy import epsilon
from fedkad.fleet.server.registry import Registry
from fedkad.fleet.server.settings import FleetSettings, ServerFolder
from fedkad.fleet.shared.certificates import end_of
from fedkad.fleet.shared.files import FleetFileError
from fedkad.fleet.shared.keyfiles import read_certificates

if TYPE_CHECKING:
    from fedkad.fleet.flower.control import Node

ONLINE, WAITING, OFFLINE, NEVER, REVOKED = "online", "waiting", "offline", "never seen", "revoked"
DELTA = 1e-5
"""The δ for which ε is told."""


class SeenDevice(NamedTuple):
    """A registered device as Flower and nginx see it; `state` is None if nobody was asked."""

    device: str
    state: str | None
    since: str | None
    added: str


class Looks(NamedTuple):
    """When devices last looked at the notice, in seconds since 1970, and since when one that is on has."""

    last: Mapping[str, float]
    since: float

    def seen(self, device: str) -> tuple[str, str] | None:
        """The state of a device that is not connected, and since when; None if it never said that it looks."""
        if device not in self.last:
            return None
        moment = datetime.fromtimestamp(self.last[device], UTC).isoformat(timespec="seconds")
        return WAITING if self.last[device] >= self.since else OFFLINE, moment


def seen_devices(devices: Registry, nodes: Mapping[str, Node] | None, looks: Looks | None = None) -> list[SeenDevice]:
    """All devices; `nodes` are those that Flower knows, by their keys, or None if it does not answer.

    With `looks`, devices connect only when they are called: who looks at the notice is not offline.
    """
    found = []
    for device in devices.values():
        state, since = None, None
        if device.revoked:
            state, since = REVOKED, device.revoked
        elif nodes is not None:
            node = nodes.get(device.public_key)
            state, since = (NEVER, None) if node is None else (node.state, node.since)
        if looks is not None and state not in (ONLINE, REVOKED):
            state, since = looks.seen(device.name) or (state, since)
        found.append(SeenDevice(device.name, state, since, device.added))
    return found


def counts_of(devices: Iterable[SeenDevice]) -> dict[str, int]:
    """How many devices are in each state, in a fixed order; those of an unknown state are left out."""
    counts = Counter(device.state for device in devices)
    return {state: counts[state] for state in (ONLINE, WAITING, OFFLINE, NEVER, REVOKED)}


def certificate_ends(folder: ServerFolder) -> dict[str, datetime]:
    """When the certificates of a fleet expire, by their owners; nothing of one that is missing or damaged."""
    files = {
        "server": folder.server_certificate,
        "notices": folder.notice_certificate,
        "authority": folder.ca_certificate,
    }
    ends = {}
    for owner, path in files.items():
        with suppress(FleetFileError):
            ends[owner] = end_of(read_certificates(path))
    return ends


def privacy_of(known: FleetSettings) -> dict[str, Any]:
    """What protects a reply; `epsilon` is of a device that replies in every round of one training."""
    chosen, rounds = known.privacy, known.training.rounds
    bound = epsilon(chosen.noise, rounds, DELTA) if chosen.noise > 0.0 else None
    return {
        "secure_aggregation": chosen.secure_aggregation,
        "noise": chosen.noise,
        "clip": chosen.clip,
        "replies": rounds,
        "epsilon": bound,
        "delta": DELTA,
    }
