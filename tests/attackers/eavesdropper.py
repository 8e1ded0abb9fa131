"""An eavesdropper on the wire: HTTP requests from recorded bytes, the messages in them, and a search for numbers."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
from flwr.app import Message
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import PushObjectRequest
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

FLEET = "/v1/fleet/"
KNOWN = {path: kind for (method, path), kind in PROTOBUF_REQUEST_TYPES.items() if path.startswith(FLEET)}
"""The messages of Flower's fleet interface, by path."""


@dataclass(frozen=True)
class Request:
    """One HTTP request as it went over the wire; `size` counts all of its bytes."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    size: int

    @property
    def message(self) -> Any:
        """The message in the body, which must be of the kind for its path and contain nothing else."""
        message = KNOWN[self.path].FromString(self.body)
        message.DiscardUnknownFields()
        assert message.SerializeToString(deterministic=True) == self.body, f"{self.path} carries more than its message"
        return message


def requests(stream: bytes) -> Iterator[Request]:
    """The complete requests of one connection, in order."""
    place = 0
    while (end := stream.find(b"\r\n\r\n", place)) >= 0:
        first, *lines = stream[place:end].decode("ascii").split("\r\n")
        method, path, version = first.split(" ")
        assert version == "HTTP/1.1", first
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body, after = _body(stream, end + 4, headers)
        if after > len(stream):
            return
        yield Request(method, path, headers, body, after - place)
        place = after


def _body(stream: bytes, place: int, headers: Mapping[str, str]) -> tuple[bytes, int]:
    if headers.get("transfer-encoding", "") == "chunked":
        return _chunks(stream, place)
    length = int(headers.get("content-length", "0"))
    return stream[place : place + length], place + length


def _chunks(stream: bytes, place: int) -> tuple[bytes, int]:
    body = b""
    while True:
        end = stream.index(b"\r\n", place)
        size = int(stream[place:end].split(b";")[0], 16)
        body += stream[end + 2 : end + 2 + size]
        place = end + 4 + size
        if size == 0:
            return body, place


@dataclass(frozen=True)
class Sent:
    """One reply of the app: its records by name, and the bytes of the requests that carried it."""

    records: Mapping[str, Mapping[str, Any]]
    size: int

    @property
    def header(self) -> Mapping[str, Any]:
        """Our own record, which must be the only one."""
        assert list(self.records) == ["fedkad"]
        return self.records["fedkad"]


def replies(said: Iterable[Request]) -> list[Sent]:
    """The replies of one device, put together from the objects that it pushed; none may be left over."""
    contents: dict[str, bytes] = {}
    sizes: dict[str, int] = {}
    pushed: list[tuple[str, int]] = []
    for request in said:
        message = request.message
        if isinstance(message, PushObjectRequest):
            contents[message.object_id] = message.object_content
            sizes[message.object_id] = request.size
        elif isinstance(message, PushMessagesRequest):
            (only,) = message.messages_list
            assert not only.content.ListFields(), "a message is announced without its content"
            pushed.append((only.metadata.message_id, request.size))
    found, used = [], set()
    for name, size in pushed:
        if name not in contents:  # the server asked for none of its objects: it had an answer already
            continue
        whole = inflate_object_from_contents(name, contents, keep_object_contents=True)
        assert isinstance(whole, Message)
        assert whole.has_content(), whole.error
        parts = set(get_all_nested_objects(whole))
        used |= parts
        records = {key: dict(record) for key, record in whole.content.items()}
        found.append(Sent(records, size + sum(sizes[part] for part in parts)))
    assert used == set(contents), "an object was pushed that belongs to no reply"
    return found


BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{11,}")
HEX = re.compile(rb"[0-9a-fA-F]{16,}")


TIME = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00")


def _checked_time(found: re.Match[bytes]) -> bytes:
    age = datetime.now(UTC) - datetime.fromisoformat(found[0].decode())
    return b"a time" if timedelta(0) < age < timedelta(hours=1) else found[0]


class Haystack:
    """Everything that was sent, and also its content decoded wherever it reads as base64 or as hexadecimal digits.

    A run of such characters is read from each place in a group at which a number could begin. So a search has to
    look for the plain bytes of numbers and text only. The times at which requests were signed are left out, once they
    are known to be just that: their microseconds are like the digits of samples too often.
    """

    def __init__(self, pieces: Iterable[bytes]) -> None:
        said = TIME.sub(_checked_time, b"\n".join(pieces))
        self.whole = b"\n".join((said, *_from_base64(said), *_from_hex(said)))
        self._index = _windows(self.whole)

    def find(self, needles: Mapping[str, NDArray[np.uint64]]) -> list[str]:
        """The names of the collections of eight-byte sequences of which one occurs."""
        return sorted(name for name, wanted in needles.items() if self._has(wanted).any())

    def find_text(self, needles: Mapping[str, Iterable[str]]) -> list[str]:
        """The names of the collections of strings, of at least eight characters, of which one occurs."""
        found = []
        for name, wanted in needles.items():
            forms = [form for text in wanted for form in (text.encode(), text.encode("utf-16-le"))]
            begins = np.frombuffer(b"".join(form[:8] for form in forms), dtype=np.uint64)
            near = [form for form, is_near in zip(forms, self._has(begins), strict=True) if is_near]
            if any(form in self.whole for form in near):
                found.append(name)
        return sorted(found)

    def around(self, needles: Mapping[str, Iterable[str]]) -> list[str]:
        """Where each string occurs, for a person to judge."""
        forms = {(name, form) for name, texts in needles.items() for text in texts for form in (text.encode(),)}
        places = [(name, form, self.whole.find(form)) for name, form in sorted(forms)]
        return [f"{name}: {form!r} in {self.whole[max(k - 60, 0) : k + 60]!r}" for name, form, k in places if k >= 0]

    def _has(self, wanted: NDArray[np.uint64]) -> NDArray[np.bool_]:
        places = np.minimum(np.searchsorted(self._index, wanted), len(self._index) - 1)
        has: NDArray[np.bool_] = self._index[places] == wanted
        return has


def _from_base64(said: bytes) -> Iterator[bytes]:
    for run in BASE64.findall(said):
        for begin in range(4):
            usable = run[begin : begin + (len(run) - begin) // 4 * 4]
            yield base64.b64decode(usable.replace(b"-", b"+").replace(b"_", b"/"))


def _from_hex(said: bytes) -> Iterator[bytes]:
    for run in HEX.findall(said):
        for begin in range(2):
            yield bytes.fromhex(run[begin : begin + (len(run) - begin) // 2 * 2].decode())


def _windows(whole: bytes) -> NDArray[np.uint64]:
    """Every sequence of eight bytes."""
    usable = [whole[k : k + (len(whole) - k) // 8 * 8] for k in range(8)]
    return np.unique(np.concatenate([np.frombuffer(part, dtype=np.uint64) for part in usable]))


DTYPES = {"float64": "f8", "float32": "f4", "float16": "f2"}


def numbers(name: str, values: Any) -> dict[str, NDArray[np.uint64]]:
    """Eight bytes of consecutive numbers in every encoding: one in float64, two in float32, four in float16.

    Those with little in them, such as zeros, are left out: they are everywhere.
    """
    flat = np.ravel(np.asarray(values, dtype=np.float64))
    found = {}
    for words, dtype in DTYPES.items():
        for order, end in {"<": "little", ">": "big"}.items():
            with np.errstate(over="ignore"):
                plain = flat.astype(f"{order}{dtype}")
            together = sliding_window_view(plain, min(8 // plain.itemsize, len(plain)))
            pieces = np.ascontiguousarray(together).view(np.uint8).reshape(len(together), -1)
            distinct = (np.diff(np.sort(pieces, axis=1), axis=1) != 0).sum(axis=1) + 1
            if pieces.shape[1] == 8:
                found[f"{name} in {words}, {end}-endian"] = np.unique(pieces[distinct > 3].copy().view(np.uint64))
    return found


def texts(values: Any) -> set[str]:
    """Numbers as text, with few digits and with many."""
    forms = ("{:.6f}", "{:.8f}", "{!r}", "{:.6e}", "{:.12g}", "{:.18e}")
    written = {form.format(abs(float(value))) for value in np.ravel(np.asarray(values)) for form in forms}
    return {text for text in written if len(text) >= 8 and len(set(text)) > 4}
