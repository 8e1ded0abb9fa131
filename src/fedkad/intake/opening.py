"""Opening a recording: text in any encoding, gzipped or from standard input, a workbook, or a Parquet file."""

import gzip
import os
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import IO, Any

from fedkad.intake.engine import Relation, database, file_sql, text_sql
from fedkad.intake.layout import HEAD, encoding_of, is_comment, layout_of
from fedkad.intake.lineends import BLOCK, ends_in_empty_row, is_empty_row, line_ends
from fedkad.intake.stages import Stages
from fedkad.intake.workbook import write_sheet
from fedkad.intake.zones import zones_in_pandas_metadata
from fedkad.progress import Report
from fedkad.tables.csvrows import NumberedRow, numbered_rows
from fedkad.tables.errors import TableSource, reason_in
from fedkad.tables.reading import require_file, table_ending
from fedkad.wording import counted

STANDARD_INPUT = Path("-")
LINES = 10_000  # after which progress is told
SKIPPED = {
    "line of comment": "lines of comment",
    "blank line": "blank lines",
    "empty row at the end": "empty rows at the end",
}


def require_input(path: Path) -> None:
    """Refuse a file that is not there, or a folder; standard input always is."""
    if path != STANDARD_INPUT:
        require_file(path)


@contextmanager
def opened(path: Path, encoding: str | None, stages: Stages) -> Iterator[Relation]:
    """Open the file as a relation; copies that had to be made are steps of their own, and are gone afterwards."""
    ending = "" if path == STANDARD_INPUT else table_ending(path) or ""
    name = path.name[: -len(ending)] if ending else "stdin" if path == STANDARD_INPUT else path.stem
    source = TableSource(path)
    with tempfile.TemporaryDirectory(prefix="fedkad-") as folder, database() as connection:
        copy, notes = Path(folder, "copy.csv"), tuple[str, ...]()
        if ending == ".parquet":
            yield _parquet(source, name, connection)
            return
        if ending == ".xlsx":
            encoding, notes = "utf-8", write_sheet(path, copy, source, stages.begin())
        else:
            _fetch(path, ending, copy, source, stages)
        text = _Text(copy if copy.exists() else path, encoding, source)
        yield text.relation(name, Path(folder, "values.csv"), connection, notes, stages)


def _parquet(source: TableSource, name: str, connection: Any) -> Relation:
    sql = f"read_parquet({file_sql(str(source.path))}, hive_partitioning = false)"
    unread = Relation(connection, f"(DESCRIBE SELECT * FROM {sql})", name, (), (), source)
    described = unread.rows("column_name, column_type")
    names, kinds = (tuple(column[at] for column in described) for at in (0, 1))
    renamed = ", ".join(f"c{at}" for at in range(len(names)))
    by_pandas = replace(unread, sql=f"parquet_kv_metadata({file_sql(str(source.path))})")
    written = by_pandas.rows("decode(value)", "WHERE key = 'pandas'::BLOB")
    zones = zones_in_pandas_metadata(written[0][0]) if written else {}
    return Relation(connection, f"(SELECT * FROM {sql}) AS t({renamed})", name, names, kinds, source, zones=zones)


def _fetch(path: Path, ending: str, copy: Path, source: TableSource, stages: Stages) -> None:
    """Put what is not a plain file into one."""
    try:
        if path == STANDARD_INPUT:
            _copy(sys.stdin.buffer, sys.stdin.buffer, copy, stages.begin())
        elif ending.endswith(".gz"):
            with path.open("rb") as raw, gzip.open(raw) as packed:
                _copy(packed, raw, copy, stages.begin())
        else:
            path.open("rb").close()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise source.error(f"the gzip data is damaged ({reason_in(error)})", "fetch or compress it again") from error
    except OSError as error:
        reason = error.strerror or reason_in(error)
        raise source.error(f"the file cannot be read ({reason})", "check its permissions") from error


def _copy(content: IO[bytes] | gzip.GzipFile, raw: IO[bytes], copy: Path, report: Report) -> None:
    """Copy the content, and tell how far the file is read that it comes from; a pipe does not say how long it is."""
    try:
        size = os.fstat(raw.fileno()).st_size
    except (OSError, AttributeError):
        size = 0
    with copy.open("wb") as file:
        while block := content.read(BLOCK):
            file.write(block)
            if size:
                report(raw.tell(), size)


class _Text:
    """A text file, its encoding and its layout."""

    def __init__(self, path: Path, encoding: str | None, source: TableSource) -> None:
        self.path, self.source = path, source
        self.encoding, self.notes = (encoding, ()) if encoding else encoding_of(path, source)
        with self._open() as file:
            head = file.read(HEAD)
            self._width = len(head.encode(self.encoding, "replace")) / max(len(head), 1)  # bytes of a character
            self.layout = layout_of(head, source, whole=not file.read(1))

    @contextmanager
    def _open(self) -> Iterator[IO[str]]:
        try:
            with self.path.open(encoding=self.encoding, newline="") as file:
                yield file
        except LookupError as error:
            remedy = "name another with --encoding, such as utf-8, latin-1, cp1252 or utf-16"
            raise self.source.error(f"there is no encoding {self.encoding!r}", remedy) from error
        except UnicodeError as error:
            what = f"the text is not {self.encoding} ({reason_in(error)})"
            raise self.source.error(what, "name another encoding with --encoding") from error

    def relation(self, name: str, values: Path, connection: Any, before: tuple[str, ...], stages: Stages) -> Relation:
        """Return the rows of values, of which the engine gets a copy in UTF-8 where more than a header is left out."""
        layout, notes = self.layout, [*before, *self.notes, *self.layout.notes]
        path, skip = self.path, 1
        ends = line_ends(self.path)
        if ends.mixed:
            notes.append("lines end in different ways (LF, CRLF or CR)")
        as_is = self.encoding in ("utf-8", "utf-8-sig") and layout.is_plain and not any(ends)
        if not as_is or ends_in_empty_row(self.path, layout.delimiter):
            notes += self._copy_values(values, stages.begin())
            path, skip = values, 0
        sql = text_sql(str(path), layout.delimiter, len(layout.names), skip)
        source = TableSource(self.source.path, self._place)
        kinds = ("VARCHAR",) * len(layout.names)
        comma = layout.delimiter in ";\t"
        return Relation(connection, sql, name, layout.names, kinds, source, comma, tuple(notes), uneven=self._uneven)

    def _lines(self, skipped: dict[str, int]) -> Iterator[tuple[int, str]]:
        """Yield the lines of values with their numbers; count the others."""
        empty: list[tuple[int, str]] = []  # rows that are skipped if no other follows
        with self._open() as file:
            for number, line in enumerate(file, 1):
                if number < self.layout.first_line:
                    continue
                if is_comment(line, self.layout.comment):
                    skipped["line of comment"] += 1
                elif not line.strip() and len(self.layout.names) > 1:
                    skipped["blank line"] += 1
                elif is_empty_row(line, self.layout.delimiter):
                    empty.append((number, line))
                else:
                    yield from empty
                    empty.clear()
                    yield number, line
        skipped["empty row at the end"] += len(empty)

    def _copy_values(self, values: Path, report: Report) -> list[str]:
        skipped = dict.fromkeys(SKIPPED, 0)
        trailing = written = 0
        size = self.path.stat().st_size
        with values.open("w", encoding="utf-8", newline="") as file:
            for number, line in self._lines(skipped):
                trailing = skipped["blank line"]
                written += file.write(line.rstrip("\r\n") + "\n")
                if number % LINES == 0:
                    report(round(written * self._width), size)
        skipped["blank line"] = trailing  # those at the end mean nothing
        skipped["line of comment"] += self.layout.comments_above
        return [f"{counted(count, what, SKIPPED[what])} skipped" for what, count in skipped.items() if count]

    def _place(self, row: int) -> str:
        """Return the line on which a row begins."""
        numbered = next(islice(self._rows(), row, None), None)
        return f"row {row + 1}" if numbered is None else f"line {numbered.line}"

    def _uneven(self) -> tuple[int, int] | None:
        """Return the line and the cells of the first row that does not fit the header; empty cells may follow."""
        width = len(self.layout.names)
        uneven = (row for row in self._rows() if len(row.cells) < width or any(row.cells[width:]))
        return next(((row.line, len(row.cells)) for row in uneven), None)

    def _rows(self) -> Iterator[NumberedRow]:
        return numbered_rows(self._lines(dict.fromkeys(SKIPPED, 0)), self.layout.delimiter)
