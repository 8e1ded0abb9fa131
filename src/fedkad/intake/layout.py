"""The layout of a text file: its encoding, what separates its cells, and where its rows of values begin.

Found from the beginning of the file by plain rules, because a person must be able to check them: a `sep=` line, lines
of comments, lines above the header, the header, a line of units, and then values.
"""

import codecs
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fedkad.intake.clock import is_moment
from fedkad.tables.cells import is_missing, no_rows
from fedkad.tables.csvrows import numbered_rows
from fedkad.tables.errors import TableSource

DELIMITERS = (",", ";", "\t", "|")
COMMENTS = ("#", "//", "%")
PACKED = {
    b"\xfd7zXZ\x00": "xz",
    b"PK\x03\x04": "zip",
    b"BZh[1-9]1AY&SY": "bzip2",
    rb"\x28\xb5/\xfd": "zstd",
    b"7z\xbc\xaf'\x1c": "7z",
    b"\x1f\x8b": "gzip",
}
"""What packed files begin with, as patterns."""

HEAD = 1 << 16  # characters that the layout is found from
VALUE = re.compile(
    r"[<>~+-]?\s*[.,]?\d[\d.,:/\-+TZ eE_]*(?:[AP]M)?|\d{1,2}[-. ][A-Za-z]{3,9}[-. ]\d{2,4}.*", re.IGNORECASE
)
UNIT = re.compile(
    r"[\[(<].*[\])>]|[°µ]?[cfk]|deg ?[cf]?|%|-|[kmg]?(w|wh|va|var|v|a|pa|hz|bar|n|nm|ohm)|bar\(?[ag]?\)?|psi"
    r"|rpm|1/min|u/min|[mkµ]?m(/s)?2?|mm/s|[lm][³3]?/(h|s|min)|nm[³3]/h|kg(/h|/s)?|t/h|ppm|ph|lux|db|m?s|min|h|g|rad/s|bool|units?",
    re.IGNORECASE,
)


def is_measurement(cell: str) -> bool:
    """Tell whether a cell is a number that has its unit with it, or is not exact.

    >>> [is_measurement(cell) for cell in ("12 V", "71,5°C", "<0.5", "12", "3 pumps", "2024-03-01")]
    [True, True, True, False, False, False]
    """
    match = re.fullmatch(r"([<>~≈±]?)\s*[+-]?\d+(?:[.,]\d+)?\s*(.*)", cell.strip())
    if match is None or not (match[1] or match[2]):
        return False
    return not match[2] or UNIT.fullmatch(match[2]) is not None


class Record(NamedTuple):
    """The cells of a row, and the line that it begins on, from 1."""

    line: int
    cells: list[str]

    def holds_values(self) -> bool:
        """Tell whether any cell is a number or a time."""
        return any(VALUE.fullmatch(cell.strip()) for cell in self.cells)

    def holds_units(self) -> bool:
        """Tell whether most of the cells are units, such as °C or [bar]."""
        filled = [cell.strip() for cell in self.cells if cell.strip()]
        return bool(filled) and 2 * sum(bool(UNIT.fullmatch(cell)) for cell in filled) > len(filled)


@dataclass(frozen=True)
class Layout:
    """Where the values of a text file are, and what was skipped to get there."""

    delimiter: str
    names: tuple[str, ...]
    first_line: int  # of values, from 1
    comment: str | None = None  # what a line of comment begins with
    comments_above: int = 0  # lines of comment before the values
    notes: tuple[str, ...] = ()

    @property
    def is_plain(self) -> bool:
        """Whether nothing but one header comes before the values."""
        return not self.notes and self.comment is None


def encoding_of(path: Path, source: TableSource) -> tuple[str, tuple[str, ...]]:
    """Return the encoding of a text file and a note if it is not UTF-8: by its first bytes, then by trying."""
    with path.open("rb") as file:
        start = file.read(4096)
        _refuse_packed(start, source)
        if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "utf-16", ("read as UTF-16",)
        zeros = [start[at::2].count(0) for at in (0, 1)]
        if max(zeros) > len(start) // 4 and min(zeros) < len(start) // 16:
            return ("utf-16-le" if zeros[1] > zeros[0] else "utf-16-be"), ("read as UTF-16",)
        if 0 in start:
            raise source.error("this is not a text file", "give a table, such as .csv, .xlsx or .parquet")
        decode = codecs.getincrementaldecoder("utf-8")().decode
        file.seek(0)
        try:
            while block := file.read(1 << 22):
                decode(block)
            decode(b"", final=True)
        except UnicodeDecodeError:
            return "cp1252", ("read as Latin-1 (Windows-1252), because it is not UTF-8; --encoding names another",)
    return "utf-8-sig", ()


def _refuse_packed(start: bytes, source: TableSource) -> None:
    kind = next((kind for mark, kind in PACKED.items() if re.match(mark, start)), None)
    if kind is not None:
        also = {"zip": ", or call it .xlsx if it is a workbook", "gzip": ", or call it .csv.gz"}.get(kind, "")
        raise source.error(f"the file is packed ({kind})", f"unpack it first{also}")


def layout_of(head: str, source: TableSource, *, whole: bool) -> Layout:
    r"""Find the layout from the beginning of a file; `whole` says that this is all of it.

    >>> text = "sep=;\r\nReport;Boiler 3\r\nZeit;Temperatur;Druck\r\n;°C;bar\r\n01.03.2024 00:00;71,5;2,1\r\n"
    >>> layout = layout_of(text, TableSource(Path("boiler.csv")), whole=True)
    >>> layout.delimiter, layout.names, layout.first_line
    (';', ('Zeit', 'Temperatur', 'Druck'), 5)
    >>> layout.notes
    ('line 1 names the separator', 'line 2 above the header skipped', 'line 4 taken as units')
    """
    if not head.strip():
        raise source.error("the file is empty", "add a header line that names the channels and rows of values")
    lines = list(io.StringIO(head, newline=""))
    comment = next((mark for mark in COMMENTS if any(line.lstrip().startswith(mark) for line in lines)), None)
    separator = re.fullmatch(r'\ufeff?"?sep=(.)"?[\r\n]*', lines[0], re.IGNORECASE)
    delimiters = (separator[1],) if separator else DELIMITERS
    skip = 1 if separator else 0
    candidates = [_split(list(_records(head, each, comment, skip, whole)), each) for each in delimiters]
    # Decimal commas may split the rows as evenly as the separator does, but not the header, which then comes later.
    best = max(
        (each for each in candidates if not any(other.has_for_values(each) for other in candidates)),
        key=lambda each: (each.header is not None, each.width > 1, each.rows, -(each.header or 0), each.width),
    )
    first = [cell for cell in best.records[0].cells[1:] if cell.strip()] if best.records else []
    if len(first) > 2 and all(map(is_moment, first)):
        what = "the first line holds times, so that each row is a channel"
        raise source.error(
            what, "turn the table around: a row for each moment, a column for each channel", where="line 1"
        )
    if best.header is None:
        if not best.records or not best.records[0].holds_values():
            raise no_rows(source)
        what = "the first line holds values where the names of the channels belong"
        raise source.error(what, "add a header line that names the channels", where=f"line {best.records[0].line}")
    names = best.records[best.header].cells
    if best.width == 1 and any(each in names[0] for each in DELIMITERS) and '"' not in names[0]:
        what = f"the rows do not have the cells that the header {names[0].strip()!r} names"
        raise source.error(what, "write one cell for each name, separated as in the header", where="line 1")
    return _layout(best, lines, comment, names_separator=separator is not None)


@dataclass(frozen=True)
class _Split:
    """The head of a file, cut by one separator."""

    delimiter: str
    records: list[Record]
    width: int
    rows: int  # of values that have this width
    header: int | None  # which record

    def has_for_values(self, other: "_Split") -> bool:
        """Tell whether the header by another separator is a row of values by this one, which fits most rows below.

        One faulty row must not make the other separator fit more rows, and a row of values pass for the header.
        """
        if self.header is None or other.header is None or self.width == 1 or 2 * self.rows < other.rows:
            return False
        line = other.records[other.header].line
        below = (record for record in self.records[self.header + 1 :] if record.line == line)
        return any(record.holds_values() for record in below)


def _records(head: str, delimiter: str, comment: str | None, skip: int, whole: bool) -> Iterator[Record]:
    lines = list(enumerate(io.StringIO(head, newline=""), 1))[skip:]
    if not whole and lines:
        lines.pop()  # it may be cut
    for line, cells in numbered_rows(lines, delimiter):
        if any(cell.strip() for cell in cells) and not is_comment(cells[0], comment):
            yield Record(line, cells)


def is_comment(text: str, comment: str | None) -> bool:
    """Tell whether a line, or its first cell, is a comment."""
    return comment is not None and text.lstrip().startswith(comment)


def _split(records: list[Record], delimiter: str) -> _Split:
    valued = [record for record in records if record.holds_values()]
    widths = Counter(len(record.cells) for record in valued or records)
    width = max(widths, key=lambda each: (widths[each], each), default=0)
    rows = sum(len(record.cells) == width for record in valued)
    for at, record in enumerate(records):
        after = records[at + 1 : at + 4]
        if after and after[0].holds_units() and not after[0].holds_values():
            after = after[1:]
        follows = not valued or _begin_values(after[:2], width)
        if follows and _names_columns(record, width, valued):
            return _Split(delimiter, records, width, rows, at)
    return _Split(delimiter, records, width, rows, None)


def _begin_values(after: list[Record], width: int) -> bool:
    """Tell whether rows of values begin here; the first may have a cell too many or too few, which is refused later."""
    fits = [record.holds_values() and len(record.cells) == width for record in after]
    return fits[:1] == [True] or (fits == [False, True] and after[0].holds_values())


def _names_columns(record: Record, width: int, valued: list[Record]) -> bool:
    cells = [cell.strip() for cell in record.cells]
    # By any separator: 01.03.2024;71,5 is not two names.
    parts = [part.strip() for cell in cells for part in re.split("[,;\t|]", cell)]
    if all(VALUE.fullmatch(part) or is_missing(part) for part in parts) or is_moment(cells[0]) or is_moment(parts[0]):
        return False
    if len(cells) == width - 1:  # the rows end in a separator, and the header does not
        return all(not each.cells[-1].strip() for each in valued if len(each.cells) == width)
    return len(cells) == width or (len(cells) == width + 1 and not cells[-1])


def _layout(split: _Split, lines: list[str], comment: str | None, *, names_separator: bool) -> Layout:
    assert split.header is not None
    above, header = split.records[: split.header], split.records[split.header]
    rest = split.records[split.header + 1 :]
    units = rest[:1] if rest and rest[0].holds_units() and not rest[0].holds_values() else []
    names = [cell.strip().strip("\ufeff") for cell in header.cells][: split.width or None]
    names += [""] * (split.width - len(names))
    notes = ["line 1 names the separator"] if names_separator else []
    notes += [f"{_lines(each.line for each in above)} above the header skipped"] if above else []
    notes += [f"line {units[0].line} taken as units"] if units else []
    first = rest[len(units)].line if len(rest) > len(units) else (units or [header])[-1].line + 1
    if header.line > 1 and not notes and comment is None:
        notes.append("blank lines above the header skipped")
    above_values = sum(is_comment(line, comment) for line in lines[: first - 1])
    return Layout(split.delimiter, tuple(names), first, comment, above_values, tuple(notes))


def _lines(numbers: Iterable[int]) -> str:
    first, *others = numbers
    return f"lines {first} to {others[-1]}" if others else f"line {first}"
