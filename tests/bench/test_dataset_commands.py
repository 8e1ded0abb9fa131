"""``fedkad datasets`` as a person runs it: what is here, checked, described and fetched."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fedkad_bench.data import upstream
from tests.fixtures.commandline import Done, fails
from tests.fixtures.datasets import write_machine, write_nasa, write_psm, write_pumps


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDKAD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "*")
    return tmp_path / "cache"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A data folder with some of SMD, SMAP and MSL, all of a small PSM, and nothing else."""
    folder = tmp_path / "data"
    for name in ("machine-1-1", "machine-2-1"):
        write_machine(folder, name, rows=40)
    write_nasa(folder)
    write_psm(folder / "PSM", 600, 40)
    return folder


def document(*arguments: object) -> Any:
    done = Done(*arguments, "--json")
    assert done.status == 0, done.err
    return json.loads(done.out)


def test_the_list_says_what_is_here_and_what_the_paper_has(root: Path) -> None:
    done = Done("datasets", "--data", root)
    assert done.status == 0, done.err
    assert "2 / 28" in done.out
    assert "80 / 708,405" in done.out
    assert "SMD: 2 of the paper's 28 machines; missing: machine-1-2," in done.out
    assert str(root / "NASA") in done.out
    listed = {entry["dataset"]: entry for entry in document("datasets", "--data", root)}
    assert list(listed) == ["SMD", "PSM", "SMAP", "MSL"]
    assert listed["SMD"]["here"]["clients"] == 2
    assert listed["PSM"]["label"] == "PSM (40 of 87,841 test rows, 600 of 132,481 training rows)"
    assert listed["MSL"]["paper"]["train"] == 58_317


def test_what_is_not_here_is_listed_with_the_way_to_get_it(tmp_path: Path) -> None:
    done = Done("datasets", "--data", tmp_path)
    assert done.status == 0
    assert "not here: fedkad datasets get SMD" in done.out
    assert [entry["here"] for entry in document("datasets", "--data", tmp_path)] == [None] * 4


def test_without_any_data_folder_the_list_says_how_to_name_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDKAD_DATA", str(tmp_path / "absent"))
    assert "There is no data folder; name one with --data" in Done("datasets").out
    assert "SMD: there is no data folder" in fails("datasets", "check", "SMD")


def test_a_broken_dataset_fails_the_list_and_the_check_in_one_sentence(root: Path) -> None:
    (root / "SMD" / "train" / "machine-1-1.txt").write_text("1,2,3\n1,x,3\n")
    done = Done("datasets", "--data", root)
    assert done.status == 1
    assert "unreadable" in done.out
    assert done.err.count("error: ") == 1
    assert "line 2, channel 1: 'x' is not a number" in done.err
    assert "line 2, channel 1: 'x' is not a number" in fails("datasets", "check", "SMD", "--data", root)


def test_a_check_reads_past_the_cache_and_tells_what_is_missing(root: Path, cache: Path) -> None:
    done = Done("datasets", "check", "smap", "--data", root)
    assert done.status == 0, done.err
    assert "SMAP (2 of 54 channels)" in done.out
    assert "P-2 has 2 label rows" in done.out
    assert not cache.exists()
    assert document("datasets", "check", "SMAP", "--data", root)["untouched"] == ["P-1", "P-2"]


def test_a_check_compares_digests(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = root / "SMD" / "train" / "machine-1-1.txt"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(upstream, "known_files", lambda: {"train/machine-1-1.txt": (digest, 1)})
    assert "1 file has the known SHA-256 digest" in Done("datasets", "check", "SMD", "--data", root).out
    monkeypatch.setattr(upstream, "known_files", lambda: {"train/machine-1-1.txt": ("0" * 64, 1)})
    assert f"{path}: the SHA-256 digest is not the known one" in fails("datasets", "check", "SMD", "--data", root)


def test_a_description_shows_every_entity_and_the_skews(root: Path) -> None:
    done = Done("datasets", "describe", "SMD", "--data", root)
    assert done.status == 0, done.err
    assert "machine-1-1; the other 1 are untouched" in done.out
    assert "0.14 to 2.47" in done.out
    described = document("datasets", "describe", "PSM", "--data", root)
    assert len(described["entities"]) == 24
    assert sum(entity["train"] for entity in described["entities"]) == 600
    assert {row["kind"]: row["paper_high"] for row in described["skews"]} == {
        "feature": None,
        "label": 30.0,
        "quantity": 25.0,
    }


def test_a_stream_without_training_rows_is_described(root: Path) -> None:
    (root / "PSM" / "train.csv").unlink()
    done = Done("datasets", "describe", "PSM", "--data", root)
    assert done.status == 0, done.err
    assert "there is nothing to train on" in done.out
    assert document("datasets", "describe", "PSM", "--data", root)["trainable"] is False


def test_a_folder_of_ones_own_is_checked_and_described(tmp_path: Path) -> None:
    pumps = write_pumps(tmp_path / "pumps")
    assert "pumps" in Done("datasets", "check", pumps).out
    described = document("datasets", "describe", pumps)
    assert described["paper"] is None
    assert [entity["anomalous"] for entity in described["entities"]] == pytest.approx([100 / 3, 100 / 3])
    assert "there is no such folder; give one, or a name" in fails("datasets", "check", "nowhere")


def test_a_damaged_copy_is_a_warning(root: Path, cache: Path) -> None:
    Done("datasets", "describe", "MSL", "--data", root)
    next(cache.rglob("manifest.json")).write_text("{}")
    done = Done("datasets", "describe", "MSL", "--data", root)
    assert done.status == 0
    assert "warning: " in done.err
    assert "the cached copy is damaged" in done.err


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            """Keep quiet."""

    folder = write_psm(tmp_path / "mirror", 100, 40)
    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}"
    running.shutdown()
    thread.join()
    running.server_close()


def test_a_dataset_is_fetched_from_a_mirror_and_its_digests_printed(mirror: str, tmp_path: Path) -> None:
    root = tmp_path / "new" / "data"
    done = Done("datasets", "get", "PSM", "--data", root, "--from", mirror)
    assert done.status == 0, done.err
    assert "3 fetched, 0 here already" in done.out
    assert hashlib.sha256((root / "PSM" / "train.csv").read_bytes()).hexdigest() in done.out
    again = document("datasets", "get", "psm", "--data", root, "--from", mirror)
    assert [file["state"] for file in again] == ["here"] * 3
    assert "PSM (40 of" in Done("datasets", "check", "PSM", "--data", root).out


def test_the_mirror_may_be_named_in_the_environment(
    mirror: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDKAD_MIRROR", mirror)
    monkeypatch.setenv("FEDKAD_DATA", str(tmp_path / "fresh"))
    assert Done("datasets", "get", "PSM").status == 0
    assert (tmp_path / "fresh" / "PSM" / "test.csv").is_file()


def test_what_cannot_be_fetched_is_one_sentence(mirror: str, tmp_path: Path) -> None:
    told = fails("datasets", "get", "MSL", "--data", tmp_path / "data", "--from", mirror)
    assert f"{mirror}/labeled_anomalies.csv: the server answered 404" in told
    assert "choose from SMD, PSM, SMAP, MSL" in fails("datasets", "get", "SWaT", "--data", tmp_path)
