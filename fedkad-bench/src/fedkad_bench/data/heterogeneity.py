"""How unlike the clients of a dataset are: the three skews of the paper's figure, beside the ranges that it states.

The paper says "per-client std of the per-feature mean" and not of what. Of some twenty readings one gives its numbers
on SMAP and MSL nearly to the last digit, and the nearest on SMD: scale the *test* series of a client by its own
training series, clip it at ±10 standard deviations, take the mean of every channel, and the standard deviation of these
means over the channels. So the number says how far a client's test stream departs from its own training stream,
channel by channel, rather than how far clients differ from one another.

===========================================  ============  ============  ============
reading                                      SMD           SMAP          MSL
===========================================  ============  ============  ============
the paper's text                             0.14 – 2.47   0.011 – 1.96  0.015 – 1.33
test, own z-scores, clipped                  0.11 – 2.05   0.009 – 1.96  0.015 – 1.34
test, own z-scores, not clipped              0.11 – 41.7   0.006 – 1721  0.015 – 660
training, z-scores of the whole fleet        0.37 – 1.10   0.034 – 0.33  0.051 – 0.41
training, raw                                0.10 – 0.30   0.009 – 0.21  0.007 – 0.14
===========================================  ============  ============  ============

SMD is measured on 24 of its 28 machines. The paper's ratios of anomalies, up to 98 % on SMAP and MSL, are not in the
labels, where no channel has more than 50.1 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Literal, NamedTuple

import numpy as np

from fedkad.koopman.scaling import ChannelMoments, Scaling
from fedkad_bench.data.dataset import Dataset
from fedkad_bench.data.entity import Array, Entity, Labels

Kind = Literal["feature", "label", "quantity"]
Range = tuple[float, float]

PAPER_RANGES: dict[Kind, dict[str, Range]] = {
    "feature": {"SMD": (0.14, 2.47), "SMAP": (0.011, 1.96), "MSL": (0.015, 1.33)},
    "label": {"SMD": (0.4, 27.0), "SMAP": (0.0, 98.0), "MSL": (0.0, 98.0), "PSM": (30.0, 30.0)},
    "quantity": {"SMD": (1.2, 1.2), "SMAP": (10.0, 10.0), "MSL": (10.0, 10.0), "PSM": (25.0, 25.0)},
}
"""What the paper's text says: a spread, percentages, and the longest training series over the shortest."""


class ClientSkew(NamedTuple):
    """One client in the figure: its spread of channel means, anomalous percentage and number of training rows."""

    dataset: str
    client: str
    feature: float
    label: float
    quantity: int


class SkewRow(NamedTuple):
    """One kind of skew of one dataset: our range over the clients and the paper's, None where it gives none.

    The range of the quantity skew is one number twice, the ratio of the longest to the shortest training series.
    """

    dataset: str
    kind: Kind
    low: float
    high: float
    paper_low: float | None
    paper_high: float | None


def feature_skew(scaled: Array) -> float:
    """The standard deviation, over the channels, of the mean of each channel; rows with NaN are gaps.

    Examples
    --------
    >>> feature_skew(np.array([[0.0, 3.0], [2.0, 3.0]]))
    1.0
    """
    whole = scaled[~np.isnan(scaled).any(axis=1)]
    return float(whole.mean(axis=0).std())


def label_skew(labels: Labels) -> float:
    """The percentage of anomalous samples.

    Examples
    --------
    >>> label_skew(np.array([True, False, False, False]))
    25.0
    """
    return 100.0 * float(labels.mean())


def quantity_skew(rows: Sequence[int]) -> float:
    """The longest training series over the shortest.

    Examples
    --------
    >>> quantity_skew([100, 250, 120])
    2.5
    """
    return max(rows) / min(rows)


def client_skews(dataset: Dataset) -> list[ClientSkew]:
    """The skews of every client, in the order of the dataset.

    Where all share one test series and one scaling, as on PSM, the feature skew is that of the training series.

    Examples
    --------
    >>> train, test = np.array([[0.0, 4.0], [2.0, 8.0]]), np.array([[1.0, 6.0], [1.0, 10.0]])
    >>> pump = Entity("pump-1", train, test, np.array([False, True]))
    >>> client_skews(Dataset("pumps", (pump,), "pumps"))
    [ClientSkew(dataset='pumps', client='pump-1', feature=0.5, label=50.0, quantity=2)]
    """
    dataset.training()  # refuses a dataset without training rows
    shared = _scaling_of_all(dataset.entities) if dataset.scaling == "global" else None
    return [
        ClientSkew(
            dataset.label,
            entity.name,
            feature_skew(
                shared.transform(entity.train) if shared else Scaling.fit(entity.train).transform(entity.test)
            ),
            label_skew(entity.labels),
            len(entity.train),
        )
        for entity in dataset.entities
    ]


def skew_table(dataset: Dataset, clients: Sequence[ClientSkew] | None = None) -> list[SkewRow]:
    """Our ranges beside the paper's, one row for each kind; `clients` where they have been computed already.

    Examples
    --------
    >>> x = np.array([[0.0, 4.0], [2.0, 8.0]])
    >>> pumps = tuple(Entity(name, x, x, np.array([False, True])) for name in ("pump-1", "pump-2"))
    >>> for row in skew_table(Dataset("pumps", pumps, "pumps")):
    ...     print(row.kind, row.low, row.high, row.paper_low)
    feature 0.0 0.0 None
    label 50.0 50.0 None
    quantity 1.0 1.0 None
    """
    clients = client_skews(dataset) if clients is None else clients
    ratio = quantity_skew([client.quantity for client in clients])
    ours: dict[Kind, Range] = {
        "feature": _range([client.feature for client in clients]),
        "label": _range([client.label for client in clients]),
        "quantity": (ratio, ratio),
    }
    return [
        SkewRow(dataset.label, kind, *ours[kind], *(PAPER_RANGES[kind].get(dataset.name) or (None, None)))
        for kind in ours
    ]


def _scaling_of_all(entities: Sequence[Entity]) -> Scaling:
    return Scaling.from_moments(reduce(ChannelMoments.merge, (ChannelMoments.of(entity.train) for entity in entities)))


def _range(values: Sequence[float]) -> Range:
    return min(values), max(values)
