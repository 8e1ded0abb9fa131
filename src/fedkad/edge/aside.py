"""Work in a process of its own, a copy of this one, which takes the memory that it needed with it when it ends."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress

PR_SET_PDEATHSIG = 1
MOST_DESCRIPTORS = 1024

LONGEST = 1800.0
"""Seconds after which work that has not ended never will: a copy of a process may wait for a lock that nobody opens."""

LOOK_EVERY = 0.5


class AsideError(ValueError):
    """The work could not be done; the message is what it said."""


def done_aside(work: Callable[[], None], meanwhile: Callable[[], None], longest: float = LONGEST) -> None:
    """Do that in a forked process and wait for it; raises `AsideError` with its words where it fails.

    What is to be done `meanwhile` is done every half second.

    The copy closes what it has inherited: a connection that it held would outlive a killed agent, and the broker would
    not notice that the agent is gone. For the same reason it ends with the agent.
    """
    reader, writer = os.pipe()
    agent = os.getpid()
    child = os.fork()
    if child == 0:
        _work_alone(work, agent, writer)
    os.close(writer)
    try:
        words = _words(reader, meanwhile, time.monotonic() + longest)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        os.close(reader)
        _, status = os.waitpid(child, 0)
    if status:
        raise AsideError(words or f"its process ended with status {status}")


def _words(reader: int, meanwhile: Callable[[], None], deadline: float) -> str:
    """What the process says until its end."""
    words = b""
    while time.monotonic() < deadline:
        if select.select([reader], [], [], LOOK_EVERY)[0]:
            piece = os.read(reader, 4096)
            if not piece:
                return words.decode(errors="replace")
            words += piece
        else:
            meanwhile()
    raise AsideError("it takes too long")


def _work_alone(work: Callable[[], None], agent: int, writer: int) -> None:
    status = 1
    try:
        with suppress(OSError, AttributeError):  # where there is no such call it ends by itself, only later
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == agent:
            os.dup2(writer, 3)
            os.closerange(4, MOST_DESCRIPTORS)
            with suppress(OSError):
                os.nice(5)
            work()
            status = 0
    except BaseException as error:
        with suppress(OSError):
            os.write(3, str(error).encode()[:2000])
    finally:
        os._exit(status)
