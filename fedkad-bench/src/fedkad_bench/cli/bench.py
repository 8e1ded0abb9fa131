"""``fedkad bench``: run the benchmark, list what it knows, evaluate scores again, choose settings without labels."""

from __future__ import annotations

import typer

from fedkad.cli.failures import one_sentence
from fedkad_bench.cli.evaluate import evaluate
from fedkad_bench.cli.listing import list_all
from fedkad_bench.cli.report import report
from fedkad_bench.cli.run import run
from fedkad_bench.cli.sweep import sweep

app = typer.Typer(no_args_is_help=True, help="Run the benchmark, or evaluate its kept scores again.")
for _name, _command in (("run", run), ("report", report), ("evaluate", evaluate), ("sweep", sweep), ("list", list_all)):
    app.command(_name)(one_sentence(_command))
