"""A run of the benchmark: what it leaves, how it goes on after a stop, and that labels reach nothing but evaluation."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest

from fedkad_bench.cells import Cell, read_scores
from fedkad_bench.data.packing import PackedSeries, write_pack
from fedkad_bench.data.sources import fetch, look
from fedkad_bench.evaluation import METRICS, SMOOTHINGS
from fedkad_bench.methods.interface import Method
from fedkad_bench.methods.registry import METHODS, Options
from fedkad_bench.protocols import Choices
from fedkad_bench.results import (
    Results,
    cost_table,
    macro_table,
    read_record,
    read_results,
    write_parquet,
    write_record,
    write_tables,
)
from fedkad_bench.running.runner import RunOutcome, RunPlan, Step, evaluate_again, run
from fedkad_bench.running.workers import perform
from tests.fixtures.fleetfolder import MACHINES, write_data

pytestmark = pytest.mark.usefixtures("fresh_cache")

PLAN = RunPlan(("SMD",), ("fedkad", "pca", "random"), (0, 1))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def finished(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out")
    assert not run(PLAN, data, out, workers=0).failed
    return out


@pytest.fixture
def out(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    for path in finished.rglob("*.*"):
        target = tmp_path / "out" / path.relative_to(finished)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    return tmp_path / "out"


def cells_of(outcome: RunOutcome) -> dict[str, int]:
    return {field.name: len(getattr(outcome, field.name)) for field in dataclasses.fields(outcome)}


def arrays(folder: Path, cell: Cell) -> dict[str, bytes]:
    kept = read_scores(folder, cell)
    assert kept is not None
    return {f"{name}/{part}": getattr(of, part).tobytes() for name, of in kept[0].items() for part in of._fields}


CELLS = [Cell("SMD", method, seed) for method in PLAN.methods for seed in PLAN.seeds]


# -- what a run leaves ----------------------------------------------------------------------------------------


def test_a_run_leaves_scores_and_a_record_for_every_cell(finished: Path) -> None:
    for cell in CELLS:
        record = read_record(cell.record_file(finished))
        assert record is not None
        assert record.clients == MACHINES
        assert record.untouched == (False, True, True)
        assert record.anomalies == (True, True, True)
        assert set(record.metrics) == set(SMOOTHINGS)
        assert set(record.metrics["off"]) == set(METRICS)
        assert record.training.title == METHODS[cell.method].title
        assert set(record.training.provenance) == set(record.evaluated) == {"command", "commit", "machine", "date"}
        assert arrays(finished, cell).keys() == {f"{m}/{part}" for m in MACHINES for part in ("validation", "test")}
    text = CELLS[0].record_file(finished).read_text()
    assert "NaN" not in text
    assert all(len(f"{v:.6g}") >= len(repr(v)) - 2 for v in json.loads(text)["metrics"]["off"]["vus_pr"])


def test_the_anomaly_is_found(finished: Path) -> None:
    results = read_results(finished)
    found, chance = (results.summary("SMD", method, "vus_pr") for method in ("fedkad", "random"))
    assert found is not None
    assert chance is not None
    assert found.mean > 0.3 > chance.mean
    assert (found.seeds, found.clients, found.omitted) == (2, 3, 0)


def test_other_processes_give_the_same(finished: Path, data: Path, tmp_path: Path) -> None:
    plan = dataclasses.replace(PLAN, seeds=(0,))
    steps: list[Step] = []
    outcome = run(plan, data, tmp_path, workers=2, report=steps.append)
    assert len(outcome.trained) == 3
    assert [(step.done, step.of, step.how) for step in steps] == [(k, 3, "trained") for k in (1, 2, 3)]
    assert abs(steps[-1].left) < 1e-6
    for cell in outcome.trained:
        ours, theirs = read_scores(tmp_path, cell), read_scores(finished, cell)
        assert ours is not None
        assert theirs is not None
        for name, of in ours[0].items():
            np.testing.assert_allclose(of.test, theirs[0][name].test, rtol=1e-5, equal_nan=True)


# -- going on -------------------------------------------------------------------------------------------------


def test_a_finished_run_is_kept(out: Path, data: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.*")}
    outcome = run(PLAN, data, out, workers=0)
    assert cells_of(outcome) == {"trained": 0, "evaluated": 0, "kept": 6, "reused": 0, "failed": 0}
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.*")} == before


def test_only_what_is_missing_is_done(out: Path, data: Path) -> None:
    before = CELLS[0].record_file(out).read_text()
    CELLS[0].record_file(out).unlink()
    CELLS[1].record_file(out).unlink()
    CELLS[1].scores_file(out).unlink()
    CELLS[2].record_file(out).write_text(before[:100])
    CELLS[2].scores_file(out).write_bytes(CELLS[2].scores_file(out).read_bytes()[:500])
    outcome = run(PLAN, data, out, workers=0)
    assert outcome.evaluated == (CELLS[0],)
    assert set(outcome.trained) == {CELLS[1], CELLS[2]}
    assert len(outcome.kept) == 3
    assert json.loads(before)["metrics"] == json.loads(CELLS[0].record_file(out).read_text())["metrics"]


@pytest.mark.parametrize("without_record", [False, True])
def test_other_settings_are_refused(out: Path, data: Path, without_record: bool) -> None:
    if without_record:
        for cell in CELLS:
            cell.record_file(out).unlink()
    other = dataclasses.replace(PLAN, options=Options(rounds=3))
    with pytest.raises(ValueError, match=r"SMD/fedkad/0 was made with rounds=8 instead of 3; choose another --out, or"):
        run(other, data, out, workers=0)
    with pytest.raises(ValueError, match="3 clients instead of 2"):
        run(dataclasses.replace(PLAN, clients=2), data, out, workers=0)
    outcome = run(dataclasses.replace(other, seeds=(0,)), data, out, workers=0, redo=True)
    assert len(outcome.trained) == 3
    record = read_record(CELLS[0].record_file(out))
    assert record is not None
    assert record.training.settings["rounds"] == 3


def test_cells_of_another_folder_are_reused_with_their_provenance(out: Path, data: Path, tmp_path: Path) -> None:
    CELLS[0].record_file(out).unlink()  # scores alone
    CELLS[2].scores_file(out).unlink()  # a record alone
    CELLS[4].scores_file(out).write_bytes(b"damaged")
    CELLS[4].record_file(out).unlink()
    outcome = run(PLAN, data, tmp_path / "new", workers=0, reuse=out)
    assert len(outcome.reused) == 5
    assert len(outcome.evaluated) == 4
    assert outcome.trained == (CELLS[4],)
    assert CELLS[4].scores_file(out).read_bytes() == b"damaged"
    for cell in (CELLS[1], CELLS[2]):
        before, after = read_record(cell.record_file(out)), read_record(cell.record_file(tmp_path / "new"))
        assert before is not None
        assert after is not None
        assert before.training == after.training
    other = dataclasses.replace(PLAN, methods=("fedkad",), options=Options(rounds=3))
    assert not run(other, data, tmp_path / "other", workers=0, reuse=out).reused


def test_cells_trained_elsewhere_are_reused(data: Path, tmp_path: Path) -> None:
    """What `python -m fedkad_bench.methods.neural` writes on a machine with a GPU, all seeds side by side."""
    from fedkad_bench.methods.neural.__main__ import train_cells
    from fedkad_bench.methods.neural.fedavg import Envelope
    from fedkad_bench.methods.neural.method import NeuralMethod

    entities = fetch(look("SMD", data).source).entities
    write_pack(tmp_path / "data.pack", {"SMD": {e.name: PackedSeries(e.train, e.test) for e in entities}})
    method = NeuralMethod("deepsvdd", Envelope(rounds=1))
    train_cells(tmp_path / "data.pack", "SMD", method, [0, 1], tmp_path / "gpu")
    plan = RunPlan(("SMD",), ("deepsvdd",), (0, 1), options=Options(rounds=1))
    outcome = run(plan, data, tmp_path / "out", workers=0, reuse=tmp_path / "gpu")
    assert cells_of(outcome) == {"trained": 0, "evaluated": 2, "kept": 0, "reused": 2, "failed": 0}
    record = read_record(Cell("SMD", "deepsvdd", 1).record_file(tmp_path / "out"))
    assert record is not None
    assert record.training.provenance["command"].startswith("python -m fedkad_bench.methods.neural")
    assert record.training.settings["seeds_side_by_side"] == 2


def test_other_choices_are_evaluated_again(out: Path, data: Path) -> None:
    choices = Choices(tuned_threshold="maximum")
    outcome = run(dataclasses.replace(PLAN, choices=choices), data, out, workers=0)
    assert len(outcome.evaluated) == 6
    record = read_record(CELLS[0].record_file(out))
    assert record is not None
    assert record.choices["tuned_threshold"] == "maximum"
    again = evaluate_again(out, data, workers=0, only=lambda cell: cell.method == "pca")
    assert set(again.evaluated) == {Cell("SMD", "pca", 0), Cell("SMD", "pca", 1)}


# -- failures -------------------------------------------------------------------------------------------------


def test_a_failing_cell_does_not_stop_the_others(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def make(dataset: str, options: Options) -> Method:
        asked.append(dataset)
        if len(asked) > 1:  # the first time its settings are asked for
            raise RuntimeError("the sea is rough")
        return usual.make(dataset, options)

    plan, usual = dataclasses.replace(PLAN, seeds=(0,), methods=("norm", "random")), METHODS["norm"]
    entry = dataclasses.replace(usual, make=make)
    monkeypatch.setitem(METHODS, "norm", entry)
    outcome = run(plan, data, tmp_path, workers=0)
    assert outcome.failed == {Cell("SMD", "norm", 0): "RuntimeError: the sea is rough"}
    assert outcome.trained == (Cell("SMD", "random", 0),)
    assert "the sea is rough" in (tmp_path / "failures" / "SMD-norm-0.txt").read_text()
    monkeypatch.undo()
    assert run(plan, data, tmp_path, workers=0).trained == (Cell("SMD", "norm", 0),)
    assert not list((tmp_path / "failures").iterdir())


def die_at_two(task: int) -> tuple[int, str]:
    if task == 2:
        os._exit(7)
    return task, os.environ["OPENBLAS_NUM_THREADS"]


def test_a_dying_process_takes_its_own_task_only() -> None:
    before = dict(os.environ)
    finished = sorted(perform(die_at_two, [1, 2, 3, 4], workers=2), key=lambda f: f.task)
    assert [f.result for f in finished] == [(1, "1"), None, (3, "1"), (4, "1")]
    assert finished[1].failure is not None
    assert "exit status 7" in finished[1].failure.sentence
    assert dict(os.environ) == before


# -- labels ---------------------------------------------------------------------------------------------------


def test_labels_reach_neither_scores_nor_thresholds(finished: Path, tmp_path: Path) -> None:
    permuted = write_data(tmp_path / "data", permuted=True)
    run(PLAN, permuted, tmp_path / "out", workers=0)
    for cell in CELLS:
        assert arrays(finished, cell) == arrays(tmp_path / "out", cell)
        ours, theirs = read_record(cell.record_file(finished)), read_record(cell.record_file(tmp_path / "out"))
        assert ours is not None
        assert theirs is not None
        for smoothing in SMOOTHINGS:
            for metric in ("pot_threshold", "tuned_threshold", "pot_alarm_rate", "tuned_alarm_rate"):
                assert np.array_equal(ours.values(metric, smoothing), theirs.values(metric, smoothing))
        assert cell.method == "random" or not np.array_equal(ours.values("vus_pr"), theirs.values("vus_pr"))


def test_no_method_depends_on_labels(data: Path, tmp_path: Path) -> None:
    plan = RunPlan(("SMD",), tuple(METHODS), (0,), options=Options(quick=True))
    permuted = write_data(tmp_path / "data", permuted=True)
    for source, name in ((data, "out"), (permuted, "permuted")):
        assert not run(plan, source, tmp_path / name, workers=0).failed
    for method in METHODS:
        cell = Cell("SMD", method, 0)
        assert arrays(tmp_path / "out", cell) == arrays(tmp_path / "permuted", cell)


# -- data -----------------------------------------------------------------------------------------------------


def test_a_quick_run_takes_a_few_clients_and_rows(data: Path) -> None:
    facts = look("smd", data, clients=2, train_rows=700)
    assert facts.source.names == (MACHINES[0], MACHINES[2])
    assert facts.label == "SMD (2 machines selected)"
    assert facts.test_rows == (500, 500)
    assert facts.size == 2 * 700 * 4
    assert [entity.train.shape for entity in fetch(facts.source).entities] == [(700, 4), (700, 4)]
    assert RunPlan(options=Options(quick=True)).look("SMD", data).source.train_rows is not None


# -- results --------------------------------------------------------------------------------------------------


def test_means_over_clients_and_seeds(finished: Path) -> None:
    results = read_results(finished)
    assert results.datasets == ("SMD",)
    assert results.methods == PLAN.methods
    assert results.seeds == (0, 1)
    assert results.has_touched("SMD")
    table = results.values("SMD", "random", "vus_pr", "off")
    assert table.shape == (2, 3)
    found = results.summary("SMD", "random", "vus_pr", "off", "untouched")
    assert found is not None
    means = table[:, 1:].mean(axis=1)
    assert (found.mean, found.std) == pytest.approx((means.mean(), means.std(ddof=1)))
    assert results.per_client("SMD", "random", "vus_pr", "off") == pytest.approx(
        dict(zip(MACHINES, table.mean(axis=0), strict=True))
    )
    assert results.summary("SMD", "tranad", "vus_pr") is None
    rows = list(results.rows())
    assert len(rows) == len(CELLS) * 3 * len(SMOOTHINGS) * len(METRICS)


def test_clients_without_a_value_are_left_out_and_counted(finished: Path) -> None:
    records = []
    for record in read_results(finished).of("SMD", "pca"):
        column = np.array([math.nan, 0.25, 0.75])
        records.append(dataclasses.replace(record, metrics={"causal": {"vus_pr": column}}))
    found = Results(records).summary("SMD", "pca", "vus_pr")
    assert found is not None
    assert (found.mean, found.std, found.omitted) == (0.5, 0.0, 1)
    assert math.isnan(Results(records).per_client("SMD", "pca", "vus_pr")[MACHINES[0]])


def test_tables_on_disk(out: Path) -> None:
    results = write_tables(out)
    with (out / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(CELLS) * 3 * len(SMOOTHINGS)
    first = results.records[CELLS[0]].metrics["off"]["vus_pr"][0]
    assert float(rows[0]["vus_pr"]) == first
    assert (rows[0]["client"], rows[0]["untouched"], rows[0]["seed"]) == (MACHINES[0], "False", "0")
    with (out / "summary.csv").open(newline="") as file:
        summaries = list(csv.DictReader(file))
    assert {row["over"] for row in summaries} == {"all", "untouched"}
    page = (out / "tables" / "SMD.md").read_text()
    assert page.startswith("# SMD (3 of 28 machines)")
    assert page.count("| FedKAD ") == 6
    assert "FedKAD" in (out / "tables" / "cost.md").read_text()
    assert macro_table(results, "SMD").splitlines()[0].startswith("| Method")


def test_parquet_holds_the_same(finished: Path, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow.parquet")
    columns = read_results(finished).columns()
    assert write_parquet(tmp_path / "metrics.parquet", columns)
    read = pyarrow.read_table(tmp_path / "metrics.parquet").to_pydict()
    assert read["client"] == columns["client"]
    assert read["vus_pr"] == columns["vus_pr"]


def test_cells_of_different_parts_are_not_averaged(out: Path) -> None:
    record = read_results(out).records[CELLS[4]]
    limited = dataclasses.replace(record.training, settings={**record.training.settings, "train_rows": 2000})
    for other, told in (
        ({"test_rows": (500, 500, 400)}, "test series of different lengths"),
        ({"clients": ("x", "y", "z")}, "3 clients and as many others"),
        ({"training": limited}, "all training rows of a client and at most 2000"),
    ):
        write_record(out, dataclasses.replace(record, **other))
        with pytest.raises(ValueError, match=f"SMD/fedkad/0 and {CELLS[4]} are of different parts of SMD, {told}; run"):
            read_results(out)


def test_seconds_of_seeds_side_by_side_count_once(finished: Path) -> None:
    records = []
    for record in read_results(finished).of("SMD", "pca"):
        settings = {**record.training.settings, "seeds_side_by_side": 2}
        training = dataclasses.replace(record.training, seconds=80.0, settings=settings)
        records.append(dataclasses.replace(record, training=training))
    table = cost_table(Results(records))
    assert "|    40.0 |" in table
    assert "do not compare" in table
