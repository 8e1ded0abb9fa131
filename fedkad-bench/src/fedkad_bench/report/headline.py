"""The paper's headline: F1 under PA%K 0.01, beside that of random alarms and beside the paper's own numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedkad.report.document import (
    Block,
    Bullets,
    DataTable,
    Drawing,
    Paragraph,
    Section,
    TableCell,
    TableColumn,
    TableRow,
)
from fedkad_bench.report import paper_figures as paper
from fedkad_bench.report.drawing import as_drawing
from fedkad_bench.report.headline_figure import draw_matrix
from fedkad_bench.report.numbers import DASH, missing, plain, signed, summed_up
from fedkad_bench.report.selection import (
    OURS,
    PAPERS,
    PRIMARY,
    best_of,
    grouped,
    key,
    most_seeds,
    networks,
)
from fedkad_bench.results import Results, tidy

HEADING = "The paper's headline: F1 under PA%K 0.01"
METRIC, RANDOM = "pa1_f1", "pa1_random_f1"


def headline(results: Results) -> Section:
    """The matrix as a figure and as a table, and what random alarms say about it."""
    blocks: tuple[Block, ...] = (
        Paragraph(
            "A labelled segment counts as found as a whole once 1 % of it is flagged. That is generous to anybody who "
            "flags often, so beside each number stands what a detector reaches that flags as many samples at random. "
            "Only the difference says something about a method. Scores are averaged over the last five, as in the "
            "paper."
        ),
        Bullets(tuple(_sentences(results))),
        _figure(results),
        _table(results),
    )
    return Section(HEADING, blocks)


def matrix_rows(results: Results) -> Iterator[dict[str, Any]]:
    """One row for every cell of the matrix, in points; the paper's have the source "paper"."""
    for method in results.methods:
        for dataset in results.datasets:
            ours = results.summary(dataset, method, METRIC, PRIMARY)
            chance = results.summary(dataset, method, RANDOM, PRIMARY)
            if ours is not None and chance is not None:
                yield {
                    "source": "ours",
                    **key(results, dataset, method),
                    "f1": 100.0 * ours.mean,
                    "std": 100.0 * ours.std,
                    "random_f1": 100.0 * chance.mean,
                    "seeds": ours.seeds,
                }
    for dataset in results.datasets:
        stated = paper.PROTOCOLS["pa1"].get(dataset)
        if stated is not None:
            names = {"source": "paper", "dataset": dataset, "label": results.labels[dataset], "group": PAPER_GROUP}
            yield {
                **names,
                "method": "paper",
                "title": PAPER_TITLES[0],
                "f1": stated.ours.value,
                "std": stated.ours.std,
            }
            best = {"method": "paper-baseline", "title": PAPER_TITLES[1]}
            yield {**names, **best, "f1": stated.theirs.value, "std": stated.theirs.std}


PAPER_GROUP = "The paper's numbers, on its data"
PAPER_TITLES = ("FedKAD, the paper's number", "LSTM-AE, the paper's number")


def _figure(results: Results) -> Drawing:
    rows = list(matrix_rows(results))
    caption = (
        "F1 under PA%K 0.01 in points, mean over clients and seeds; below each value that of random alarms at the same "
        f"rate. The last rows are the paper's own numbers. {'; '.join(results.labels.values())}."
    )
    alt = "Matrix of F1 by method and dataset; its numbers are in the table below. " + " ".join(
        f"{row['label']}: FedKAD {plain(row['f1'])}, random alarms {plain(row['random_f1'])}."
        for row in rows
        if row["method"] == OURS
    )
    return as_drawing("3-f1-matrix", caption, alt, tidy(rows), draw_matrix(rows))


def _table(results: Results) -> DataTable:
    leading = {}
    for dataset in results.datasets:
        found = {m: results.summary(dataset, m, METRIC, PRIMARY) for m in results.methods}
        leading[dataset] = best_of({m: s.mean for m, s in found.items() if s is not None}, METRIC)
    rows = []
    for method in results.methods:
        cells = []
        for dataset in results.datasets:
            ours = summed_up(METRIC, results.summary(dataset, method, METRIC, PRIMARY), _seeds(results, dataset))
            chance = results.summary(dataset, method, RANDOM, PRIMARY)
            small = "" if chance is None else f"random {plain(100.0 * chance.mean)}"
            cells.append(TableCell(ours, method in leading[dataset], small))
        rows.append((method, TableRow(results.titles[method], tuple(cells))))
    caption = (
        f"F1 under PA%K 0.01 in points, mean ± standard deviation over seeds, on {', '.join(results.labels.values())}; "
        "best of a column in bold, random alarms at the same rate beside it."
    )
    columns = tuple(TableColumn(results.labels[dataset]) for dataset in results.datasets)
    return DataTable(
        "3-f1", caption, "Method", columns, (*grouped(rows), *_paper_rows(results)), tidy(matrix_rows(results))
    )


def _seeds(results: Results, dataset: str) -> int:
    return most_seeds(results, dataset)


def _paper_rows(results: Results) -> tuple[TableRow, ...]:
    stated = [paper.PROTOCOLS["pa1"].get(dataset) for dataset in results.datasets]
    if not any(stated):
        return ()
    ours = tuple(TableCell(DASH if entry is None else str(entry.ours)) for entry in stated)
    theirs = tuple(TableCell(DASH if entry is None else str(entry.theirs)) for entry in stated)
    return TableRow(PAPER_GROUP), TableRow(PAPER_TITLES[0], ours), TableRow(PAPER_TITLES[1], theirs)


def _sentences(results: Results) -> Iterator[str]:
    """FedKAD over random, as in the paper and as by default, and against the best network."""
    for dataset in results.datasets:
        parts = []
        for method in (OURS, PAPERS):
            own, chance = (results.summary(dataset, method, metric, PRIMARY) for metric in (METRIC, RANDOM))
            if own is not None and chance is not None and not missing(own.mean):
                above = signed(100.0 * (own.mean - chance.mean))
                parts.append(f"{results.titles[method]} {plain(100 * own.mean)}, {above} against random alarms")
        best = _best_network(results, dataset)
        if best is not None:
            parts.append(best)
        if parts:
            yield f"{results.labels[dataset]}: {'; '.join(parts)}."


def _best_network(results: Results, dataset: str) -> str | None:
    found = {m: results.summary(dataset, m, METRIC, PRIMARY) for m in networks(results, dataset)}
    means = {m: s.mean for m, s in found.items() if s is not None and not missing(s.mean)}
    if not means:
        return None
    best = max(means, key=lambda m: means[m])
    chance = results.summary(dataset, best, RANDOM, PRIMARY)
    above = "" if chance is None else f", {signed(100.0 * (means[best] - chance.mean))} against random alarms"
    return f"the best network is {results.titles[best]} with {plain(100 * means[best])}{above}"
