"""The paper's four protocols side by side, each beside random alarms, and its table of the supplementary ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedkad.report.document import DataTable, Paragraph, Section, TableCell, TableColumn, TableRow
from fedkad_bench.protocols import PROTOCOLS
from fedkad_bench.report import paper_figures as paper
from fedkad_bench.report.numbers import DASH, missing, plain, signed
from fedkad_bench.report.selection import (
    OURS,
    PAPERS,
    PRIMARY,
    Bound,
    best_of,
    file_name,
    grouped,
    networks,
    summary_rows,
)
from fedkad_bench.results import Results, tidy

HEADING = "How much the protocol decides"


def robustness(results: Results) -> Section:
    """A table for every dataset, and the paper's beside ours."""
    return Section(
        HEADING,
        (
            Paragraph(
                "PA%K 0.01 has its threshold from validation scores, the other three have that of POT. Random stands "
                "for the F1 of alarms that are drawn at random, as many as the method gives."
            ),
            *(_table(results, dataset) for dataset in results.datasets),
            *_beside_paper(results),
        ),
    )


def _table(results: Results, dataset: str) -> DataTable:
    methods = [m for m in results.methods if results.of(dataset, m)]
    parts = ("f1", "precision", "recall", "random_f1")
    bounds = [Bound(f"{p.key}_{part}") for p in PROTOCOLS for part in parts] + [Bound("auc_roc")]
    wanted = [*bounds, *(Bound(f"{p.key}_random_{part}") for p in PROTOCOLS for part in ("precision", "recall"))]
    means = {
        (method, bound.metric): summary.mean
        for method in methods
        for bound in bounds
        if (summary := results.summary(dataset, method, *bound)) is not None
    }
    marked = ["auc_roc", *(f"{protocol.key}_f1" for protocol in PROTOCOLS)]
    leading = {metric: best_of({m: means[m, metric] for m in methods}, metric) for metric in marked}
    rows = []
    for method in methods:
        cells = []
        for protocol in PROTOCOLS:
            f1, precision, recall, chance = (100.0 * means[method, f"{protocol.key}_{part}"] for part in parts)
            cells += [
                TableCell(plain(f1), method in leading[f"{protocol.key}_f1"]),
                TableCell(f"{plain(precision)} / {plain(recall)}" if not missing(precision) else DASH),
                TableCell(plain(chance)),
            ]
        cells.append(TableCell(plain(100.0 * means[method, "auc_roc"]), method in leading["auc_roc"]))
        rows.append((method, TableRow(results.titles[method], tuple(cells))))
    columns = [TableColumn(title, p.title) for p in PROTOCOLS for title in ("F1", "P / R", "random F1")]
    caption = (
        f"All protocols on {results.labels[dataset]}, in points: F1, precision / recall, and the F1 of random alarms. "
        "Mean over clients and seeds; standard deviations are in the CSV file."
    )
    data = tidy(summary_rows(results, dataset, wanted))
    name = f"4-protocols-{file_name(dataset)}"
    return DataTable(name, caption, "Method", (*columns, TableColumn("AUC-ROC")), tuple(grouped(rows)), data)


def _beside_paper(results: Results) -> list[DataTable]:
    """The paper's table with ours beside it, for the datasets that it has."""
    data = list(comparison_rows(results))
    if not data:
        return []
    rows: list[TableRow] = []
    for protocol in PROTOCOLS:
        rows.append(TableRow(protocol.title))
        rows += [TableRow(row["label"], _cells(row)) for row in data if row["protocol"] == protocol.key]
    columns = (
        TableColumn("FedKAD", "The paper"),
        TableColumn("best baseline", "The paper"),
        TableColumn("margin", "The paper"),
        TableColumn("as in the paper", "Here"),
        TableColumn("FedKAD", "Here"),
        TableColumn("best network", "Here"),
        TableColumn("margin as in the paper", "Here"),
        TableColumn("margin FedKAD", "Here"),
    )
    caption = (
        "F1 in points: the paper's numbers on its data, and ours on what is here of "
        f"{', '.join(results.labels.values())}. The best network is that of the dataset and protocol."
    )
    return [DataTable("4-protocols-paper", caption, "Dataset", columns, tuple(rows), tidy(data))]


def comparison_rows(results: Results) -> Iterator[dict[str, Any]]:
    """By protocol and dataset: the paper's comparison and ours, in points."""
    for protocol in PROTOCOLS:
        for dataset in results.datasets:
            stated = paper.PROTOCOLS[protocol.key].get(dataset)
            if stated is None:
                continue
            metric = f"{protocol.key}_f1"
            found = {m: _mean(results, dataset, m, metric) for m in (OURS, PAPERS, *networks(results, dataset))}
            nets = {m: v for m, v in found.items() if m not in (OURS, PAPERS) and v is not None}
            best = max(nets, key=lambda m: nets[m] or 0.0) if nets else None
            theirs = None if best is None else nets[best]
            yield {
                "protocol": protocol.key,
                "dataset": dataset,
                "label": results.labels[dataset],
                "paper_f1": stated.ours.value,
                "paper_std": stated.ours.std,
                "paper_baseline": stated.baseline,
                "paper_baseline_f1": stated.theirs.value,
                "paper_baseline_std": stated.theirs.std,
                "paper_margin": stated.margin,
                "as_in_the_paper_f1": found[PAPERS],
                "fedkad_f1": found[OURS],
                "network": None if best is None else results.titles[best],
                "network_f1": theirs,
                "as_in_the_paper_margin": _minus(found[PAPERS], theirs),
                "fedkad_margin": _minus(found[OURS], theirs),
            }


def _mean(results: Results, dataset: str, method: str, metric: str) -> float | None:
    found = results.summary(dataset, method, metric, PRIMARY)
    return None if found is None or missing(found.mean) else 100.0 * found.mean


def _minus(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or theirs is None else ours - theirs


def _cells(row: dict[str, Any]) -> tuple[TableCell, ...]:
    best = DASH if row["network"] is None else f"{row['network']} {plain(row['network_f1'])}"
    return tuple(
        map(
            TableCell,
            (
                str(paper.Figure(row["paper_f1"], row["paper_std"])),
                f"{row['paper_baseline']} {paper.Figure(row['paper_baseline_f1'], row['paper_baseline_std'])}",
                signed(row["paper_margin"], 2),
                plain(row["as_in_the_paper_f1"]),
                plain(row["fedkad_f1"]),
                best,
                signed(row["as_in_the_paper_margin"]),
                signed(row["fedkad_margin"]),
            ),
        )
    )
