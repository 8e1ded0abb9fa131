"""A fleet at a glance, for those who look after it: where its devices are, what its privacy is, when keys expire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from fedkad.federation.privacy import epsilon
from fedkad.fleet.server.lastseen import LastSeen
from fedkad.fleet.server.registry import Registry
from fedkad.fleet.server.settings import FleetSettings, ServerFolder
from fedkad.fleet.shared.certificates import end_of
from fedkad.fleet.shared.files import FleetFileError
from fedkad.fleet.shared.keyfiles import read_certificates

if TYPE_CHECKING:
    from fedkad.fleet.flower.control import Node

ONLINE, WAITING, OFFLINE, NEVER, REVOKED = "online", "waiting", "offline", "never seen", "revoked"
DELTA = 1e-5  # the δ for which ε is given


class SeenDevice(NamedTuple):
    """A registered device as Flower and nginx see it; `state` is None if Flower was not asked."""

    device: str
    state: str | None
    since: str | None
    added: str


def seen_devices(
    devices: Registry, nodes: Mapping[str, Node] | None, last_seen: LastSeen | None = None
) -> list[SeenDevice]:
    """Return all devices; `nodes` are those that Flower knows, by their keys, or None if it does not answer.

    With `last_seen`, devices connect only when they are called: one that polls the notice is not offline.
    """
    seen = []
    for device in devices.values():
        state, since = None, None
        if device.revoked:
            state, since = REVOKED, device.revoked
        elif nodes is not None:
            node = nodes.get(device.public_key)
            state, since = (NEVER, None) if node is None else (node.state, node.since)
        if last_seen is not None and state not in (ONLINE, REVOKED) and (poll := last_seen.seen(device.name)):
            state, since = WAITING if poll[0] else OFFLINE, poll[1]
        seen.append(SeenDevice(device.name, state, since, device.added))
    return seen


def counts_of(devices: Iterable[SeenDevice]) -> dict[str, int]:
    """Count the devices in each state, in a fixed order; those of an unknown state are left out."""
    counts = Counter(device.state for device in devices)
    return {state: counts[state] for state in (ONLINE, WAITING, OFFLINE, NEVER, REVOKED)}


def certificate_ends(folder: ServerFolder) -> dict[str, datetime]:
    """Return when the certificates of a fleet expire, by their owners, without one that is missing or damaged."""
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


def privacy_of(settings: FleetSettings) -> dict[str, Any]:
    """Return what protects a reply; `epsilon` is of a device that replies in every round of one training."""
    privacy, rounds = settings.privacy, settings.training.rounds
    bound = epsilon(privacy.noise, rounds, DELTA) if privacy.noise > 0.0 else None
    return {
        "secure_aggregation": privacy.secure_aggregation,
        "noise": privacy.noise,
        "clip": privacy.clip,
        "replies": rounds,
        "epsilon": bound,
        "delta": DELTA,
    }
