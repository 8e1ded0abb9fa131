"""``fedkad bench report``: write the report of kept results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedkad.cli.output import AsJson, print_json, print_line
from fedkad_bench.cli.libraries import FOR_THE_REPORT, lacking
from fedkad_bench.methods.registry import INSTALL
from fedkad_bench.report import write_report


def report(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the results.")],
    as_json: AsJson = False,
) -> None:
    """Write the report of a folder of results: one page, its tables and figures, and the data behind them."""
    if not (out / "cells").is_dir():
        raise ValueError(f"{out}: the folder has no cells; make some with `fedkad bench run paper --out {out}`.")
    libraries = lacking(FOR_THE_REPORT)
    if libraries:
        raise ValueError(f"The report needs {libraries}: {INSTALL}")
    written = write_report(out)
    if as_json:
        print_json({"written": [str(path) for path in written]})
    else:
        print_line(f"{out / 'report.html'}, and {len(written) - 1} tables and figures beside it.")
