"""Where the public datasets come from, what their files must be, and getting them into a data folder.

SHA-256 digests are known for the 72 files of 24 machines of SMD, computed from a gzipped copy of upstream's text, and
for no other file: of these the digest found is reported, so that two people can compare.
"""

from __future__ import annotations

import hashlib
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from importlib.resources import files
from pathlib import Path, PurePosixPath
from typing import Literal, NamedTuple

from fedkad.atomicfile import write_atomically
from fedkad_bench.data.datasets import KNOWN, known_name
from fedkad_bench.data.download import DownloadError, fetch
from fedkad_bench.data.layouts import NASA_LABELS, NASA_PARTS, SMD_MACHINES, SMD_PARTS, find_nasa
from fedkad_bench.data.numberfile import content_of

SMD_ADDRESS = "https://raw.githubusercontent.com/NetManAIOps/OmniAnomaly/master/ServerMachineDataset"
PSM_ADDRESS = "https://raw.githubusercontent.com/eBay/RANSynCoders/main/data"
NASA_ADDRESS = "https://s3-us-west-2.amazonaws.com/telemanom"
NASA_LABEL_ADDRESS = "https://raw.githubusercontent.com/khundman/telemanom/master"

ARCHIVE = "data.zip"
LARGEST = 1 << 30
"""Bytes of a file in the archive beyond which it is no telemetry."""

MEGABYTE = 1 << 20
LARGE = 16 * MEGABYTE
"""Bytes of a file from which on its own progress is shown."""

Progress = Callable[[str, int, int], None]


class RemoteFile(NamedTuple):
    """A file upstream: its address, its path in the dataset's folder, and what it must be where that is known."""

    url: str
    path: str
    sha256: str | None = None
    size: int | None = None


class Fetched(NamedTuple):
    """What became of a file: fetched or here already, and whether its digest is the known one."""

    path: Path
    sha256: str
    state: Literal["fetched", "here"]
    verified: bool


@cache
def known_files() -> dict[str, tuple[str, int]]:
    """SHA-256 digest and size of the files of SMD by path, as in ``train/machine-1-1.txt``.

    Examples
    --------
    >>> len(known_files()), known_files()["test_label/machine-1-1.txt"][1]
    (72, 56958)
    """
    lines = (files("fedkad_bench.data") / "smd_files.txt").read_text().splitlines()
    rows = (line.split() for line in lines)
    return {path: (digest, int(size)) for digest, size, path in rows}


def remote_files(name: str, base: str | None = None) -> list[RemoteFile]:
    """The files of a dataset; `base` is the address of a mirror that has them under the same names.

    Examples
    --------
    >>> [file.url for file in remote_files("PSM", "http://mirror/psm")]
    ['http://mirror/psm/train.csv', 'http://mirror/psm/test.csv', 'http://mirror/psm/test_label.csv']
    """
    name, base = known_name(name), base.rstrip("/") if base else None
    if name == "SMD":
        paths = [f"{part}/{machine}.txt" for machine in SMD_MACHINES for part in SMD_PARTS]
        unknown: tuple[None, None] = (None, None)
        return [RemoteFile(f"{base or SMD_ADDRESS}/{p}", p, *known_files().get(p, unknown)) for p in paths]
    if name == "PSM":
        return [RemoteFile(f"{base or PSM_ADDRESS}/{p}", p) for p in ("train.csv", "test.csv", "test_label.csv")]
    return [
        RemoteFile(f"{base or NASA_LABEL_ADDRESS}/{NASA_LABELS}", NASA_LABELS),
        RemoteFile(f"{base or NASA_ADDRESS}/{ARCHIVE}", ARCHIVE),
    ]


def get(
    name: str, root: Path, *, base: str | None = None, progress: Progress | None = None, pause: float = 1.0
) -> list[Fetched]:
    """Fetch what a data folder lacks of a dataset, and check what it has; SMAP and MSL come together.

    Parameters
    ----------
    name
        ``SMD``, ``PSM``, ``SMAP`` or ``MSL``.
    root
        The data folder; inside, the dataset gets the folder that :func:`fedkad_bench.data.datasets.load` reads.
    base
        The address of a mirror that has the files under the names they have upstream.
    progress
        Called with what is fetched, how much of it is done, and how much there is.
    pause
        Seconds before a transfer that broke off is tried again, doubled each time.
    """
    name = known_name(name)
    folder = root / KNOWN[name].folder
    wanted = remote_files(name, base)
    done = []
    for count, file in enumerate(wanted, start=1):
        if file.path == ARCHIVE:
            done += _get_archive(file, folder, progress, pause)
        else:
            done.append(_get_file(file, folder, progress, pause))
        if progress is not None:
            progress(f"{name} files", count, len(wanted))
    return done


def verify(folder: Path) -> tuple[int, list[Path]]:
    """How many files of SMD have the known digest, and those that have another.

    A gzipped file is judged by what it holds.
    """
    here = [(path, found) for path in known_files() if (found := _present(folder / path)) is not None]
    wrong = [found for path, found in here if _digest(found) != known_files()[path][0]]
    return len(here) - len(wrong), wrong


def extract(archive: Path, folder: Path) -> list[Path]:
    """Take the series out of telemanom's archive: `train/NAME.npy` and `test/NAME.npy`, nothing else.

    An archive with a path that leads out of the folder is refused as a whole.
    """
    try:
        with zipfile.ZipFile(archive) as content:
            members = list(_series_in(content, archive))
            for part in NASA_PARTS:
                (folder / part).mkdir(parents=True, exist_ok=True)
            for member, path in members:
                write_atomically(folder / path, content.read(member))
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise DownloadError(
            f"{archive}: the archive is damaged ({error}); fetch it again, or name another mirror."
        ) from error
    return [folder / path for _, path in members]


def _series_in(content: zipfile.ZipFile, archive: Path) -> Iterator[tuple[zipfile.ZipInfo, str]]:
    for member in content.infolist():
        path = PurePosixPath(member.filename.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or ":" in path.parts[0]:
            what = f"it holds the path {member.filename!r}, which leads out of the folder"
            raise DownloadError(f"{archive}: {what}; get the archive from another place.")
        found = re.fullmatch(r"(?:data/)?((?:train|test)/[\w.-]+\.npy)", str(path))
        if found is None or member.is_dir():
            continue
        if member.file_size > LARGEST:
            what = f"{member.filename} has {member.file_size} bytes, too many for telemetry"
            raise DownloadError(f"{archive}: {what}; get the archive from another place.")
        yield member, found[1]


def _get_file(file: RemoteFile, folder: Path, progress: Progress | None, pause: float) -> Fetched:
    here = _present(folder / file.path)
    if here is None:
        target = folder / file.path
        tell = _megabytes(target.name, progress)
        digest = fetch(file.url, target, sha256=file.sha256, size=file.size, progress=tell, pause=pause)
        return Fetched(target, digest, "fetched", file.sha256 is not None)
    digest = _digest(here)
    if file.sha256 not in (None, digest):
        what = f"the SHA-256 digest is {digest} where {file.sha256} belongs"
        raise DownloadError(f"{here}: {what}; remove the file, and it is fetched again.")
    return Fetched(here, digest, "here", file.sha256 is not None)


def _get_archive(file: RemoteFile, folder: Path, progress: Progress | None, pause: float) -> list[Fetched]:
    """The archive, unless every labelled channel is here; it is removed once its series are taken out."""
    if not any(find_nasa(folder, spacecraft).missing for spacecraft in ("SMAP", "MSL")):
        return []
    archive = folder / ARCHIVE
    digest = fetch(file.url, archive, progress=_megabytes(ARCHIVE, progress), pause=pause)
    try:
        extract(archive, folder)
    finally:
        archive.unlink()
    return [Fetched(archive, digest, "fetched", verified=False)]


def _present(path: Path) -> Path | None:
    """The file itself or its gzipped form, if one is here."""
    return next((form for form in (path, path.with_name(f"{path.name}.gz")) if form.is_file()), None)


def _digest(path: Path) -> str:
    return hashlib.sha256(content_of(path)).hexdigest()


def _megabytes(what: str, progress: Progress | None) -> Callable[[int, int | None], None] | None:
    """Turn bytes of a large file into megabytes of the progress shown."""
    if progress is None:
        return None

    def move(done: int, total: int | None) -> None:
        if total is not None and total >= LARGE:
            progress(f"{what} (MB)", done // MEGABYTE, total // MEGABYTE)

    return move
