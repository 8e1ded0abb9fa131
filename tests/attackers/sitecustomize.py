"""A device that misbehaves: Python imports this file at start if its folder is on PYTHONPATH.

The file that `FEDKAD_ATTACK` names says what the device does in which round, as in `{"0": "nan", "3": "huge"}`, with
`*` for every other round, and with `secure 1` for round 1 of a training in which replies are masked. It is read for
every answer. Only the process that answers is affected, and there only the header that leaves it.

Python imports only one file of this name, so the one in the folder `sabotage`, which hurries Flower, is run from here.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PATIENCE = 300.0
"""Seconds that a device waits, at most, for the file that it is told to wait for."""

FAR = 9.0
"""The norm of a poisoned matrix relative to an orthonormal one; at 10 it would be refused."""


def install(script: Mapping[str, str]) -> None:
    """Change replies as the script says."""
    from fedkad.federation.protocol import Reply, Request

    honest = Reply.header

    def header(self: Reply, request: Request) -> dict[str, Any]:
        told: dict[str, Any] = dict(honest(self, request))
        place = f"secure {request.round}" if request.terms.secure else str(request.round)
        wanted = script.get(place, script.get("*", ""))
        if wanted and request.kind in ("warm", "admm"):
            misbehave(wanted, told, request)
        return told

    Reply.header = header  # type: ignore[method-assign]


def misbehave(wanted: str, told: dict[str, Any], request: Any) -> None:
    """Change the content of a reply, or its time."""
    import numpy as np

    from fedkad.federation import wire

    shape, encoding = request.terms.shape, request.terms.encoding
    rows, columns = shape
    if wanted == "nan":
        told["payload"] = wire.encode(np.full(shape, np.nan), encoding)
    elif wanted == "shape":
        told["payload"] = wire.encode(np.zeros((rows, columns + 1)), encoding)
    elif wanted == "huge":
        told["payload"] = wire.encode(np.full(shape, 1e3), encoding)
    elif wanted == "old":
        told["round"] = request.round - 1
    elif wanted.startswith("name "):
        told["device"] = wanted.removeprefix("name ")
    elif wanted == "random":
        told["payload"] = wire.encode(poison(request.kind, rows, columns), encoding)
    elif wanted.startswith("wait for "):
        wait_for(Path(wanted.removeprefix("wait for ")))
    elif wanted == "vanish":
        vanish()
    else:
        raise RuntimeError(f"FEDKAD_ATTACK does not know {wanted!r}.")


def wait_for(path: Path) -> None:
    """Wait until a file exists, while another process answers in this one's place."""
    end = time.monotonic() + PATIENCE
    while not path.exists() and time.monotonic() < end:
        time.sleep(0.1)


def poison(kind: str, rows: int, columns: int) -> Any:
    """A random subspace with almost the largest norm that is accepted."""
    import numpy as np

    from fedkad.koopman.stiefel import random_point

    drawn = random_point(rows, columns, np.random.default_rng(99))
    return drawn / np.sqrt(columns) if kind == "warm" else FAR * drawn


def vanish() -> None:
    """Die with every process of the device, as in a power cut."""
    line = [os.getpid()]
    while "flower.supernode" not in _command(line[-1]) and "flower-supernode" not in _command(line[-1]):
        line.append(_parent(line[-1]))
        if line[-1] <= 1:
            raise RuntimeError("no SuperNode among the ancestors")
    for process in reversed(line):
        os.kill(process, signal.SIGKILL)


def _command(process: int) -> str:
    return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def _parent(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def is_answering() -> bool:
    """Whether this process answers requests."""
    return any(Path(argument).name == "flwr-clientapp" for argument in sys.orig_argv)


runpy.run_path(str(Path(__file__).parents[1] / "sabotage" / "sitecustomize.py"))
if os.environ.get("FEDKAD_ATTACK") and is_answering():
    install(json.loads(Path(os.environ["FEDKAD_ATTACK"]).read_text()))
