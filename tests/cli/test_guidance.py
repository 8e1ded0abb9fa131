"""What the commands say to somebody who has not read the manual: refusals, warnings and notes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from typer.main import get_command

from fedkad import KoopmanDetector
from fedkad.cli.app import app
from fedkad.cli.output import ProgressLines
from fedkad.cli.recordings import load_device
from fedkad.intake import Switches
from fedkad.wording import significant
from tests.fixtures.commandline import SMALL, Done, fails

NAMES = ("flow", "heat")
MINUTES = 60.0


def waves(rows: int = 900, seed: int = 0) -> NDArray[np.float64]:
    noise = np.random.default_rng(seed).normal(size=(rows, 2))
    return np.sin(np.arange(rows)[:, None] / [[7.0, 11.0]]) + 0.05 * noise


def write(
    path: Path,
    values: NDArray[np.float64],
    times: Sequence[object] | None = None,
    name: str = "time",
    names: Sequence[str] = NAMES,
) -> Path:
    """A CSV file; NaN is an empty cell."""
    lines = [",".join(names if times is None else (name, *names))]
    for k, row in enumerate(values.tolist()):
        cells = ["" if cell != cell else repr(cell) for cell in row]
        lines.append(",".join(cells if times is None else [str(times[k]), *cells]))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def seconds(rows: int, step: float = MINUTES) -> list[float]:
    return [step * k for k in range(rows)]


def moments(rows: int, zone: str) -> list[str]:
    stamps = np.datetime64("2025-03-01T00:00:00") + np.arange(rows) * np.timedelta64(60, "s")
    return [f"{stamp}{zone}" for stamp in stamps]


def usage(*arguments: object) -> str:
    """What a command says about wrong usage, without the frame around it."""
    done = Done(*arguments)
    assert done.status == 2, done.out + done.err
    assert done.out == ""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", done.err).split())


def lines(text: str, prefix: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(prefix)]


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("data") / "train.csv", waves(), seconds(900))


@pytest.fixture(scope="module")
def model(train: Path) -> Path:
    path = train.parent.parent / "m.safetensors"
    assert Done("fit", train, "-o", path, *SMALL).status == 0
    return path


# -- outputs --------------------------------------------------------------------------------------------------


def test_fit_never_replaces_anything_but_a_model(train: Path, model: Path, tmp_path: Path) -> None:
    before = train.read_bytes()
    link = tmp_path / "link"
    link.symlink_to(train)
    for output in (train, link):
        assert "this is the input" in fails("fit", train, "-o", output, *SMALL)
    assert train.read_bytes() == before
    notes = tmp_path / "notes"
    notes.write_text("mine")
    assert f"{notes}: the file exists and is not a FedKAD model" in fails("fit", train, "-o", notes, *SMALL)
    assert notes.read_text() == "mine"
    for name in ("new.csv", "new.csv.gz", "NEW.parquet"):
        assert name in fails("fit", train, "-o", tmp_path / name, *SMALL)
    assert "data folder" in fails("fit", train.parent, "-o", train.parent / "m.safetensors", *SMALL)
    again = tmp_path / "again.safetensors"
    again.write_bytes(model.read_bytes())
    assert Done("fit", train, "-o", again, *SMALL).status == 0


def test_outputs_are_refused_before_the_work(
    train: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unwanted(*_: object, **__: object) -> None:
        raise AssertionError("the data was read")

    for where in ("fit.load_device", "federate.load_fleet", "examining.load_device"):
        monkeypatch.setattr(f"fedkad.cli.{where}", unwanted)
    file = tmp_path / "file"
    file.write_text("")
    assert str(file) in fails("fit", train, "-o", file / "new" / "m", *SMALL)
    assert str(file) in fails("federate", train.parent, "-o", file / "models", *SMALL)
    assert str(file) in fails("federate", train.parent, "-o", file, *SMALL)
    assert str(file) in fails("detect", model, train, "--scores", file / "scores.csv")
    assert "scores.txt" in fails("detect", model, train, "--scores", tmp_path / "scores.txt")


def test_scores_and_models_stay_out_of_the_data(train: Path, model: Path) -> None:
    before = train.read_bytes()
    assert "this is the input" in fails("detect", model, train, "--scores", train)
    assert "data folder" in fails("detect", model, train.parent, "--scores", train.parent / "train.csv")
    assert train.read_bytes() == before
    assert "this is the input" in fails("federate", train.parent, "-o", train.parent, *SMALL)
    assert "data folder" in fails("federate", train.parent, "-o", train.parent / "models", *SMALL)


def test_federate_keeps_files_that_it_did_not_write(train: Path, tmp_path: Path) -> None:
    for name in ("history.csv", "train.safetensors"):
        output = tmp_path / name
        output.mkdir()
        (output / name).write_text("mine")
        assert str(output / name) in fails("federate", train.parent, "-o", output, *SMALL)
        assert (output / name).read_text() == "mine"


# -- what could be judged -------------------------------------------------------------------------------------


def test_data_without_a_full_window_is_a_failure(model: Path, tmp_path: Path) -> None:
    short = write(tmp_path / "short.csv", waves(10), seconds(10))
    sentence = fails("detect", model, short)
    assert f"{short}: no row could be scored: a window needs 11 consecutive complete rows" in sentence
    assert "the longest run has 10;" in sentence
    holed = waves(60)
    holed[8::9] = np.nan
    sentence = fails("detect", model, write(tmp_path / "holed.csv", holed, seconds(60)), "--max-fill", "0")
    assert "the longest run has 8 (6 gap rows)" in sentence
    # One row more is enough.
    assert Done("detect", model, write(tmp_path / "enough.csv", waves(11), seconds(11))).status == 0


def test_few_scores_are_a_warning(model: Path, tmp_path: Path) -> None:
    values, times = waves(120), np.array(seconds(120))
    for start in range(15, 120, 15):
        times[start:] += 600.0
    data = write(tmp_path / "gapped.csv", values, times.tolist())
    done = Done("detect", model, data)
    assert done.status == 0
    [line] = lines(done.err, "warning: ")
    assert f"{data}: only 40 of 120 rows could be scored (7 gaps in time)" in line
    assert lines(Done("detect", model, write(tmp_path / "whole.csv", values, seconds(120))).err, "warning: ") == []


def test_another_rate_is_a_warning(model: Path, tmp_path: Path) -> None:
    done = Done("detect", model, write(tmp_path / "fast.csv", waves(100), seconds(100, 10.0)))
    [line] = lines(done.err, "warning: ")
    assert "every 10 s" in line
    assert "every 60 s" in line
    for step in (45.0, 80.0):
        done = Done("detect", model, write(tmp_path / "near.csv", waves(100), seconds(100, step)))
        assert lines(done.err, "warning: ") == []


def test_a_silent_sensor(model: Path, tmp_path: Path) -> None:
    values = waves(100)
    values[:, 1] = np.nan
    data = write(tmp_path / "silent.csv", values, seconds(100))
    done = Done("detect", model, data)
    assert done.status == 0
    assert (
        f"warning: {data}: channel 'heat' has no value in this file, so the device is judged by the other" in done.err
    )
    assert "100 rows; 10 rows could not be judged" in done.out
    assert "remove the channel" in fails("fit", data, "-o", tmp_path / "m", *SMALL)


def test_columns_that_are_missing_are_no_faults_of_sensors(tmp_path: Path) -> None:
    names = [f"s{k}" for k in range(7)]
    values = np.sin(np.arange(900)[:, None] / np.linspace(5.0, 12.0, 7)) + 0.05 * np.random.default_rng(3).normal(
        size=(900, 7)
    )
    path = tmp_path / "m.safetensors"
    assert Done("fit", write(tmp_path / "a.csv", values, seconds(900), names=names), "-o", path, *SMALL).status == 0
    values[:, 2] = np.nan
    done = Done("detect", path, write(tmp_path / "six.csv", values[:, :6], seconds(900), names=names[:6]))
    assert f"note: {tmp_path / 'six.csv'}: 's6' of the model is not there." in done.err.splitlines()
    [silent] = lines(done.err, "warning: ")
    assert "channel 's2' has no value in this file" in silent
    assert "check the sensor" in silent
    few = write(tmp_path / "few.csv", values[:, :2], seconds(900), names=names[:2])
    done = Done("detect", path, few)
    assert f"note: {few}: 's2', 's3', 's4', 's5', 's6' of the model are not there." in done.err.splitlines()
    assert done.err.count("'s4'") == 1
    [warning] = lines(done.err, "warning: ")
    assert "only 2 of 7 channels of the model have values" in warning


def test_a_fleet_goes_on_without_a_device_that_cannot_be_judged(model: Path, tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    for name in ("good", "silent", "short", "empty"):
        (models / f"{name}.safetensors").write_bytes(model.read_bytes())
    silent = waves(100)
    silent[:, 0] = np.nan
    empty = np.full_like(silent, np.nan)
    for name, values in (("good", waves(100)), ("silent", silent), ("short", waves(5)), ("empty", empty)):
        write(tmp_path / "fleet" / f"{name}.csv", values, seconds(len(values)))
    scores = tmp_path / "scores.csv"
    done = Done("detect", models, tmp_path / "fleet", "--json", "--scores", scores)
    assert done.status == 1
    document = json.loads(done.out)
    assert [device["device"] for device in document["devices"]] == ["good", "silent"]
    reasons = {entry["device"]: entry["reason"] for entry in document["skipped"]}
    assert "channels 'flow', 'heat' have no value" in reasons["empty"]
    assert [line for line in lines(done.err, "warning: ") if "empty" in line] == []  # nothing else is said of it
    assert "no row could be scored" in reasons["short"]
    assert [line.split()[1] for line in lines(done.err, "skipped: ")] == ["empty:", "short:"]
    assert len(scores.read_text().splitlines()) == 201


# -- wrong usage ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--window", "0"], "'--window': 0 must be a positive integer"),
        (["--validation", "2"], "'--validation': 2.0 must be between 0 and 1, both excluded"),
        (["--spectral-cap", "0"], "'--spectral-cap': 0.0 must be positive"),
        (["--threshold", "inf"], "'--threshold': inf must be above 0 and finite"),
        (["--threshold", "nan"], "'--threshold': nan must be above 0 and finite"),
        (["--threshold", "0"], "'--threshold': 0 must be"),
        (["--threshold=-1"], "'--threshold': -1 must be"),
        (["--threshold", "1/fortnight"], "minute, hour, day, week, month, year"),
    ],
)
@pytest.mark.parametrize("command", ["fit", "federate"])
def test_wrong_values_of_detector_options(command: str, arguments: list[str], words: str) -> None:
    assert words in usage(command, "nowhere", "-o", "m", *arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rounds", "0"], "--rounds"),
        (["--local-steps", "0"], "--local-steps"),
        (["--penalty", "0"], "'--penalty': 0 must be above 0"),
        (["--penalty", "nan"], "'--penalty': nan must be above 0"),
        (["--step-size", "inf"], "'--step-size': inf must be above 0"),
        (["--participation", "0"], "'--participation': 0 must be above 0 and at most 1"),
        (["--participation", "1.5"], "'--participation': 1.5 must be above 0 and at most 1"),
    ],
)
def test_wrong_values_of_federation_options(arguments: list[str], words: str) -> None:
    assert words in usage("federate", "nowhere", "-o", "m", *arguments)


def test_a_budget_needs_a_rate(tmp_path: Path) -> None:
    data = write(tmp_path / "untimed.csv", waves())
    said = usage("fit", data, "-o", tmp_path / "m", "--threshold", "1/week", *SMALL)
    assert "--threshold 1/week needs --sample-period SECONDS" in said
    arguments = ["fit", data, "-o", tmp_path / "m", "--threshold", "1/week", "--sample-period", "60", *SMALL]
    assert Done(*arguments).status == 0
    untimed = tmp_path / "untimed"
    assert Done("fit", data, "-o", untimed, *SMALL).status == 0
    said = fails("detect", untimed, data, "--budget", "1/week")
    assert "--time" in said
    assert "fit the model with --sample-period SECONDS" in said
    assert Done("detect", tmp_path / "m", data, "--budget", "1/week").status == 0


def test_numbers_that_are_not_finite_have_words() -> None:
    assert [significant(value) for value in (np.inf, -np.inf, np.nan)] == ["inf", "-inf", "nan"]


def test_swapped_arguments_and_folders(train: Path, model: Path, tmp_path: Path) -> None:
    assert "MODEL comes first" in fails("detect", train, model)
    models = tmp_path / "models"
    models.mkdir()
    (models / "train.safetensors").write_bytes(model.read_bytes())
    assert "MODEL comes first" in fails("detect", train.parent, models)
    assert "MODEL comes first" in fails("detect", train.parent, model)
    assert f"{models}: this is a folder" in fails("inspect", models)


# -- what is told ---------------------------------------------------------------------------------------------


def test_fit_tells_how_it_read_the_data(train: Path, tmp_path: Path) -> None:
    output = tmp_path / "m"
    assert "time: column 'time', every 60 s" in Done("fit", train, "-o", output, *SMALL).err.splitlines()
    untimed = write(tmp_path / "untimed.csv", waves())
    assert "time: none; name one with --time" in Done("fit", untimed, "-o", output, *SMALL).err.splitlines()
    for name in ("a", "b", "c"):
        write(tmp_path / "stretches" / f"{name}.csv", waves(400), seconds(400))
    done = Done("fit", tmp_path / "stretches", "-o", output, "--json", *SMALL)
    assert "3 tables, taken as stretches of one device" in done.err.splitlines()
    document = json.loads(done.out)
    assert (document["tables"], document["time"], document["sample_period"]) == (3, "time", 60.0)
    single = write(tmp_path / "single.csv", waves()[:, :1], names=NAMES[:1])
    assert "900 rows of 1 channel\n" in Done("fit", single, "-o", output, *SMALL).out


def test_federate_tells_how_it_read_the_data(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / "fleet" / "pump-1" / f"{name}.csv", waves(400), seconds(400), "ts")
    still = waves(800)
    still[:, 1] = 4.0
    constant = write(tmp_path / "fleet" / "pump-2.csv", still, seconds(800))
    done = Done("federate", tmp_path / "fleet", "-o", tmp_path / "m", "--rounds", "2", *SMALL)
    assert done.status == 0, done.err
    told = done.err.splitlines()
    assert "time: column 'time' or 'ts', every 60 s" in told
    assert "3 tables, taken as stretches of 2 devices" in told
    assert f"note: {constant}: channel 'heat' never changes; the larger a change of it, the higher the score." in told


def test_everything_that_may_be_given_to_a_command_says_what_it_is() -> None:
    def silent(group: Any, path: str) -> Iterator[str]:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from silent(command, f"{path} {name}")
            elif not command.hidden:
                yield from (f"{path} {name} {given.name}" for given in command.params if not given.help)

    assert list(silent(get_command(app), "fedkad")) == []


def test_a_channel_that_is_mostly_missing_is_named_with_what_it_costs(tmp_path: Path) -> None:
    values = waves(1200)
    values[::2, 1] = np.nan
    hollow = write(tmp_path / "hollow.csv", values, seconds(1200))
    command = ("fit", hollow, "-o", tmp_path / "m.safetensors", *SMALL, "--max-fill", "0", "--ignore")
    said = (
        f"note: {hollow}: channel 'heat' has no value in 600 of 1200 rows, and nothing is learned from a row with a "
        "missing value; --ignore heat leaves the channel out."
    )
    assert said in Done(*command[:-1]).err
    assert "has no value" not in Done(*command, "heat").err


@pytest.mark.parametrize("unit", [1.0, 1e3, 1e6, 1e9])
def test_an_epoch_under_another_name_is_noted(tmp_path: Path, unit: float) -> None:
    epoch = [unit * (1_700_000_000 + 60 * k) for k in range(900)]
    data = write(tmp_path / "data.csv", waves(), epoch, "recorded")
    done = Done("fit", data, "-o", tmp_path / "m", *SMALL)
    [line] = lines(done.err, "note: ")
    assert "'recorded'" in line
    assert "--time recorded" in line
    done = Done("fit", data, "-o", tmp_path / "m", "--time", "recorded", *SMALL)
    assert lines(done.err, "note: ") == []
    assert "time: column 'recorded', every 60 s" in done.err


@pytest.mark.parametrize("column", [np.arange(900.0), 1.7e9 - np.arange(900.0), np.full(900, 1.7e9)])
def test_other_columns_are_no_epoch(tmp_path: Path, column: NDArray[np.float64]) -> None:
    data = write(tmp_path / "data.csv", waves(), column.tolist(), "counter")
    assert "--time counter" not in Done("fit", data, "-o", tmp_path / "m", *SMALL).err


@pytest.mark.parametrize(
    ("zone", "header", "first", "mark"),
    [
        ("+01:00", "Start (UTC+01:00)", "2025-03-01T00:00:00+01:00", r"\+01:00"),
        ("Z", "Start (UTC)", "2025-03-01T00:00:00Z", "Z"),
        ("", "Start  ", "2025-03-01T00:00:00", ""),
    ],
)
def test_zoned_times_are_marked(model: Path, tmp_path: Path, zone: str, header: str, first: str, mark: str) -> None:
    values = waves(200, seed=1)
    values[100:130] = 5.0
    data, scores = write(tmp_path / "data.csv", values, moments(200, zone)), tmp_path / "scores.csv"
    done = Done("detect", model, data, "--scores", scores)
    assert header in done.out
    assert scores.read_text().splitlines()[1].split(",")[3] == first
    [device] = json.loads(Done("detect", model, data, "--json").out)["devices"]
    assert device["events"]
    for event in device["events"]:
        for name in ("start", "end", "peak"):
            assert re.fullmatch(rf"2025-0\d-\d\dT\d\d:\d\d:00{mark}", event[name])


def test_rows_and_mixed_places_say_what_they_are(model: Path, tmp_path: Path) -> None:
    values = waves(200, seed=1)
    values[100:130] = 5.0
    write(tmp_path / "device" / "a.csv", values)
    assert "Start (row, from 0)" in Done("detect", model, tmp_path / "device" / "a.csv").out
    write(tmp_path / "device" / "b.csv", values, moments(200, "Z"))
    out = Done("detect", model, tmp_path / "device").out
    assert "Start  " in out
    assert "(row, from 0)" in out
    assert re.search(r"2025-03-01 0\d:\d\d \(UTC\)", out)


def test_uneven_steps_are_said_and_can_be_resampled(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = write(tmp_path / "uneven.csv", waves(), np.cumsum(rng.uniform(30.0, 90.0, 900)).tolist())
    done = Done("fit", data, "-o", tmp_path / "m", *SMALL)
    [line] = [line for line in lines(done.err, "note: ") if "apart" in line]
    assert "--resample PERIOD, such as 1m" in line
    done = Done("fit", data, "-o", tmp_path / "m", "--resample", "1m", *SMALL)
    assert "apart" not in done.err
    assert "every 60 s" in done.err
    assert "one every 60 s: the mean of each" in done.err
    assert "must be a duration such as" in usage("fit", data, "-o", tmp_path / "m", "--resample", "often")


def test_weekdays_are_gaps_that_resampling_does_not_help(tmp_path: Path) -> None:
    days = [day for day in np.datetime64("2020-01-01") + np.arange(1400) if np.is_busday(day)]
    path = write(tmp_path / "shares.csv", waves(len(days)), days, name="trading day")
    done = Done("fit", path, "-o", tmp_path / "m", *SMALL)
    assert f"note: {path}: there is a gap in time after every 5 rows on average, " in done.err
    assert "; --ignore 'trading day' takes the rows as if they followed one another, as over weekends." in done.err
    assert "--resample" not in done.err
    assert Done("fit", path, "-o", tmp_path / "m", *SMALL, "--ignore", "trading day").status == 0
    done = Done("detect", tmp_path / "m", path, "--ignore", "trading day")
    assert "10 rows could not be judged" in done.out


def test_rows_that_are_lost_now_and_then_are_told_what_bridges_them(tmp_path: Path) -> None:
    there = np.random.default_rng(0).random(4000) > 0.1
    times = [60.0 * k for k in range(4000) if there[k]]
    path = write(tmp_path / "lossy.csv", waves(4000)[there], times)
    done = Done("fit", path, "-o", tmp_path / "m", *SMALL)
    assert "; --resample to a longer period, such as 3m, bridges most of them." in done.err
    assert "--ignore" not in done.err
    again = Done("fit", path, "-o", tmp_path / "m", *SMALL, "--resample", "3m")
    assert again.status == 0
    assert "a gap in time after" not in again.err


def test_a_channel_of_the_model_can_be_left_out_of_the_judgement(train: Path, model: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "today.csv", waves(), seconds(900))
    path.write_text(re.sub(r",[^,]*$", ",12 V", path.read_text(), flags=re.MULTILINE).replace(",12 V", ",heat", 1))
    assert "expected a number, found '12 V'" in fails("detect", model, path)
    done = Done("detect", model, path, "--ignore", "heat")
    assert done.status == 0
    assert "'heat' of the model is not there" in done.err


def test_rows_without_any_value_are_told_apart(tmp_path: Path) -> None:
    values = waves()
    values[100], values[200:210, 0] = np.nan, np.nan
    done = Done("fit", write(tmp_path / "pump.csv", values, seconds(900)), "-o", tmp_path / "m", *SMALL)
    assert "8 rows remain gaps (1 without any value, which --resample to a longer period bridges" in done.err


def test_a_file_of_several_devices(tmp_path: Path) -> None:
    series = {name: waves(seed=k) for k, name in enumerate(("EWR", "JFK", "LGA"))}
    cells = {name: each.tolist() for name, each in series.items()}
    rows = [f"{60.0 * k},{name},{each[k][0]!r},{each[k][1]!r}" for k in range(900) for name, each in cells.items()]
    path, models = tmp_path / "weather.csv", tmp_path / "models"
    path.write_text("time,origin,flow,heat\n" + "\n".join(rows) + "\n")
    assert "--device origin=EWR" in fails("fit", path, "-o", tmp_path / "m", *SMALL)
    assert "pass --device COLUMN" in fails("federate", path, "-o", models, *SMALL)
    assert Done("federate", path, "--device", "origin", "-o", models, *SMALL, "--rounds", "2").status == 0
    assert sorted(file.stem for file in models.glob("*.safetensors") if file.stem in series) == sorted(series)

    folder = tmp_path / "apart"
    for name, each in series.items():
        write(folder / f"{name}.csv", each, seconds(900))
    assert Done("federate", folder, "-o", tmp_path / "same", *SMALL, "--rounds", "2").status == 0
    expected = json.loads(Done("detect", tmp_path / "same", folder, "--json", "--budget", "1/hour").out)
    assert (
        json.loads(Done("detect", models, path, "--device", "origin", "--json", "--budget", "1/hour").out) == expected
    )
    assert "--device COLUMN" in fails("detect", models, path)

    assert Done("fit", path, "--device", "origin=JFK", "-o", tmp_path / "m", *SMALL).status == 0
    assert Done("fit", folder / "JFK.csv", "-o", tmp_path / "n", *SMALL).status == 0
    judged = [
        json.loads(Done("detect", tmp_path / "m", path, "--device", "origin=JFK", "--json").out),
        json.loads(Done("detect", tmp_path / "n", folder / "JFK.csv", "--json").out),
    ]
    assert judged[0] == judged[1]
    done = Done("admit", models, path, "--device", "origin=LGA", "--name", "LGA-2")
    assert done.status == 0, done.err


def test_text_files_in_a_folder_are_named_because_they_may_be_recordings(tmp_path: Path) -> None:
    folder = tmp_path / "pump"
    folder.mkdir()
    write(folder / "monday.csv", waves())
    for name in ("tuesday.txt", "README.txt", ".hidden.txt"):
        (folder / name).write_text("flow,heat\n1,2\n")
    done = Done("fit", folder, "-o", tmp_path / "m", *SMALL)
    assert done.status == 0
    assert f"note: {folder}: tuesday.txt passed over as notes; a recording must be called .csv to be read." in done.err
    assert "README" not in done.err


def test_progress_of_reading_counts_files_and_what_is_read_of_one(tmp_path: Path) -> None:
    for day in (1, 2):
        write(tmp_path / f"{day}.csv", waves(), times=(np.arange(900) + 900.0 * day).tolist())
    told: list[tuple[str, float, int]] = []
    device = load_device(tmp_path, Switches(), progress=lambda *step: told.append(step))
    assert [len(table.values) for table in device.tables] == [1800]
    assert [step for step in told if isinstance(step[1], int)] == [("reading", k, 2) for k in (0, 1, 2)]

    told.clear()
    file = tmp_path / "1.csv"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedkad.intake.reading.is_installed", lambda: False)  # the strict reader tells of every block
        load_device(file, Switches(), progress=lambda *step: told.append(step))
    assert told == [("reading", 0, 1), ("reading", pytest.approx(0.99), 1), ("reading", 1, 1)]


def test_progress_without_a_terminal_has_the_time_left(capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter([0.0, 5.0, 11.0, 12.0, 40.0])
    progress = ProgressLines(brief=True, clock=lambda: next(clock))
    for done in (0, 100, 200, 250, 1000):
        progress("learning", done, 1000)
    assert capsys.readouterr().err.splitlines() == ["learning: 20%, 44 s left", "learning: 1000/1000"]
    quick = ProgressLines(brief=True, clock=lambda: 0.0)
    quick("learning", 0, 9)
    quick("learning", 9, 9)
    assert capsys.readouterr().err == ""


def test_a_step_that_is_over_is_told_once_and_may_begin_again(capsys: pytest.CaptureFixture[str]) -> None:
    clock = iter([0.0, 5.0, 5.0, 6.0, 9.0])
    progress = ProgressLines(brief=True, clock=lambda: next(clock))
    for done in (0, 9, 9, 0, 9):
        progress("judging", done, 9)
    assert capsys.readouterr().err.splitlines() == 2 * ["judging: 9/9"]


def test_writing_scores_and_pages_tells_how_far_it_is(
    train: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[str, float, int]] = []

    @contextmanager
    def recorded(**_: bool) -> Iterator[Callable[..., None]]:
        yield lambda *step: told.append(step)

    whole, page = tmp_path / "whole.csv", tmp_path / "page.html"
    assert Done("detect", model, train, "--scores", whole, "--shares", "--offline").status == 0
    monkeypatch.setattr("fedkad.cli.detect.SCORE_BLOCK", 400)
    for module in ("detect", "examining", "fit"):
        monkeypatch.setattr(f"fedkad.cli.{module}.shown_progress", recorded)
    scores = tmp_path / "scores.csv"
    arguments = ["--threshold", "0.5", "--report", page]
    assert Done("detect", model, train, "--scores", scores, "--shares", "--offline").status == 0
    assert [step for step in told if step[0] == "writing scores"] == [
        ("writing scores", done, 900) for done in (400, 800, 900)
    ]
    assert scores.read_text() == whole.read_text()
    told.clear()
    assert Done("detect", model, train, *arguments).status == 0
    drawn = [step[1:] for step in told if step[0] == "drawing"]
    assert len(drawn) > 1
    assert drawn == [(k + 1, len(drawn)) for k in range(len(drawn))]
    told.clear()
    assert Done("fit", train, "-o", tmp_path / "m", *SMALL, "--report", page).status == 0
    assert {"judging", "drawing"} < {step[0] for step in told}


def test_folders_that_are_made_are_named(train: Path, model: Path, tmp_path: Path) -> None:
    scores, page = tmp_path / "a" / "b" / "scores.csv", tmp_path / "c" / "page.html"
    done = Done("detect", model, train, "--scores", scores, "--report", page)
    made = [f"note: {path.parent}: folder made." for path in (scores, page)]
    assert [line for line in lines(done.err, "note") if "folder" in line] == made
    assert "folder" not in Done("detect", model, train, "--scores", scores, "--report", page).err
    done = Done("fit", train, "-o", tmp_path / "d" / "m", *SMALL)
    assert f"note: {tmp_path / 'd'}: folder made." in done.err


def test_the_place_of_the_output_is_tried_before_the_work(train: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unwanted(*_: object, **__: object) -> None:
        raise AssertionError("the data was read")

    monkeypatch.setattr("fedkad.cli.fit.load_device", unwanted)
    # Even root cannot write there, and its permissions do not say so.
    assert "/proc: the folder cannot be written to" in fails("fit", train, "-o", "/proc/m.safetensors", *SMALL)


def test_one_and_many(model: Path, tmp_path: Path) -> None:
    for count, words in (
        (1, "1 missing cell filled with the value before it"),
        (2, "2 missing cells filled with the values before them"),
    ):
        values = waves(100)
        values[20 : 20 + 10 * count : 10, 0] = np.nan
        assert words in Done("detect", model, write(tmp_path / "data.csv", values, seconds(100))).err
    # The window of ten, and one row to be predicted.
    one = write(tmp_path / "data.csv", waves(11))
    assert "in 11 rows; 10 rows could not be judged." in Done("detect", model, one).out


def test_a_threshold_set_by_hand_is_told(model: Path, tmp_path: Path) -> None:
    detector = KoopmanDetector.load(model)
    detector.threshold_ = 4.0
    detector.save(tmp_path / "m")
    assert json.loads(Done("inspect", tmp_path / "m", "--json").out)["threshold_set_by"] == "by hand"


# -- the process ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_package_runs_as_a_module() -> None:
    command = [sys.executable, "-m", "fedkad", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("fedkad ")


def heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
def test_an_interruption_is_quiet(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedkad", "demo", "--devices", "400", "--out", str(tmp_path / "demo")]
    # A shell may have told its background jobs, and with them this test, to ignore the signal.
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts
    ) as process:
        while not (tmp_path / "demo").exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert err.splitlines()[-1] == "interrupted"
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_closed_pipe_is_quiet(train: Path, model: Path) -> None:
    command = [sys.executable, "-m", "fedkad", "detect", str(model), str(train), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
    assert err == ""
