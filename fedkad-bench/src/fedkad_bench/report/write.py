"""Write a report: the page, its tables in Markdown, its figures as SVG, and the data behind both."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from fedkad import __version__
from fedkad.atomicfile import write_atomically
from fedkad.report.document import Document, Section, write_page
from fedkad_bench.report.ablation import ablation
from fedkad_bench.report.certainty import HEADING as CERTAINTY
from fedkad_bench.report.certainty import certainty
from fedkad_bench.report.coldstart import coldstart
from fedkad_bench.report.convergence import convergence
from fedkad_bench.report.drawing import standalone
from fedkad_bench.report.efficiency import efficiency
from fedkad_bench.report.exchange import exchange
from fedkad_bench.report.headline import HEADING as HEADLINE
from fedkad_bench.report.headline import headline
from fedkad_bench.report.markdown import as_markdown
from fedkad_bench.report.ondevice import ondevice
from fedkad_bench.report.operation import HEADING as OPERATION
from fedkad_bench.report.operation import operation
from fedkad_bench.report.overview import HEADING as OVERVIEW
from fedkad_bench.report.overview import overview
from fedkad_bench.report.robustness import HEADING as ROBUSTNESS
from fedkad_bench.report.robustness import robustness
from fedkad_bench.report.skew import skew
from fedkad_bench.report.studies import absent, dataset_notes
from fedkad_bench.report.trust import HEADING as TRUST
from fedkad_bench.report.trust import trust
from fedkad_bench.results import Results, read_results, write_csv

FROM_CELLS: dict[str, Callable[[Results], Section]] = {
    TRUST: trust,
    HEADLINE: headline,
    ROBUSTNESS: robustness,
    OPERATION: operation,
    CERTAINTY: certainty,
}
FROM_STUDIES = (skew, efficiency, ondevice, convergence, exchange, ablation, coldstart)


def write_report(folder: Path, out: Path | None = None) -> list[Path]:
    """Write `report.html`, `tables/*.md`, `figures/*.svg` and `figures/*.csv` of a results folder.

    Parameters
    ----------
    folder : path
        Of the results: records in `cells`, studies in `studies`; a sentence stands in for what is missing.
    out : path, optional
        Where to write, by default into the same folder.

    Returns
    -------
    list of path
        What was written, the page first.
    """
    if find_spec("matplotlib") is None:
        raise ValueError("The figures need matplotlib: pip install matplotlib.")
    results = read_results(folder)
    if not results.records and not any((folder / "studies").glob("*.json")):
        raise ValueError(f"{folder}: there are no results to report; give the folder of `fedkad bench run`.")
    document = compose(results, folder)
    out = folder if out is None else out
    for inner in ("tables", "figures"):
        (out / inner).mkdir(parents=True, exist_ok=True)
    page = out / "report.html"
    write_page(page, document)
    return [page, *_write_tables(document, out), *_write_drawings(document, out)]


def compose(results: Results, folder: Path) -> Document:
    """All sections; a section without data says so."""
    return Document(
        title="FedKAD benchmark",
        lead=(
            "Detection, cost and convergence of FedKAD beside federated networks, classical and naive methods, and "
            "beside the numbers of the paper. All other numbers, those in sentences too, are made from the files of "
            "the run."
        ),
        sections=(*_from_cells(results, folder), *(section(folder) for section in FROM_STUDIES)),
        footer=f"fedkad {__version__}. The data behind every figure and table lies in the folder figures as CSV.",
        numbered=True,
        dark=False,
    )


def _from_cells(results: Results, folder: Path) -> list[Section]:
    if results.records:
        return [overview(results, dataset_notes(folder)), *(section(results) for section in FROM_CELLS.values())]
    return [absent(heading, "There are no records of cells in this folder.") for heading in (OVERVIEW, *FROM_CELLS)]


def _write_tables(document: Document, out: Path) -> list[Path]:
    written = []
    for table in document.tables():
        path, data = out / "tables" / f"{table.name}.md", out / "figures" / f"{table.name}.csv"
        write_atomically(path, as_markdown(table).encode())
        write_csv(data, table.data)
        written += [path, data]
    return written


def _write_drawings(document: Document, out: Path) -> list[Path]:
    written = []
    for drawing in document.drawings():
        path, data = out / "figures" / f"{drawing.name}.svg", out / "figures" / f"{drawing.name}.csv"
        write_atomically(path, standalone(drawing.svg).encode())
        write_csv(data, drawing.data)
        written += [path, data]
    return written
