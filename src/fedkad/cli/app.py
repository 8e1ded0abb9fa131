"""The commands and what they share: a version, and failures reported in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from fedkad import __version__
from fedkad.cli.client import client
from fedkad.cli.demo import demo
from fedkad.cli.detect import detect
from fedkad.cli.failures import one_sentence
from fedkad.cli.federate import federate
from fedkad.cli.fit import fit
from fedkad.cli.fleet import app as fleet
from fedkad.cli.inspect import inspect
from fedkad.cli.plugins import add_installed_commands
from fedkad.cli.server import server
from fedkad.cli.watch import watch

COMMANDS: tuple[Callable[..., Any], ...] = (demo, fit, federate, detect, watch, inspect, server, client)


def make_app() -> typer.Typer:
    """The application with all commands."""
    made = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
    made.callback()(_about)
    for command in COMMANDS:
        made.command()(one_sentence(command))
    made.add_typer(fleet, name="fleet")
    add_installed_commands(made)
    return made


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"fedkad {__version__}")
        raise typer.Exit


def _about(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Anomaly detection that a fleet of devices learns together while every raw sample stays on its device."""


app = make_app()
