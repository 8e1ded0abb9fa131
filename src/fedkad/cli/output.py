"""Results on stdout: tables for people, one JSON document for programs. Progress on stderr."""

import io
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]

LONG, PAUSE = 1.0, 10.0  # seconds: after which work deserves a line, and between two lines
UNCUT = 400  # width of text in a pipe or a file, where nothing is wrapped


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Iterable[int] = ()) -> None:
    """Print a table with a line below the header; `numbers` are the columns to align to the right."""
    right = set(numbers)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for k, name in enumerate(header):
        table.add_column(name, justify="right" if k in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # as text, since a channel may be called [red]
    terminal = Console(highlight=False)
    if terminal.is_terminal:
        terminal.print(table)
        return
    plain = Console(file=io.StringIO(), highlight=False, width=UNCUT)
    with plain.capture() as captured:
        plain.print(table)
    for line in captured.get().splitlines():
        print_line(line.rstrip())


def print_facts(facts: Mapping[str, str]) -> None:
    """Print one name and value per line."""
    width = max(map(len, facts)) + 2
    for name, value in facts.items():
        print_line(f"{name:<{width}}{value}")


print_line = typer.echo
"""Print one line on stdout."""


def print_json(document: object) -> None:
    """Print one JSON document; a number that is not finite becomes null, because JSON has no NaN."""
    typer.echo(json.dumps(_plain(document), indent=2, ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


@contextmanager
def shown_progress(*, brief: bool = False) -> Iterator[Callable[[str, float, int], None]]:
    """Provide a function to call with (what, done, of): bars with the time left on a terminal, lines elsewhere.

    `brief` work has no line unless it takes more than a second.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield ProgressLines(brief)
        return
    columns = TextColumn("{task.description:<12}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn(compact=True)
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=brief) as bars:
        tasks: dict[str, TaskID] = {}

        def move(what: str, done: float, of: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=of)
            bars.update(tasks[what], completed=done, total=of)

        yield move


class ProgressLines:
    """Progress where there is no terminal: a line when a step is done, and every ten seconds the time that is left."""

    def __init__(self, brief: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._brief, self._clock = brief, clock
        self._began: dict[str, float] = {}
        self._told: dict[str, float] = {}

    def __call__(self, what: str, done: float, of: int) -> None:
        """Take note, and print a line if it is time for one."""
        now = self._clock()
        began = self._began.setdefault(what, now)
        if done == of:
            if not self._brief or now - began > LONG:
                typer.echo(f"{what}: {done}/{of}", err=True)
            self._began.pop(what)  # the next table of a device begins at zero
            self._told.pop(what, None)
        elif done and now - self._told.setdefault(what, began) > PAUSE:
            self._told[what] = now
            left = (now - began) / done * (of - done)
            typer.echo(f"{what}: {done / of:.0%}, {_duration(left)} left", err=True)


def _duration(seconds: float) -> str:
    """Return a length of time in words.

    >>> _duration(12.3), _duration(200.0)
    ('12 s', '3 min')
    """
    return f"{seconds:.0f} s" if seconds < 100.0 else f"{seconds / 60.0:.0f} min"
