"""The agent as a process: its log, and work in a forked process."""

from __future__ import annotations

import ctypes
import logging
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress

PR_SET_PDEATHSIG = 1
MAX_DESCRIPTORS = 1024

TIMEOUT = 1800.0  # seconds after which work is given up: it may wait for a lock that was held at the fork
POLL_INTERVAL = 0.5


class _StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """A log that cannot be written must not stop the agent."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Drop the line."""


def log_to_stderr() -> None:
    """Print what the agent logs, each line prefixed with its program name."""
    handler = _StderrHandler()
    handler.setFormatter(logging.Formatter("fedkad-agent: %(message)s"))
    for layer in ("fedkad.edge", "fedkad.fleet"):
        logger = logging.getLogger(layer)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)


class ForkedWorkError(ValueError):
    """The work failed; the message is that of the exception raised in the forked process."""


def run_forked(work: Callable[[], None], while_waiting: Callable[[], None], timeout: float = TIMEOUT) -> None:
    """Run `work` in a forked process and wait for it, calling `while_waiting` every half second.

    The child closes all inherited descriptors: a broker connection that it kept open would outlive a killed agent, and
    the broker would not notice that the agent is gone. For the same reason the child dies with the agent.

    Raises
    ------
    ForkedWorkError
        If the work raises, is killed, or takes longer than `timeout` seconds.
    """
    reader, writer = os.pipe()
    agent = os.getpid()
    child = os.fork()
    if child == 0:
        _run_in_child(work, agent, writer)
    os.close(writer)
    try:
        message = _read_until_exit(reader, while_waiting, time.monotonic() + timeout)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        os.close(reader)
        _, status = os.waitpid(child, 0)
    if status:
        raise ForkedWorkError(message or f"its process ended with status {status}")


def _read_until_exit(reader: int, while_waiting: Callable[[], None], deadline: float) -> str:
    """Return the error message that the child writes before it exits, empty if it succeeds."""
    message = b""
    while time.monotonic() < deadline:
        if select.select([reader], [], [], POLL_INTERVAL)[0]:
            piece = os.read(reader, 4096)
            if not piece:
                return message.decode(errors="replace")
            message += piece
        else:
            while_waiting()
    raise ForkedWorkError("it takes too long")


def _run_in_child(work: Callable[[], None], agent: int, writer: int) -> None:
    status = 1
    try:
        with suppress(OSError, AttributeError):  # without this call the child still ends, only later
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == agent:
            os.dup2(writer, 3)
            os.closerange(4, MAX_DESCRIPTORS)
            with suppress(OSError):
                os.nice(5)
            work()
            status = 0
    except BaseException as error:
        with suppress(OSError):
            os.write(3, str(error).encode()[:2000])
    finally:
        os._exit(status)
