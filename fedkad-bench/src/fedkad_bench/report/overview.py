"""The first section: what was run on what, where the cells come from, and which choices were in force."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from fedkad.report.document import (
    Block,
    Bullets,
    DataTable,
    Paragraph,
    Section,
    Subheading,
    TableCell,
    TableColumn,
    TableRow,
)
from fedkad.wording import counted
from fedkad_bench.data.dataset import PAPER_TABLE
from fedkad_bench.report.numbers import DASH
from fedkad_bench.report.selection import clients_of, is_neural, most_seeds
from fedkad_bench.results import SECONDS, CellRecord, Results, tidy

HEADING = "What was run"

FULL_ROUNDS, FULL_EPOCHS = 30, 5
"""What the paper trains networks with."""


def overview(results: Results, notes: tuple[str, ...] = ()) -> Section:
    """Datasets with what is noted about them, origin and choices."""
    blocks: list[Block] = [*_quick(results), Paragraph(_sentence(results)), *_proximal(results)]
    blocks += [_datasets(results), *([Bullets(notes)] if notes else []), *_gaps(results)]
    blocks += [Subheading("Where the cells come from"), *_origin(results)]
    blocks += [Subheading("What the paper leaves open, as it was chosen"), *_choices(results)]
    return Section(HEADING, tuple(blocks))


def _quick(results: Results) -> list[Block]:
    """What a reader must know first, where training was cut short."""
    short = [record for record in results.records.values() if _is_quick(record)]
    if not short:
        return []
    part = "all of its" if len(short) == len(results.records) else f"{len(short)} of its {len(results.records)}"
    return [
        Paragraph(
            f"A quick run: {part} cells were trained on the first rows alone, or for fewer rounds or other epochs than "
            "the paper's, to show that everything works; its numbers say nothing about the methods."
        )
    ]


def _is_quick(record: CellRecord) -> bool:
    settings = record.training.settings
    if settings.get("train_rows") is not None:
        return True
    few = settings.get("rounds", FULL_ROUNDS) < FULL_ROUNDS or settings.get("epochs", FULL_EPOCHS) != FULL_EPOCHS
    return is_neural(record.cell.method) and few


def _proximal(results: Results) -> list[Block]:
    """Which networks were trained with FedProx."""
    by: dict[float, list[CellRecord]] = {}
    for record in results.records.values():
        weight = record.training.settings.get("proximal", 0.0)
        if is_neural(record.cell.method) and weight > 0.0:
            by.setdefault(weight, []).append(record)
    return [
        Paragraph(f"Trained with FedProx (μ = {weight:g}) instead of FedAvg: {_listed(results, own)}.")
        for weight, own in sorted(by.items())
    ]


def _sentence(results: Results) -> str:
    names = ", ".join(results.labels[name] for name in results.datasets)
    return (
        f"{counted(len(results.records), 'cell')}: {counted(len(results.methods), 'method')} on {names}, "
        f"{counted(len(results.seeds), 'seed')} ({', '.join(map(str, results.seeds))}). "
        "This run reads labels for the metrics alone. FedKAD's defaults were chosen before it, looking at labels of "
        "the clients that are not untouched, so that numbers on those are optimistic."
    )


def _datasets(results: Results) -> DataTable:
    data = [_dataset_row(results, name) for name in results.datasets]
    rows = tuple(
        TableRow(
            str(entry["label"]),
            tuple(
                TableCell(text)
                for text in (
                    f"{entry['clients']}",
                    DASH if entry["paper_clients"] is None else f"{entry['paper_clients']}",
                    f"{entry['untouched']}",
                    f"{entry['without_anomalies']}",
                    f"{entry['test_rows']:,}",
                    DASH if entry["paper_test_rows"] is None else f"{entry['paper_test_rows']:,}",
                    f"{entry['methods']}",
                    f"{entry['seeds']}",
                )
            ),
        )
        for entry in data
    )
    columns = (
        TableColumn("here", "Clients"),
        TableColumn("in the paper", "Clients"),
        TableColumn("untouched", "Clients"),
        TableColumn("without anomaly", "Clients"),
        TableColumn("here", "Test rows"),
        TableColumn("in the paper", "Test rows"),
        TableColumn("Methods"),
        TableColumn("Seeds"),
    )
    caption = (
        "Datasets as they lay in the folder; a label says what is missing of one. On untouched clients nothing was "
        "chosen. Of a test series that all clients share, the rows count once."
    )
    return DataTable("1-datasets", caption, "Dataset", columns, rows, tidy(data))


def _dataset_row(results: Results, dataset: str) -> dict[str, Any]:
    records = [record for cell, record in results.records.items() if cell.dataset == dataset]
    first, paper = records[0], PAPER_TABLE.get(dataset)
    return {
        "dataset": dataset,
        "label": results.labels[dataset],
        "clients": len(clients_of(results, dataset)),
        "paper_clients": paper.clients if paper else None,
        "untouched": sum(first.untouched),
        "without_anomalies": sum(not has for has in first.anomalies),
        "test_rows": first.test_rows[0] if dataset == "PSM" else sum(first.test_rows),
        "paper_test_rows": paper.test if paper else None,
        "methods": sum(bool(results.of(dataset, method)) for method in results.methods),
        "seeds": most_seeds(results, dataset),
    }


def _gaps(results: Results) -> list[Block]:
    """Cells that others of the same dataset let one expect."""
    lacking = []
    for dataset in results.datasets:
        seeds = {cell.seed for cell in results.records if cell.dataset == dataset}
        for method in results.methods:
            there = {record.cell.seed for record in results.of(dataset, method)}
            if seeds - there:
                lacking.append(f"{dataset} {results.titles[method]} ({_seeds(seeds - there)})")
    if not lacking:
        return []
    return [
        Paragraph(f"Cells that are not there, so that their means are of fewer seeds or absent: {'; '.join(lacking)}.")
    ]


# -- origin ---------------------------------------------------------------------------------------------------


def _origin(results: Results) -> list[Block]:
    """Trainings by machine, commit, command and date; those on a graphics processor in a table of their own."""
    blocks: list[Block] = []
    apart: dict[bool, list[CellRecord]] = {True: [], False: []}
    for record in results.records.values():
        apart[_on_gpu(record)].append(record)
    for gpu, name, where in (
        (False, "1-origin-cpu", "processors alone"),
        (True, "1-origin-gpu", "a graphics processor"),
    ):
        if apart[gpu]:
            blocks.append(_origin_table(results, apart[gpu], name, f"Cells trained on {where}"))
    return [*blocks, Bullets(tuple(_evaluations(results)))]


def _evaluations(results: Results) -> Iterator[str]:
    by: dict[tuple[str, str], list[CellRecord]] = {}
    for record in results.records.values():
        made = record.evaluated
        by.setdefault((made.get("commit", DASH), made.get("machine", DASH)), []).append(record)
    for (commit, machine), own in by.items():
        commands = "; ".join(merged(record.evaluated.get("command", DASH) for record in own))
        yield f"Metrics of {counted(len(own), 'cell')} were computed at {commit} on {machine} by {commands}"


def _on_gpu(record: CellRecord) -> bool:
    return record.training.settings.get("device") == "cuda"


def _origin_table(results: Results, records: list[CellRecord], name: str, caption: str) -> DataTable:
    by: dict[tuple[str, str, str], list[CellRecord]] = {}
    for record in records:
        made = record.training.provenance
        by.setdefault((made.get("machine", ""), made.get("commit", ""), made.get("date", "")), []).append(record)
    rows, data = [], []
    for (machine, commit, date), own in by.items():
        seconds = math.fsum(record.seconds for record in own)
        commands = merged(record.training.provenance.get("command", "") for record in own)
        cells = (_listed(results, own), f"{seconds:,.0f}", f"{commit}, {date}", machine, "; ".join(commands))
        rows.append(TableRow(f"{len(own)}", tuple(map(TableCell, cells))))
        data += [_origin_row(record) for record in own]
    columns = (
        TableColumn("Which", kind="text"),
        TableColumn("Seconds"),
        TableColumn("Commit, date", kind="text"),
        TableColumn("Machine", kind="text"),
        TableColumn("Commands", kind="text"),
    )
    told = (
        f"{caption}; seconds are those of all trainings of a row together. {SECONDS} Braces stand for several "
        "commands; the CSV file has one row for each cell."
    )
    return DataTable(name, told, "Cells", columns, tuple(rows), tidy(data))


def _origin_row(record: CellRecord) -> dict[str, Any]:
    made = {part: record.training.provenance.get(part, "") for part in ("machine", "commit", "date", "command")}
    return {**asdict(record.cell), "label": record.label, "seconds": record.seconds, **made}


def merged(commands: Iterable[str]) -> list[str]:
    """Commands of as many words as one, with braces where they differ.

    >>> merged(["train --method usad", "train --method tranad", "evaluate"])
    ['train --method {usad,tranad}', 'evaluate']
    """
    by: dict[int, list[list[str]]] = {}
    for command in dict.fromkeys(commands):
        by.setdefault(len(command.split()), []).append(command.split())
    told = []
    for same in by.values():
        places = [list(dict.fromkeys(words)) for words in zip(*same, strict=True)]
        told.append(" ".join(words[0] if len(words) == 1 else f"{{{','.join(words)}}}" for words in places))
    return told


def _listed(results: Results, records: Iterable[CellRecord]) -> str:
    """Cells in few words: methods by seeds, and the datasets that have them."""
    seeds: dict[tuple[str, str], set[int]] = {}
    for record in records:
        seeds.setdefault((record.cell.dataset, record.cell.method), set()).add(record.cell.seed)
    methods: dict[tuple[str, str], list[str]] = {}
    for (dataset, method), own in seeds.items():
        methods.setdefault((dataset, _seeds(own)), []).append(method)
    datasets: dict[tuple[str, str], list[str]] = {}
    for (dataset, own_seeds), names in methods.items():
        datasets.setdefault((own_seeds, _titles(results, names)), []).append(dataset)
    return "; ".join(f"{', '.join(names)}, {own}: {titles}" for (own, titles), names in datasets.items())


def _titles(results: Results, methods: list[str]) -> str:
    ordered = [method for method in results.methods if method in methods]
    return "all methods" if len(ordered) == len(results.methods) else ", ".join(results.titles[m] for m in ordered)


def _seeds(seeds: Iterable[int]) -> str:
    listed = sorted(seeds)
    return f"{'seed' if len(listed) == 1 else 'seeds'} {', '.join(map(str, listed))}"


# -- choices --------------------------------------------------------------------------------------------------


def _choices(results: Results) -> list[Block]:
    by: dict[tuple[tuple[str, Any], ...], set[str]] = {}
    for cell, record in results.records.items():
        by.setdefault(tuple(record.choices.items()), set()).add(cell.dataset)
    if len(by) == 1:
        return [Bullets(tuple(choice_sentences(dict(next(iter(by))))))]
    blocks: list[Block] = [
        Paragraph("Not all cells were evaluated with the same choices; numbers of different ones do not compare.")
    ]
    for choices, datasets in by.items():
        blocks += [Paragraph(f"On {', '.join(sorted(datasets))}:"), Bullets(tuple(choice_sentences(dict(choices))))]
    return blocks


def choice_sentences(choices: Mapping[str, Any]) -> list[str]:
    """The choices in force, in sentences; those of a later version by their names.

    >>> choice_sentences({"score_at_least": True, "depth": 3})
    ['A score at the threshold or above it is an alarm.', 'depth: 3.']
    """
    chosen = choices.get
    words: dict[str, Any] = {
        "tuned_threshold": {
            "quantile": f"PA%K 0.01 flags what exceeds the {chosen('tuned_quantile')} quantile of validation scores.",
            "maximum": "PA%K 0.01 flags what exceeds the largest validation score.",
            "pot": "PA%K 0.01 flags what exceeds the POT threshold, as the other protocols do.",
        },
        "tuned_quantile": "",
        "risk": f"A normal score exceeds the POT threshold with probability {chosen('risk')}.",
        "share_at_least": {
            True: "A segment is found if at least the share k of it is flagged.",
            False: "A segment is found if more than the share k of it is flagged.",
        },
        "score_at_least": {
            True: "A score at the threshold or above it is an alarm.",
            False: "A score above the threshold is an alarm.",
        },
        "recall_cap": {
            "limit": "Under PA%K 0.10 a recall above 0.995 counts as 0.995.",
            "reject": "Under PA%K 0.10 a recall above 0.995 makes the F1 zero.",
        },
        "without_anomalies": {
            "omit": "Clients without a labelled anomaly are left out of the means.",
            "perfect_if_silent": "A client without a labelled anomaly counts as 1 if silent, otherwise as 0.",
        },
        "fewest_scores": f"With fewer than {chosen('fewest_scores')} validation scores the threshold is their maximum.",
        "replicates": f"Random alarms are the mean of {chosen('replicates')} draws that flag as often as the method.",
        "seed": "",
    }
    told = []
    for name, value in choices.items():
        sentence = words.get(name, f"{name}: {value}.")
        told.append(sentence.get(value, f"{name}: {value}.") if isinstance(sentence, dict) else sentence)
    return [sentence for sentence in told if sentence]
