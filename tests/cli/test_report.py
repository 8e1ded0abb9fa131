"""``--report``, ``--merge``, ``--min-duration``, ``--budget`` and ``--labels``, and times in the zone of the input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
import pytest
from numpy.typing import NDArray

from fedkad import KoopmanDetector
from tests.fixtures.commandline import SMALL, Done, fails

FAULTS = ((100, 120), (300, 310), (345, 352))
START = np.datetime64("2025-03-01T00:00:00", "s")


def waves(rows: int, seed: int = 0) -> NDArray[np.float64]:
    noise = np.random.default_rng(seed).normal(size=(rows, 2))
    return np.sin(np.arange(rows)[:, None] / [[7.0, 11.0]]) + 0.05 * noise


def moments(rows: int) -> list[str]:
    return [f"{START + 60 * k}" for k in range(rows)]


def write(path: Path, values: NDArray[np.float64], times: list[str] | None) -> Path:
    header = "flow,<heat>" if times is None else "time,flow,<heat>"
    cells = [[repr(cell) for cell in row] for row in values.tolist()]
    lines = [",".join(row if times is None else [times[k], *row]) for k, row in enumerate(cells)]
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def faulty(rows: int = 500) -> NDArray[np.float64]:
    values = waves(rows, seed=1)
    for start, end in FAULTS:
        values[start:end, 1] += 3.0
    return values


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    train = write(folder / "train.csv", waves(1500), moments(1500))
    assert Done("fit", train, "-o", folder / "m.safetensors", *SMALL, "--report", folder / "fit.html").status == 0
    write(folder / "today.csv", faulty(), moments(500))
    write(folder / "timeless.csv", faulty(), None)
    return folder


def found(*arguments: object) -> dict[str, Any]:
    done = Done("detect", *arguments, "--json")
    assert done.status == 0, done.err
    document: dict[str, Any] = json.loads(done.out)
    return document


def events(*arguments: object) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = found(*arguments)["devices"][0]["events"]
    return listed


# -- pages ----------------------------------------------------------------------------------------------------


def test_a_page_for_ones_own_data(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "new" / "page.html"
    plain = Done("detect", folder / "m.safetensors", folder / "today.csv")
    done = Done("detect", folder / "m.safetensors", folder / "today.csv", "--report", page)
    assert (done.status, done.out) == (plain.status, plain.out)
    html = page.read_text()
    listed = events(folder / "m.safetensors", folder / "today.csv")
    assert len(listed) >= 2
    for event in listed:
        assert event["sentence"].replace("<", "&lt;").replace(">", "&gt;") in html
    assert html.count('aria-label="Signals and score of today around an event."') == len(listed)
    assert "<h1>What was found in today.csv</h1>" in html
    assert "peaks among" in html
    assert "The threshold is" in html
    assert "&lt;heat&gt;" in html
    assert "<heat>" not in html
    assert "grey: no score" in html
    learned = (folder / "fit.html").read_text()
    assert "<h1>What was learned from train.csv</h1>" in learned
    assert "the data that the model learned from" in learned


def test_a_page_of_a_fleet_names_what_was_skipped(folder: Path, tmp_path: Path) -> None:
    for kind in ("models", "data"):
        (tmp_path / kind).mkdir()
    for name in ("a", "b", "c"):
        (tmp_path / "models" / f"{name}.safetensors").write_bytes((folder / "m.safetensors").read_bytes())
    for name in ("a", "b"):
        write(tmp_path / "data" / f"{name}.csv", faulty(), moments(500))
    done = Done("detect", tmp_path / "models", tmp_path / "data", "--report", tmp_path / "page.html")
    assert done.status == 1
    html = (tmp_path / "page.html").read_text()
    assert "c was skipped: there is no data for it" in html
    for name in ("a", "b"):
        assert f'aria-label="Score of {name} against the threshold."' in html


def test_a_page_replaces_nothing_else(folder: Path, tmp_path: Path) -> None:
    model, data = folder / "m.safetensors", folder / "today.csv"
    assert "ends in .html" in fails("detect", model, data, "--report", tmp_path / "page.txt")
    assert "this is a folder" in fails("detect", model, data, "--report", _folder(tmp_path / "x.html"))
    (tmp_path / "file").write_text("")
    assert str(tmp_path / "file") in fails("detect", model, data, "--report", tmp_path / "file" / "page.html")
    assert "inside the data folder" in fails("fit", folder, "-o", tmp_path / "m", "--report", folder / "page.html")


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


# -- events ---------------------------------------------------------------------------------------------------


def test_merging_and_a_minimum_duration(folder: Path) -> None:
    model, data = folder / "m.safetensors", folder / "today.csv"
    apart = events(model, data)
    lengths = [event["end_row"] - event["start_row"] + 1 for event in apart]
    assert len(apart) == 3
    assert len(events(model, data, "--merge", "1h")) == len(events(model, data, "--merge", "60")) == 2
    assert len(events(model, data, "--merge", "1d")) == 1
    shortest = found(model, data, "--min-duration", f"{min(lengths) + 1}")
    assert shortest["events"] == sum(length > min(lengths) for length in lengths)
    assert shortest["brief_events"] == 3 - shortest["events"] > 0
    assert found(model, data, "--min-duration", f"{min(lengths)}m")["brief_events"] == 0
    out = Done("detect", model, data, "--min-duration", "10h").out
    assert out == "0 events and 3 shorter ones left out in 500 rows; 10 rows could not be judged.\n"
    assert Done("detect", model, data, "--merge", "soon").status == 2
    detector = KoopmanDetector.load(model)
    assert len(detector.events(faulty(), merge="1h")) == 2


def test_a_budget_at_detection(folder: Path, tmp_path: Path) -> None:
    model, data = folder / "m.safetensors", folder / "today.csv"
    for budget in ("1/week", "20/day"):
        expected = KoopmanDetector.load(model).rejudge(budget, 60.0).threshold_
        assert {event["threshold"] for event in events(model, data, "--budget", budget)} == {expected}
    assert Done("detect", model, data, "--budget", "often").status == 2
    assert Done("detect", model, data, "--budget", "1/week", "--threshold", "3").status == 2
    timeless = tmp_path / "timeless.safetensors"
    assert Done("fit", folder / "timeless.csv", "-o", timeless, *SMALL).status == 0
    assert "--budget needs a sampling period" in fails(
        "detect", timeless, folder / "timeless.csv", "--budget", "1/week"
    )
    assert "--merge needs a number of rows" in fails("detect", timeless, folder / "timeless.csv", "--merge", "1h")


# -- labels ---------------------------------------------------------------------------------------------------


def test_labels_of_other_times_do_not_count_and_zones_are_not_guessed(folder: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    detect = (folder / "m.safetensors", folder / "today.csv", "--labels", labels)
    span = f"{START + 60 * FAULTS[0][0]},{START + 60 * (FAULTS[0][1] - 1)}"
    others = [f"{START + 86400 * days},{START + 86400 * days + 600}" for days in (-3, 9)]
    between = f"{START + 61},{START + 62}"  # no sample
    labels.write_text("\n".join(["start,end", others[0], span, between, others[1]]) + "\n")
    assert found(*detect)["labels"]["labelled"] == 1
    assert "3 of 4 labels are not in the data and do not count" in Done("detect", *detect).err
    labels.write_text("\n".join(["start,end", ",".join(reversed(span.split(",")))]) + "\n")
    assert "is before the start" in fails("detect", *detect)
    labels.write_text("\n".join(["start,end", f"{START}+05:00,{START + 60}"]) + "\n")
    assert "names a zone, and the times of the data do not" in fails("detect", *detect)
    labels.write_text(f"start,end\n1,{START}\n")
    assert "are a row and a time" in fails("detect", *detect)
    labels.write_text("start,end,device\n1,2,pump-x\n")
    assert "there is no recording of the device 'pump-x'" in Done("detect", *detect).err
    labels.write_bytes("start,end,kind\n1,2,Stör\n".encode("cp1252"))
    assert found(*detect)["labels"]["labelled"] == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedkad.intake.celltable.is_installed", lambda: False)
        assert "line 2: byte 0xf6 is not UTF-8 text" in fails("detect", *detect)
        labels.write_text('start;end;kind\n1;2;"a;\nb"\n3;4\n')
        assert "line 4: the row has 2 cells where the header names 3" in fails("detect", *detect)
        labels.write_text("start;end;kind\n\n1;2;a\n")
        assert found(*detect)["labels"]["labelled"] == 1


def test_labels_may_be_written_as_data_may(folder: Path, tmp_path: Path) -> None:
    first, last = (START + 60 * row for row in (FAULTS[0][0], FAULTS[0][1] - 1))
    detect = folder / "m.safetensors", folder / "today.csv", "--labels"
    plain = tmp_path / "plain.csv"
    plain.write_text(f"start,end\n{first},{last}\n")
    expected = found(*detect, plain)["labels"]
    assert expected["found"] == 1
    german, american = tmp_path / "german.csv", tmp_path / "american.csv"
    clocks = [f"{str(moment)[11:16]}" for moment in (first, last)]
    german.write_bytes(f"start;end;kind\n01.03.2025 {clocks[0]};01.03.2025 {clocks[1]};Stör\n".encode("cp1252"))
    assert found(*detect, german)["labels"] == expected
    american.write_text(f"start,end\n3/1/2025 {clocks[0]},3/1/2025 {clocks[1]}\n")
    assert "the day or the month may come first; pass --time-format" in fails("detect", *detect, american)
    american.write_text(f"start,end\n3/1/2025 {clocks[0]},3/1/2025 {clocks[1]}\n3/25/2025 00:00,3/25/2025 00:01\n")
    assert found(*detect, american)["labels"] == expected


def test_a_label_for_every_row_does_not_fit_rows_that_are_moved(folder: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("label\n" + 500 * "0\n")
    detect = folder / "m.safetensors", folder / "today.csv", "--labels", labels
    assert found(*detect)["labels"]["labelled"] == 0
    assert "does not fit rows that --sort moves" in fails("detect", *detect, "--sort")


def test_the_page_says_what_was_too_short(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    detect = (folder / "m.safetensors", folder / "today.csv", "--report", page, "--min-duration", "8h")
    assert Done("detect", *detect).status == 0
    assert f"Nothing that lasted: {len(FAULTS)} shorter events left out." in page.read_text()


def test_labels_in_every_form_agree(folder: Path, tmp_path: Path) -> None:
    labelled = (*FAULTS, (420, 430))  # nothing happened there
    rows = [f"{start},{end - 1}" for start, end in labelled]
    times = [f"{START + 60 * start},{START + 60 * (end - 1)}" for start, end in labelled]
    flags = np.zeros(500, dtype=int)
    for start, end in labelled:
        flags[start:end] = 1
    forms = {
        "rows": ["start,end", *rows],
        "times": ["kind,start,end,device", *(f"heat,{line},today" for line in times), "heat,1,2,another"],
        "flags": ["time,label", *(f"{moment},{flag}" for moment, flag in zip(moments(500), flags, strict=True))],
    }
    told = {}
    for name, lines in forms.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
        told[name] = found(folder / "m.safetensors", folder / "today.csv", "--labels", tmp_path / f"{name}.csv")[
            "labels"
        ]
    listed = events(folder / "m.safetensors", folder / "today.csv")
    delays = [60.0 * (event["start_row"] - start) for event, (start, _) in zip(listed, FAULTS, strict=True)]
    healthy = (500 - 10 - flags.sum()) / 1440
    assert healthy > 0
    expected = {
        "labelled": 4,
        "found": 3,
        "false_alarms": 0,
        "precision": 1.0,
        "recall": 0.75,
        "false_alarms_per_day": 0.0,
        "delay_seconds": max(float(np.median(delays)), 0.0),
    }
    assert told == dict.fromkeys(forms, expected)
    page = tmp_path / "page.html"
    labels = tmp_path / "times.csv"
    done = Done("detect", folder / "m.safetensors", folder / "today.csv", "--labels", labels, "--report", page)
    assert "recall 75%: 3 of 4 labelled stretches found" in done.out
    assert "recall 75%: 3 of 4 labelled stretches found" in page.read_text()
    assert ">heat<" in page.read_text()
    late = found(folder / "m.safetensors", folder / "timeless.csv", "--labels", tmp_path / "rows.csv")["labels"]
    assert late["delay_rows"] == expected["delay_seconds"] / 60.0
    assert late["false_alarms_per_day"] is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b\nx,y\n", "the columns are a, b; labels need columns start and end"),
        ("start,end\nnoon,2\n", "line 2: 'noon' is not a time such as"),
        ("start,end\n9,2\n", "line 2: the end 2 is before the start 9"),
        ("label\n0\n1\n", "there are 2 labels for 500 rows of today"),
    ],
)
def test_labels_that_cannot_be_used(folder: Path, tmp_path: Path, text: str, words: str) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text(text)
    assert words in fails("detect", folder / "m.safetensors", folder / "today.csv", "--labels", labels)


# -- zones ----------------------------------------------------------------------------------------------------


def test_times_are_told_in_the_zone_of_the_input(folder: Path, tmp_path: Path) -> None:
    model, zone = folder / "m.safetensors", "Europe/Berlin"
    # The clock goes from 02:00 to 03:00 on 2025-03-30, 120 rows after the first.
    utc = np.datetime64("2025-03-29T23:00:00", "s") + 60 * np.arange(500)
    local = [
        f"{moment + (3600 if k < 120 else 7200)}{'+01:00' if k < 120 else '+02:00'}" for k, moment in enumerate(utc)
    ]
    text = write(tmp_path / "data.csv", faulty(), local)
    column = arrow.array(utc.astype("datetime64[ms]"), arrow.timestamp("ms", tz="UTC")).cast(
        arrow.timestamp("ms", tz=zone)
    )
    table = arrow.table({"time": column, "flow": faulty()[:, 0], "<heat>": faulty()[:, 1]})
    parquet.write_table(table, tmp_path / "data.parquet")
    named, zones = tmp_path / "named.parquet", "UTC+01:00 / UTC+02:00"
    table.to_pandas().to_parquet(named)
    # Without what pandas writes beside them, the moments are there, and the engine forgets the zone.
    in_utc = [f"{moment}Z" for moment in utc]
    bare = (tmp_path / "data.parquet", in_utc, "UTC")
    for data, told, clock in ((text, local, zones), (named, local, zones), bare):
        listed = events(model, data)
        assert {event["start_row"] < 120 for event in listed} == {True, False}
        for event in listed:
            for name in ("start", "end", "peak"):
                assert event[name] == told[event[f"{name}_row"]]
        done = Done("detect", model, data, "--report", tmp_path / "page.html", "--scores", tmp_path / "scores.csv")
        assert f"Start ({clock})" in done.out
        for event in listed:
            assert event["start"][:16].replace("T", " ") in done.out
            assert event["start"][:16].replace("T", " ") in (tmp_path / "page.html").read_text()
        written = (tmp_path / "scores.csv").read_text().splitlines()[1:]
        assert [line.split(",")[3] for line in written] == told
