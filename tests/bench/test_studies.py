"""Studies: their files, that they go on after a stop, and that each measures what it says."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkad import KoopmanDetector, federate
from fedkad.koopman.subspace import relative_loss
from fedkad_bench.data.dataset import Dataset
from fedkad_bench.data.entity import Entity
from fedkad_bench.evaluation import evaluate_smoothings
from fedkad_bench.methods.koopman import KoopmanMethod
from fedkad_bench.methods.motion import MOTION
from fedkad_bench.studies import (
    STUDIES,
    FinishedStudy,
    Row,
    Study,
    StudyRequest,
    ablations,
    coldstart,
    exchange,
    perform,
    read_study,
    study_file,
    write_study,
)
from fedkad_bench.studies.rounds import optimal_loss, prepare_fleet, statistics_of
from tests.fixtures.fleetfolder import MACHINES, write_data

MADE = {"command": "studies", "commit": "abc", "machine": "here", "date": "today"}
pytestmark = pytest.mark.usefixtures("fresh_cache")

MESSAGE = (4 * 20 + 128) * 24 * 4
"""Bytes of one subspace of the small fleet: 4 channels, 20 samples, 128 observables, rank 24, float32."""


@pytest.fixture(scope="module")
def request_(tmp_path_factory: pytest.TempPathFactory) -> StudyRequest:
    data = write_data(tmp_path_factory.mktemp("data"))
    return StudyRequest(data, quick=True, datasets=("SMD",))


@pytest.fixture(scope="module")
def dataset(request_: StudyRequest) -> Dataset:
    return request_.load("SMD")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("out")


@pytest.fixture(scope="module")
def table(request_: StudyRequest, out: Path) -> Callable[[str], FinishedStudy]:
    """A finished study by its name; each is done once."""
    return lambda name: perform(STUDIES[name], request_, out, provenance=MADE)


def number(row: Row, column: str) -> float:
    value = row[column]
    assert isinstance(value, int | float), (column, value)
    return float(value)


def chosen(rows: tuple[Row, ...], **values: Any) -> list[Row]:
    return [row for row in rows if all(row[name] == value for name, value in values.items())]


def only(rows: tuple[Row, ...], **values: Any) -> Row:
    (row,) = chosen(rows, **values)
    return row


# -- the common shape -----------------------------------------------------------------------------------------


def counting(rows: list[Row]) -> tuple[Study, list[StudyRequest]]:
    calls: list[StudyRequest] = []

    def run(request: StudyRequest) -> list[Row]:
        calls.append(request)
        return rows

    columns = {"dataset": "the dataset", "value": "a number", "word": "a word"}
    return Study("counted", "Counted", columns, run, lambda found: [f"{len(found)} rows"], ("SMD",)), calls


def test_files_have_the_same_rows_and_no_false_digits(tmp_path: Path) -> None:
    study, _ = counting([])
    rows: list[Row] = [{"dataset": "A, and B", "value": 1 / 3}, {"dataset": "C", "value": float("nan"), "word": "ü"}]
    path = write_study(tmp_path, study, rows, ["a note"], MADE, {"seeds": (0, 1)})
    read = read_study(path)
    assert read is not None
    assert read.rows == (
        {"dataset": "A, and B", "value": 0.333333, "word": None},
        {"dataset": "C", "value": None, "word": "ü"},
    )
    assert (read.notes, read.provenance, read.settings) == (("a note",), MADE, {"seeds": [0, 1]})
    with path.with_suffix(".csv").open(newline="") as file:
        lines = list(csv.reader(file))
    assert lines == [["dataset", "value", "word"], ["A, and B", "0.333333", ""], ["C", "", "ü"]]


@pytest.mark.parametrize(
    ("rows", "message"),
    [([{"value": 1.0}], "dataset"), ([{"dataset": "A", "speed": 1.0}], "speed"), ([], "no rows")],
)
def test_rows_that_fit_no_table_are_refused(tmp_path: Path, rows: list[Row], message: str) -> None:
    study, _ = counting([])
    with pytest.raises(ValueError, match=message):
        write_study(tmp_path, study, rows, [], MADE)
    assert not study_file(tmp_path, "counted").exists()


@pytest.mark.parametrize("content", ["", "[]", "{", '{"format": 1}', '{"format": 99, "rows": []}'])
def test_a_damaged_study_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.json").write_text(content)
    assert read_study(tmp_path / "x.json") is None
    assert read_study(tmp_path / "absent.json") is None


def test_a_finished_study_is_kept_until_something_changes(request_: StudyRequest, tmp_path: Path) -> None:
    study, calls = counting([{"dataset": "SMD", "value": 2}])
    first = perform(study, request_, tmp_path, provenance=MADE)
    assert perform(study, request_, tmp_path, provenance={**MADE, "commit": "def"}) == first
    assert len(calls) == 1
    assert first.notes[0] == "1 rows"
    assert first.settings["datasets"]["SMD"]["train"] == 2700
    perform(study, replace(request_, seeds=(5,)), tmp_path, provenance=MADE)
    perform(study, replace(request_, seeds=(5,)), tmp_path, provenance=MADE, redo=True)
    assert [call.seeds for call in calls] == [(0, 1, 2), (5,), (5,)]
    assert calls[0].parts == tmp_path / "studies" / "parts" / "counted"


def test_other_data_is_another_study(request_: StudyRequest, tmp_path: Path) -> None:
    study, calls = counting([{"dataset": "SMD"}])
    perform(study, request_, tmp_path, provenance=MADE)
    longer = write_data(tmp_path / "data", train_rows=950)
    perform(study, replace(request_, data=longer), tmp_path, provenance=MADE)
    assert len(calls) == 2


def test_a_study_of_another_dataset_is_refused(request_: StudyRequest, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="counted is about SMD"):
        perform(counting([])[0], replace(request_, datasets=("MSL",)), tmp_path)


def test_parts_are_made_once_for_the_same_settings(tmp_path: Path) -> None:
    request, made = StudyRequest(parts=tmp_path), []

    def make() -> list[Row]:
        made.append(1)
        return [{"value": float("inf"), "n": len(made)}]

    assert request.part("a", {"levels": (1, 2)}, make) == [{"value": None, "n": 1}]
    assert request.part("a", {"levels": (1, 2)}, make) == [{"value": None, "n": 1}]
    assert request.part("a", {"levels": (1, 3)}, make)[0]["n"] == 2
    (tmp_path / "a.json").write_text("{")
    assert request.part("a", {"levels": (1, 3)}, make)[0]["n"] == 3
    assert StudyRequest().part("a", {"levels": (1, 3)}, make)[0]["n"] == 4


@pytest.mark.parametrize("name", ["heterogeneity", "exchange", "convergence", "coldstart", "ablations"])
def test_every_study_is_a_tidy_table(table: Callable[[str], FinishedStudy], out: Path, name: str) -> None:
    found = table(name)
    assert found.notes
    assert found.provenance == MADE
    for row in found.rows:
        assert list(row) == list(STUDIES[name].columns)
        assert row["dataset"]
    record = json.loads(study_file(out, name).read_text())
    assert record["columns"] == dict(STUDIES[name].columns)


# -- convergence ----------------------------------------------------------------------------------------------


def test_convergence_is_the_history_of_federate(table: Callable[[str], FinishedStudy], dataset: Dataset) -> None:
    rows, fleet = table("convergence").rows, dataset.training()
    runs = {
        "paper preset, ρ = 0.1": federate(fleet, preset="paper", penalty=0.1, rounds=4),
        "paper preset, ρ = 1": federate(fleet, preset="paper", penalty=1.0, rounds=4),
        "default": federate(fleet, rounds=4, scoring=MOTION),
    }
    for series, federation in runs.items():
        for k, record in enumerate(federation.history, start=1):
            row = only(rows, series=series, round=k)
            for name in ("objective", "lagrangian", "consensus_residual"):
                assert number(row, name) == pytest.approx(record[name], rel=2e-6, abs=1e-9)
            assert row["bytes"] == record.bytes_up + record.bytes_down
            assert row["dataset"] == dataset.label
        devices = [detector.memory_.statistics for detector in federation.detectors.values()]
        last = number(only(rows, series=series, round=4), "relative_loss")
        assert last == pytest.approx(relative_loss(devices, federation.subspace), rel=1e-5)
    assert {row["series"] for row in rows} == {"paper", *runs}


def test_convergence_per_entry_is_the_mean_squared_residual(
    table: Callable[[str], FinishedStudy], dataset: Dataset
) -> None:
    federation = federate(dataset.training(), rounds=3, scoring=MOTION)  # warm rounds only: every P_i is Z
    total = 0.0
    for name, series in dataset.training().items():
        detector = federation.detectors[name]
        states = detector.lifting_.transform(detector.scaling_.transform(series[: len(series) - int(0.15 * 900)])).T
        x, y, p = states[:, :-1], states[:, 1:], federation.subspace
        operator = np.linalg.lstsq((p.T @ x).T, (p.T @ y).T, rcond=None)[0].T
        total += float(np.mean((y - p @ operator @ p.T @ x) ** 2))
    row = only(table("convergence").rows, series="default", round=3)
    assert number(row, "objective_per_entry") == pytest.approx(total, rel=1e-4)
    assert number(row, "lagrangian_per_entry") == pytest.approx(total, rel=1e-4)


def test_the_paper_is_there_with_what_it_states_and_no_more(table: Callable[[str], FinishedStudy]) -> None:
    first, last = chosen(table("convergence").rows, series="paper")
    assert (first["consensus_residual"], first["lagrangian_per_entry"], first["objective_per_entry"]) == (
        6.5,
        670,
        15.7,
    )
    assert (last["consensus_residual"], last["lagrangian_per_entry"], last["objective_per_entry"]) == (2.1, None, 6.2)
    assert (last["lagrangian_low"], last["lagrangian_high"], last["relative_loss"]) == (90.0, 160.0, None)


# -- exchange -------------------------------------------------------------------------------------------------


def counted_by_hand(schedule: list[tuple[str, ...]], warm: int) -> tuple[int, int, int]:
    """Messages up, down and at delivery, with one participant a round, who then holds the Z it helped to make."""
    down, holder = 0, None
    for (name,) in schedule[warm:]:
        down, holder = down + (1 if name == holder else 2), name
    return len(schedule), down, 3 - (holder is not None)


def test_exchanged_bytes_are_those_counted_by_hand(table: Callable[[str], FinishedStudy], dataset: Dataset) -> None:
    rows = table("exchange").rows
    cases = {
        "fedkad": (federate(dataset.training(), scoring=MOTION), 3),
        "fedkad-paper": (federate(dataset.training(), preset="paper"), 0),
    }
    for method, (federation, warm) in cases.items():
        row = only(rows, method=method, seed=0)
        counted = counted_by_hand(federation.schedule, warm)
        assert [row[name] for name in ("bytes_up", "bytes_down", "delivery_bytes")] == [n * MESSAGE for n in counted]
        assert row["bytes"] == number(row, "bytes_up") + number(row, "bytes_down")
        assert (row["rounds"], row["numbers"]) == (len(federation.history), MESSAGE // 4)
    for name in exchange.BASELINES:  # one client of three a round, the model down and up
        row = only(rows, method=name)
        assert row["bytes"] == 30 * 1 * 2 * 4 * number(row, "numbers")
        assert row["delivery_bytes"] == 3 * 4 * number(row, "numbers")


def test_exchange_stops_at_the_first_round_that_is_near(
    table: Callable[[str], FinishedStudy], dataset: Dataset
) -> None:
    detectors = prepare_fleet(dataset, seed=0)
    best, devices = optimal_loss(detectors), statistics_of(detectors)
    ratios = [
        relative_loss(devices, federate(dataset.training(), rounds=k, scoring=MOTION).subspace) / best
        for k in range(1, 9)
    ]
    row = only(table("exchange").rows, method="fedkad-near", seed=0)
    first = next(k for k, ratio in enumerate(ratios, start=1) if ratio <= 1.02)
    assert row["rounds"] == first
    assert number(row, "to_optimum") == pytest.approx(ratios[first - 1], rel=1e-5)
    assert row["reached"] == 1
    whole = only(table("exchange").rows, method="fedkad", seed=0)
    assert number(whole, "to_optimum") == pytest.approx(ratios[-1], rel=1e-5)
    assert min(ratios) > 1.0 - 1e-6


def test_exchange_compares_with_the_worst_seed() -> None:
    def row(method: str, sent: int, seed: int | None) -> Row:
        measured: Row = {"bytes": sent, "delivery_bytes": 10, "to_optimum": 1.0, "reached": 1, "rounds": 4}
        return {"dataset": "A", "method": method, "title": method, "seed": seed, **measured}

    ours = [row("fedkad-near", 100, 0), row("fedkad-near", 190, 1), row("fedkad", 400, 0), row("fedkad", 400, 1)]
    worst = exchange.worst(ours)
    assert [(each["method"], each["seed"], each["bytes"]) for each in worst] == [
        ("fedkad-near", None, 190),
        ("fedkad", None, 400),
    ]
    found = exchange.compared([*worst, *ours, row("usad", 3800, None), row("lstm-ae", 1900, None)])
    assert only(tuple(found), method="lstm-ae")["times_near"] == 10.0
    assert number(only(tuple(found), method="usad"), "times_near_delivered") == pytest.approx(3810 / 200)
    (sentence,) = [note for note in exchange.remarks(found) if note.startswith("A: ")]
    assert "lstm-ae, exchanges 9.6 times" in sentence
    assert "(10.0 without:" in sentence
    assert "target of 15 is missed" in sentence


# -- ablations ------------------------------------------------------------------------------------------------

METHOD_OF = {
    "default": "fedkad",
    "subspace-local": "fedkad-local",
    "subspace-centralised": "fedkad-centralised",
    "subspace-untrained": "fedkad-untrained",
    "scoring-paper-subspace-untrained": "fedkad-paper-untrained",
}


@pytest.mark.parametrize(
    "setup",
    [
        ablations.Setup(),
        ablations.Setup(subspace="local"),
        ablations.Setup(subspace="centralised"),
        ablations.Setup(subspace="untrained"),
        ablations.Setup(subspace="untrained", scoring="paper"),
    ],
    ids=str,
)
def test_a_variant_is_the_method_of_the_benchmark(dataset: Dataset, setup: ablations.Setup) -> None:
    method = KoopmanMethod(METHOD_OF[str(setup)])
    fitted = method.fit(dataset.training(), seed=1)
    found = {
        entity.name: evaluate_smoothings(
            fitted.validation(entity.name), fitted.score(entity.name, entity.test), entity.labels, covers=method.covers
        )
        for entity in dataset.entities
    }
    rows = tuple(ablations.measure(ablations.PreparedFleet(dataset), setup, 1))
    assert len(rows) == 4
    for clients, names in (("all", MACHINES), ("untouched", MACHINES[1:])):
        for smoothing in ablations.SMOOTHED:
            row = only(rows, clients=clients, smoothing=smoothing)
            for metric in ("vus_pr", "auc_pr"):
                mean = np.mean([found[name][smoothing][metric] for name in names])
                assert number(row, metric) == pytest.approx(mean, rel=1e-9)
            assert row["entities"] == len(names)
            cost = fitted.cost
            assert row["bytes"] == cost.bytes_up + cost.bytes_down + cost.bytes_delivered


@pytest.mark.parametrize(
    ("factor", "level", "options"),
    [
        ("start", "common", {"start": "common"}),
        ("participation", 1.0, {"participation": 1.0}),
        ("rank", 8, {"rank": 8}),
        ("observables", 0, {"observables": 0}),
        ("window", 10, {"window": 10}),
        ("scoring", "paper", {"scoring": "paper"}),
    ],
)
def test_a_level_reaches_the_federation(dataset: Dataset, factor: str, level: Any, options: dict[str, Any]) -> None:
    setup, fleet = ablations.setup_of(factor, level), ablations.PreparedFleet(dataset)
    ablations.measure(fleet, setup, 0)
    expected = federate(dataset.training(), smoothing=1, **{"scoring": MOTION, **options})
    for entity in dataset.entities:
        ours = fleet.prepared(setup, 0)[entity.name].decision_function(entity.test)
        np.testing.assert_allclose(ours, expected.detectors[entity.name].decision_function(entity.test), rtol=1e-9)


def test_every_factor_has_its_default_among_its_levels() -> None:
    for factor, levels in ablations.FACTORS.items():
        assert sum(ablations.setup_of(factor, level) == ablations.Setup() for level in levels) == 1
    asked = list(ablations.cells(ablations.FACTORS, (0, 1, 2)))
    seeds = {factor: {seed for name, _, seed in asked if name == factor} for factor in ablations.FACTORS}
    repeated = {factor for factor, found in seeds.items() if found == {0, 1, 2}}
    assert repeated == {"start", "participation"}


def test_ablations_go_on_after_a_stop(
    request_: StudyRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: Callable[[str], FinishedStudy]
) -> None:
    expected = table("ablations").rows
    prepared: list[dict[str, Any]] = []

    def prepare(dataset: Dataset, **parameters: Any) -> Any:
        prepared.append(parameters)
        return prepare_fleet(dataset, **parameters)

    monkeypatch.setattr(ablations, "prepare_fleet", prepare)
    with monkeypatch.context() as broken:
        broken.setitem(ablations.SUBSPACES, "local", lambda *given: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            perform(STUDIES["ablations"], request_, tmp_path, provenance=MADE)
    before = len(prepared)
    kept = len(list((tmp_path / "studies" / "parts" / "ablations").glob("*.json")))
    assert read_study(study_file(tmp_path, "ablations")) is None
    assert perform(STUDIES["ablations"], request_, tmp_path, provenance=MADE).rows == expected
    assert kept + 1 <= 4  # four variants, of which at least the failed one was missing
    assert len(prepared) - before <= 4 - kept
    study_file(tmp_path, "ablations").unlink()
    done = len(prepared)
    assert perform(STUDIES["ablations"], request_, tmp_path, provenance=MADE).rows == expected
    assert len(prepared) == done


def test_variants_with_the_same_statistics_share_them(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[int] = []

    def prepare(dataset: Dataset, *, seed: int, **parameters: Any) -> dict[str, KoopmanDetector]:
        prepared.append(seed)
        return {}

    monkeypatch.setattr(ablations, "prepare_fleet", prepare)
    fleet = ablations.PreparedFleet(dataset)
    for setup in (ablations.Setup(), ablations.Setup(start="random"), ablations.Setup(subspace="local")):
        fleet.prepared(setup, 0)
    fleet.prepared(ablations.Setup(rank=8), 0)
    fleet.prepared(ablations.Setup(rank=8), 1)
    assert prepared == [0, 0, 1]


# -- cold start -----------------------------------------------------------------------------------------------


def test_too_few_rows_are_rows_that_say_so(table: Callable[[str], FinishedStudy]) -> None:
    rows = table("coldstart").rows
    assert {row["dataset"] for row in rows} == {"SMD (3 of 28 machines), tried", "simulated pumps (3)"}
    for row in rows:
        assert row["status"] == ("refused" if row["samples"] == 30 else "fitted")
        assert (row["vus_pr"] is None) == (row["status"] == "refused")
        assert (row["reason"] is None) == (row["status"] == "fitted")
    assert "Too few rows" in str(chosen(rows, samples=30)[0]["reason"])
    assert any("were refused, with 30 samples" in note for note in table("coldstart").notes)
    assert {row["way"] for row in chosen(rows, samples=30)} == {"alone", "federated", "admitted"}


@pytest.mark.filterwarnings("ignore::fedkad.FewRowsWarning")
def test_each_way_is_the_one_it_is_called(table: Callable[[str], FinishedStudy], dataset: Dataset) -> None:
    device, fleet = dataset.entities[0], {entity.name: entity.train for entity in dataset.entities[1:]}
    few = device.train[450:650]
    detectors = {
        "alone": KoopmanDetector().fit(few),
        "federated": federate({**fleet, device.name: few}).detectors[device.name],
        "admitted": federate(fleet).admit(device.name, few),
    }
    for way, detector in detectors.items():
        row = only(table("coldstart").rows, device=device.name, way=way, samples=200, begin=450)
        alarms = detector.predict(device.test).astype(bool)
        assert number(row, "threshold") == pytest.approx(detector.threshold_, rel=1e-5)
        assert number(row, "normal_flagged") == pytest.approx(alarms[~device.labels].mean(), abs=1e-6)
        assert row["events_found"] == float(alarms[device.labels].any())
        assert (row["events"], row["fleet"], row["chosen_on"], row["few_rows"]) == (1, 2, 1, 1)


def test_a_newcomer_is_never_in_the_fleet_that_it_comes_to() -> None:
    x, labels = np.zeros((9, 2)), np.arange(9) == 4
    names = ("machine-1-1", "machine-1-2", "machine-1-3", "machine-2-1")
    entities = tuple(Entity(name, x, x, labels) for name in names)
    machines = Dataset("SMD", (*entities, Entity("machine-2-2", x, x, ~labels & labels)), "SMD")
    assert list(coldstart.others(machines, "machine-1-1")) == ["machine-1-2", "machine-1-3"]
    assert list(coldstart.others(machines, "machine-2-1")) == [
        "machine-1-1",
        "machine-1-2",
        "machine-1-3",
        "machine-2-2",
    ]
    in_turn = [entity.name for entity in coldstart.newcomers(machines)]
    assert in_turn == ["machine-1-1", "machine-1-3", "machine-2-1"]  # the last has no event to find


# -- heterogeneity --------------------------------------------------------------------------------------------


def test_skews_are_those_of_the_series(table: Callable[[str], FinishedStudy], dataset: Dataset) -> None:
    rows = table("heterogeneity").rows
    values = {}
    for entity in dataset.entities:
        scaled = np.clip((entity.test - entity.train.mean(axis=0)) / entity.train.std(axis=0), -10.0, 10.0)
        values[entity.name] = float(scaled.mean(axis=0).std())
        row = only(rows, kind="feature", client=entity.name)
        assert number(row, "value") == pytest.approx(values[entity.name], rel=1e-5)
        assert only(rows, kind="label", client=entity.name)["value"] == 8.0
        assert only(rows, kind="quantity", client=entity.name)["value"] == 900
    together = only(rows, kind="feature", client=None)
    assert number(together, "low") == pytest.approx(min(values.values()), rel=1e-5)
    assert number(together, "high") == pytest.approx(max(values.values()), rel=1e-5)
    assert (together["paper_low"], together["paper_high"]) == (0.14, 2.47)
