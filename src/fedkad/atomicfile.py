"""Files that are either the old ones or the whole new ones, whatever happens in between."""

from __future__ import annotations

import os
import time
from pathlib import Path


def write_atomically(path: Path, *content: bytes | memoryview, mode: int = 0o666) -> None:
    """Write the pieces to a temporary file beside `path`, flush it to the disk, and rename it into place.

    A rename is atomic within one file system only, hence "beside"; flushing the folder makes the rename itself
    survive a power cut. `mode` is the file's from its first byte on, less the umask.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{time.monotonic_ns()}.part")
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.writelines(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _flush_folder(path.parent)


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
