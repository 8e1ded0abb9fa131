"""Progress on stderr: bars on a terminal, one line per finished step elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


@contextmanager
def shown_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Provide a function to call with (what, done, of) as the work advances."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _print_when_done
        return
    columns = TextColumn("{task.description:<12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console) as bars:
        tasks: dict[str, TaskID] = {}

        def move(what: str, done: int, of: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=of)
            bars.update(tasks[what], completed=done)

        yield move


def _print_when_done(what: str, done: int, of: int) -> None:
    if done == of:
        typer.echo(f"{what}: {done}/{of}", err=True)
