"""Trouble for Flower's processes, from outside the product: Python imports this file first where it is on PYTHONPATH.

`SABOTAGE` names a folder. A test puts the name of a point into its file `armed`; the next app of the device that gets
there renames the file to `fired` and waits until that is removed, if it lives so long. So a point fires once, the test
knows that the process is there, and kills it or lets it go on.

`HURRY` makes Flower's own clocks faster: it takes a minute to notice that somebody died, and looks for news every three
seconds. Nothing else about it changes.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

SABOTAGE, HURRY = "FEDKAD_TEST_SABOTAGE", "FEDKAD_TEST_HURRY"
COMPUTING, ASKED, BEFORE_RENAME, AFTER_RENAME = "computing", "asked", "before rename", "after rename"
DELIVERING, RENEWING, UPLOADING = "delivering", "renewing", "uploading"

DEVICE_BEAT, APP_BEAT, ANSWER = 10, 15, 4
"""Seconds between two signs of life, of which one may be missed, and for one to arrive; Flower has 30, 30 and 5."""

LONGEST_SLEEP = 0.5
PROGRAMS = ("superlink", "supernode", "serverapp", "clientapp")
"""How the names of Flower's programs end, and those of modules that run them."""


def main(program: str) -> None:
    """Do to a program what the environment asks for."""
    if program and os.environ.get(HURRY):
        hurry(program)
    lays = {"clientapp": lay, "supernode": lay_under_way}
    if program in lays and os.environ.get(SABOTAGE):
        lays[program](Points(Path(os.environ[SABOTAGE])))


def hurry(program: str) -> None:
    """Let the dead be noticed and messages be fetched sooner; what an app has to start in stays as it is."""
    from flwr.common import constant

    if program in ("superlink", "serverapp"):
        change((constant, "HEARTBEAT_DEFAULT_INTERVAL", APP_BEAT), (constant, "HEARTBEAT_CALL_TIMEOUT", ANSWER))
        change((constant, "HEARTBEAT_MIN_INTERVAL", DEVICE_BEAT))
    if program == "supernode":
        from flwr.supercore import heartbeat
        from flwr.supernode import fleet_http_connection

        change((heartbeat, "HEARTBEAT_DEFAULT_INTERVAL", DEVICE_BEAT), (heartbeat, "HEARTBEAT_CALL_TIMEOUT", ANSWER))
        change((fleet_http_connection, "HEARTBEAT_DEFAULT_INTERVAL", DEVICE_BEAT))
        sleep = time.sleep
        change((time, "sleep", lambda seconds: sleep(min(seconds, LONGEST_SLEEP))))


def change(*changes: tuple[Any, str, Any]) -> None:
    """Give names in modules and classes another meaning."""
    for owner, name, changed in changes:
        setattr(owner, name, changed)


class Points:
    """The one point that is armed, and whether somebody waits there."""

    def __init__(self, folder: Path) -> None:
        self.armed, self.fired = folder / "armed", folder / "fired"

    def arm(self, point: str) -> None:
        """Let the next process that gets there wait."""
        written = self.armed.with_suffix(".part")
        written.write_text(point)
        written.rename(self.armed)

    def reach(self, point: str) -> None:
        """Wait here, if this point is armed."""
        try:
            if self.armed.read_text() != point:
                return
            self.armed.rename(self.fired)
        except FileNotFoundError:
            return
        while self.fired.exists():
            time.sleep(0.05)

    def hold_again(self, point: str) -> None:
        """Let who waits go on, and the next that gets to this point wait."""
        self.arm(point)
        self.fired.unlink()

    def release(self) -> None:
        """Let who waits go on, and nobody wait any more."""
        self.armed.unlink(missing_ok=True)
        self.fired.unlink(missing_ok=True)


def lay(points: Points) -> None:
    """Put the points where they are reached."""
    from fedkad.federation.client import Client
    from fedkad.federation.devicestate import DeviceState
    from fedkad.federation.durable import DurableParticipant

    compute, answer = Client.local_round, DurableParticipant.answer
    renew, replace = DeviceState.deliver, os.replace

    def computing(self: Client, state: Any, shared: Any) -> Any:
        points.reach(COMPUTING)
        return compute(self, state, shared)

    def asked(self: DurableParticipant, request: Any) -> Any:
        if request.kind == "admm" and request.accepted >= 0:
            points.reach(ASKED)
        if request.kind == "deliver":
            points.reach(DELIVERING)
        return answer(self, request)

    def renewing(self: DeviceState, detector: Any, run: str) -> None:
        points.reach(RENEWING)
        renew(self, detector, run)

    def renaming(source: Any, target: Any, **options: Any) -> None:
        is_second = Path(target).name == "consensus.safetensors" and Path(target).exists()
        if is_second:
            points.reach(BEFORE_RENAME)
        replace(source, target, **options)
        if is_second:
            points.reach(AFTER_RENAME)

    change((Client, "local_round", computing), (DurableParticipant, "answer", asked))
    change((DeviceState, "deliver", renewing), (os, "replace", renaming))


def lay_under_way(points: Points) -> None:
    """Put a point where a reply is announced to the server, and not all of it is there."""
    from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf as make
    from flwr.supernode import fleet_http_connection

    def make_slow(*arguments: Any, **options: Any) -> Any:
        push = make(*arguments, **options)

        def uploading(object_id: str, content: bytes) -> None:
            points.reach(UPLOADING)
            push(object_id, content)

        return uploading

    change((fleet_http_connection, "make_push_object_fn_protobuf", make_slow))


main(next((name for word in sys.orig_argv[1:3] for name in PROGRAMS if word.endswith(name)), ""))
