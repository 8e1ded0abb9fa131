"""The pages of the command line, made from the programs themselves when the site is built."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from typer.main import get_command

from fedkad.cli.app import app
from fedkad.edge.main import COMMANDS

COLUMNS = "100"
"""Width of the agent's help."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each program."""
    for name, text in {"fedkad": fedkad_page(), "fedkad-agent": agent_page()}.items():
        files.append(File.generated(config, f"commands/{name}.md", content=text))
    return files


def fedkad_page() -> str:
    """Every command of `fedkad`, with its arguments and options."""
    program = get_command(app)
    lead = (
        "Progress goes to stderr and results to stdout. Exit status: 0 done, 1 failed or a device was skipped, 2 wrong "
    )
    lead += "usage, 3 anomalies found (with `--fail-on-anomaly`), 130 interrupted."
    sections = [section(command, path) for path, command in commands(program, ("fedkad",))]
    return "\n\n".join(["# fedkad", str(program.help), lead, *sections]) + "\n"


def commands(group: Any, path: Sequence[str]) -> Iterator[tuple[Sequence[str], Any]]:
    """The commands of a group and of its groups, by what is typed; those that are hidden are left out."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        elif not command.hidden:
            yield (*path, name), command


def section(command: Any, path: Sequence[str]) -> str:
    """What a command does, how it is called, and a table of what may be given."""
    context = command.make_context(path[-1], [], resilient_parsing=True)
    usage = " ".join((*path, *command.collect_usage_pieces(context)))
    rows = [row(parameter, context) for parameter in command.get_params(context)]
    lines = [f"## {' '.join(path)}", prose(command.help or ""), f"```text\n{usage}\n```"]
    table = ["| may be given | |", "|---|---|", *filter(None, rows)]
    return "\n\n".join([*lines, "\n".join(table)])


def row(parameter: Any, context: Any) -> str:
    """A parameter as a row: its names, its help and its default; nothing if it is hidden."""
    record = parameter.get_help_record(context)
    if record is None:
        return ""
    usual = parameter.show_default if isinstance(parameter.show_default, str) else parameter.default
    if parameter.required:
        more = "needed"
    else:
        more = "" if usual in (None, False, ()) or not parameter.show_default else f"default: {usual}"
    text = f"{parameter.help or ''}{f' ({more})' if more else ''}"
    return f"| `{record[0]}` | {prose(text)} |"


def prose(text: str) -> str:
    """Help as Markdown: one line, in which brackets, stars and bars mean themselves."""
    return re.sub(r"([\[\]<>*_|])", r"\\\1", " ".join(text.split()))


def agent_page() -> str:
    """Every command of `fedkad-agent`, as it explains itself."""
    parts = ["# fedkad-agent", "[How it reads, alarms and survives](../agent.md). It has no command-line framework."]
    for name in ("", *COMMANDS):
        title = f"fedkad-agent {name}".strip()
        parts.append(f"## {title}\n\n```text\n{help_of(name)}```")
    return "\n\n".join(parts) + "\n"


def help_of(name: str) -> str:
    """What `fedkad-agent NAME --help` prints."""
    command = [sys.executable, "-m", "fedkad.edge.main", *filter(None, (name,)), "--help"]
    environment = {**os.environ, "COLUMNS": COLUMNS}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
