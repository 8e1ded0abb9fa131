"""Progress over cells: a bar with the remaining time on a terminal, one line per cell elsewhere; on stderr."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from fedkad_bench.running.runner import Report, Step


@contextmanager
def shown_steps() -> Iterator[Report]:
    """A function to call with each finished cell."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda step: typer.echo(_line(step), err=True)
        return
    columns: Sequence[Any] = (
        TextColumn("{task.description:<32}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    with Progress(*columns, console=console) as bars:
        cells = bars.add_task("cells", total=None, left="")

        def move(step: Step) -> None:
            if step.how == "failed":
                bars.console.print(_line(step), highlight=False, markup=False)
            left = f"about {_duration(step.left)} left" if step.done < step.of else ""
            bars.update(cells, total=step.of, completed=step.done, description=str(step.cell), left=left)

        yield move


def _line(step: Step) -> str:
    left = f", about {_duration(step.left)} left" if step.done < step.of else ""
    how = f"failed: {step.sentence}" if step.how == "failed" else f"{step.how} in {step.seconds:.1f} s"
    return f"[{step.done}/{step.of}] {step.cell} {how}{left}"


def _duration(seconds: float) -> str:
    """A duration in seconds, minutes or hours.

    >>> _duration(31.4), _duration(600.0), _duration(9000.0)
    ('31 s', '10 min', '2.5 h')
    """
    if seconds < 90.0:
        return f"{max(seconds, 0.0):.0f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 5400.0 else f"{seconds / 3600.0:.1f} h"
