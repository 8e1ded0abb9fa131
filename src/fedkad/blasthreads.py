"""One BLAS thread while FedKAD computes.

Nearly all of its products are small. A second thread gains little on them when cores are idle, and when cores are
busy every product waits, spinning, for its slowest thread: federating MSL then took seven times as long with two
threads as with one. One thread also makes results independent of the number of cores, because the last bits of a
sum depend on how it is split between threads.

A choice made by the user stays in force: an environment variable such as ``OPENBLAS_NUM_THREADS``, or a limit set
with ``threadpoolctl``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Lock
from typing import Any

VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "GOTO_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
"""The environment variables by which users choose the number of threads; BLAS libraries read them when they load."""


class _BlasPools:
    """The thread pools of the BLAS libraries that are loaded, which belong to the whole process.

    Libraries have their default number of threads when this object is made. Any other number is somebody's choice, or
    the limit of a caller that is already inside.
    """

    def __init__(self) -> None:
        import numpy as np  # noqa: F401  # brings the library with it
        from threadpoolctl import ThreadpoolController

        self._pools: Any = ThreadpoolController().select(user_api="blas")
        self._defaults = self._numbers()
        self._lock = Lock()

    def _numbers(self) -> list[int]:
        return [pool.num_threads for pool in self._pools.lib_controllers]

    def limit(self) -> AbstractContextManager[object]:
        """Set the limit, unless there is one; leaving the context lifts it."""
        with self._lock:
            limit: AbstractContextManager[object]
            limit = self._pools.limit(limits=1) if self._numbers() == self._defaults else nullcontext()
            return limit


_pools = None if any(name in os.environ for name in VARIABLES) else _BlasPools()


@contextmanager
def single_threaded() -> Iterator[None]:
    """Compute with one BLAS thread, unless the user has chosen a number; a context manager and a decorator.

    Entering and leaving takes microseconds: too long for a single product, nothing for a fit.

    >>> @single_threaded()
    ... def total_energy(states):
    ...     return float((states.T @ states).trace())
    """
    with nullcontext() if _pools is None else _pools.limit():
        yield
