"""Files of bare numbers, as SMD has them: no header, one line a sample, plain or gzipped."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedkad.tables.cells import is_number, shown
from fedkad.tables.errors import TableError, reason_in
from fedkad.tables.errors import TableSource as Source
from fedkad_bench.data.entity import Array, Labels

AGAIN = "fetch it again"


def content_of(path: Path) -> bytes:
    """The bytes of a file, decompressed if its name ends in ``.gz``."""
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise Source(path).error(f"the gzip data is damaged ({reason_in(error)})", AGAIN) from error
    except OSError as error:
        what = f"the file cannot be read ({error.strerror or reason_in(error)})"
        raise Source(path).error(what, "check its permissions") from error


def read_numbers(path: Path) -> Array:
    r"""Read a file of numbers separated by commas into `(time, channel)`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "machine-1-1.txt")
    ...     _ = path.write_text("0.25,1\n0.5,0\n")
    ...     read_numbers(path)
    array([[0.25, 1.  ],
           [0.5 , 0.  ]])
    """
    text = content_of(path)
    if not text.strip():
        raise Source(path).error("the file is empty", AGAIN)
    try:
        values = np.loadtxt(io.BytesIO(text), delimiter=",", ndmin=2, comments=None)
    except ValueError as error:
        raise _fault_in(path, text) or Source(path).error(f"it is not text of numbers ({error})", AGAIN) from None
    infinite = np.argwhere(np.isinf(values))
    if len(infinite):
        row, channel = infinite[0]
        raise Source(path).error("the value is infinite", AGAIN, row=int(row), where=f"channel {channel}")
    return values


def as_labels(column: Array, source: Source) -> Labels:
    """A column of 0 and 1 as truth values; anything else is refused."""
    strange = np.flatnonzero((column != 0.0) & (column != 1.0))
    if len(strange):
        what = f"the label is {column[strange[0]]:g} where 0 or 1 belongs"
        raise source.error(what, "write 1 for an anomalous sample and 0 for any other", row=int(strange[0]))
    return np.asarray(column == 1.0)


def _fault_in(path: Path, text: bytes) -> TableError | None:
    """The first thing in the text that is wrong, sought only once it is known that something is."""
    source, width = Source(path, lambda line: f"line {line + 1}"), 0
    for line, cells in _lines(text):
        width = width or len(cells)
        if len(cells) != width:
            what = f"the line has {len(cells)} values where those before it have {width}"
            return source.error(what, AGAIN, row=line)
        for channel, cell in enumerate(cells):
            if not is_number(cell):
                what = f"{shown(cell)} is not a number"
                return source.error(what, AGAIN, row=line, where=f"channel {channel}")
    return None


def _lines(text: bytes) -> Iterator[tuple[int, list[str]]]:
    for at, line in enumerate(text.decode(errors="replace").splitlines()):
        if line.strip():
            yield at, line.split(",")
