"""A folder of results as tables: the records of its cells, tidy rows, means over clients and seeds, and Markdown.

>>> import tempfile
>>> results = read_results(Path(tempfile.mkdtemp()))
>>> results.datasets, list(results.rows())
((), [])
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedkad.atomicfile import write_atomically
from fedkad_bench.cells import Cell, Training
from fedkad_bench.evaluation import METRICS, SMOOTHINGS
from fedkad_bench.methods.registry import METHODS
from fedkad_bench.protocols import Choices

Array = NDArray[np.float64]
Clients = Literal["all", "untouched"]

CLIENTS: tuple[Clients, ...] = ("all", "untouched")
"""Every entity, or only those that nothing was chosen on."""

FORMAT = 1
PER_CLIENT = ("clients", "untouched", "anomalies", "test_rows")

HEADLINE = ("vus_pr", "auc_roc", "pa1_f1", "pa1_random_f1", "pot_any_f1", "pot_any_random_f1", "pot_point_f1")
"""Metrics of the macro table: what to trust first, and the adjusted scores only beside those of random alarms."""

SECONDS = (
    "Seconds are wall-clock, and of seeds trained side by side each has its share; on processors other cells ran "
    "beside, so that they do not compare: the study of efficiency measures what does."
)
"""What a reader must know about the seconds of records."""


# -- what of a dataset ----------------------------------------------------------------------------------------


class Extent(NamedTuple):
    """What of a dataset a cell is about: test rows by client, and the limit on training rows, None for all."""

    test_rows: Mapping[str, int]
    train_rows: int | None = None

    def difference(self, other: Extent) -> str:
        """How another extent departs from this one, in words; empty if it does not.

        >>> Extent({"a": 5, "b": 5}).difference(Extent({"a": 5}))
        '2 clients and 1'
        """
        ours, theirs = len(self.test_rows), len(other.test_rows)
        if self.test_rows.keys() != other.test_rows.keys():
            return f"{ours} clients and {theirs}" if ours != theirs else f"{ours} clients and as many others"
        if self.test_rows != other.test_rows:
            return "test series of different lengths"
        if self.train_rows != other.train_rows:
            return f"{_limit(self.train_rows)} training rows of a client and {_limit(other.train_rows)}"
        return ""


def _limit(rows: int | None) -> str:
    return "all" if rows is None else f"at most {rows}"


# -- the record of a cell -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """One cell: what was trained, and how good it is.

    Attributes
    ----------
    label
        The dataset with what is missing of it, for tables.
    choices
        Those of `protocols.Choices` that the metrics were computed with.
    clients, untouched, anomalies, test_rows
        For each client its name, whether nothing was chosen on it, whether its labels have an anomaly, its test rows.
    metrics
        By smoothing and name, a value for each client; NaN where there is none.
    evaluated
        Which command, commit and machine computed the metrics; the training has its own.
    """

    cell: Cell
    label: str
    training: Training
    choices: Mapping[str, Any]
    clients: tuple[str, ...]
    untouched: tuple[bool, ...]
    anomalies: tuple[bool, ...]
    test_rows: tuple[int, ...]
    metrics: Mapping[str, Mapping[str, Array]]
    evaluated: Mapping[str, str]

    def evaluated_with(self, choices: Choices) -> bool:
        """Whether the metrics are those of today, computed with these choices."""
        complete = all(set(self.metrics.get(smoothing, ())) == set(METRICS) for smoothing in SMOOTHINGS)
        return complete and self.choices == asdict(choices)

    @property
    def seconds(self) -> float:
        """What the training took; where seeds were trained side by side, its share of what they took together."""
        return self.training.seconds / int(self.training.settings.get("seeds_side_by_side", 1))

    @property
    def extent(self) -> Extent:
        """What of its dataset it was trained and tested on."""
        tested = dict(zip(self.clients, self.test_rows, strict=True))
        return Extent(tested, self.training.settings.get("train_rows"))

    def values(self, metric: str, smoothing: str = "causal", clients: Clients = "all") -> Array:
        """A metric of every client, or of every untouched one."""
        column = self.metrics[smoothing][metric]
        return column if clients == "all" else column[np.array(self.untouched, dtype=bool)]


def write_record(folder: Path, record: Record) -> None:
    """Keep the record of a cell as JSON."""
    path = record.cell.record_file(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    metrics = {
        smoothing: {
            metric: [value if math.isfinite(value) else None for value in column.tolist()]
            for metric, column in of.items()
        }
        for smoothing, of in record.metrics.items()
    }
    plain = {**vars(record), "cell": asdict(record.cell), "training": record.training.as_record(), "metrics": metrics}
    text = json.dumps({"format": FORMAT, **plain}, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    write_atomically(path, text.encode() + b"\n")


def read_record(path: Path) -> Record | None:
    """The record in a file; None if there is none, or if it is damaged or of another format."""
    try:
        read = json.loads(path.read_bytes())
        if read.pop("format") != FORMAT:
            return None
        metrics = {
            smoothing: {metric: np.array(column, dtype=np.float64) for metric, column in of.items()}
            for smoothing, of in read.pop("metrics").items()
        }
        rows: dict[str, Any] = {name: tuple(read.pop(name)) for name in PER_CLIENT}
        return Record(
            cell=Cell(**read.pop("cell")),
            training=Training.from_record(read.pop("training")),
            metrics=metrics,
            **rows,
            **read,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


# -- all records of a folder ----------------------------------------------------------------------------------


class Row(NamedTuple):
    """One number of the benchmark."""

    dataset: str
    method: str
    seed: int
    client: str
    smoothing: str
    metric: str
    value: float


class Summary(NamedTuple):
    """A metric of a method on a dataset: the mean over seeds of the mean over clients.

    `std` is the sample standard deviation over seeds, NaN for one seed. `omitted` counts the clients that have no
    value with any seed, as those without a labelled anomaly.
    """

    mean: float
    std: float
    seeds: int
    clients: int
    omitted: int


class Results:
    """The records of a folder, in the order of the tables.

    Attributes
    ----------
    datasets, methods, seeds
        What there is, each in its order.
    labels, titles
        Of datasets and methods, for people.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self.records = {record.cell: record for record in sorted(records, key=_place)}

    @cached_property
    def datasets(self) -> tuple[str, ...]:
        """Names of the datasets."""
        return tuple(dict.fromkeys(cell.dataset for cell in self.records))

    @cached_property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods, in the order of the tables."""
        found = {cell.method for cell in self.records}
        return (*(name for name in METHODS if name in found), *sorted(found - set(METHODS)))

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """All seeds."""
        return tuple(sorted({cell.seed for cell in self.records}))

    @cached_property
    def labels(self) -> dict[str, str]:
        """By dataset: its name with what is missing of it."""
        return {cell.dataset: record.label for cell, record in self.records.items()}

    @cached_property
    def titles(self) -> dict[str, str]:
        """By method: its name in tables."""
        return {cell.method: record.training.title for cell, record in self.records.items()}

    def of(self, dataset: str, method: str) -> list[Record]:
        """The records of all seeds."""
        return [record for cell, record in self.records.items() if (cell.dataset, cell.method) == (dataset, method)]

    def has_touched(self, dataset: str) -> bool:
        """Whether something was chosen on some of the clients, but not on all."""
        marks = [m for cell, record in self.records.items() if cell.dataset == dataset for m in record.untouched]
        return any(marks) and not all(marks)

    def values(
        self, dataset: str, method: str, metric: str, smoothing: str = "causal", clients: Clients = "all"
    ) -> Array:
        """A metric as `(seed, client)`; no rows if there is no record, refused if seeds are of different clients."""
        records = self.of(dataset, method)
        if not records:
            return np.empty((0, 0))
        if len({record.clients for record in records}) > 1:
            raise ValueError(f"{dataset}/{method}: the seeds are of different clients; run them again with --redo.")
        return np.array([record.values(metric, smoothing, clients) for record in records])

    def summary(
        self, dataset: str, method: str, metric: str, smoothing: str = "causal", clients: Clients = "all"
    ) -> Summary | None:
        """Mean over clients, then over seeds; None if there is no record."""
        values = self.values(dataset, method, metric, smoothing, clients)
        if not values.size:
            return None
        there = ~np.isnan(values)
        counted = there.any(axis=1)
        means = np.where(there, values, 0.0)[counted].sum(axis=1) / there[counted].sum(axis=1)
        mean = float(means.mean()) if len(means) else math.nan
        std = float(means.std(ddof=1)) if len(means) > 1 else math.nan
        return Summary(mean, std, len(values), values.shape[1], int((~there.any(axis=0)).sum()))

    def per_client(self, dataset: str, method: str, metric: str, smoothing: str = "causal") -> dict[str, float]:
        """The mean over seeds by client; NaN where no seed has a value."""
        values = self.values(dataset, method, metric, smoothing)
        there = ~np.isnan(values)
        counts = there.sum(axis=0)
        totals = np.where(there, values, 0.0).sum(axis=0)
        records = self.of(dataset, method)
        names = records[0].clients if records else ()
        return {
            name: float(total / count) if count else math.nan
            for name, total, count in zip(names, totals, counts, strict=True)
        }

    def rows(self) -> Iterator[Row]:
        """Every number, one a row."""
        for cell, record in self.records.items():
            for smoothing, of in record.metrics.items():
                for metric, column in of.items():
                    for client, value in zip(record.clients, column.tolist(), strict=True):
                        yield Row(*_key(cell), client, smoothing, metric, value)

    def columns(self) -> dict[str, list[Any]]:
        """A row a client and smoothing, a column a metric: fifty times shorter than `rows`, and a DataFrame's shape."""
        table: dict[str, list[Any]] = {name: [] for name in (*Row._fields[:5], "untouched", *METRICS)}
        for cell, record in self.records.items():
            for smoothing, of in record.metrics.items():
                count = len(record.clients)
                for name, value in zip(Row._fields, _key(cell), strict=False):
                    table[name] += [value] * count
                table["client"] += record.clients
                table["smoothing"] += [smoothing] * count
                table["untouched"] += record.untouched
                for metric in METRICS:
                    table[metric] += of[metric].tolist() if metric in of else [math.nan] * count
        return table

    def summaries(self) -> Iterator[dict[str, Any]]:
        """`summary` of everything there is, as plain rows."""
        for dataset in self.datasets:
            for method in self.methods:
                for smoothing in SMOOTHINGS:
                    for clients in CLIENTS:
                        for metric in METRICS:
                            found = self.summary(dataset, method, metric, smoothing, clients)
                            if found is not None:
                                key = {"dataset": dataset, "method": method, "smoothing": smoothing}
                                yield {**key, "over": clients, "metric": metric, **found._asdict()}


def read_results(folder: Path) -> Results:
    """All records of a folder; damaged ones are passed over, for they are made again by the next run.

    Cells of one dataset that are not about the same clients and rows are refused: no table may average them.
    """
    results = Results(read_records(folder))
    require_alike(results.records.values(), folder)
    return results


def require_alike(records: Iterable[Record], folder: Path) -> None:
    """Refuse records of one dataset that are of different clients or rows."""
    first: dict[str, Record] = {}
    for record in records:
        dataset = record.cell.dataset
        known = first.setdefault(dataset, record)
        other = known.extent.difference(record.extent)
        if other:
            raise ValueError(
                f"{folder}: {known.cell} and {record.cell} are of different parts of {dataset}, {other}; "
                "run one of them into another --out, or again with --redo."
            )


def read_records(folder: Path) -> Iterator[Record]:
    """The records of a folder that can be read, whether or not they go together."""
    found = (read_record(path) for path in sorted((folder / "cells").glob("*/*/*.json")))
    return (record for record in found if record is not None)


def _key(cell: Cell) -> tuple[str, str, int]:
    return cell.dataset, cell.method, cell.seed


def _place(record: Record) -> tuple[Any, ...]:
    order = list(METHODS)
    cell = record.cell
    known = order.index(cell.method) if cell.method in METHODS else len(order)
    datasets = ("SMD", "PSM", "SMAP", "MSL")
    first = datasets.index(cell.dataset) if cell.dataset in datasets else len(datasets)
    return first, cell.dataset, known, cell.method, cell.seed


# -- files ----------------------------------------------------------------------------------------------------


def tidy(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Rows as columns; a row without a value has None there.

    >>> tidy([{"a": 1}, {"a": 2, "b": 3}])
    {'a': [1, 2], 'b': [None, 3]}
    """
    listed = list(rows)
    names = dict.fromkeys(name for row in listed for name in row)
    return {name: [row.get(name) for row in listed] for name in names}


def write_csv(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Columns as CSV, atomically; NaN is an empty cell."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in zip(*columns.values(), strict=True):
        writer.writerow(["" if isinstance(value, float) and math.isnan(value) else value for value in row])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.getvalue().encode())


def write_parquet(path: Path, columns: Mapping[str, Sequence[Any]]) -> bool:
    """Columns as Parquet, if pyarrow is there; whether it was."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return False
    memory = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(dict(columns)), memory, compression="zstd")
    write_atomically(path, memory.getvalue())
    return True


def write_tables(folder: Path) -> Results:
    """Write everything that follows from the records: `metrics.csv`, `summary.csv` and `tables/*.md`."""
    results = read_results(folder)
    columns = results.columns()
    write_csv(folder / "metrics.csv", columns)
    rows = [{name: _six(value) for name, value in row.items()} for row in results.summaries()]
    write_csv(folder / "summary.csv", {name: [row[name] for row in rows] for name in rows[0]} if rows else {})
    tables = folder / "tables"
    tables.mkdir(parents=True, exist_ok=True)
    for dataset in results.datasets:
        write_atomically(tables / f"{dataset}.md", _pages(results, dataset).encode())
    write_atomically(tables / "cost.md", cost_table(results).encode())
    return results


def _six(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value


# -- Markdown -------------------------------------------------------------------------------------------------


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, all columns but the first aligned to the right.

    >>> print(markdown(("Method", "F1"), [("FedKAD", "0.5")]), end="")
    | Method |  F1 |
    |:-------|----:|
    | FedKAD | 0.5 |
    """
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        first, *rest = zip(cells, widths, strict=True)
        return "| " + " | ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]) + " |"

    rule = "|:" + "-" * (widths[0] + 1) + "|" + "".join("-" * (width + 1) + ":|" for width in widths[1:])
    return "\n".join([line(lines[0]), rule, *map(line, lines[1:])]) + "\n"


def macro_table(
    results: Results,
    dataset: str,
    metrics: Sequence[str] = HEADLINE,
    smoothing: str = "causal",
    clients: Clients = "all",
) -> str:
    """Methods against metrics, mean ± standard deviation over seeds, in percent where the metric is a share."""
    rows = []
    for method in results.methods:
        found = [results.summary(dataset, method, metric, smoothing, clients) for metric in metrics]
        if any(found):
            rows.append((results.titles[method], *map(_shown, metrics, found)))
    return markdown(("Method", *(METRICS[metric].title for metric in metrics)), rows)


def cost_table(results: Results) -> str:
    """What training exchanged and how long it took, in the mean over seeds."""
    rows = []
    for dataset in results.datasets:
        for method in results.methods:
            records = results.of(dataset, method)
            if records:
                cost = records[0].training.cost
                seconds = float(np.mean([record.seconds for record in records]))
                total = (cost.bytes_up + cost.bytes_down) / 1e6
                each = f"{cost.bytes_a_round / 1e6:.2f}" if cost.rounds else "–"
                where = records[0].training.provenance.get("machine", "")
                named = f"{dataset} {results.titles[method]}"
                rows.append((named, str(cost.numbers), str(cost.rounds), each, f"{total:.2f}", f"{seconds:.1f}", where))
    header = ("Training", "Numbers a message", "Rounds", "MB a round", "MB in all", "Seconds", "On")
    return f"{markdown(header, rows)}\n{SECONDS}\n"


def _shown(metric: str, found: Summary | None) -> str:
    if found is None or math.isnan(found.mean):
        return "–"
    factor, digits = (100.0, 1) if METRICS[metric].unit == "share" else (1.0, 2)
    text = f"{factor * found.mean:.{digits}f}"
    return text if math.isnan(found.std) else f"{text} ± {factor * found.std:.{digits}f}"


def _pages(results: Results, dataset: str) -> str:
    """All tables of a dataset: each smoothing, all and untouched clients."""
    parts = [f"# {results.labels[dataset]}\n"]
    parts.append(
        "Mean over clients, then mean ± standard deviation over seeds; shares in percent. Random alarms are flagged as "
        "often as the method flags.\n"
    )
    over: tuple[Clients, ...] = CLIENTS if results.has_touched(dataset) else ("all",)
    for clients in over:
        for smoothing in SMOOTHINGS:
            parts.append(f"## Smoothing {smoothing}, {clients} clients\n")
            parts.append(macro_table(results, dataset, smoothing=smoothing, clients=clients))
    return "\n".join(parts)
