"""Metrics that the field trusts more than adjusted F1, and what an operator would feel."""

from __future__ import annotations

from fedkad.report.document import DataTable, Paragraph, Section, TableColumn
from fedkad_bench.report.selection import Bound, average_note, file_name, method_rows, summary_rows
from fedkad_bench.results import Results, tidy

HEADING = "Other metrics to trust, and what an operator feels"

SHOWN = {
    "auc_pr": ("AUC-PR", "points"),
    "range_f1": ("range F1", "points"),
    "event_f1": ("event F1", "points"),
    "composite_f1": ("composite F1", "points"),
    "affiliation_f1": ("affiliation F1", "points"),
    "events_detected": ("events found, %", "in operation"),
    "delay_samples": ("delay, samples", "in operation"),
    "false_alarms_per_day": ("false alarms a device and day", "in operation"),
}


UNLIKE = ("delay_samples",)
"""What has a value only for clients where the method found an event: others for every method, so that none is best."""


def operation(results: Results) -> Section:
    """A table for every dataset."""
    return Section(
        HEADING,
        (
            Paragraph(
                "All but AUC-PR at the POT threshold, scores averaged over the last five. The delay is that of the "
                "events that were found, so that a method which finds only the obvious may look quick; beside it "
                "stands over how many clients it is, and none is marked as best. Affiliation is kind to random "
                "alarms; the row of random scores tells how kind."
            ),
            *(_table(results, dataset) for dataset in results.datasets),
        ),
    )


def _table(results: Results, dataset: str) -> DataTable:
    bounds = [Bound(metric) for metric in SHOWN]
    columns = tuple(TableColumn(title, over) for title, over in SHOWN.values())
    caption = f"{results.labels[dataset]}. {average_note(results, dataset)}. Best of a column in bold, but of no delay."
    return DataTable(
        f"5-metrics-{file_name(dataset)}",
        caption,
        "Method",
        columns,
        method_rows(results, dataset, bounds, unlike=UNLIKE),
        tidy(summary_rows(results, dataset, bounds)),
    )
