"""What a process of the benchmark does: train a cell and keep its scores, then evaluate the scores and keep a record.

The two halves share nothing but the file of scores. Training sees the training series, scoring the test series. Labels
lie in memory beside the series, and no line of the first half passes them on: neither what is learnt nor a score can
depend on them, and in the second half no threshold does. Tests permute the labels and find the same scores.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedkad_bench.cells import Cell, Scores, Training, read_scores, score_all, timed_seconds, write_scores
from fedkad_bench.data.dataset import Dataset
from fedkad_bench.data.sources import Source, fetch
from fedkad_bench.evaluation import evaluate_smoothings
from fedkad_bench.methods.interface import WINDOW
from fedkad_bench.methods.registry import METHODS, Options, settings_of
from fedkad_bench.protocols import DEFAULT_CHOICES, Choices
from fedkad_bench.results import Record, write_record

Array = NDArray[np.float64]

DIGITS = 6
"""Significant digits of a metric in a record."""


@dataclass(frozen=True)
class Task:
    """One cell with all that a process needs to know about it.

    `label` is the dataset's for tables, and `train` tells whether scores are to be made or are there already. Scores
    and record lie in `out`, unless `records` names another folder for the record.
    """

    cell: Cell
    source: Source
    label: str
    out: Path
    train: bool
    provenance: Mapping[str, str]
    options: Options = field(default_factory=Options)
    choices: Choices = DEFAULT_CHOICES
    records: Path | None = None


def do(task: Task) -> float:
    """Do what is to be done for a cell; the seconds that took."""
    began = time.perf_counter()
    if task.train:
        train(task)
    evaluate(task)
    return timed_seconds(began)


def expected_settings(dataset: str, method: str, options: Options, train_rows: int | None) -> dict[str, Any]:
    """The settings that a cell trained here would have."""
    settings = settings_of(METHODS[method].make(dataset, options))
    return settings if train_rows is None else {**settings, "train_rows": train_rows}


def train(task: Task) -> None:
    """Train a cell on training series, score test series, and keep the scores; labels are not touched."""
    dataset, cell = fetch(task.source), task.cell
    method = METHODS[cell.method].make(cell.dataset, task.options)
    cell.record_file(task.out).unlink(missing_ok=True)  # of an earlier training, where it is repeated
    began = time.perf_counter()
    fitted = method.fit(dataset.training(), seed=cell.seed, scaling=dataset.scaling)
    seconds = timed_seconds(began)
    settings = expected_settings(cell.dataset, cell.method, task.options, task.source.train_rows)
    facts = getattr(fitted, "facts", {})
    training = Training(method.title, method.covers, fitted.cost, seconds, settings, task.provenance, facts)
    tests = {entity.name: entity.test for entity in dataset.entities}
    write_scores(task.out, cell, score_all(fitted, tests), training)


def evaluate(task: Task) -> None:
    """Evaluate the kept scores of a cell with every smoothing, and keep the record."""
    kept = read_scores(task.out, task.cell)
    if kept is None:
        raise ValueError(f"{task.cell.scores_file(task.out)}: the scores cannot be read; run the cell again.")
    scores, training = kept
    dataset = fetch(task.source)
    labels = {entity.name: entity.labels for entity in dataset.entities}
    columns = evaluate_entities(dataset, scores, training, task.choices)
    record = Record(
        cell=task.cell,
        label=task.label,
        training=training,
        choices=asdict(task.choices),
        clients=tuple(scores),
        untouched=tuple(name in dataset.untouched for name in scores),
        anomalies=tuple(bool(labels[name].any()) for name in scores),
        test_rows=tuple(len(of.test) for of in scores.values()),
        metrics=columns,
        evaluated=task.provenance,
    )
    write_record(task.records or task.out, record)


def evaluate_entities(
    dataset: Dataset, scores: Mapping[str, Scores], training: Training, choices: Choices
) -> dict[str, dict[str, Array]]:
    """Metrics by smoothing and name, a value for each entity in the order of the scores."""
    entities = {entity.name: entity for entity in dataset.entities}
    columns: dict[str, dict[str, list[float]]] = {}
    for name, (validation, test) in scores.items():
        if len(test) != len(entities[name].labels):
            raise ValueError(
                f"{name}: there are {len(test)} scores for {len(entities[name].labels)} labels; run it again."
            )
        found = evaluate_smoothings(
            validation,
            test,
            entities[name].labels,
            covers=training.covers,
            window=WINDOW,
            sample_period=dataset.sample_period,
            choices=choices,
        )
        for smoothing, row in found.items():
            for metric, value in row.items():
                columns.setdefault(smoothing, {}).setdefault(metric, []).append(rounded(value))
    return {smoothing: {metric: np.array(v) for metric, v in of.items()} for smoothing, of in columns.items()}


def rounded(value: float) -> float:
    """A number to six significant digits, so that files do not differ in what nobody measures.

    >>> rounded(0.123456789), rounded(float("inf"))
    (0.123457, inf)
    """
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else value
