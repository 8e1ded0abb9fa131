"""Commands that other distributions add to ``fedkad``: Typer apps in the entry-point group ``fedkad.commands``."""

from __future__ import annotations

from importlib.metadata import entry_points

import typer

GROUP = "fedkad.commands"
OF_THE_BENCHMARK = ("bench", "datasets")
WRONG_USAGE = 2


def add_installed_commands(app: typer.Typer) -> None:
    """Add every installed command; those of the benchmark say what to install where it is missing."""
    installed = {entry.name: entry for entry in entry_points(group=GROUP)}
    for name, entry in installed.items():
        app.add_typer(entry.load(), name=name)
    for name in OF_THE_BENCHMARK:
        if name not in installed:
            anything = {"allow_extra_args": True, "ignore_unknown_options": True}
            app.command(name, hidden=True, add_help_option=False, context_settings=anything)(_not_installed)


def _not_installed(context: typer.Context) -> None:
    typer.echo(f"error: `fedkad {context.info_name}` is part of the benchmark: pip install fedkad-bench", err=True)
    raise typer.Exit(WRONG_USAGE)
