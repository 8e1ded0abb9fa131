"""Whether differences are more than luck: over seeds as in the paper, and over clients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fedkad.report.document import (
    Block,
    DataTable,
    Drawing,
    Paragraph,
    Section,
    Subheading,
    TableCell,
    TableColumn,
    TableRow,
)
from fedkad_bench.report import paper_figures as paper
from fedkad_bench.report.certainty_figures import draw_differences, draw_ranks
from fedkad_bench.report.drawing import as_drawing
from fedkad_bench.report.numbers import DASH, interval, plain, probability, signed
from fedkad_bench.report.selection import (
    OURS,
    PAPERS,
    PRIMARY,
    by_client,
    by_seed,
    contenders,
    file_name,
    key,
    networks,
)
from fedkad_bench.results import Results, tidy
from fedkad_bench.significance import (
    GATE,
    RankComparison,
    bootstrap_interval,
    compare_ranks,
    compare_with_best,
    signed_rank_test,
)

HEADING = "Whether the differences are more than luck"
F1 = "pa1_f1"
COMPARED = {"vus_pr": ("VUS-PR", PRIMARY), F1: ("F1, PA%K 0.01", PRIMARY)}
"""Metrics compared over clients, with their short names and smoothings."""


def certainty(results: Results) -> Section:
    """Tests over seeds, then over clients, then ranks."""
    blocks: list[Block] = [Subheading("Over seeds, as in the paper"), *_seed_blocks(results)]
    blocks += [Subheading("Over clients"), *_client_blocks(results)]
    blocks += [Subheading("Ranks over clients"), *_rank_blocks(results)]
    return Section(HEADING, tuple(blocks))


# -- over seeds -----------------------------------------------------------------------------------------------


def _seed_blocks(results: Results) -> list[Block]:
    data = list(seed_rows(results))
    if not data:
        return [Paragraph("There are no two methods with a common seed, FedKAD and a network, to compare over seeds.")]
    text = Paragraph(
        "A paired t-test over the seeds that both have, against the network with the best mean, on F1 under PA%K 0.01. "
        f"The verdict is the paper's: a margin above {GATE} points is a WIN whatever p says. A few seeds say how much "
        "training varies, not whether other devices would show the same. All clients count here, as in the paper, "
        "those that defaults were chosen on as well; and a network that the paper does not have may be the best one."
    )
    rows = tuple(TableRow(f"{row['label']}, {row['title']}", _seed_cells(row)) for row in data)
    columns = (
        TableColumn("F1", "Here"),
        TableColumn("best network", "Here"),
        TableColumn("margin", "Here"),
        TableColumn("p", "Here"),
        TableColumn("d_z", "Here"),
        TableColumn("verdict", "Here"),
        TableColumn("seeds", "Here"),
        TableColumn("margin", "The paper"),
        TableColumn("p", "The paper"),
        TableColumn("d_z", "The paper"),
        TableColumn("verdict", "The paper"),
    )
    labels = ", ".join(dict.fromkeys(row["label"] for row in data))
    caption = f"FedKAD against the best network over seeds, F1 under PA%K 0.01 in points, on {labels}."
    reasons = [f"{row['label']}, {row['title']}: no p, because {row['reason']}." for row in data if row["reason"]]
    blocks: list[Block] = [text, DataTable("6-seeds", caption, "Dataset, method", columns, rows, tidy(data))]
    return [*blocks, Paragraph(" ".join(reasons))] if reasons else blocks


def seed_rows(results: Results) -> Iterator[dict[str, Any]]:
    """The tests, in points; common seeds only."""
    for dataset in results.datasets:
        for method in (OURS, PAPERS):
            ours = by_seed(results, dataset, method, F1)
            nets = {m: by_seed(results, dataset, m, F1) for m in networks(results, dataset)}
            seeds = sorted(set(ours).intersection(*nets.values())) if nets else []
            if not seeds:
                continue
            points = {m: [100.0 * of[s] for s in seeds] for m, of in nets.items()}
            best, found = compare_with_best([100.0 * ours[s] for s in seeds], points)
            stated, test = paper.PROTOCOLS["pa1"].get(dataset), paper.TESTS.get(dataset)
            yield {
                **key(results, dataset, method),
                "f1": 100.0 * sum(ours[s] for s in seeds) / len(seeds),
                "best": results.titles[best],
                "best_f1": sum(points[best]) / len(seeds),
                **vars(found),
                "paper_margin": stated.margin if stated else None,
                "paper_p_value": test.p_value if test else None,
                "paper_effect_size": test.effect_size if test else None,
                "paper_verdict": test.verdict if test else None,
            }


def _seed_cells(row: dict[str, Any]) -> tuple[TableCell, ...]:
    texts = (
        plain(row["f1"]),
        f"{row['best']} {plain(row['best_f1'])}",
        signed(row["margin"], 2),
        probability(row["p_value"]),
        signed(row["effect_size"], 2),
        row["verdict"],
        str(row["seeds"]),
        signed(row["paper_margin"], 2),
        DASH if row["paper_p_value"] is None else probability(row["paper_p_value"]),
        signed(row["paper_effect_size"], 2),
        row["paper_verdict"] or DASH,
    )
    return tuple(map(TableCell, texts))


# -- over clients ---------------------------------------------------------------------------------------------


def _client_blocks(results: Results) -> list[Block]:
    data = list(client_rows(results))
    if not data:
        return [Paragraph("There is no FedKAD with a baseline beside it to compare over clients.")]
    text = Paragraph(
        "The mean over untouched clients of FedKAD's difference to each other method, means over seeds taken first, "
        "with the 95 % interval of a bootstrap over clients and the p of Wilcoxon's signed-rank test. Both are causal, "
        "of the mean of the last five scores. No p is corrected for the number of comparisons."
    )
    labels = dict.fromkeys(row["label"] for row in data)
    caption = (
        "FedKAD minus the other method, in points, with 95 % intervals over untouched clients; right of zero FedKAD is "
        f"better. Filled: VUS-PR. Hollow: F1 under PA%K 0.01. {'; '.join(labels)}."
    )
    alt = "Intervals of the differences between FedKAD and every other method; the numbers are in the tables below."
    figure = as_drawing("6-differences", caption, alt, tidy(data), draw_differences(data))
    datasets = dict.fromkeys(row["dataset"] for row in data)
    return [text, figure, *(_client_table([row for row in data if row["dataset"] == name]) for name in datasets)]


def untouched_clients(results: Results, dataset: str) -> tuple[str, ...]:
    """The clients that nothing was chosen on: only those can tell whether a difference would show elsewhere."""
    records = [record for cell, record in results.records.items() if cell.dataset == dataset]
    pairs = [pair for record in records for pair in zip(record.clients, record.untouched, strict=True)]
    return tuple(dict.fromkeys(client for client, untouched in pairs if untouched))


def client_rows(results: Results) -> Iterator[dict[str, Any]]:
    """FedKAD against every other contender on each metric, in points."""
    for dataset in results.datasets:
        if not results.of(dataset, OURS):
            continue
        names = untouched_clients(results, dataset)
        for method in contenders(results, dataset):
            if method == OURS:
                continue
            for metric, (short, smoothing) in COMPARED.items():
                ours, theirs = (by_client(results, dataset, m, metric, smoothing, names) for m in (OURS, method))
                found, ranks = bootstrap_interval(ours, theirs), signed_rank_test(ours, theirs)
                yield {
                    **key(results, dataset, method),
                    "metric": metric,
                    "short": short,
                    "smoothing": smoothing,
                    "difference": 100.0 * found.mean,
                    "low": 100.0 * found.low,
                    "high": 100.0 * found.high,
                    "p_value": ranks.p_value,
                    "clients": found.clients,
                    "clients_that_differ": ranks.clients,
                }


def _client_table(data: list[dict[str, Any]]) -> DataTable:
    rows = []
    for method in dict.fromkeys(row["method"] for row in data):
        own = [row for row in data if row["method"] == method]
        cells: list[TableCell] = []
        for row in own:
            ends = interval(row["low"], row["high"])
            cells += [TableCell(signed(row["difference"])), TableCell(ends), TableCell(probability(row["p_value"]))]
        rows.append(TableRow(own[0]["title"], (*cells, TableCell(str(own[0]["clients"])))))
    columns = [TableColumn(t, short) for short, _ in COMPARED.values() for t in ("difference", "95 % interval", "p")]
    caption = f"FedKAD minus each other method on {data[0]['label']}, in points, over untouched clients."
    name = f"6-clients-{file_name(data[0]['dataset'])}"
    return DataTable(name, caption, "Against", (*columns, TableColumn("clients")), tuple(rows), tidy(data))


# -- ranks ----------------------------------------------------------------------------------------------------


def _rank_blocks(results: Results) -> list[Block]:
    blocks: list[Block] = []
    for dataset in results.datasets:
        methods, names = contenders(results, dataset), untouched_clients(results, dataset)
        values = {m: by_client(results, dataset, m, "vus_pr", PRIMARY, names) for m in methods}
        found = compare_ranks(values)
        if found.critical_difference > 0.0:
            blocks.append(_rank_figure(results, dataset, found))
        else:
            blocks.append(Paragraph(f"{results.labels[dataset]}: no ranks, because {found.reason}."))
    return blocks


def _rank_figure(results: Results, dataset: str, found: RankComparison) -> Drawing:
    titles = {method: results.titles[method] for method in found.methods}
    label = results.labels[dataset]
    luck = f"Friedman's p {probability(found.p_value)}" if not found.reason else found.reason
    caption = (
        f"Mean ranks by VUS-PR, causal, over {found.clients} untouched clients of {label}; 1 is best. Methods "
        f"under one bar are closer than Nemenyi's critical difference of {found.critical_difference:.2f} at 5 %. "
        f"{luck}."
    )
    alt = "Critical-difference diagram: " + ", ".join(
        f"{titles[m]} {rank:.2f}" for m, rank in zip(found.methods, found.mean_ranks, strict=True)
    )
    data = tidy(
        {
            **key(results, dataset, method),
            "mean_rank": rank,
            "critical_difference": found.critical_difference,
            "p_value": found.p_value,
            "clients": found.clients,
            "cliques": " ".join(str(k) for k, clique in enumerate(found.cliques, start=1) if method in clique),
        }
        for method, rank in zip(found.methods, found.mean_ranks, strict=True)
    )
    return as_drawing(f"6-ranks-{file_name(dataset)}", caption, alt, data, draw_ranks(found, titles))
