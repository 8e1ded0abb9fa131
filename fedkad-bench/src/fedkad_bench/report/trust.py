"""VUS-PR, the metric to trust first: no threshold, no adjustment, hard to please by chance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedkad.report.document import Block, Bullets, DataTable, Drawing, Paragraph, Section, TableColumn
from fedkad.wording import counted
from fedkad_bench.evaluation import SMOOTHINGS
from fedkad_bench.methods.registry import GROUPS, Group
from fedkad_bench.report.drawing import as_drawing
from fedkad_bench.report.numbers import interval, missing, plain
from fedkad_bench.report.selection import (
    OURS,
    PRIMARY,
    SMOOTHING_WORDS,
    Bound,
    average_note,
    by_client,
    clients_of,
    file_name,
    group_of,
    key,
    method_rows,
    rivals,
    summary_rows,
)
from fedkad_bench.report.trust_figure import draw_dots
from fedkad_bench.results import CLIENTS, Clients, Results, tidy
from fedkad_bench.significance import Interval, bootstrap_interval

HEADING = "What to trust first: VUS-PR"
METRIC = "vus_pr"
DRAWN = (PRIMARY, "offline")
OVER_WORDS = {"all": "all clients", "untouched": "untouched clients"}


def trust(results: Results) -> Section:
    """Sentences, a figure, and a table for every dataset."""
    blocks: list[Block] = [
        Paragraph(
            "The volume under the precision-recall surface, in points. It needs no threshold and adjusts nothing. "
            "Scores stand here as they are, averaged over the last five, and averaged over a third of a window before "
            "and after each sample; the last looks ahead and is for recordings, not for alarms."
        ),
        Bullets(tuple(standings(results))),
        _figure(results),
        *(_table(results, dataset) for dataset in results.datasets),
    ]
    return Section(HEADING, tuple(blocks))


def overs(results: Results, dataset: str) -> tuple[Clients, ...]:
    """All clients, and the untouched ones apart where they are others."""
    return CLIENTS if results.has_touched(dataset) else ("all",)


def _table(results: Results, dataset: str) -> DataTable:
    bounds = [Bound(METRIC, smoothing, over) for over in overs(results, dataset) for smoothing in SMOOTHINGS]
    columns = tuple(TableColumn(SMOOTHING_WORDS[b.smoothing], OVER_WORDS[b.clients]) for b in bounds)
    caption = (
        f"VUS-PR on {results.labels[dataset]}, in points. {average_note(results, dataset)}. Best of a column in bold."
    )
    return DataTable(
        f"2-vus-pr-{file_name(dataset)}",
        caption,
        "Method",
        columns,
        method_rows(results, dataset, bounds),
        tidy(summary_rows(results, dataset, bounds)),
    )


# -- sentences ------------------------------------------------------------------------------------------------


def standings(results: Results) -> Iterator[str]:
    """Where FedKAD leads what it is held against, where not, and by how much."""
    for dataset in results.datasets:
        for over in overs(results, dataset):
            for smoothing in DRAWN:
                yield standing(results, dataset, smoothing, over)


def standing(results: Results, dataset: str, smoothing: str, over: Clients) -> str:
    """One sentence, from the numbers alone."""
    where = f"{results.labels[dataset]}, {OVER_WORDS[over]}, {SMOOTHING_WORDS[smoothing]}"
    ours = results.summary(dataset, OURS, METRIC, smoothing, over)
    if ours is None or missing(ours.mean):
        return f"{where}: there is no result of FedKAD."
    means = {}
    for method in rivals(results, dataset):
        found = results.summary(dataset, method, METRIC, smoothing, over)
        if found is not None and not missing(found.mean):
            means[method] = found.mean
    if not means:
        return (
            f"{where}: FedKAD has {plain(100.0 * ours.mean)}; there is no network, PCA or k-means to hold it against."
        )
    told = _against(results, dataset, smoothing, over, ours.mean, means)
    others = _others(results, dataset, smoothing, over, ours.mean)
    return f"{where}: FedKAD has {plain(100.0 * ours.mean)} and {told}{others}"


def _against(
    results: Results, dataset: str, smoothing: str, over: Clients, ours: float, means: dict[str, float]
) -> str:
    ahead = sorted((m for m in means if means[m] >= ours), key=lambda m: -means[m])
    near = ahead[0] if ahead else max(means, key=lambda m: means[m])
    apart = _difference(results, dataset, near, smoothing, over)
    told = f"95 % interval of the difference over clients {interval(100 * apart.low, 100 * apart.high)}"
    if missing(apart.low):
        told = f"no interval: {apart.reason}"
    elif apart.low <= 0.0 <= apart.high:
        told += ", which includes zero"
    if not ahead:
        all_of = f"leads all {counted(len(means), 'method')} it is held against" if len(means) > 1 else "leads"
        margin = plain(100 * (ours - means[near]))
        return f"{all_of}; the nearest, {results.titles[near]}, is {margin} points behind ({told})."
    others = [f"{results.titles[m]} ({plain(100 * (means[m] - ours))})" for m in ahead[1:]]
    listed = f"; also behind {', '.join(others)}" if others else ""
    return (
        f"leads {len(means) - len(ahead)} of the {counted(len(means), 'method')} it is held against; it is "
        f"{plain(100 * (means[near] - ours))} points behind {results.titles[near]} ({told}){listed}."
    )


def _others(results: Results, dataset: str, smoothing: str, over: Clients, ours: float) -> str:
    """The best naive method, and the best of FedKAD's variants if it is better than FedKAD."""
    told = ""
    kinds: dict[Group, str] = {"naive": "The best naive method", "fedkad": "The best of FedKAD's own variants"}
    for group, words in kinds.items():
        means = {
            method: found.mean
            for method in results.methods
            if method != OURS and group_of(method) == GROUPS[group]
            if (found := results.summary(dataset, method, METRIC, smoothing, over)) and not missing(found.mean)
        }
        best = max(means, key=lambda m: means[m], default=None)
        if best is not None and (group == "naive" or means[best] > ours):
            told += f" {words}, {results.titles[best]}, has {plain(100.0 * means[best])}."
    return told


def _difference(results: Results, dataset: str, other: str, smoothing: str, over: Clients) -> Interval:
    record = results.of(dataset, OURS)[0]
    names = [
        name for name, untouched in zip(record.clients, record.untouched, strict=True) if over == "all" or untouched
    ]
    ours, theirs = (by_client(results, dataset, m, METRIC, smoothing, names) for m in (OURS, other))
    return bootstrap_interval(ours, theirs)


# -- the figure -----------------------------------------------------------------------------------------------


def _figure(results: Results) -> Drawing:
    rows = list(dot_rows(results))
    caption = (
        "VUS-PR over all clients, in points: the mean with a 95 % bootstrap interval over clients. Large: causal, the "
        "mean of the last five scores. Small and hollow: offline. The thin upright line is FedKAD's causal mean. "
        f"{'; '.join(results.labels.values())}."
    )
    alt = f"Dot plot of VUS-PR by method, a panel for each of {', '.join(results.labels.values())}. " + " ".join(
        f"{row['label']}: FedKAD {plain(row['mean'])}."
        for row in rows
        if row["method"] == OURS and row["smoothing"] == PRIMARY
    )
    return as_drawing("2-vus-pr", caption, alt, tidy(rows), draw_dots(rows))


def dot_rows(results: Results) -> Iterator[dict[str, Any]]:
    """The marks of the figure, in points; `offset` names what FedKAD's mean is ahead by."""
    for dataset in results.datasets:
        names = clients_of(results, dataset)
        for method in results.methods:
            if not results.of(dataset, method):
                continue
            for smoothing in DRAWN:
                values = by_client(results, dataset, method, METRIC, smoothing, names)
                found = bootstrap_interval(values, [0.0] * len(values))
                yield {
                    **key(results, dataset, method),
                    "smoothing": smoothing,
                    "mean": 100.0 * found.mean,
                    "low": 100.0 * found.low,
                    "high": 100.0 * found.high,
                    "clients": found.clients,
                }
