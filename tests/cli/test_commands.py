"""The commands as a person runs them: files in, text, files and exit status out."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fedkad import KoopmanDetector, federate
from fedkad.cli.options import DETECTOR_OPTIONS
from fedkad.detect.scoring import Scoring, SeriesScores, score_series
from fedkad.federation.inprocess import Federation
from fedkad.progress import Report, unheard
from fedkad.simulate import CHANNELS, Fleet, simulate_fleet, write_fleet
from fedkad.tables import read_table
from tests.fixtures.commandline import SMALL, Done, fails


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return simulate_fleet(4, train_rows=1200, test_rows=500, seed=1)


@pytest.fixture(scope="module")
def folder(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fleet")
    write_fleet(fleet, path)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    path = folder.parent / "models" / "pump-04.safetensors"
    done = Done("fit", folder / "train" / "pump-04.csv", "-o", path, *SMALL)
    assert done.status == 0, done.err
    return path


def rewrite(source: Path, target: Path, change: Callable[[list[list[str]]], None]) -> Path:
    """A copy of a table in which some cells are different."""
    rows = list(csv.reader(source.read_text().splitlines()))
    change(rows)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(map(",".join, rows)) + "\n")
    return target


# -- one device -----------------------------------------------------------------------------------------------


def test_fit_writes_the_detector_that_the_library_fits(folder: Path, model: Path) -> None:
    table = read_table(folder / "train" / "pump-04.csv")
    expected = KoopmanDetector(rank=6, observables=16, window=10, sample_period=60.0).fit(table.values)
    loaded = KoopmanDetector.load(model)
    assert loaded.get_params() == expected.get_params()
    assert loaded.threshold_ == expected.threshold_
    assert loaded.model_.setup.channel_names == CHANNELS


def test_detect_reports_the_events_of_the_detector(folder: Path, model: Path, tmp_path: Path) -> None:
    data = folder / "test" / "pump-04.csv"
    table = read_table(data)
    detector = KoopmanDetector.load(model)
    scores_file = tmp_path / "new" / "scores.csv"
    done = Done("detect", model, data, "--scores", scores_file, "--shares", "--offline", "--json")
    assert done.status == 0
    document = json.loads(done.out)
    [device] = document["devices"]
    assert document["events"] == len(device["events"]) > 0
    alarms = detector.predict(table.values)
    scores = detector.decision_function(table.values)
    for event in device["events"]:
        start, end, peak = event["start_row"], event["end_row"], event["peak_row"]
        assert alarms[start] == alarms[end] == 1
        assert event["peak_score"] == scores[start : end + 1].max() == scores[peak]
        assert table.times is not None
        assert event["start"] == f"{table.times[start].astype('datetime64[s]')}Z"
        assert event["end"] == f"{table.times[end].astype('datetime64[s]')}Z"
        assert sum(channel["share"] for channel in event["channels"]) == pytest.approx(1.0)
    covered = sum(alarms[e["start_row"] : e["end_row"] + 1].sum() for e in device["events"])
    assert covered == alarms.sum()
    written = read_csv_columns(scores_file)
    np.testing.assert_array_equal(numbers(written["score"]), scores)
    np.testing.assert_array_equal(numbers(written["offline_score"]), detector.score_series(table.values))
    np.testing.assert_array_equal(numbers(written["is_anomaly"]), np.where(np.isnan(scores), np.nan, alarms))
    assert set(numbers(written["threshold"])) == {detector.threshold_}
    shares = np.stack([numbers(written[f"share of {name}"]) for name in CHANNELS], axis=1)
    np.testing.assert_array_equal(shares, detector.explain(table.values))


def test_detect_scores_each_recording_once(folder: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scored: list[int] = []

    def counting(scoring: Scoring, scaled: NDArray[np.float64], report: Report = unheard) -> SeriesScores:
        scored.append(len(scaled))
        return score_series(scoring, scaled, report)

    for module in ("events", "detector", "scoring"):
        monkeypatch.setattr(f"fedkad.detect.{module}.score_series", counting)
    scores = folder.parent / "scores-once.csv"
    assert Done("detect", models, folder / "test", "--scores", scores, "--shares", "--offline").status == 0
    assert scored == [500] * 4


def read_csv_columns(path: Path) -> dict[str, list[str]]:
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [row[name] for row in rows] for name in rows[0]}


def numbers(cells: list[str]) -> NDArray[np.float64]:
    return np.array([float(cell or "nan") for cell in cells])


def test_detect_prints_a_table_and_fails_on_request(folder: Path, model: Path) -> None:
    data = folder / "test" / "pump-04.csv"
    done = Done("detect", model, data, "--fail-on-anomaly")
    assert done.status == 3
    events = json.loads(Done("detect", model, data, "--json").out)["devices"][0]["events"]
    rows = [line for line in done.out.splitlines() if line.startswith("pump-04")]
    assert len(rows) == len(events)
    for row, event in zip(rows, events, strict=True):
        assert event["start"].replace("T", " ")[:16] in row
        assert event["channels"][0]["channel"] in row
    quiet = Done("detect", model, folder / "train" / "pump-04.csv", "--fail-on-anomaly", "--json")
    assert (quiet.status == 3) == (json.loads(quiet.out)["events"] > 0)


def test_detect_judges_by_a_threshold_of_the_users(folder: Path, model: Path) -> None:
    data = folder / "test" / "pump-04.csv"
    assert json.loads(Done("detect", model, data, "--threshold", 1e9, "--json").out)["events"] == 0
    flagged = json.loads(Done("detect", model, data, "--threshold", 0.5, "--json").out)
    assert flagged["devices"][0]["events"][0]["threshold"] == 0.5
    assert Done("detect", model, data, "--threshold", -1).status == 2


def test_rows_stand_in_for_times_and_gaps_in_time_count(folder: Path, model: Path, tmp_path: Path) -> None:
    source = folder / "test" / "pump-04.csv"
    untimed = rewrite(source, tmp_path / "untimed.csv", drop_first_column)
    [device] = json.loads(Done("detect", model, untimed, "--json").out)["devices"]
    assert [event["start"] for event in device["events"]] == [event["start_row"] for event in device["events"]]

    def cut(rows: list[list[str]]) -> None:
        del rows[41:61]

    gapped = rewrite(source, tmp_path / "gapped.csv", cut)
    done = Done("detect", model, gapped, "--json")
    assert "1 gap in time" in done.err
    [later] = json.loads(done.out)["devices"]
    assert later["scored_rows"] == 480 - 2 * 10
    # Rows are those of the file, in which twenty are missing, and not entries with the gap in between.
    late = [event for event in device["events"] if event["start_row"] > 120]
    assert late
    assert [e["start_row"] for e in later["events"] if e["start_row"] > 100] == [e["start_row"] - 20 for e in late]


def test_repairs_are_told(folder: Path, model: Path, tmp_path: Path) -> None:
    def damage(rows: list[list[str]]) -> None:
        rows[5][2] = ""
        for row in rows[20:30]:
            row[3] = ""

    data = rewrite(folder / "test" / "pump-04.csv", tmp_path / "holes.csv", damage)
    done = Done("detect", model, data)
    assert f"note: {data}: 4 missing cells filled" in done.err
    assert "7 rows remain gaps" in done.err
    assert "13 rows remain gaps" not in done.err
    kept = Done("detect", model, data, "--max-fill", "0")
    assert "filled" not in kept.err
    assert "11 rows remain gaps" in kept.err


def test_stretches_and_parquet(fleet: Fleet, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    values = fleet.train["pump-01"]
    stretches = tmp_path / "pump-01"
    stretches.mkdir()
    for name, part in (("a", values[:700]), ("b", values[700:])):
        pandas.DataFrame(part, columns=list(CHANNELS)).to_parquet(stretches / f"{name}.parquet")
    path = tmp_path / "model.safetensors"
    done = Done("fit", stretches, "-o", path, "--json", *SMALL)
    assert done.status == 0, done.err
    expected = KoopmanDetector(rank=6, observables=16, window=10).fit([values[:700], values[700:]])
    assert json.loads(done.out)["threshold"] == expected.threshold_
    found = json.loads(Done("detect", path, stretches, "--json").out)
    assert found["devices"][0]["scored_rows"] == len(values) - 2 * 10


def test_inspect_tells_what_the_file_holds(model: Path) -> None:
    detector = KoopmanDetector.load(model)
    document = json.loads(Done("inspect", model, "--json").out)
    assert document["parameters"] == {**detector.get_params(), "inputs": []}
    assert document["false_alarms_expected"] == detector.model_.expectation
    assert document["threshold"] == detector.threshold_
    assert document["channels"] == list(CHANNELS)
    assert document["spectral_radius"] == pytest.approx(np.abs(np.linalg.eigvals(detector.operator_)).max())
    assert document["lifting_digest"] == detector.lifting_.digest
    assert document["can_learn"] is True
    assert document["bytes"] == model.stat().st_size
    text = Done("inspect", model).out
    assert f"{detector.threshold_:.3g}" in text
    assert "yes" in text


def test_inspect_of_a_model_without_statistics(model: Path, tmp_path: Path) -> None:
    small = tmp_path / "small.safetensors"
    KoopmanDetector.load(model).save(small, statistics=False)
    assert json.loads(Done("inspect", small, "--json").out)["can_learn"] is False


def test_a_model_to_detect_only_holds_no_training_data(folder: Path, model: Path, tmp_path: Path) -> None:
    small = tmp_path / "small.safetensors"
    options = ("--rank", 6, "--observables", 16, "--window", 10, "--detect-only")
    assert Done("fit", folder / "train" / "pump-04.csv", "-o", small, *options).status == 0
    assert small.stat().st_size < model.stat().st_size / 3
    detector = KoopmanDetector.load(small)
    with pytest.raises(ValueError, match="without its statistics"):
        detector.memory_  # noqa: B018
    assert detector.threshold_ == KoopmanDetector.load(model).threshold_


def test_thresholds_by_hand_and_by_budget(folder: Path, tmp_path: Path) -> None:
    data, path = folder / "train" / "pump-01.csv", tmp_path / "m"
    assert json.loads(Done("fit", data, "-o", path, "--threshold", "7.5", "--json", *SMALL).out)["threshold"] == 7.5
    assert Done("fit", data, "-o", path, "--threshold", "1/week", *SMALL).status == 0
    document = json.loads(Done("inspect", path, "--json").out)
    assert document["parameters"]["sample_period"] == 60.0
    assert "1/week" in document["threshold_set_by"]


def test_every_parameter_of_the_detector_is_an_option() -> None:
    assert list(DETECTOR_OPTIONS) == list(KoopmanDetector().get_params())


def test_few_rows_are_a_note(folder: Path, tmp_path: Path) -> None:
    short = rewrite(
        folder / "train" / "pump-01.csv", tmp_path / "short.csv", lambda rows: rows.__delitem__(slice(201, None))
    )
    done = Done("fit", short, "-o", tmp_path / "m", *SMALL)
    assert done.status == 0
    [line] = [line for line in done.err.splitlines() if line.startswith("note: ")]
    assert str(short) in line
    assert "Only 200 rows" in line


# -- a fleet --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(folder: Path) -> Path:
    path = folder.parent / "fleet-models"
    done = Done("federate", folder / "train", "-o", path, "--rounds", "5", *SMALL)
    assert done.status == 0, done.err
    assert "rounds: 5/5" in done.err
    return path


def test_federate_writes_the_models_of_the_library(folder: Path, models: Path) -> None:
    series = {path.stem: read_table(path).values for path in sorted((folder / "train").iterdir())}
    expected = federate(series, rounds=5, rank=6, observables=16, window=10, sample_period=60.0)
    assert sorted(path.name for path in models.iterdir()) == [
        "fleet.federation",
        "history.csv",
        *(f"{name}.safetensors" for name in series),
    ]
    for name, detector in expected.detectors.items():
        loaded = KoopmanDetector.load(models / f"{name}.safetensors")
        np.testing.assert_array_equal(loaded.subspace_, detector.subspace_)
        assert loaded.threshold_ == detector.threshold_
        assert loaded.model_.setup.channel_names == CHANNELS
    history = read_csv_columns(models / "history.csv")
    assert numbers(history["objective"]).tolist() == [record.objective for record in expected.history]
    assert history["participants"] == [";".join(record.participants) for record in expected.history]


def test_federate_prints_rounds_and_thresholds(folder: Path, tmp_path: Path) -> None:
    arguments = ["federate", folder / "train", "-o", tmp_path / "m", "--preset", "paper", "--rounds", "2", *SMALL]
    done = Done(*arguments)
    assert done.status == 0
    assert len(re.findall(r"^ +\d+ +admm ", done.out, flags=re.MULTILINE)) == 2
    assert KoopmanDetector.load(tmp_path / "m" / "pump-01.safetensors").scoring == "paper"
    document = json.loads(Done(*arguments, "--json", "--scoring", "witnesses").out)
    assert [record["phase"] for record in document["rounds"]] == ["admm", "admm"]
    loaded = KoopmanDetector.load(tmp_path / "m" / "pump-01.safetensors")
    assert loaded.scoring == "witnesses"
    assert document["devices"]["pump-01"]["threshold"] == loaded.threshold_


def test_detect_on_a_fleet_matches_models_by_name(folder: Path, models: Path, tmp_path: Path) -> None:
    scores = tmp_path / "scores.csv"
    done = Done("detect", models, folder / "test", "--json", "--scores", scores)
    document = json.loads(done.out)
    assert [device["device"] for device in document["devices"]] == [f"pump-{k:02d}" for k in range(1, 5)]
    written = read_csv_columns(scores)
    for name in ("pump-01", "pump-04"):
        values = read_table(folder / "test" / f"{name}.csv").values
        expected = KoopmanDetector.load(models / f"{name}.safetensors").decision_function(values)
        own = [score for device, score in zip(written["device"], written["score"], strict=True) if device == name]
        np.testing.assert_array_equal(numbers(own), expected)


def test_devices_and_models_must_pair_up(folder: Path, models: Path, tmp_path: Path) -> None:
    fewer = tmp_path / "fewer"
    fewer.mkdir()
    for path in models.glob("*.safetensors"):
        if path.stem != "pump-03":
            (fewer / path.name).write_bytes(path.read_bytes())
    done = Done("detect", fewer, folder / "test")
    assert done.status == 1
    assert "pump-04" in done.out
    [line] = [line for line in done.err.splitlines() if line.startswith("skipped: ")]
    assert "pump-03.safetensors" in line
    part = tmp_path / "part"
    part.mkdir()
    (part / "pump-01.csv").write_bytes((folder / "test" / "pump-01.csv").read_bytes())
    done = Done("detect", models, part, "--json", "--fail-on-anomaly")
    assert done.status == 1
    document = json.loads(done.out)
    assert [device["device"] for device in document["devices"]] == ["pump-01"]
    assert [entry["device"] for entry in document["skipped"]] == ["pump-02", "pump-03", "pump-04"]
    assert done.err.count("skipped: ") == 3
    assert str(part) in fails("detect", part, folder / "test")


def test_models_of_an_earlier_fleet_are_noted(folder: Path, models: Path, tmp_path: Path) -> None:
    target = tmp_path / "m"
    target.mkdir()
    (target / "old.safetensors").write_bytes((models / "pump-01.safetensors").read_bytes())
    done = Done("federate", folder / "train", "-o", target, "--rounds", "1", *SMALL)
    assert done.status == 0
    assert "old.safetensors" in done.err


# -- bad input ------------------------------------------------------------------------------------------------


def set_cell(row: int, column: int, text: str) -> Callable[[list[list[str]]], None]:
    return lambda rows: rows[row].__setitem__(column, text)


def drop_first_column(rows: list[list[str]]) -> None:
    for row in rows:
        row.pop(0)


def drop_last_column(rows: list[list[str]]) -> None:
    for row in rows:
        row.pop()


def swap_columns(rows: list[list[str]]) -> None:
    for row in rows:
        row[1], row[2] = row[2], row[1]


def text_column(rows: list[list[str]]) -> None:
    for row in rows[1:]:
        row[3] = "high"


def empty_column(rows: list[list[str]]) -> None:
    for row in rows[1:]:
        row[3] = ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (empty_column, "pressure_bar"),
        (set_cell(7, 2, "inf"), "line 8"),
        (lambda rows: rows.__delitem__(slice(15, None)), "Too few rows"),
        (lambda rows: rows.__delitem__(slice(1, None)), "no rows"),
    ],
)
def test_bad_training_data(folder: Path, tmp_path: Path, change: Callable[[list[list[str]]], None], words: str) -> None:
    data = rewrite(folder / "train" / "pump-01.csv", tmp_path / "bad.csv", change)
    sentence = fails("fit", data, "-o", tmp_path / "m", *SMALL)
    assert str(data) in sentence
    assert words in sentence
    assert not (tmp_path / "m").exists()


def add_columns(rows: list[list[str]]) -> None:
    for k, row in enumerate(rows):
        row.insert(1, "operator" if k == 0 else "Ann")
        row.append("room_c" if k == 0 else "21.5")


def test_channels_are_matched_by_name(folder: Path, model: Path, tmp_path: Path) -> None:
    source = folder / "test" / "pump-04.csv"
    events = json.loads(Done("detect", model, source, "--json").out)["devices"][0]["events"]
    for change in (swap_columns, add_columns):
        done = Done("detect", model, rewrite(source, tmp_path / "pump-04.csv", change), "--json")
        assert (done.status, re.sub(r"(?m)^\w+: (\d+)/\1\n", "", done.err)) == (0, "")  # a busy machine tells progress
        assert json.loads(done.out)["devices"][0]["events"] == [{**event, "table": "pump-04"} for event in events]


def test_channels_with_a_comma_in_their_names_are_given_in_quotes(tmp_path: Path) -> None:
    rows = np.sin(np.arange(900)[:, None] / [[7.0, 11.0, 5.0]]) + 0.05 * np.random.default_rng(0).normal(size=(900, 3))
    data = tmp_path / "pump.csv"
    np.savetxt(data, rows, delimiter=",", header='flow,"heat, inner",noise', comments="")
    done = Done("fit", data, "-o", tmp_path / "m", *SMALL, "--channels", 'flow,"heat, inner"', "--json")
    assert done.status == 0
    assert json.loads(done.out)["channels"] == ["flow", "heat, inner"]


def test_a_channel_that_is_not_there_is_named_and_the_others_are_judged(
    folder: Path, model: Path, tmp_path: Path
) -> None:
    data = rewrite(folder / "test" / "pump-04.csv", tmp_path / "other.csv", drop_last_column)
    done = Done("detect", model, data, "--json")
    assert done.status == 0
    assert f"note: {data}: 'motor_temp_c' of the model is not there." in done.err.splitlines()
    assert "gap" not in done.err
    assert json.loads(done.out)["devices"][0]["scored_rows"] == 490
    foreign = tmp_path / "foreign.csv"
    foreign.write_text("time,noise\n1,2\n3,4\n")
    assert "none of the channels speed_rpm, " in fails("detect", model, foreign)


def test_missing_files(folder: Path, model: Path, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere.csv"
    assert str(nowhere) in fails("fit", nowhere, "-o", tmp_path / "m")
    assert str(nowhere) in fails("federate", nowhere, "-o", tmp_path / "m")
    assert str(nowhere) in fails("detect", model, nowhere)
    assert str(nowhere) in fails("detect", nowhere, folder / "test" / "pump-01.csv")
    assert str(nowhere) in fails("inspect", nowhere)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rank", "100000"], "rank=100000"),
        (["--time", "noon"], "noon"),
    ],
)
def test_parameters_that_do_not_fit_the_data(folder: Path, tmp_path: Path, arguments: list[str], words: str) -> None:
    data = folder / "train" / "pump-01.csv"
    sentence = fails("fit", data, "-o", tmp_path / "m", *arguments)
    assert str(data) in sentence
    assert words in sentence


def test_bad_fleets(folder: Path, tmp_path: Path) -> None:
    done = Done("federate", folder / "train", "-o", tmp_path / "m", "--participation", "0.1", *SMALL)
    assert done.status == 2
    assert "0.1 of 4 devices" in done.err


def test_one_bad_device_does_not_stop_the_fleet(folder: Path, tmp_path: Path) -> None:
    bad, models = tmp_path / "fleet", tmp_path / "m"
    rewrite(folder / "train" / "pump-01.csv", bad / "pump-01.csv", swap_columns)
    rewrite(folder / "train" / "pump-02.csv", bad / "pump-02.csv", drop_last_column)
    rewrite(folder / "train" / "pump-03.csv", bad / "pump-03.csv", lambda rows: rows.__delitem__(slice(15, None)))
    (bad / "pump-04.csv").write_bytes(b"\x00\x01\x02")
    for name in ("pump-05", "pump-06"):
        (bad / f"{name}.csv").write_bytes((folder / "train" / "pump-04.csv").read_bytes())
    done = Done("federate", bad, "-o", models, "--rounds", "3", "--json", *SMALL)
    assert done.status == 1
    document = json.loads(done.out)
    assert sorted(document["devices"]) == ["pump-01", "pump-05", "pump-06"]
    reasons = {entry["device"]: entry["reason"] for entry in document["skipped"]}
    assert sorted(reasons) == ["pump-02", "pump-03", "pump-04"]
    assert "(missing motor_temp_c)" in reasons["pump-02"]
    assert "Too few rows" in reasons["pump-03"]
    assert "not a text file" in reasons["pump-04"]
    assert [line.split()[1] for line in done.err.splitlines() if line.startswith("skipped: ")] == [
        f"{name}:" for name in reasons
    ]
    assert Federation.load(models).detectors.keys() == document["devices"].keys()
    # When no device can be trained, the first reason is the error.
    for name in ("pump-01", "pump-02", "pump-05", "pump-06"):
        (bad / f"{name}.csv").unlink()
    assert "Too few rows" in fails("federate", bad, "-o", tmp_path / "none", *SMALL)


def test_a_newcomer_is_admitted(folder: Path, models: Path, fleet: Fleet, tmp_path: Path) -> None:
    home = tmp_path / "models"
    shutil.copytree(models, home)
    new = tmp_path / "pump-9.csv"
    rewrite(folder / "train" / "pump-01.csv", new, lambda rows: rows.__delitem__(slice(1001, None)))
    done = Done("admit", home, new, "--json")
    assert done.status == 0, done.err
    expected = Federation.load(models).admit("pump-9", fleet.train["pump-01"][:1000])
    loaded = Federation.load(home)
    assert list(loaded.detectors) == [f"pump-{k:02d}" for k in range(1, 5)] + ["pump-9"]
    threshold = loaded.detectors["pump-9"].threshold_
    # The numbers in the file are rounded.
    assert threshold == json.loads(done.out)["threshold"] == pytest.approx(expected.threshold_, rel=1e-4)
    assert Done("detect", home / "pump-9.safetensors", folder / "test" / "pump-01.csv").status == 0
    assert "already" in fails("admit", home, new)
    assert "cannot be the name of a file" in fails("admit", home, new, "--name", "../evil")
    assert not (tmp_path / "evil.safetensors").exists()
    assert "fleet.federation" in fails("admit", tmp_path, new)


def test_a_federation_is_saved_and_loaded_as_a_whole(fleet: Fleet, tmp_path: Path) -> None:
    trained = federate(fleet.train, rounds=3, rank=6, observables=16, window=10, scaling="global")
    trained.save(tmp_path / "fleet")
    loaded = Federation.load(tmp_path / "fleet")
    np.testing.assert_array_equal(loaded.subspace, trained.subspace)
    assert loaded.history == trained.history
    assert (loaded.delivery_bytes, loaded.scaling) == (trained.delivery_bytes, trained.scaling)
    for name, detector in trained.detectors.items():
        assert loaded.detectors[name].threshold_ == detector.threshold_
    few = fleet.train["pump-01"][:1000]
    ours, theirs = (each.admit("new", few).decision_function(few) for each in (trained, loaded))
    np.testing.assert_array_equal(ours, theirs)
    (tmp_path / "fleet" / "fleet.federation").write_bytes(b"no")
    with pytest.raises(ValueError, match="cannot be read"):
        Federation.load(tmp_path / "fleet")


def test_damaged_and_foreign_model_files(folder: Path, model: Path, tmp_path: Path) -> None:
    content = model.read_bytes()
    for name, damaged in (
        ("cut", content[: len(content) // 2]),
        ("flipped", content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]),
        ("foreign", b"time,flow\n0,1\n"),
    ):
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(damaged)
        assert str(path) in fails("detect", path, folder / "test" / "pump-04.csv")
        assert str(path) in fails("inspect", path)


def test_places_that_cannot_be_written(folder: Path, model: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    data = folder / "test" / "pump-04.csv"
    assert str(tmp_path) in fails("fit", data, "-o", tmp_path, *SMALL)
    assert str(file) in fails("fit", data, "-o", file / "m", *SMALL)
    assert str(file) in fails("demo", "--devices", "1", "--out", file)
    assert "scores.txt" in fails("detect", model, data, "--scores", tmp_path / "scores.txt")


def test_wrong_usage(model: Path) -> None:
    for arguments in (["fit"], ["detect", model], ["nonsense"], ["fit", "x", "-o", "y", "--rank", "many"]):
        assert Done(*arguments).status == 2
    done = Done("detect", model, "data.csv", "--shares")
    assert done.status == 2
    assert "--scores" in done.err


# -- the script -----------------------------------------------------------------------------------------------


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedkad.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.slow
def test_exit_status_of_the_process(folder: Path, model: Path) -> None:
    version = run("--version")
    assert version.returncode == 0
    assert re.fullmatch(r"fedkad \d+\.\d+\.\d+\n", version.stdout)
    found = run("detect", model, folder / "test" / "pump-04.csv", "--fail-on-anomaly", "--json")
    assert found.returncode == 3
    assert json.loads(found.stdout)["events"] > 0
    missing = run("inspect", "nowhere.safetensors")
    assert missing.returncode == 1
    assert missing.stdout == ""
    assert re.fullmatch(r"error: nowhere\.safetensors: [^\n]+\n", missing.stderr)
    assert run("fit").returncode == 2


# -- the demonstration ----------------------------------------------------------------------------------------


def without_timings(page: str) -> str:
    return re.sub(r'class="timing">[^<]*', "", page)


@pytest.mark.slow
@pytest.mark.slow
def test_demo_is_deterministic_and_honest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = Done("demo", "--devices", "3", "--keep-data")
    page = Path("demo/index.html").read_text()
    again = Done("demo", "--devices", "3")
    assert first.status == again.status == 0
    assert first.out == again.out
    assert without_timings(page) == without_timings(Path("demo/index.html").read_text())
    assert page != without_timings(page)
    for text in (first.out, page):
        assert "Simulated data, no evidence of detection quality." in text
    assert "demo/index.html" in first.out
    assert not re.search(r"https?://", page)
    assert re.findall(r'src="(?!data:)', page) == []
    document = json.loads(Done("demo", "--devices", "3", "--json").out)
    fleet = simulate_fleet(3)
    told = {(line["device"], fault["start_row"]) for line in document["lines"] for fault in line["faults"]}
    assert told == {(fault.device, fault.start) for fault in fleet.faults}
    assert document["faults"] == len(fleet.faults)
    outcomes = [line["outcome"] for line in document["lines"]]
    assert document["false_alarms"] == outcomes.count("false alarm")
    assert document["found"] == document["faults"] - outcomes.count("missed")
    rows = [line for line in first.out.splitlines() if line.startswith("pump-")]
    assert len(rows) == len(outcomes)
    assert page.count('<tr><th scope="row">pump-') == len(outcomes) + 3  # and the threshold of each
    assert sorted(path.name for path in Path("demo/data/test").iterdir()) == [f"pump-{k:02d}.csv" for k in (1, 2, 3)]


@pytest.mark.slow
@pytest.mark.slow
def test_another_seed_is_another_demo(tmp_path: Path) -> None:
    texts = {Done("demo", "--devices", "1", "--seed", seed, "--out", tmp_path).out for seed in (0, 1)}
    assert len(texts) == 2
