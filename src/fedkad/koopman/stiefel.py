"""Geometry of orthonormal D × r matrices: tangent projections and retractions, no solver inside.

The Stiefel manifold is St(D, r) = {P : PᵀP = I}. A loss that does not change under P → P R for rotations R lives
on the Grassmann manifold of the spanned subspaces; its gradients have no part along P.
"""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def project_grassmann(point: Array, gradient: Array) -> Array:
    """The horizontal part (I − PPᵀ) G of a gradient: the paper's projection.

    It cannot turn a basis inside its own span, so two rotated copies of one subspace never meet under it.
    """
    projected: Array = gradient - point @ (point.T @ gradient)
    return projected


def project_stiefel(point: Array, gradient: Array) -> Array:
    """The tangent part G − P sym(PᵀG) of a gradient at a point of St(D, r), rotations included."""
    inner = point.T @ gradient
    projected: Array = gradient - point @ ((inner + inner.T) / 2.0)
    return projected


def retract_qr(matrix: Array) -> Array:
    """The orthonormal factor of QR with a positive diagonal of R, so that a point retracts to itself.

    >>> point = retract_qr(np.array([[-2.0, 0.0], [0.0, 3.0], [0.0, 4.0]]))
    >>> point.round(12) + 0.0
    array([[-1. ,  0. ],
           [ 0. ,  0.6],
           [ 0. ,  0.8]])
    """
    basis, upper = np.linalg.qr(matrix)
    signs = np.where(np.diagonal(upper) < 0.0, -1.0, 1.0)
    retracted: Array = basis * signs
    return retracted


def retract_polar(matrix: Array) -> Array:
    """The orthonormal matrix nearest to `matrix`: U Vᵀ of its singular value decomposition U S Vᵀ."""
    left, _, right = np.linalg.svd(matrix, full_matrices=False)
    nearest: Array = left @ right
    return nearest


def random_point(dimension: int, rank: int, generator: np.random.Generator) -> Array:
    """A point drawn uniformly on St(D, r)."""
    return retract_qr(generator.standard_normal((dimension, rank)))
