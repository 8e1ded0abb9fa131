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


_pools: Any = None  # of the BLAS libraries that are loaded; they belong to the whole process
if not any(name in os.environ for name in VARIABLES):
    import numpy as np  # noqa: F401  # brings the library with it
    from threadpoolctl import ThreadpoolController

    _pools = ThreadpoolController().select(user_api="blas")


def _numbers() -> list[int]:
    return [pool.num_threads for pool in _pools.lib_controllers] if _pools else []


_defaults, _lock = _numbers(), Lock()


@contextmanager
def single_threaded() -> Iterator[None]:
    """Compute with one BLAS thread, unless the user has chosen a number; a context manager and a decorator.

    Entering and leaving takes microseconds: too long for a single product, nothing for a fit.

    >>> @single_threaded()
    ... def total_energy(states):
    ...     return float((states.T @ states).trace())
    """
    limit: AbstractContextManager[object] = nullcontext()
    with _lock:
        # Any other number than the default is somebody's choice, or the limit of a caller that is already inside.
        if _pools and _numbers() == _defaults:
            limit = _pools.limit(limits=1)
    with limit:
        yield
