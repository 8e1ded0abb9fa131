"""Subspaces for known statistics: the leading directions of a Gram matrix, and a descent on the loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.koopman.operator import Reduced, fit_operator, loss, loss_gradient
from fedkad.koopman.snapshots import Statistics
from fedkad.koopman.stiefel import project_grassmann, retract_polar

Array = NDArray[np.float64]


class Directions(NamedTuple):
    """Leading eigenvectors of a Gram matrix as columns, and their eigenvalues in falling order."""

    vectors: Array
    values: Array


def leading_directions(gram: Array, rank: int, *, tolerance: float = 1e-6, most: int = 60) -> Directions:
    """The `rank` leading eigenpairs of a symmetric positive matrix by block subspace iteration.

    Iterates on a block that is a little wider than asked for and stops when the captured energy Σλ no longer
    grows by more than `tolerance` of the trace: much cheaper than all D eigenpairs, and exact enough for a start.
    """
    size = len(gram)
    width = min(size, rank + max(8, rank // 2))
    if width > size // 3:
        values, vectors = np.linalg.eigh(gram)
        return Directions(vectors[:, ::-1][:, :rank], np.maximum(values[::-1][:rank], 0.0))
    # The columns of largest norm are a deterministic start that already leans towards the leading directions.
    block = gram[:, np.argsort(-np.diagonal(gram), kind="stable")[:width]]
    trace, captured = float(np.trace(gram)), -np.inf
    for _ in range(most):
        block, _ = np.linalg.qr(block)
        image = gram @ block
        values, turn = np.linalg.eigh(block.T @ image)
        values, turn = values[::-1], turn[:, ::-1]
        total = float(values[:rank].sum())
        if total - captured <= tolerance * trace:
            break
        captured, block = total, image @ turn
    vectors = (block @ turn)[:, :rank]
    return Directions(vectors, np.maximum(values[:rank], 0.0))
