"""Many tasks in a few processes, each with one thread for its matrix products.

A process that dies takes its own task with it and no other. Interrupted from the keyboard, the processes are told to
leave; what they were writing disappears, and what they wrote is whole.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, NamedTuple, TypeVar

T = TypeVar("T")
R = TypeVar("R")

THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
PATIENCE = 5.0
"""Seconds that a process is given to leave."""


@dataclass(frozen=True)
class Failure:
    """Why a task gave no result: a sentence, and the traceback where it is likely a bug."""

    sentence: str
    details: str = ""


class Finished(NamedTuple, Generic[T, R]):
    """A task with its result or its failure."""

    task: T
    result: R | None
    failure: Failure | None = None


def perform(work: Callable[[T], R], tasks: Iterable[T], workers: int) -> Generator[Finished[T, R], None, None]:
    """Tasks as they finish, begun in their order; with 0 workers in this process, one after the other.

    Close the generator to end the processes before it has come to its end.

    >>> [finished.result for finished in perform(abs, [-2, 3], workers=0)]
    [2, 3]
    """
    if workers == 0:
        for task in tasks:
            yield Finished(task, *_attempt(work, task))
        return
    with _one_thread_each():
        crew = _Crew(work, workers)
        try:
            yield from crew.perform(deque(tasks))
        finally:
            crew.dismiss()


def _attempt(work: Callable[[T], R], task: T) -> tuple[R | None, Failure | None]:
    try:
        return work(task), None
    except OSError as error:
        return None, Failure(f"{error.filename}: {error.strerror}." if error.filename else f"{error}.")
    except ValueError as error:
        return None, Failure(" ".join(str(error).split()), traceback.format_exc())
    except Exception as error:
        return None, Failure(f"{type(error).__name__}: {error}", traceback.format_exc())


class _Hand:
    """One process and the line to it."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self.line, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, work), daemon=True)
        with _deaf_to_the_keyboard():
            self.process.start()
        theirs.close()

    def death(self) -> Failure:
        """What to say of a process that left in the middle of a task."""
        self.process.join(PATIENCE)
        status = self.process.exitcode
        killed = f"signal {-status}" if status is not None and status < 0 else f"exit status {status}"
        return Failure(f"its process ended early ({killed}), perhaps for lack of memory; try fewer --workers.")


class _Crew:
    """All processes, started as there is work for them."""

    def __init__(self, work: Callable[[Any], Any], workers: int) -> None:
        self.work, self.workers = work, workers
        self.idle: list[_Hand] = []
        self.busy: dict[Connection, tuple[_Hand, Any]] = {}

    def perform(self, waiting: deque[Any]) -> Iterator[Finished[Any, Any]]:
        while waiting or self.busy:
            while waiting and len(self.busy) < self.workers:
                hand, task = self._free(), waiting.popleft()
                self.busy[hand.line] = hand, task
                hand.line.send(task)
            for line in wait(list(self.busy)):
                hand, task = self.busy.pop(line)  # type: ignore[call-overload]
                try:
                    result, failure = hand.line.recv()
                    self.idle.append(hand)
                except (EOFError, OSError):
                    result, failure = None, hand.death()
                yield Finished(task, result, failure)

    def _free(self) -> _Hand:
        alive = [hand for hand in self.idle if hand.process.is_alive()]
        self.idle = alive[1:]
        return alive[0] if alive else _Hand(self.work)

    def dismiss(self) -> None:
        """End all processes: those without work by closing their line, the others by a signal."""
        hands = [*self.idle, *(hand for hand, _ in self.busy.values())]
        for hand in hands:
            if hand in self.idle:
                hand.line.close()
            else:
                hand.process.terminate()
        for hand in hands:
            hand.process.join(PATIENCE)
            if hand.process.is_alive():
                hand.process.kill()
                hand.process.join()


def _serve(line: Connection, work: Callable[[Any], Any]) -> None:
    """Do what comes down the line until it is closed."""
    signal.signal(signal.SIGTERM, _leave)  # by an exception, so that half a file is cleared away
    while True:
        try:
            task = line.recv()
        except EOFError:
            return
        line.send(_attempt(work, task))


@contextmanager
def _deaf_to_the_keyboard() -> Iterator[None]:
    """Processes started meanwhile ignore an interruption from the first moment on: their parent decides."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    usual = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)


def _leave(number: int, frame: object) -> None:
    raise SystemExit(1)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Processes started meanwhile use one thread for matrix products; numpy reads this when it is imported."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
