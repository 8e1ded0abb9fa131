"""Which methods are compared, and their numbers by seed and by client."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from fedkad.report.document import TableCell, TableRow
from fedkad.wording import counted
from fedkad_bench.evaluation import METRICS
from fedkad_bench.methods.registry import GROUPS, METHODS
from fedkad_bench.report.numbers import digits_of, factor, missing, plain, summed_up
from fedkad_bench.results import Clients, Results, Summary

OURS = "fedkad"
PAPERS = "fedkad-paper"
CLASSICAL = ("pca", "kmeansad")

SMOOTHING_WORDS = {
    "off": "scores as they are",
    "causal": "mean of the last five",
    "offline": "offline, looking ahead",
}

PRIMARY = "causal"
"""The smoothing of all sections but the first: the paper averages five scores, and nothing looks ahead."""


class Bound(NamedTuple):
    """A metric under a smoothing over some clients: one column of a table."""

    metric: str
    smoothing: str = PRIMARY
    clients: Clients = "all"


def group_of(method: str) -> str:
    """The heading of a method's group."""
    return GROUPS[METHODS[method].group] if method in METHODS else "Others"


def is_neural(method: str) -> bool:
    """Whether a method is one of the networks."""
    return method in METHODS and METHODS[method].group == "neural"


def networks(results: Results, dataset: str) -> list[str]:
    """The networks with a record: the paper's baselines."""
    return [method for method in results.methods if is_neural(method) and results.of(dataset, method)]


def rivals(results: Results, dataset: str) -> list[str]:
    """What FedKAD is compared with: every network, PCA and k-means of windows."""
    return [m for m in results.methods if (is_neural(m) or m in CLASSICAL) and results.of(dataset, m)]


def contenders(results: Results, dataset: str) -> list[str]:
    """FedKAD, FedKAD as in the paper, and every method that is not a variant of it."""
    return [
        method
        for method in results.methods
        if results.of(dataset, method) and (method in (OURS, PAPERS) or group_of(method) != GROUPS["fedkad"])
    ]


def by_seed(results: Results, dataset: str, method: str, metric: str, smoothing: str = PRIMARY) -> dict[int, float]:
    """The mean over clients for every seed, without those that have none."""
    found = {}
    for record in results.of(dataset, method):
        values = record.values(metric, smoothing)
        there = values[~np.isnan(values)]
        if len(there):
            found[record.cell.seed] = float(there.mean())
    return found


def by_client(
    results: Results, dataset: str, method: str, metric: str, smoothing: str, clients: Iterable[str]
) -> list[float]:
    """The mean over seeds for each of these clients; NaN where there is none."""
    found = results.per_client(dataset, method, metric, smoothing)
    return [found.get(client, math.nan) for client in clients]


def clients_of(results: Results, dataset: str) -> tuple[str, ...]:
    """All clients of a dataset."""
    records = [record for cell, record in results.records.items() if cell.dataset == dataset]
    return tuple(dict.fromkeys(client for record in records for client in record.clients))


def most_seeds(results: Results, dataset: str) -> int:
    """The seeds of the method that has most."""
    return max(len(results.of(dataset, method)) for method in results.methods)


def method_rows(
    results: Results, dataset: str, columns: list[Bound], unlike: Collection[str] = ()
) -> tuple[TableRow, ...]:
    """A row for every method with a record, below the headings of the groups; the best of each column is marked.

    Metrics that are `unlike`, being over other clients for every method, have the number of clients instead of a mark.
    """
    methods = [method for method in results.methods if results.of(dataset, method)]
    seeds = most_seeds(results, dataset)
    rows: dict[str, list[TableCell]] = {method: [] for method in methods}
    for column in columns:
        found = {method: results.summary(dataset, method, *column) for method in methods}
        means = {method: summary.mean for method, summary in found.items() if summary is not None}
        apart = column.metric in unlike
        leading = set() if apart else best_of(means, column.metric)
        for method in methods:
            small = _clients_counted(found[method]) if apart else ""
            rows[method].append(TableCell(summed_up(column.metric, found[method], seeds), method in leading, small))
    return tuple(grouped((method, TableRow(results.titles[method], tuple(cells))) for method, cells in rows.items()))


def _clients_counted(found: Summary | None) -> str:
    return "" if found is None or missing(found.mean) else counted(found.clients - found.omitted, "client")


def grouped(rows: Iterable[tuple[str, TableRow]]) -> Iterator[TableRow]:
    """Rows with the heading of each group before its first."""
    last = ""
    for method, row in rows:
        if group_of(method) != last:
            last = group_of(method)
            yield TableRow(last)
        yield row


def best_of(means: dict[str, float], metric: str) -> set[str]:
    """The methods that are best to the digits shown; none where neither more nor less is better."""
    better = METRICS[metric].higher_is_better
    there = {method: factor(metric) * mean for method, mean in means.items() if not missing(mean)}
    if better is None or not there:
        return set()
    digits = digits_of(metric)
    best = (max if better else min)(there.values())
    return {method for method, mean in there.items() if plain(mean, digits) == plain(best, digits)}


def summary_rows(results: Results, dataset: str, columns: Iterable[Bound]) -> Iterator[dict[str, Any]]:
    """The numbers behind `method_rows`, unrounded and in the units of the records."""
    for method in results.methods:
        for column in columns:
            found = results.summary(dataset, method, *column)
            if found is not None:
                yield {
                    **key(results, dataset, method),
                    "metric": column.metric,
                    "smoothing": column.smoothing,
                    "over": column.clients,
                    **found._asdict(),
                }


def key(results: Results, dataset: str, method: str) -> dict[str, str]:
    """What every tidy row begins with."""
    return {
        "dataset": dataset,
        "label": results.labels[dataset],
        "method": method,
        "title": results.titles[method],
        "group": group_of(method),
    }


def file_name(text: str) -> str:
    """A part of a file's name.

    >>> file_name("my pumps/2")
    'my-pumps-2'
    """
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-.") or "data"


def average_note(results: Results, dataset: str) -> str:
    """How a table of this dataset averages, and what is left out."""
    records = [record for cell, record in results.records.items() if cell.dataset == dataset]
    without = max(sum(not has for has in record.anomalies) for record in records)
    seeds = most_seeds(results, dataset)
    parts = [
        "Mean over clients, then mean ± standard deviation over seeds" if seeds > 1 else "Mean over clients, one seed"
    ]
    if all(records[0].untouched):
        parts.append("nothing was chosen on any of these clients")
    if without:
        parts.append(f"{without} of {len(records[0].clients)} clients have no labelled anomaly")
    return "; ".join(parts)
