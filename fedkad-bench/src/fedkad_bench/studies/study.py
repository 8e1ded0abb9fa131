"""What a study is, and the two files that it leaves: a tidy table, and the same rows with where they come from.

A study is a function of loaded data. It answers one question with one table, a row for each thing measured, and every
row names its dataset with what is missing of it. Whoever asks says where the data lies and which seeds count; `perform`
does the rest and leaves a finished study alone.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedkad.atomicfile import write_atomically
from fedkad_bench.data.dataset import Dataset
from fedkad_bench.data.entity import Entity
from fedkad_bench.data.sources import fetch, look
from fedkad_bench.provenance import provenance as made_here
from fedkad_bench.running.work import rounded

Value = str | int | float | None
Row = dict[str, Value]
Progress = Callable[[str, int, int], None]

FORMAT = 1

QUICK_CLIENTS, QUICK_TRAIN, QUICK_TEST = 3, 1500, 3000
"""What is left of a dataset where only the way through a study is tried."""


@dataclass(frozen=True)
class Request:
    """What is asked of a study.

    Attributes
    ----------
    data
        The folder of the datasets; by default that of `datasets.data_folder`.
    quick
        A tiny part of everything: to try the way, not for numbers.
    seeds
        Of what is repeated; a study that repeats nothing takes the first.
    datasets
        Names of public datasets.
    parts
        Folder for rows that a long study has found so far; None keeps none.
    progress
        Called with (what, done, of) as the work goes on.
    """

    data: Path | None = None
    quick: bool = False
    seeds: tuple[int, ...] = (0, 1, 2)
    datasets: tuple[str, ...] = ("SMD", "SMAP", "MSL")
    parts: Path | None = None
    progress: Progress | None = None

    def report(self, what: str, done: int, of: int) -> None:
        """Tell how far the work is."""
        if self.progress is not None:
            self.progress(what, done, of)

    def load(self, name: str) -> Dataset:
        """A dataset with its label and notes, or a tiny part of it."""
        if not self.quick:
            facts = look(name, self.data)
            return replace(fetch(facts.source), label=facts.label, notes=facts.notes)
        facts = look(name, self.data, clients=QUICK_CLIENTS, train_rows=QUICK_TRAIN)
        found = fetch(facts.source)
        return replace(found, label=f"{facts.label}, tried", entities=tuple(map(_shortened, found.entities)))

    def part(self, name: str, settings: Mapping[str, Any], make: Callable[[], list[Row]]) -> list[Row]:
        """The rows of one part: those kept under `name` with the same settings, or else made and kept now."""
        if self.parts is None:
            return make()
        path = self.parts / f"{name}.json"
        wanted = _plain({"format": FORMAT, **settings})
        kept = _read_json(path)
        if kept is not None and kept.get("settings") == wanted:
            rows: list[Row] = kept["rows"]
            return rows
        rows = [_tidy(row) for row in make()]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, _json({"settings": wanted, "rows": rows}))
        return rows


@dataclass(frozen=True)
class Study:
    """One question to the data.

    Attributes
    ----------
    name, title
        For files, and for people.
    columns
        The columns of the table, each with a phrase on what it holds; the first is "dataset".
    run
        Makes the rows.
    remarks
        What a reader must know beside the rows; some of it follows from them.
    datasets
        The datasets that it is about; None for any.
    needs
        Libraries beyond the bottom ones, by the names they are imported by.
    """

    name: str
    title: str
    columns: Mapping[str, str]
    run: Callable[[Request], list[Row]]
    remarks: Callable[[Sequence[Row]], Sequence[str]] = lambda rows: ()
    datasets: tuple[str, ...] | None = None
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class FinishedStudy:
    """A finished study as it was read from its file."""

    name: str
    title: str
    columns: Mapping[str, str]
    settings: Mapping[str, Any]
    provenance: Mapping[str, str]
    notes: tuple[str, ...]
    rows: tuple[Row, ...]


def study_file(out: Path, name: str) -> Path:
    """Where a study lies in a folder of results; its table is the CSV file beside."""
    return out / "studies" / f"{name}.json"


def write_study(
    out: Path,
    study: Study,
    rows: Sequence[Row],
    notes: Sequence[str],
    provenance: Mapping[str, str],
    settings: Mapping[str, Any] | None = None,
) -> Path:
    """Write the table of a study and its record; the record comes last, so that where it is, the table is, too."""
    if not rows:
        raise ValueError(f"{study.name}: the study found no rows; is there any data for it?")
    tidy = [_complete(row, study) for row in rows]
    path = study_file(out, study.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path.with_suffix(".csv"), _csv(tidy).encode())
    record = {
        "format": FORMAT,
        "name": study.name,
        "title": study.title,
        "columns": dict(study.columns),
        "settings": _plain(settings or {}),
        "provenance": dict(provenance),
        "notes": list(notes),
        "rows": tidy,
    }
    write_atomically(path, _json(record))
    return path


def read_study(path: Path) -> FinishedStudy | None:
    """A finished study; None if there is none, or if the file is damaged or of another format."""
    read = _read_json(path)
    if read is None or read.pop("format", None) != FORMAT:
        return None
    try:
        return FinishedStudy(**{**read, "notes": tuple(read["notes"]), "rows": tuple(read["rows"])})
    except (KeyError, TypeError):
        return None


def perform(
    study: Study, request: Request, out: Path, *, redo: bool = False, provenance: Mapping[str, str] | None = None
) -> FinishedStudy:
    """Do a study and write it to a folder of results, unless it is there with the same settings and data.

    `redo` does it again from the beginning, kept parts included.
    """
    request = _narrowed(study, request)
    loaded = {name: request.load(name) for name in request.datasets}
    settings = _plain(
        {
            "quick": request.quick,
            "seeds": request.seeds,
            "datasets": {name: describe(dataset) for name, dataset in loaded.items()},
        }
    )
    path = study_file(out, study.name)
    kept = None if redo else read_study(path)
    if kept is not None and kept.settings == settings:
        return kept
    parts = path.parent / "parts" / study.name
    if redo:
        for old in parts.glob("*.json"):
            old.unlink()
    made = provenance or made_here()  # before the work: the code may move on meanwhile
    rows = study.run(replace(request, parts=parts))
    about = [f"{dataset.label}: {note}" for dataset in loaded.values() for note in dataset.notes]
    write_study(out, study, rows, [*study.remarks(rows), *about], made, settings)
    finished = read_study(path)
    if finished is None:
        raise OSError(f"{path}: the study was written and cannot be read again.")
    return finished


def describe(dataset: Dataset) -> dict[str, Any]:
    """What tells one state of a dataset from another: its label and the numbers of the paper's table."""
    return {"label": dataset.label, **dataset.figures._asdict()}


def _narrowed(study: Study, request: Request) -> Request:
    if study.datasets is None:
        return request
    chosen = tuple(name for name in request.datasets if name in study.datasets)
    if not chosen:
        raise ValueError(f"{study.name} is about {', '.join(study.datasets)}; ask for it.")
    return replace(request, datasets=chosen)


def _shortened(entity: Entity) -> Entity:
    """The test rows around the first anomaly, if there is one."""
    first = int(np.argmax(entity.labels)) if entity.labels.any() else 0
    rows = slice(max(first - QUICK_TEST // 2, 0), max(first - QUICK_TEST // 2, 0) + QUICK_TEST)
    return entity._replace(test=entity.test[rows], labels=entity.labels[rows])


# -- plain values ---------------------------------------------------------------------------------------------


def _complete(row: Row, study: Study) -> Row:
    """A row with all columns of the study in their order; a column that the study does not name is refused."""
    unknown = sorted(set(row) - set(study.columns))
    if unknown:
        raise ValueError(f"{study.name}: a row has {', '.join(unknown)}, which is no column of the study.")
    if not row.get("dataset"):
        raise ValueError(f"{study.name}: a row does not name its dataset.")
    return _tidy({name: row.get(name) for name in study.columns})


def _tidy(row: Row) -> Row:
    """Numbers to six digits, and nothing instead of what is no number."""
    return {name: _tidy_value(value) for name, value in row.items()}


def _tidy_value(value: Value) -> Value:
    if not isinstance(value, float):
        return value
    return rounded(value) if math.isfinite(value) else None


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as they come back from a file."""
    plain: dict[str, Any] = json.loads(json.dumps(settings))
    return plain


def _csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _json(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False, allow_nan=False, indent=1).encode() + b"\n"


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        read = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return read if isinstance(read, dict) else None
