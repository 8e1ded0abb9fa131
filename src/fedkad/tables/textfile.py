"""A text file in UTF-8, gzipped or not, opened to be read once from the beginning; what is wrong becomes a sentence."""

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO

from fedkad.tables.errors import TableError, TableSource, reason_in


@contextmanager
def opened_text(path: Path) -> Iterator[tuple[BinaryIO, IO[str]]]:
    """Open the file as it lies on the disk, and its text."""
    source = TableSource(path)
    try:
        with path.open("rb") as raw:
            if path.suffix.lower() != ".gz":
                yield raw, io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")
                return
            packed = gzip.GzipFile(fileobj=raw)
            while packed.read(1 << 20):  # to the checksum, because damaged data may look like a bad table
                pass
            packed.seek(0)
            yield raw, io.TextIOWrapper(packed, encoding="utf-8-sig", newline="")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise source.error(f"the gzip data is damaged ({reason_in(error)})", "fetch or compress it again") from error
    except UnicodeDecodeError as error:
        raise _not_text(path, source) from error
    except OSError as error:
        reason = error.strerror or reason_in(error)
        raise source.error(f"the file cannot be read ({reason})", "check its permissions") from error


def _not_text(path: Path, source: TableSource) -> TableError:
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode()
            except UnicodeDecodeError as error:
                what = f"byte 0x{line[error.start]:02x} is not UTF-8 text"
                return source.error(what, "save the file as UTF-8", where=f"line {number}")
    return source.error("the file is not UTF-8 text", "save the file as UTF-8")
