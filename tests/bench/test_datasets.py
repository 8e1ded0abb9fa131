"""Datasets in their layouts: whole, partial and broken; their notes, their copies, their cut and their skews."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedkad import federate
from fedkad_bench.data import cache as caching
from fedkad_bench.data.cache import CacheWarning, cache_folder
from fedkad_bench.data.dataset import Dataset, PartialDatasetWarning
from fedkad_bench.data.datasets import KNOWN, PAPER_TABLE, data_folder, load, load_folder, read_nasa, read_smd
from fedkad_bench.data.entity import Entity
from fedkad_bench.data.heterogeneity import PAPER_RANGES, client_skews, skew_table
from fedkad_bench.data.layouts import SMD_MACHINES
from fedkad_bench.data.packing import PackedSeries, read_pack, write_pack
from fedkad_bench.data.partition import chunk_lengths, partition
from tests.fixtures.datasets import write_machine, write_nasa, write_psm, write_pumps

PARTIAL = "ignore::fedkad_bench.data.dataset.PartialDatasetWarning"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDKAD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "data"


def sentence(action: Callable[[], object]) -> str:
    """What is said of a dataset that cannot be read."""
    with pytest.raises(ValueError) as caught:
        action()
    told = str(caught.value)
    assert told.endswith(".")
    assert "\n" not in told
    return told


# -- SMD ------------------------------------------------------------------------------------------------------


def test_plain_and_gzipped_machines_are_the_same(root: Path, tmp_path: Path) -> None:
    write_machine(root, "machine-1-1")
    write_machine(tmp_path / "other", "machine-1-1", ending=".txt.gz")
    plain, zipped = (next(read_smd(folder / "SMD")) for folder in (root, tmp_path / "other"))
    np.testing.assert_array_equal(plain.train, zipped.train)
    np.testing.assert_array_equal(plain.test, zipped.test)
    assert plain.labels.tolist() == zipped.labels.tolist() == [False, True, False, False, False, False]


def test_a_partial_dataset_warns_with_numbers_and_names_what_is_missing(root: Path) -> None:
    for name in SMD_MACHINES[:26]:
        write_machine(root, name)
    with pytest.warns(PartialDatasetWarning, match=r"SMD \(26 of 28 machines\).*machine-3-10, machine-3-11"):
        dataset = load("smd", root)
    assert dataset.label == "SMD (26 of 28 machines)"
    assert any("156 training rows; the paper's table has 708,405." in note for note in dataset.notes)
    assert dataset.sample_period == 60.0
    assert dataset.chosen_on == SMD_MACHINES[:8]
    assert dataset.untouched == tuple(sorted(SMD_MACHINES[8:26]))


def test_a_machine_without_one_of_its_parts_is_left_out_by_name(root: Path) -> None:
    write_machine(root, "machine-1-1")
    write_machine(root, "machine-1-2")
    (root / "SMD" / "test_label" / "machine-1-2.txt").unlink()
    with pytest.warns(PartialDatasetWarning, match=r"machine-1-2 is left out, being absent from .*test_label"):
        dataset = load("SMD", root)
    assert [entity.name for entity in dataset.entities] == ["machine-1-1"]


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("machine-1-*", ["machine-1-1", "machine-1-2"]),
        (1, ["machine-1-1"]),
        (lambda name: name.startswith("machine-2"), ["machine-2-1"]),
    ],
)
def test_entities_are_chosen_by_pattern_number_or_function(root: Path, choice: object, names: list[str]) -> None:
    for name in ("machine-1-1", "machine-1-2", "machine-2-1"):
        write_machine(root, name)
    dataset = load("SMD", root, entities=choice)  # type: ignore[arg-type]
    assert [entity.name for entity in dataset.entities] == names
    assert dataset.label == f"SMD ({len(names)} machines selected)"


def test_choosing_nothing_is_refused(root: Path) -> None:
    write_machine(root, "machine-1-1")
    assert "choose among machine-1-1" in sentence(lambda: load("SMD", root, entities="pump-*"))


def test_nothing_at_all_says_how_to_get_it(root: Path) -> None:
    assert "fedkad datasets get SMD" in sentence(lambda: load("SMD", root))
    assert "choose from SMD, PSM, SMAP, MSL" in sentence(lambda: load("SWaT", root))


@pytest.mark.parametrize(
    ("part", "text", "said"),
    [
        ("train", "1,2,3\n1,2\n", "train/machine-1-1.txt, line 2: the line has 2 values where those before it have 3"),
        ("train", "1,2,3\n1,x,3\n", "train/machine-1-1.txt, line 2, channel 1: 'x' is not a number"),
        ("train", "1,2,3\n1,,3\n", "train/machine-1-1.txt, line 2, channel 1: '' is not a number"),
        ("train", "1,2,3\n1,inf,3\n", "row 2, channel 1: the value is infinite"),
        ("train", "", "train/machine-1-1.txt: the file is empty"),
        ("train", "1,2\n3,4\n", "there are 3 channels, and in"),
        ("test_label", "0\n1\n", "test_label/machine-1-1.txt: there are 2 labels for the 6 rows of"),
        ("test_label", "0\n2\n0\n0\n0\n0\n", "row 2: the label is 2 where 0 or 1 belongs"),
        ("test_label", "0,1\n" * 6, "2 values a line where one label belongs"),
    ],
)
def test_a_malformed_file_is_named_with_the_place(root: Path, part: str, text: str, said: str) -> None:
    write_machine(root, "machine-1-1")
    (root / "SMD" / part / "machine-1-1.txt").write_text(text)
    assert said in sentence(lambda: load("SMD", root))


def test_a_damaged_gzip_file_is_named(root: Path) -> None:
    write_machine(root, "machine-1-1", ending=".txt.gz")
    path = root / "SMD" / "test" / "machine-1-1.txt.gz"
    path.write_bytes(path.read_bytes()[:-12])
    assert f"{path}: the gzip data is damaged" in sentence(lambda: load("SMD", root))


def test_machines_must_have_the_same_channels(root: Path) -> None:
    write_machine(root, "machine-1-1", channels=3)
    write_machine(root, "machine-1-2", channels=4)
    assert "there are 4 channels, and machine-1-1 has 3" in sentence(lambda: load("SMD", root))


# -- SMAP and MSL ---------------------------------------------------------------------------------------------


def test_label_rows_of_a_channel_are_united_and_unlabelled_channels_left_out(root: Path) -> None:
    first, second = read_nasa(write_nasa(root), "SMAP")
    assert np.flatnonzero(first.labels).tolist() == [2, 3, 4, 10]
    assert np.flatnonzero(second.labels).tolist() == [5, 6, 7, 8]
    with pytest.warns(PartialDatasetWarning):
        dataset = load("SMAP", root)
    assert dataset.label == "SMAP (2 of 54 channels)"
    assert "P-2 has 2 label rows and is one entity with all their segments." in dataset.notes
    assert "T-10 has no label row and is left out." in dataset.notes


def test_a_labelled_channel_without_a_file_is_left_out_by_name(root: Path) -> None:
    (write_nasa(root) / "test" / "P-1.npy").unlink()
    with pytest.warns(PartialDatasetWarning, match=r"P-1 is left out, being absent from .*NASA/test"):
        dataset = load("SMAP", root)
    assert [entity.name for entity in dataset.entities] == ["P-2"]


def test_broken_telemetry_is_named(root: Path) -> None:
    folder = write_nasa(root)
    whole = (folder / "train" / "P-1.npy").read_bytes()
    (folder / "train" / "P-1.npy").write_bytes(whole[:200])
    assert "train/P-1.npy: the file cannot be read as an array" in sentence(lambda: load("SMAP", root))
    np.save(folder / "train" / "P-1.npy", np.zeros(7))
    assert "train/P-1.npy: the array has shape (7,)" in sentence(lambda: load("SMAP", root))
    np.save(folder / "train" / "P-1.npy", np.full((5, 25), np.inf))
    assert "train/P-1.npy, row 1, channel 0: the value is not finite" in sentence(lambda: load("SMAP", root))


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (
            'chan_id,spacecraft,anomaly_sequences\nP-1,SMAP,"[[2, 40]]"\n',
            "segment [2, 40] of P-1 is not within the 30",
        ),
        ('chan_id,spacecraft,anomaly_sequences\nP-1,SMAP,"[[4, x]]"\n', "line 2: '[[4, x]]' is not a list of segments"),
        ("chan_id,spacecraft\nP-1,SMAP\n", "there is no column 'anomaly_sequences'"),
    ],
)
def test_broken_labels_of_telemetry_are_named(root: Path, labels: str, said: str) -> None:
    (write_nasa(root) / "labeled_anomalies.csv").write_text(labels)
    assert said in sentence(lambda: load("SMAP", root))


# -- PSM ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.slow
def test_the_stream_of_upstream_becomes_24_clients_with_one_test_series(root: Path) -> None:
    write_psm(root / "PSM", 132_481, 87_841, holes=(5, 132_480))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = load("PSM", root)
    assert dataset.label == "PSM"
    assert dataset.scaling == "global"
    assert dataset.figures[:2] == PAPER_TABLE["PSM"][:2]
    assert dataset.figures[3:] == PAPER_TABLE["PSM"][3:]
    assert len({id(entity.test) for entity in dataset.entities}) == 1
    assert sum(len(entity.train) for entity in dataset.entities) == 132_481
    assert round(np.mean([len(entity.train) for entity in dataset.entities])) == 5_520
    assert "2 training rows have a missing value and stay gaps; nothing is filled." in dataset.notes
    again = load("PSM", root)
    for ours, theirs in zip(dataset.entities, again.entities, strict=True):
        np.testing.assert_array_equal(ours.train, theirs.train)
    assert {row.kind: round(row.high) for row in skew_table(again)}["quantity"] == 28
    assert [entity.name for entity in load("PSM", root, entities=2).entities] == ["PSM-01", "PSM-02"]


def test_the_head_of_the_stream_is_read_and_cannot_be_trained_on(root: Path) -> None:
    folder = write_psm(root / "PSM", 50, 40)
    (folder / "train.csv").unlink()
    lines = (folder / "test.csv").read_text().splitlines(keepends=True)
    (folder / "test_head.csv.gz").write_bytes(gzip.compress("".join(lines[:11]).encode()))
    (folder / "test.csv").unlink()
    with pytest.warns(PartialDatasetWarning, match="10 test rows; the paper's table has 87,841"):
        dataset = load("PSM", root)
    assert dataset.label == "PSM (10 of 87,841 test rows, no training rows)"
    assert not dataset.trainable
    assert dataset.entities[0].test.shape == (10, 25)
    assert len(dataset.entities[0].labels) == 10
    assert "there are no training rows" in sentence(dataset.training)
    assert "there are no training rows" in sentence(lambda: client_skews(dataset))


def test_a_stream_of_other_rows_than_its_labels_is_refused(root: Path) -> None:
    folder = write_psm(root / "PSM", 50, 40)
    labels = (folder / "test_label.csv").read_text()
    (folder / "test_label.csv").write_text(labels + "90.0,0\n")
    assert "there are 41 labels for the 40 rows of" in sentence(lambda: load("PSM", root))
    (folder / "test_label.csv").write_text(labels.replace("50.0,", "49.5,"))
    assert "row 1: the label is of another minute" in sentence(lambda: load("PSM", root))
    (folder / "test_label.csv").unlink()
    assert "lacks test_label.csv; fetch it with" in sentence(lambda: load("PSM", root))


@pytest.mark.parametrize("seed", range(20))
def test_chunks_cover_the_stream_and_differ_in_length_as_in_the_paper(seed: int) -> None:
    lengths = chunk_lengths(132_481, seed=seed)
    assert len(lengths) == 24
    assert sum(lengths) == 132_481
    assert min(lengths) >= 920
    assert 10.0 < max(lengths) / min(lengths) < 60.0


def test_the_cut_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    assert chunk_lengths(1000, 5, seed=3) == chunk_lengths(1000, 5, seed=3) != chunk_lengths(1000, 5, seed=4)
    ratios = [max(lengths) / min(lengths) for lengths in (chunk_lengths(132_481, seed=seed) for seed in range(300))]
    assert 22.0 < np.median(ratios) < 30.0
    assert chunk_lengths(24) == [1] * 24
    x = np.zeros((3, 2))
    assert "3 rows cannot be cut into 24" in sentence(lambda: partition(Entity("PSM", x, x, x[:, 0] > 0)))


# -- any other folder ------------------------------------------------------------------------------------


def test_a_folder_of_tables_is_a_dataset(tmp_path: Path) -> None:
    dataset = load_folder(write_pumps(tmp_path / "pumps"))
    assert (dataset.name, dataset.label, dataset.notes) == ("pumps", "pumps", ())
    assert dataset.sample_period == 10.0
    assert dataset.untouched == ("pump-1", "pump-2")
    pump = dataset.entities[0]
    assert pump.train.tolist() == pump.test.tolist() == [[1.0, 20.0], [2.0, 21.0], [3.0, 22.0]]
    assert pump.labels.tolist() == [False, True, False]


def test_labels_may_lie_beside_and_gaps_in_time_stay_gaps(tmp_path: Path) -> None:
    folder = tmp_path / "pumps"
    for part in ("train", "test", "labels"):
        (folder / part).mkdir(parents=True)
    rows = [0, 10, 20, 90, 100]
    for part in ("train", "test"):
        (folder / part / "a.csv").write_text("time,flow\n" + "".join(f"{t},{t}\n" for t in rows))
    (folder / "labels" / "a.csv").write_text("time,label\n" + "".join(f"{t},{int(t == 90)}\n" for t in rows))
    dataset = load_folder(folder)
    assert np.isnan(dataset.entities[0].test[3]).all()
    assert np.flatnonzero(dataset.entities[0].labels).tolist() == [4]
    assert "1 test rows have a missing value" in " ".join(dataset.notes)


def test_parquet_tables_are_read(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"flow": [1.0, 2.0], "heat": [3.0, 4.0]}
    for part, more in (("train", {}), ("test", {"label": [0, 1]})):
        (tmp_path / "pumps" / part).mkdir(parents=True)
        parquet.write_table(arrow.table(columns | more), tmp_path / "pumps" / part / "a.parquet")
    assert load_folder(tmp_path / "pumps").entities[0].labels.tolist() == [False, True]


def test_an_entity_without_labels_or_training_is_left_out_by_name(tmp_path: Path) -> None:
    folder = write_pumps(tmp_path / "pumps", ("pump-1", "pump-2", "pump-3"))
    (folder / "test" / "pump-2.csv").write_text("time,flow,heat\n0,1,20\n10,2,21\n")
    (folder / "train" / "pump-3.csv").unlink()
    with pytest.warns(PartialDatasetWarning, match=r"pump-2.csv: there is neither.*pump-3 is left out"):
        dataset = load_folder(folder)
    assert dataset.label == "pumps (1 of 3 entities)"


def test_a_folder_without_a_dataset_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "lay out train/NAME.csv" in sentence(lambda: load_folder(tmp_path / "empty"))
    assert "there is no such folder" in sentence(lambda: load_folder(tmp_path / "absent"))


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        ("test/pump-1.csv", "time,heat,flow,label\n0,1,2,0\n", "the channels are heat, flow, and those of"),
        ("test/pump-1.csv", "time,flow,heat,label\n0,1,2,3\n", "the label is 3 where 0 or 1 belongs"),
        ("test/pump-1.csv", "time,flow,heat,label\n0,1,x,0\n", "line 2, channel 'heat'"),
        ("train/pump-1.csv", "time,flow,heat\n0,1\n", "line 2: the row has 2 cells where the header names 3"),
    ],
)
def test_a_malformed_table_is_named_with_the_place(tmp_path: Path, path: str, text: str, said: str) -> None:
    folder = write_pumps(tmp_path / "pumps")
    (folder / path).write_text(text)
    told = sentence(lambda: load_folder(folder))
    assert path in told
    assert said in told


def test_a_dataset_federates(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    entities = tuple(
        Entity(name, rng.standard_normal((900, 2)), rng.standard_normal((50, 2)), np.zeros(50, dtype=bool))
        for name in ("a", "b")
    )
    dataset = Dataset("own", entities, "own")
    fleet = federate(dataset.training(), rounds=1, scaling=dataset.scaling, rank=2, observables=4, window=4)
    assert set(fleet.detectors) == {"a", "b"}


# -- the cache ------------------------------------------------------------------------------------------------


@pytest.fixture
def machine(root: Path) -> Path:
    write_machine(root, "machine-1-1")
    return root


def copies(cache: Path) -> list[Path]:
    return sorted(path.parent for path in cache.rglob("manifest.json"))


@pytest.mark.filterwarnings(PARTIAL)
def test_the_second_load_does_not_read_the_source(machine: Path, cache: Path) -> None:
    first = load("SMD", machine).entities[0]
    for part in ("train", "test", "test_label"):  # the same name, size and time, and other contents
        path = machine / "SMD" / part / "machine-1-1.txt"
        stat = path.stat()
        path.write_bytes(b"?" * stat.st_size)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    second = load("SMD", machine).entities[0]
    for ours, theirs in zip(first[1:], second[1:], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert len(copies(cache)) == 1
    second.train[0, 0] = 7.0  # changes neither the copy nor what others read
    assert load("SMD", machine).entities[0].train[0, 0] == first.train[0, 0]
    sentence(lambda: load("SMD", machine, cache=False))


@pytest.mark.filterwarnings(PARTIAL)
def test_a_changed_source_is_read_again_and_its_old_copy_dropped(machine: Path, cache: Path) -> None:
    load("SMD", machine)
    (before,) = copies(cache)
    write_machine(machine, "machine-1-1", rows=8)
    assert len(load("SMD", machine).entities[0].train) == 8
    (after,) = copies(cache)
    assert after != before


@pytest.mark.filterwarnings(PARTIAL)
@pytest.mark.parametrize("harm", ["flip", "cut", "manifest", "swap"])
def test_a_damaged_copy_is_made_again_with_a_warning(machine: Path, cache: Path, harm: str) -> None:
    first = load("SMD", machine).entities[0]
    (place,) = copies(cache)
    path = place / "train.npy"
    content = bytearray(path.read_bytes())
    if harm == "flip":
        content[-3] ^= 1
        path.write_bytes(content)
    elif harm == "cut":
        path.write_bytes(content[:-40])
    elif harm == "manifest":
        (place / "manifest.json").write_text(json.dumps({"train": 1}))
    else:
        shutil.copy(place / "labels.npy", path)
    with pytest.warns(CacheWarning, match="the cached copy is damaged"):
        again = load("SMD", machine).entities[0]
    np.testing.assert_array_equal(again.train, first.train)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CacheWarning)
        load("SMD", machine)


@pytest.mark.filterwarnings(PARTIAL)
def test_a_cache_that_cannot_be_written_is_no_error(machine: Path, cache: Path) -> None:
    cache.write_text("a file where the folder belongs")
    assert len(load("SMD", machine).entities) == 1


@pytest.mark.filterwarnings(PARTIAL)
def test_nothing_is_written_into_the_data_folder(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(machine.rglob("*"))
    monkeypatch.setenv("FEDKAD_CACHE", str(machine / "SMD" / "cache"))
    with pytest.warns(CacheWarning, match="is inside the data folder"):
        load("SMD", machine)
    assert sorted(machine.rglob("*")) == before


@pytest.mark.filterwarnings(PARTIAL)
def test_another_format_is_another_copy(machine: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load("SMD", machine)
    monkeypatch.setattr(caching, "FORMAT", caching.FORMAT + 1)
    load("SMD", machine)
    assert len(copies(cache)) == 2


def test_the_cache_folder_is_that_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDKAD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/fedkad")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "fedkad"


# -- the real data --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real() -> Path:
    found = data_folder()
    if found is None:
        pytest.skip("the public datasets are not here: name their folder in FEDKAD_DATA")
    return found


@pytest.mark.slow
@pytest.mark.slow
@pytest.mark.filterwarnings(PARTIAL)
@pytest.mark.parametrize(("name", "choice"), [("SMD", "machine-1-*"), ("SMAP", None), ("MSL", None), ("PSM", None)])
def test_the_copy_has_every_bit_of_the_source(real: Path, name: str, choice: str | None) -> None:
    source = load(name, real, entities=choice, cache=False)
    load(name, real, entities=choice)
    copy = load(name, real, entities=choice)
    for ours, theirs in zip(copy.entities, source.entities, strict=True):
        assert ours.name == theirs.name
        for part in ("train", "test", "labels"):
            a, b = getattr(ours, part), getattr(theirs, part)
            assert a.dtype == b.dtype
            assert a.shape == b.shape
            assert a.tobytes() == b.tobytes()


@pytest.mark.slow
@pytest.mark.filterwarnings(PARTIAL)
@pytest.mark.parametrize("name", ["SMAP", "MSL"])
def test_the_skews_are_those_of_the_paper_where_they_can_be(real: Path, name: str) -> None:
    rows = {row.kind: row for row in skew_table(load(name, real))}
    low, high = PAPER_RANGES["feature"][name]
    assert rows["feature"].low == pytest.approx(low, abs=0.002)
    assert rows["feature"].high == pytest.approx(high, abs=0.006)
    assert rows["quantity"].high == pytest.approx(10.0, abs=0.8)
    assert rows["label"].high < 51.0  # the paper says 98


@pytest.mark.slow
def test_the_notes_name_what_is_different_here(real: Path) -> None:
    dataset = load("SMAP", real)
    assert dataset.label == "SMAP"
    assert "138,004 training rows; the paper's table has 135,183." in dataset.notes
    assert any("without P-2" in note for note in dataset.notes)
    assert load("MSL", real).notes == ("T-10 has no label row and is left out.",)
    assert list(KNOWN) == list(PAPER_TABLE)


def test_a_pack_brings_every_bit_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    six_decimals = np.rint(rng.random((300, 4)) * 1e6) / 1e6
    any_numbers = rng.normal(size=(50, 4))
    any_numbers[7, 2] = np.nan
    packed = {"SMD": {"a": PackedSeries(six_decimals, any_numbers), "b": PackedSeries(any_numbers, -six_decimals)}}
    write_pack(tmp_path / "data.pack", packed)
    found = read_pack(tmp_path / "data.pack", "SMD")
    assert list(found) == ["a", "b"]
    for name, series in found.items():
        for part in PackedSeries._fields:
            np.testing.assert_array_equal(getattr(series, part), getattr(packed["SMD"][name], part))
    with pytest.raises(ValueError, match="it does not contain MSL"):
        read_pack(tmp_path / "data.pack", "MSL")
