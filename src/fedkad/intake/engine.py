"""DuckDB behind one door: a file becomes a relation whose columns are c0, c1, …, and errors become sentences."""

import glob
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from fedkad.progress import Report, unheard
from fedkad.tables.errors import TableError, TableSource, reason_in
from fedkad.wording import counted

PAUSE = 0.2  # seconds between two questions
INSTALL = "run pip install 'fedkad[read]'"


def is_installed() -> bool:
    """Tell whether the engine is there; it is an extra."""
    return find_spec("duckdb") is not None


@dataclass(frozen=True)
class Relation:
    """A table that the engine has opened and not yet read."""

    database: Any
    sql: str  # what follows FROM
    name: str  # of the device
    names: tuple[str, ...]  # of the columns, as in the file
    kinds: tuple[str, ...]  # the engine's types of the columns
    source: TableSource
    decimal_comma: bool = False  # whether a comma between digits can only be a decimal mark
    notes: tuple[str, ...] = ()  # what was skipped or converted to open it
    zones: Mapping[str, str] = field(default_factory=dict)  # of columns of times, where the file names them apart
    uneven: Callable[[], tuple[int, int] | None] = lambda: None  # line and cells of the first row that does not fit

    def rows(self, select: str, rest: str = "", values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Query rows as Python objects: for counts and samples."""
        with self._errors_in_our_words():
            return self._run(select, rest, values).fetchall()  # type: ignore[no-any-return]

    def columns(self, select: str, values: Sequence[object] = (), report: Report = unheard) -> dict[str, Any]:
        """Query columns as numpy arrays in the order of the file, masked where a cell is missing.

        Another thread reports how much of the file is read.
        """
        with self._errors_in_our_words(), self._followed(report):
            arrays: dict[str, Any] = self._run(select, "", values).fetchnumpy()
            self.database.execute("SELECT 1")  # until then the engine keeps a copy of the result
            return arrays

    def _run(self, select: str, rest: str, values: Sequence[object]) -> Any:
        return self.database.execute(f"SELECT {select} FROM {self.sql} {rest}", list(values))

    @contextmanager
    def _followed(self, report: Report) -> Iterator[None]:
        """Ask the engine now and then how far it is: it does not call back."""
        if report is unheard:
            yield
            return
        over = threading.Event()

        def follow() -> None:
            farthest = 0  # the engine knows of no progress before a query and after it
            while not over.wait(PAUSE):
                farthest = max(farthest, int(self.database.query_progress()))
                report(farthest, 100)

        follower = threading.Thread(target=follow, daemon=True)
        follower.start()
        try:
            yield
        finally:
            over.set()
            follower.join()

    @contextmanager
    def _errors_in_our_words(self) -> Iterator[None]:
        import duckdb

        try:
            yield
        except duckdb.OutOfMemoryException as error:
            raise MemoryError from error
        except duckdb.Error as error:
            raise _in_our_words(str(error), self) from error

    def at(self, name: str) -> int:
        """Return the position of a column by its name."""
        if name not in self.names:
            listed = ", ".join(each for each in self.names if each)
            raise self.source.error(f"there is no column {name!r}", f"choose among its columns: {listed}")
        return self.names.index(name)


@contextmanager
def database() -> Iterator[Any]:
    """Open a database in memory, which fetches nothing from anywhere."""
    import duckdb

    config = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
    with duckdb.connect(":memory:", config=config) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute("SET enable_progress_bar = true; SET enable_progress_bar_print = false")
        yield connection


def text_sql(path: str, delimiter: str, columns: int, skip: int) -> str:
    """Return a text file as SQL for a relation of text."""
    names = ", ".join(f"'c{at}': 'VARCHAR'" for at in range(columns))
    return (
        f"read_csv({file_sql(path)}, auto_detect = false, header = false, skip = {skip}, delim = {quoted(delimiter)}, "
        f"quote = '\"', escape = '\"', compression = 'none', max_line_size = 1048576, buffer_size = 4194304, "
        f"columns = {{{names}}})"
    )


def file_sql(path: str) -> str:
    """Quote the name of one file for SQL: the engine would read every file that `pump[1].csv` matches.

    >>> print(file_sql("pump[1].csv"))
    'pump[[]1].csv'
    """
    return quoted(glob.escape(path))


def quoted(text: str) -> str:
    """Quote a string for SQL.

    >>> print(quoted("pump's.csv"))
    'pump''s.csv'
    """
    return "'" + text.replace("'", "''") + "'"


def _in_our_words(message: str, relation: Relation) -> TableError:
    """Return the engine's message as an error that names the place and the remedy."""
    source, width = relation.source, len(relation.names)
    line = re.search(r"CSV Error on Line: (\d+)", message)
    counted_cells = re.search(r"Expected Number of Columns: \d+ Found: (\d+)", message)
    row = int(line[1]) - 1 - (1 if "skip = 1" in relation.sql else 0) if line else None
    if counted_cells:
        uneven = relation.uneven()  # the engine stops counting at the first cell too many
        row, where, cells = (
            (row, "", int(counted_cells[1])) if uneven is None else (None, f"line {uneven[0]}", uneven[1])
        )
        what = f"the row has {counted(cells, 'cell')} where the header names {width}"
        return source.error(
            what, "write one cell for each name, empty where the value is missing", row=row, where=where
        )
    if line:
        reason = "a quote is not closed" if "quote" in message else "it is too long or not text"
        what = f"the line is not CSV ({reason})"
        return source.error(what, "correct the quotes and the separators", row=row)
    if "format specifier" in message:
        remedy = "write it for strptime, such as %Y-%m-%d %H:%M"
        return source.error("the format of --time-format is not understood", remedy)
    return source.error(f"the file cannot be read ({reason_in(ValueError(message))})", "write or fetch it again")
