"""Fetching a file over HTTP: resumed where it broke off, checked, and put into place as a whole."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

ATTEMPTS = 5
PAUSE = 1.0
"""Seconds before the second attempt; every further pause is twice as long."""

TIMEOUT = 30.0
PIECE = 1 << 20
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Answers of a server that may be another one the next time."""

Progress = Callable[[int, int | None], None]
"""Called with the bytes that are here and those there will be, if the server says."""


class DownloadError(ValueError):
    """A file that could not be fetched; the message is one sentence and names the remedy."""


class _BrokenOffError(Exception):
    """The transfer ended early; another attempt goes on from there."""


def fetch(
    url: str,
    target: Path,
    *,
    sha256: str | None = None,
    size: int | None = None,
    attempts: int = ATTEMPTS,
    pause: float = PAUSE,
    progress: Progress | None = None,
) -> str:
    """Fetch a file and return its SHA-256 digest.

    What has arrived lies beside the target with the ending ``.part``, and a later attempt, in this call or in another,
    asks for the rest only. A server that cannot do that, or whose file has changed, starts from the first byte again.

    Parameters
    ----------
    url
        An address that begins with ``http://`` or ``https://``.
    target
        Where the file goes once it is complete; an older one is replaced.
    sha256, size
        What the file must have, if known; another file is refused and removed.
    attempts, pause
        How often a transfer that breaks off is tried, and the seconds before the second attempt.
    progress
        Called with the bytes that are here and the bytes there will be.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise DownloadError(f"{url}: the address must begin with http:// or https://; correct it.")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    _transfer_all(url, part, size, attempts, pause, progress)
    digest = digest_of(part)
    if sha256 is not None and digest != sha256:
        _drop(part)
        what = f"the SHA-256 digest is {digest} where {sha256} belongs"
        raise DownloadError(f"{url}: {what}; the file is removed, so try again or name another mirror.")
    os.replace(part, target)
    _drop(part)
    return digest


def digest_of(path: Path) -> str:
    """The SHA-256 digest of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _transfer_all(
    url: str, part: Path, size: int | None, attempts: int, pause: float, progress: Progress | None
) -> None:
    reason = ""
    for attempt in range(attempts):
        if attempt:
            time.sleep(pause * 2.0 ** (attempt - 1))
        try:
            return _transfer(url, part, size, progress)
        except _BrokenOffError as error:
            reason = str(error)
    here = part.stat().st_size if part.exists() else 0
    what = f"the transfer broke off {attempts} times ({reason})"
    raise DownloadError(f"{url}: {what}; try again later, and it goes on from byte {here}.")


def _transfer(url: str, part: Path, size: int | None, progress: Progress | None) -> None:
    """Bring the part up to the whole file, or say why that did not happen."""
    here = part.stat().st_size if part.exists() else 0
    try:
        response = _answer(url, part, here)
        if response is None:
            return
        with response:
            start, total = _span(response)
            if start not in (0, here):
                _drop(part)
                raise _BrokenOffError("the server sent another piece than the one asked for")
            if size is not None and total not in (None, size):
                what = f"the file there has {total} bytes where {size} belong"
                raise DownloadError(f"{url}: {what}; upstream has changed, so name another mirror.")
            _remember(response, part)
            _write(response, part, start, total or size, progress)
    except (ConnectionError, TimeoutError, HTTPException) as error:
        raise _BrokenOffError(str(error) or type(error).__name__) from error


def _answer(url: str, part: Path, here: int) -> HTTPResponse | None:
    """The answer that brings what is missing; None if nothing is."""
    request = Request(url, headers={"User-Agent": "fedkad", "Accept-Encoding": "identity"})
    if here:
        request.add_header("Range", f"bytes={here}-")
        if _mark(part).exists():
            request.add_header("If-Range", _mark(part).read_text())
    try:
        response: HTTPResponse = urlopen(request, timeout=TIMEOUT)
    except HTTPError as error:
        with error:
            if error.code == 416 and error.headers.get("Content-Range", "").endswith(f"/{here}"):
                return None
            raise _refusal(error, url, part) from error
    except URLError as error:
        if isinstance(error.reason, TimeoutError | ConnectionResetError | BrokenPipeError):
            raise _BrokenOffError(str(error.reason)) from error
        what = f"the server cannot be reached ({getattr(error.reason, 'strerror', None) or error.reason})"
        raise DownloadError(f"{url}: {what}; check the connection, or name a mirror.") from error
    return response


def _refusal(error: HTTPError, url: str, part: Path) -> Exception:
    """What an answer without a file amounts to: a reason to try again, or a failure."""
    what = f"the server answered {error.code} {error.reason}"
    if error.code == 416:  # it has less than is here already
        _drop(part)
        return _BrokenOffError(what)
    if error.code in PASSING:
        return _BrokenOffError(what)
    return DownloadError(f"{url}: {what}; check the address, or name a mirror.")


def _span(response: HTTPResponse) -> tuple[int, int | None]:
    """Where the bytes of an answer begin in the file, and how long the file is."""
    found = re.match(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
    if response.status == 206 and found:
        return int(found[1]), int(found[2])
    length = response.headers.get("Content-Length")
    return 0, int(length) if length else None


def _write(response: HTTPResponse, part: Path, start: int, total: int | None, progress: Progress | None) -> None:
    here = start
    with part.open("ab" if start else "wb") as file:
        for piece in _pieces(response):
            file.write(piece)
            here += len(piece)
            if progress is not None:
                progress(here, total)
        file.flush()
        os.fsync(file.fileno())
    if total is not None and here != total:
        raise _BrokenOffError(f"{here} of {total} bytes arrived")


def _pieces(response: HTTPResponse) -> Iterator[bytes]:
    """What arrives; a failure of the connection is told from one of the disk, which no other attempt would mend."""
    try:
        while piece := response.read(PIECE):
            yield piece
    except (OSError, HTTPException) as error:
        raise _BrokenOffError(str(error) or type(error).__name__) from error


def _mark(part: Path) -> Path:
    """The file with the server's name for the version that the part belongs to."""
    return part.with_name(f"{part.name}.etag")


def _remember(response: HTTPResponse, part: Path) -> None:
    tag = response.headers.get("ETag", "")
    if tag and not tag.startswith("W/"):  # a weak one does not promise the same bytes
        _mark(part).write_text(tag)
    else:
        _mark(part).unlink(missing_ok=True)


def _drop(part: Path) -> None:
    part.unlink(missing_ok=True)
    _mark(part).unlink(missing_ok=True)
