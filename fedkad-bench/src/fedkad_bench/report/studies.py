"""The studies of a results folder, and what all of their sections have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fedkad.report.document import Block, Bullets, Paragraph, Section
from fedkad_bench.report.numbers import DASH
from fedkad_bench.studies.study import FinishedStudy, read_study, study_file

Rows = list[dict[str, Any]]
Make = Callable[[FinishedStudy, Rows], list[Block]]


def study_section(folder: Path, name: str, heading: str, make: Make) -> Section:
    """The section of a study, with its notes and its origin; one sentence if it was not done."""
    study = read_study(study_file(folder, name))
    if study is None or not study.rows:
        return absent(heading, f"This study was not done: there is no studies/{name}.json to read.")
    try:
        blocks = make(study, [dict(row) for row in study.rows])
    except KeyError as error:
        return absent(heading, f"studies/{name}.json has no column {error} and cannot be shown; do the study again.")
    known = dataset_notes(folder)
    notes = tuple(note for note in study.notes if note not in known)
    tail: list[Block] = [Bullets(notes)] if notes else []
    return Section(heading, (*blocks, *tail, Paragraph(origin(study.provenance))))


def dataset_notes(folder: Path) -> tuple[str, ...]:
    """How the datasets differ from the paper's, as the study of their clients says it."""
    study = read_study(study_file(folder, "heterogeneity"))
    if study is None:
        return ()
    labels = {str(row["dataset"]) for row in study.rows}
    return tuple(note for note in study.notes if any(note.startswith(f"{label}: ") for label in labels))


def origin(made: Mapping[str, str]) -> str:
    """Where a study comes from."""
    command, commit, date, machine = (made.get(part, DASH) for part in ("command", "commit", "date", "machine"))
    return f"Measured by {command} ({commit}, {date}) on {machine}."


def distinct(rows: Iterable[Mapping[str, Any]], column: str) -> list[Any]:
    """The values of a column, each once, as they come."""
    return list(dict.fromkeys(row[column] for row in rows))


def absent(heading: str, sentence: str) -> Section:
    """A section that has no data, and says so."""
    return Section(heading, (Paragraph(sentence),))
