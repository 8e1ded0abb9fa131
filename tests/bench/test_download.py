"""Fetching files from a real server that breaks off, lies, has no ranges, or is not there."""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import socket
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from fedkad_bench.data import upstream
from fedkad_bench.data.datasets import load
from fedkad_bench.data.download import DownloadError, fetch
from fedkad_bench.data.layouts import SMD_MACHINES
from fedkad_bench.data.upstream import Fetched, extract, get, known_files, remote_files, verify

CONTENT = np.random.default_rng(0).bytes(300_000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Server:
    """A server of files, the ways in which it fails, and what it was asked."""

    files: dict[str, bytes] = field(default_factory=dict)
    breaks: list[int] = field(default_factory=list)
    """Bytes after which the next answers break off."""
    answers: list[int] = field(default_factory=list)
    """Status of the next answers, in place of the file."""
    ranges: bool = True
    tag: str = '"first"'
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    address: str = ""


def handler_of(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            server.asked.append((self.path, wanted))
            if server.answers:
                return self.send_error(server.answers.pop(0))
            content = server.files.get(self.path)
            if content is None:
                return self.send_error(404)
            changed = self.headers.get("If-Range", server.tag) != server.tag
            found = re.fullmatch(r"bytes=(\d+)-", wanted or "") if server.ranges and not changed else None
            start = int(found[1]) if found else 0
            if found and start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                return self.end_headers()
            self.send_response(206 if found else 200)
            if found:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            if server.tag:
                self.send_header("ETag", server.tag)
            self.end_headers()
            end = start + server.breaks.pop(0) if server.breaks else len(content)
            self.wfile.write(content[start:end])
            return None

        def log_message(self, format: str, *args: object) -> None:
            """Keep quiet."""

    return Handler


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    described = Server({"/file": CONTENT})
    running = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(described))
    described.address = f"http://127.0.0.1:{running.server_port}"
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield described
    running.shutdown()
    thread.join()
    running.server_close()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "file"


def left(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.iterdir())


def refused(url: str, target: Path, **options: object) -> str:
    with pytest.raises(DownloadError) as caught:
        fetch(url, target, pause=0.0, **options)  # type: ignore[arg-type]
    told = str(caught.value)
    assert told.startswith(url)
    assert told.endswith(".")
    assert "\n" not in told
    return told


# -- one file -------------------------------------------------------------------------------------------------


def test_a_file_arrives_whole_and_nothing_else_is_left(server: Server, target: Path) -> None:
    steps: list[tuple[int, int | None]] = []
    digest = fetch(
        f"{server.address}/file", target, sha256=DIGEST, size=len(CONTENT), progress=lambda *step: steps.append(step)
    )
    assert digest == DIGEST
    assert target.read_bytes() == CONTENT
    assert left(target) == ["file"]
    assert steps[-1] == (len(CONTENT), len(CONTENT))


def test_a_transfer_that_breaks_off_goes_on_from_there(server: Server, target: Path) -> None:
    server.breaks = [100_000, 50_000]
    assert fetch(f"{server.address}/file", target, sha256=DIGEST, pause=0.0) == DIGEST
    assert [wanted for _, wanted in server.asked] == [None, "bytes=100000-", "bytes=150000-"]


def test_a_later_call_goes_on_where_an_earlier_one_gave_up(server: Server, target: Path) -> None:
    server.breaks = [1000, 1000]
    told = refused(f"{server.address}/file", target, attempts=2)
    assert "broke off 2 times (2000 of 300000 bytes arrived); try again later, and it goes on from byte 2000" in told
    assert left(target) == ["file.part", "file.part.etag"]
    assert fetch(f"{server.address}/file", target) == DIGEST
    assert server.asked[-1][1] == "bytes=2000-"
    assert left(target) == ["file"]


def test_a_file_that_changed_meanwhile_is_fetched_from_the_start(server: Server, target: Path) -> None:
    server.breaks = [1000]
    refused(f"{server.address}/file", target, attempts=1)
    server.files["/file"], server.tag = CONTENT[::-1], '"second"'
    fetch(f"{server.address}/file", target)
    assert target.read_bytes() == CONTENT[::-1]


@pytest.mark.parametrize("tag", ["", 'W/"weak"'])
def test_a_server_without_ranges_starts_again(server: Server, target: Path, tag: str) -> None:
    server.ranges, server.breaks, server.tag = False, [1000], tag
    assert fetch(f"{server.address}/file", target, sha256=DIGEST, pause=0.0) == DIGEST
    assert target.read_bytes() == CONTENT


def test_a_part_that_is_whole_already_is_taken(server: Server, target: Path) -> None:
    target.parent.mkdir()
    target.with_name("file.part").write_bytes(CONTENT)
    assert fetch(f"{server.address}/file", target) == DIGEST
    assert len(server.asked) == 1


def test_a_part_that_is_too_long_is_dropped(server: Server, target: Path) -> None:
    target.parent.mkdir()
    target.with_name("file.part").write_bytes(CONTENT + b"more")
    assert fetch(f"{server.address}/file", target, pause=0.0) == DIGEST
    assert [wanted for _, wanted in server.asked] == ["bytes=300004-", None]


def test_a_wrong_digest_is_refused_and_the_file_removed(server: Server, target: Path) -> None:
    told = refused(f"{server.address}/file", target, sha256="0" * 64)
    assert f"the SHA-256 digest is {DIGEST} where {'0' * 64} belongs; the file is removed" in told
    assert left(target) == []


def test_a_wrong_size_is_refused_before_it_is_fetched(server: Server, target: Path) -> None:
    assert "has 300000 bytes where 7 belong" in refused(f"{server.address}/file", target, size=7)
    assert left(target) == []


def test_a_file_that_is_not_there_is_not_asked_for_twice(server: Server, target: Path) -> None:
    assert "answered 404 Not Found; check the address, or name a mirror" in refused(f"{server.address}/no", target)
    assert len(server.asked) == 1


def test_a_busy_server_is_asked_again(server: Server, target: Path) -> None:
    server.answers = [503, 500, 429]
    assert fetch(f"{server.address}/file", target, pause=0.0) == DIGEST
    server.answers = [503] * 9
    assert "broke off 5 times (the server answered 503" in refused(f"{server.address}/file", target)


def test_pauses_double(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("fedkad_bench.data.download.time.sleep", pauses.append)
    server.answers = [503] * 9
    with pytest.raises(DownloadError):
        fetch(f"{server.address}/file", target)
    assert pauses == [1.0, 2.0, 4.0, 8.0]


def test_being_offline_is_one_sentence(target: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/file"  # bound and not listening: refused
        assert "cannot be reached (Connection refused); check the connection" in refused(address, target)


@pytest.mark.parametrize("address", ["file:///etc/hostname", "ftp://host/file", "host/file"])
def test_other_addresses_than_http_are_refused(address: str, target: Path) -> None:
    assert "must begin with http:// or https://" in refused(address, target)


# -- datasets -------------------------------------------------------------------------------------------------


def telemetry(rows: int, channels: int) -> bytes:
    written = io.BytesIO()
    np.save(written, np.random.default_rng(rows).random((rows, channels)))
    return written.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return written.getvalue()


NASA = {
    "/labeled_anomalies.csv": b'chan_id,spacecraft,anomaly_sequences\nP-1,SMAP,"[[1, 2]]"\nM-1,MSL,"[[0, 1]]"\n',
    "/data.zip": zipped(
        {
            **{f"data/{part}/P-1.npy": telemetry(9, 25) for part in ("train", "test")},
            **{f"data/{part}/M-1.npy": telemetry(9, 55) for part in ("train", "test")},
            "data/2018-05-19_15.00.10/models/P-1.h5": b"a model",
            "__MACOSX/data/train/._P-1.npy": b"litter",
        }
    ),
}


@pytest.mark.filterwarnings("ignore::fedkad_bench.data.dataset.PartialDatasetWarning")
def test_telemetry_is_fetched_taken_out_and_read(server: Server, tmp_path: Path) -> None:
    server.files |= NASA
    done = get("SMAP", tmp_path, base=f"{server.address}/", pause=0.0)
    assert [(file.path.name, file.state, file.verified) for file in done] == [
        ("labeled_anomalies.csv", "fetched", False),
        ("data.zip", "fetched", False),
    ]
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    series = {f"NASA/{part}/{name}.npy" for part in ("train", "test") for name in ("P-1", "M-1")}
    assert written == {"NASA/labeled_anomalies.csv"} | series
    assert load("SMAP", tmp_path, cache=False).figures.train == 9
    asked = len(server.asked)
    (labels,) = get("MSL", tmp_path, base=server.address)
    assert labels.state == "here"
    assert len(server.asked) == asked


@pytest.mark.parametrize("name", ["../train/P-1.npy", "/data/train/P-1.npy", "C:/train/P-1.npy", "data\\..\\..\\x.npy"])
def test_an_archive_that_leads_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    archive = tmp_path / "data.zip"
    archive.write_bytes(zipped({"data/train/M-1.npy": b"x", name: b"x"}))
    with pytest.raises(DownloadError, match="leads out of the folder"):
        extract(archive, tmp_path / "NASA")
    assert not (tmp_path / "NASA").exists()


def test_a_damaged_archive_is_refused_and_removed(server: Server, tmp_path: Path) -> None:
    server.files |= NASA | {"/data.zip": NASA["/data.zip"][:400]}
    with pytest.raises(DownloadError, match="the archive is damaged"):
        get("SMAP", tmp_path, base=server.address, pause=0.0)
    assert not (tmp_path / "NASA" / "data.zip").exists()


def test_an_archive_of_monstrous_files_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "LARGEST", 10)
    (tmp_path / "data.zip").write_bytes(zipped({"data/train/M-1.npy": bytes(11)}))
    with pytest.raises(DownloadError, match="has 11 bytes, too many"):
        extract(tmp_path / "data.zip", tmp_path / "NASA")


@pytest.fixture
def two_machines(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """A mirror of SMD with two machines, the digests of one of which are known."""
    monkeypatch.setattr(upstream, "SMD_MACHINES", ("machine-1-1", "machine-2-1"))
    known = {}
    for part in ("train", "test", "test_label"):
        for machine in ("machine-1-1", "machine-2-1"):
            content = f"{len(server.files)}\n".encode()
            server.files[f"/{part}/{machine}.txt"] = content
            if machine == "machine-1-1":
                known[f"{part}/{machine}.txt"] = (hashlib.sha256(content).hexdigest(), len(content))
    monkeypatch.setattr(upstream, "known_files", lambda: known)
    return server


def test_known_digests_are_checked_and_others_reported(two_machines: Server, tmp_path: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    done = get("smd", tmp_path, base=two_machines.address, progress=lambda *step: steps.append(step), pause=0.0)
    assert [file.verified for file in done] == [True] * 3 + [False] * 3
    assert all(re.fullmatch("[0-9a-f]{64}", file.sha256) for file in done)
    assert steps[-1] == ("SMD files", 6, 6)
    assert verify(tmp_path / "SMD") == (3, [])


def test_what_is_here_is_kept_even_gzipped_and_refused_if_it_is_another(two_machines: Server, tmp_path: Path) -> None:
    get("SMD", tmp_path, base=two_machines.address, pause=0.0)
    path = tmp_path / "SMD" / "train" / "machine-1-1.txt"
    packed = path.with_name(f"{path.name}.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    asked = len(two_machines.asked)
    again = get("SMD", tmp_path, base=two_machines.address, pause=0.0)
    assert again[0] == Fetched(packed, again[0].sha256, "here", verified=True)
    assert len(two_machines.asked) == asked
    packed.write_bytes(gzip.compress(b"other"))
    assert verify(tmp_path / "SMD") == (2, [packed])
    with pytest.raises(DownloadError, match="remove the file, and it is fetched again"):
        get("SMD", tmp_path, base=two_machines.address, pause=0.0)


def test_a_mirror_with_another_file_is_refused(two_machines: Server, tmp_path: Path) -> None:
    two_machines.files["/train/machine-1-1.txt"] = b"?\n"
    with pytest.raises(DownloadError, match="SHA-256 digest"):
        get("SMD", tmp_path, base=two_machines.address, pause=0.0)
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


def test_upstream_has_all_machines_and_the_digests_of_24() -> None:
    wanted = remote_files("SMD")
    assert len(wanted) == 84
    without = {Path(file.path).stem for file in wanted if file.sha256 is None}
    assert without == {"machine-2-6", "machine-3-1", "machine-3-6", "machine-3-9"}
    assert {Path(path).stem for path in known_files()} | without == set(SMD_MACHINES)
    assert all(file.url.startswith("https://") for name in ("SMD", "PSM", "SMAP") for file in remote_files(name))
