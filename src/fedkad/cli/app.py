"""The commands and what they share: a version, and failures reported in one sentence.

Other distributions add commands of their own: Typer apps in the entry-point group ``fedkad.commands``.
"""

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Annotated, Any

import typer

from fedkad import __version__
from fedkad.cli.admit import admit
from fedkad.cli.demo import demo
from fedkad.cli.detect import detect
from fedkad.cli.failures import one_sentence
from fedkad.cli.federate import federate
from fedkad.cli.fit import fit
from fedkad.cli.fleet import app as fleet
from fedkad.cli.inspect import inspect
from fedkad.cli.services import client, server, watch

COMMANDS: tuple[Callable[..., Any], ...] = (demo, fit, federate, admit, detect, watch, inspect, server, client)
GROUP = "fedkad.commands"
OF_THE_BENCHMARK = ("bench", "datasets")
WRONG_USAGE = 2


def _not_installed(context: typer.Context) -> None:
    typer.echo(f"error: `fedkad {context.info_name}` is part of the benchmark: pip install fedkad-bench", err=True)
    raise typer.Exit(WRONG_USAGE)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"fedkad {__version__}")
        raise typer.Exit


app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)


@app.callback()
def _about(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Anomaly detection that a fleet of devices learns together while every raw sample stays on its device."""


for command in COMMANDS:
    app.command()(one_sentence(command))
app.add_typer(fleet, name="fleet")
installed = {entry.name: entry for entry in entry_points(group=GROUP)}
for name, entry in installed.items():
    app.add_typer(entry.load(), name=name)
for name in OF_THE_BENCHMARK:
    if name not in installed:
        anything = {"allow_extra_args": True, "ignore_unknown_options": True}
        app.command(name, hidden=True, add_help_option=False, context_settings=anything)(_not_installed)
