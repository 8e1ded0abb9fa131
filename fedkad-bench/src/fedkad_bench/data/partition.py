"""PSM has one stream and the paper has 24 clients: how the stream is cut.

The paper: "sliced into 24 contiguous chunks of mean length 5,520 which are then assigned to clients via Dirichlet
(α = 0.5) over the 25 feature dimensions, so each client predominantly observes a different subset of channels", with
training lengths that differ by up to about 25×. That leaves the lengths of the chunks open, and what a draw over
features decides. What we tried, with the median of max/min length over 300 seeds:

=====================================================================  ======
each feature draws the clients' shares, a client takes their mean        2.9×
one draw of the clients' shares (the shortest chunk: 7 rows)            4000×
a sixth of the mean length for everyone, one draw for the rest            26×
=====================================================================  ======

The last is what :func:`chunk_lengths` does. One chunk goes to one client, so that *which* client gets it is a matter
of names only. That a client "predominantly observes a different subset of channels" does **not** hold here: the method
needs the same channels everywhere, so every client sees all 25, and clients differ in the period of the stream that
they see and in its length.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedkad_bench.data.entity import Array, Entity

CLIENTS = 24
LEAST = 1.0 / 6.0
"""The shortest chunk that a client can get, as a share of the mean length."""


def chunk_lengths(rows: int, clients: int = CLIENTS, seed: int = 0) -> list[int]:
    """Lengths of contiguous chunks that cover `rows` rows, one for each client and none below a sixth of the mean.

    What lies above that sixth is shared out by one draw from Dirichlet(½). The draw is made from raw generator bits, so
    that it is the same in every version of numpy.

    Examples
    --------
    >>> lengths = chunk_lengths(132_481)
    >>> len(lengths), sum(lengths), min(lengths), max(lengths)
    (24, 132481, 934, 25945)
    """
    if rows < clients:
        raise ValueError(f"{rows} rows cannot be cut into {clients} chunks; give more rows or fewer clients.")
    least = max(1, int(LEAST * rows / clients))
    weights = _half_gammas(clients, seed)
    ends = np.rint(np.cumsum(weights) / weights.sum() * (rows - least * clients)).astype(int)
    return [int(length) + least for length in np.diff(ends, prepend=0)]


def partition(stream: Entity, clients: int = CLIENTS, seed: int = 0) -> tuple[Entity, ...]:
    """Cut the training series into contiguous chunks, one a client; all share the test series and its labels.

    Examples
    --------
    >>> values, labels = np.arange(200.0).reshape(100, 2), np.zeros(100, dtype=bool)
    >>> parts = partition(Entity("PSM", values, values, labels), clients=4)
    >>> [part.name for part in parts]
    ['PSM-01', 'PSM-02', 'PSM-03', 'PSM-04']
    >>> bool((np.concatenate([part.train for part in parts]) == values).all()), parts[0].test is parts[3].test
    (True, True)
    """
    ends = np.cumsum(chunk_lengths(len(stream.train), clients, seed))
    chunks: list[Array] = np.split(stream.train, ends[:-1])
    return tuple(
        stream._replace(name=f"{stream.name}-{number:02d}", train=chunk) for number, chunk in enumerate(chunks, 1)
    )


def _half_gammas(count: int, seed: int) -> NDArray[np.float64]:
    """Gamma(½) variates; divided by their sum they are Dirichlet(½).

    Half the square of a normal variate is Gamma(½), and by the Box-Muller transform that is -ln(u) cos²(2πv).
    """
    bits = np.random.PCG64(seed).random_raw(2 * count)
    u, v = ((bits >> np.uint64(11)) + np.uint64(1)).reshape(2, count) * 2.0**-53
    half: NDArray[np.float64] = -np.log(u) * np.cos(2.0 * np.pi * v) ** 2
    return half
