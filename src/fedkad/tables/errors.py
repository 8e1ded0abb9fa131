"""How a problem with a file is told to a person: one sentence with the place, the fault and the remedy."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


class TableError(ValueError):
    """A file or folder that cannot be read as a table; the message is one sentence and names the remedy."""


@dataclass(frozen=True)
class TableSource:
    """Where a table comes from, so that every check can say where it failed.

    `place` turns the number of a data row (from 0) into what a person looks for: ``line 7`` in a text file, ``row 6``
    elsewhere. It is called for errors only, so it may be slow.

    >>> source = TableSource(Path("pump-1.csv"), lambda row: f"line {row + 2}")
    >>> print(source.error("the value is infinite", "correct it", row=5, where="channel 'flow'"))
    pump-1.csv, line 7, channel 'flow': the value is infinite; correct it.
    """

    path: Path
    place: Callable[[int], str] = lambda row: f"row {row + 1}"

    def error(self, what: str, remedy: str, *, row: int | None = None, where: str = "") -> TableError:
        """Return (not raise) the error; `where` names the column, as in ``channel 'flow'``, or a line without a row."""
        parts = [str(self.path)]
        if row is not None:
            parts.append(self.place(row))
        if where:
            parts.append(where)
        return TableError(f"{', '.join(parts)}: {what}; {remedy}.")


def reason_in(error: BaseException) -> str:
    """Return the first line of another library's message, fit to stand inside a sentence."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(". ")
