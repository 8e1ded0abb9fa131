"""What every run and evaluation ends with: tables and the report on disk, the main table on stdout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from fedkad.cli.failures import note, warn
from fedkad.cli.output import print_json, print_line
from fedkad.wording import counted
from fedkad_bench.cli.libraries import FOR_THE_REPORT, lacking
from fedkad_bench.methods.registry import INSTALL
from fedkad_bench.report import write_report
from fedkad_bench.results import Results, macro_table, write_tables
from fedkad_bench.running.runner import RunOutcome

FAILED = 1


def note_missing_report() -> None:
    """Note before the work that there will be no report because a library is missing."""
    libraries = lacking(FOR_THE_REPORT)
    if libraries:
        note(f"no report will be written because it needs {libraries}: {INSTALL}")


def warn_of_failures(outcome: RunOutcome) -> None:
    """One line on stderr for each cell that failed."""
    for cell, sentence in outcome.failed.items():
        warn(f"{cell} failed: {sentence}")


def write_results(folder: Path) -> tuple[Results, bool]:
    """Write the tables, and the report if there are records and libraries for it; return whether it was written."""
    results = write_tables(folder)
    reported = bool(results.records) and not lacking(FOR_THE_REPORT)
    if reported:
        write_report(folder)
    return results, reported


def finish(folder: Path, outcome: RunOutcome, as_json: bool, failed_studies: Mapping[str, str] | None = None) -> None:
    """Write and print the results; exit with status 1 if a cell or a study failed."""
    results, reported = write_results(folder)
    studies = failed_studies or {}
    if as_json:
        print_json({**_document(folder, outcome, results), "studies_failed": dict(studies)})
    else:
        for dataset in results.datasets:
            print_line(f"## {results.labels[dataset]}\n")
            print_line(macro_table(results, dataset))
        print_line(
            f"{counted(len(outcome.trained), 'cell')} trained, {len(outcome.evaluated)} evaluated, "
            f"{len(outcome.kept)} kept, {len(outcome.reused)} reused, {len(outcome.failed)} failed."
        )
        where = f"; the report is {folder / 'report.html'}." if reported else "; there is no report."
        print_line(f"Causal smoothing, shares in percent{where}")
    if outcome.failed or studies:
        what = "cells" if not studies else "cells and studies" if outcome.failed else "studies"
        note(f"tracebacks are in {folder / 'failures'}; the same command tries the failed {what} again.")
        raise typer.Exit(FAILED)


def _document(folder: Path, outcome: RunOutcome, results: Results) -> dict[str, Any]:
    return {
        "out": str(folder),
        **{name: list(map(str, getattr(outcome, name))) for name in ("trained", "evaluated", "kept", "reused")},
        "failed": {str(cell): sentence for cell, sentence in outcome.failed.items()},
        "datasets": results.labels,
        "summaries": list(results.summaries()),
    }
