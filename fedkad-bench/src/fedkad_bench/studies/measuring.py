"""Measuring one method at a time: a fresh process, one core, one thread, processor time, peak memory."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from fedkad_bench.running.workers import perform

T = TypeVar("T")
R = TypeVar("R")

MEGABYTE = 1024.0**2


def apart(work: Callable[[T], R], task: T) -> R:
    """The result of a piece of work done in a process of its own, with one thread for its products."""
    finished = next(iter(perform(work, [task], workers=1)))
    if finished.failure is not None:
        raise ValueError(finished.failure.sentence)
    assert finished.result is not None
    return finished.result


def confine(megabytes: int | None = None) -> None:
    """Keep this process on one core, PyTorch on one thread, and its memory below a limit.

    The limit is on what the process allocates (`RLIMIT_DATA`): mapped libraries do not count, as on a small board.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if megabytes is not None:
        limit = int(megabytes * MEGABYTE)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def one_torch_thread() -> None:
    """PyTorch counts its threads by itself; and numbers too small to matter must not slow it down."""
    import torch

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def median_seconds(action: Callable[[], object], repeats: int, warm: int = 1) -> float:
    """Median processor seconds of an action, which a busy neighbour disturbs less than those of the wall clock."""
    for _ in range(warm):
        action()
    seconds = []
    for _ in range(repeats):
        began = time.process_time()
        action()
        seconds.append(time.process_time() - began)
    return float(np.median(seconds))


def once(action: Callable[[], R]) -> tuple[R, float]:
    """What an action returns, and its processor seconds."""
    began = time.process_time()
    result = action()
    return result, time.process_time() - began


def peak_megabytes() -> float:
    """The most memory that this process has held, not counting what its parent held when it began."""
    status = Path("/proc/self/status").read_text().splitlines()
    [peak] = [line.split()[1] for line in status if line.startswith("VmHWM")]
    return int(peak) / 1024.0


def median_length(lengths: Sequence[int]) -> int:
    """The middle one of an odd number, the lower middle of an even one: a length that occurs.

    >>> median_length([5, 1, 9, 7])
    5
    """
    return sorted(lengths)[(len(lengths) - 1) // 2]
