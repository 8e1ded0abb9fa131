"""How the lines of a text file end, found in blocks, because a mapped file would count as memory."""

import re
from pathlib import Path
from typing import NamedTuple

BLOCK = 1 << 22  # bytes that are read at once
TAIL = 1 << 16  # bytes that hold the last line
INNER_BLANK = re.compile(rb"\n\r?\n(?=[^\r\n])")


class LineEnds(NamedTuple):
    """What the engine cannot read as it is."""

    blank: bool  # there is a blank line before the end
    mixed: bool  # lines end in different ways


def line_ends(path: Path, block: int = BLOCK) -> LineEnds:
    """Look at all line ends of a file: LF, CRLF or CR."""
    before, blank = b"", False
    feeds = returns = both = 0
    with path.open("rb") as file:
        while read := file.read(block):
            content = before + read
            blank = blank or INNER_BLANK.search(content) is not None
            feeds, returns = feeds + read.count(b"\n"), returns + read.count(b"\r")
            both += read.count(b"\r\n") + (before.endswith(b"\r") and read.startswith(b"\n"))
            before = content[-3:]  # as much of a blank line as may lie before the next block
    return LineEnds(blank, sum(count > 0 for count in (both, feeds - both, returns - both)) > 1)


def is_empty_row(line: str, delimiter: str) -> bool:
    """Tell whether a line has cells and all of them are empty.

    >>> [is_empty_row(line, ";") for line in (";;;", '"";""', "; ;1", "")]
    [True, True, False, False]
    """
    return delimiter in line and not line.replace(delimiter, "").strip(' \t\r\n"')


def ends_in_empty_row(path: Path, delimiter: str) -> bool:
    """Tell whether the last line that is not blank is an empty row, as Excel writes them below a table."""
    with path.open("rb") as file:
        file.seek(max(file.seek(0, 2) - TAIL, 0))
        lines = file.read().decode("latin-1").rstrip("\r\n ").splitlines()
    return bool(lines) and is_empty_row(lines[-1], delimiter)
