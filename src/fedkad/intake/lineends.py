"""How the lines of a text file end, found in blocks, because a mapped file would count as memory."""

import re
from pathlib import Path
from typing import NamedTuple

BLOCK = 1 << 22  # bytes that are read at once
TAIL = 1 << 16  # bytes that hold the last line
INNER_BLANK = re.compile(rb"\n\r?\n(?=[^\r\n])")
FEED = re.compile(rb"\n(?<!\r\n)")  # patterns that begin with a plain byte are searched as fast as that byte
CARRIAGE = re.compile(rb"\r(?=[^\n])")


class LineEnds(NamedTuple):
    """What the engine cannot read as it is."""

    blank: bool  # there is a blank line before the end
    mixed: bool  # lines end in different ways


def line_ends(path: Path, block: int = BLOCK) -> LineEnds:
    """Look at all line ends of a file: LF, CRLF or CR."""
    before = b""
    blank = feed = both = carriage = False
    with path.open("rb") as file:
        while read := file.read(block):
            content = before + read
            blank = blank or INNER_BLANK.search(content) is not None
            feed = feed or FEED.search(content, len(before[:1])) is not None
            if b"\r" in content:
                both = both or b"\r\n" in content
                carriage = carriage or CARRIAGE.search(content) is not None
            before = content[-3:]  # as much of a blank line as may lie before the next block
    carriage = carriage or before.endswith(b"\r")
    return LineEnds(blank, feed + both + carriage > 1)


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
