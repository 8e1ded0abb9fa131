"""``fedkad bench`` as a person runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedkad_bench.data.dataset import Dataset
from fedkad_bench.data.entity import Entity
from fedkad_bench.studies import Study, StudyRequest
from tests.fixtures.commandline import Done, fails
from tests.fixtures.fleetfolder import write_data

pytestmark = pytest.mark.usefixtures("fresh_cache")

METHODS = "fedkad-untrained,norm,random"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def out(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results") / "paper"
    done = Done(*command(data, folder, "--methods", METHODS, "--seeds", "0,1"))
    assert done.status == 0, done.err
    return folder


def command(data: Path, out: Path, *more: object) -> list[object]:
    """A run; without studies, which take minutes, unless some are named."""
    studies = () if "--studies" in more else ("--studies", "none")
    return ["bench", "run", "paper", "--data", data, "--out", out, "--workers", 0, *studies, *more]


def test_a_run_prints_the_macro_table_and_goes_on(data: Path, out: Path) -> None:
    done = Done(*command(data, out, "--methods", METHODS, "--seeds", "0,1"))
    assert done.status == 0
    assert "## SMD (3 of 28 machines)" in done.out
    assert "| Random scores " in done.out
    assert "0 cells trained, 0 evaluated, 6 kept, 0 reused, 0 failed." in done.out
    assert "note: left out: PSM: " in done.err
    assert (out / "tables" / "SMD.md").exists()
    assert (out / "metrics.csv").exists()


def test_json_has_it_all(data: Path, out: Path) -> None:
    done = Done(*command(data, out, "--methods", METHODS, "--seeds", "0,1", "--datasets", "smd", "--json"))
    told = json.loads(done.out)
    assert len(told["kept"]) == 6
    assert told["failed"] == {}
    shown = [row for row in told["summaries"] if row["metric"] == "vus_pr" and row["method"] == "random"]
    assert len(shown) == 6
    assert all(row["seeds"] == 2 for row in shown)


def test_a_quick_run_has_one_seed(data: Path, tmp_path: Path) -> None:
    done = Done(*command(data, tmp_path, "--methods", "norm,random", "--quick", "--clients", 2, "--datasets", "SMD"))
    assert done.status == 0, done.err
    assert "[2/2] SMD/random/0 trained in " in done.err or "[2/2] SMD/norm/0 trained in " in done.err
    assert "about" in done.err
    assert "2 cells trained" in done.out


def test_a_folder_of_one_s_own(tmp_path: Path) -> None:
    folder = tmp_path / "boilers"
    for part, rows in (("train", 300), ("test", 100)):
        (folder / part).mkdir(parents=True)
        label = ",label" if part == "test" else ""
        lines = [f"{k % 7},{(k * k) % 11}{',' + str(int(k > 90)) if label else ''}" for k in range(rows)]
        (folder / part / "a.csv").write_text("\n".join([f"flow,heat{label}", *lines]) + "\n")
    out = tmp_path / "out"
    done = Done(
        "bench", "run", "paper", "--out", out, "--datasets", folder, "--methods", "norm", "--seeds", 0, "--workers", 0
    )
    assert done.status == 0, done.err
    assert "## boilers" in done.out
    again = Done("bench", "evaluate", "--out", out, "--datasets", folder, "--workers", 0)
    assert "0 cells trained, 1 evaluated" in again.out


def test_wrong_names_are_told_with_the_right_ones(data: Path, tmp_path: Path) -> None:
    for more, told in (
        (("--methods", "fedcad"), "fedcad is not a method; choose from fedkad, "),
        (("--datasets", "SND"), "SND is not a dataset; choose from SMD, PSM, SMAP, MSL"),
        (("--seeds", "0,x"), "must be integers of at least 0"),
    ):
        done = Done(*command(data, tmp_path, *more))
        assert done.status == 2
        assert told in " ".join(done.err.replace("│", " ").split())


def test_what_cannot_be_done_is_one_sentence(
    data: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = fails(*command(data, tmp_path / "new", "--datasets", "MSL", "--methods", "norm"))
    assert "MSL" in told or "labeled_anomalies" in told
    assert "no such folder to reuse" in fails(*command(data, tmp_path / "new", "--reuse", tmp_path / "nowhere"))
    assert "is inside the data folder" in fails(*command(data, data / "results"))
    other = command(data, out, "--methods", METHODS, "--datasets", "SMD", "--clients", 2)
    assert "choose another --out, or --redo" in fails(*other)
    assert "no kept scores" in fails("bench", "evaluate", "--out", tmp_path, "--data", data)
    monkeypatch.setattr("fedkad_bench.methods.registry.find_spec", lambda name: None)
    assert fails(*command(data, tmp_path / "new")).endswith("pip install fedkad-bench")


def test_evaluation_with_other_choices(data: Path, out: Path, tmp_path: Path) -> None:
    to = tmp_path / "strict"
    options = ["--threshold-rule", "maximum", "--strict", "--at-least", "--recall-cap", "reject", "--silent-is-perfect"]
    done = Done("bench", "evaluate", "--out", out, "--data", data, "--to", to, *options, "--workers", 0, "--json")
    assert done.status == 0, done.err
    assert len(json.loads(done.out)["evaluated"]) == 6
    record = json.loads((to / "cells" / "SMD" / "norm" / "0.json").read_text())
    assert record["choices"]["tuned_threshold"] == "maximum"
    assert record["choices"]["share_at_least"] is False
    assert json.loads((out / "cells" / "SMD" / "norm" / "0.json").read_text())["choices"]["share_at_least"] is True
    assert Done("bench", "evaluate", "--out", out, "--quantile", 1.5).status == 2


def test_a_sweep_names_its_criterion(data: Path) -> None:
    arguments = ["bench", "sweep", "SMD", "--data", data, "--rank", "2,8", "--observables", "16", "--window", "10"]
    done = Done(*arguments)
    assert done.status == 0, done.err
    assert "without labels: mean over clients of the squared one-step error" in done.out
    assert "Chosen: --window 10 --rank 8 --observables 16." in done.out
    told = json.loads(Done(*arguments, "--json").out)
    assert told["chosen"] == {"window": 10, "rank": 8, "observables": 16}
    assert len(told["trials"]) == 2
    assert Done("bench", "sweep", "nowhere").status == 2


def test_the_list_names_everything() -> None:
    done = Done("bench", "list")
    assert all(word in done.out for word in ("fedkad-paper", "TranAD", "SMAP", "pot_any", "vus_pr"))
    told = json.loads(Done("bench", "list", "--json").out)
    assert set(told) == {"methods", "datasets", "protocols", "metrics"}


INTERRUPTED = """
import os, signal
from fedkad.cli import main
from fedkad_bench.cli import steps

line = steps._line

def interrupting(step):
    if step.done == 1:
        os.killpg(0, signal.SIGINT)
    return line(step)

steps._line = interrupting
main()
"""
"""A run that is interrupted as a terminal does it, all processes at once, when its first cell is reported."""


def test_an_interrupted_run_leaves_whole_files_and_goes_on(tmp_path: Path) -> None:
    data, out = write_data(tmp_path / "data", train_rows=6000), tmp_path / "out"
    given = command(data, out, "--datasets", "SMD", "--methods", "norm,fedkad-centralised,fedkad-local")
    arguments = list(map(str, [*given, "--workers", "2"]))
    running = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "FEDKAD_CACHE": str(tmp_path / "cache")},
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a test run in the background ignores it
    )
    _, err = running.communicate()
    assert running.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert not list(out.rglob(".*"))
    records = list((out / "cells").rglob("*.json"))
    assert 1 <= len(records) < 9
    done = Done(*arguments[:-2], "--workers", 0)
    assert done.status == 0
    assert f"{len(records)} kept" in done.out


# -- what goes wrong does not take the rest with it -----------------------------------------------------------


def fast(data: Path, out: Path, *more: object) -> list[object]:
    return command(data, out, "--datasets", "SMD", "--seeds", 0, "--methods", "norm", *more)


def test_tables_and_report_are_there_before_the_studies(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = []

    def perform(study: Study, request: StudyRequest, out: Path, *, redo: bool) -> None:
        there.append(((out / "metrics.csv").exists(), (out / "report.html").exists()))
        if study.name == "heterogeneity":
            raise RuntimeError("the sea is rough")

    monkeypatch.setattr("fedkad_bench.cli.run.perform_study", perform)
    done = Done(*fast(data, tmp_path, "--studies", "heterogeneity,convergence", "--clients", 2))
    assert there == [(True, True)] * 2
    assert done.status == 1
    assert "warning: the study heterogeneity failed: RuntimeError: the sea is rough" in done.err
    assert "tries the failed studies again" in done.err
    assert "the sea is rough" in (tmp_path / "failures" / "study-heterogeneity.txt").read_text()
    assert "1 cell trained" in done.out
    assert "note: --clients applies to the table; studies choose their own clients." in done.err


def test_a_run_goes_on_without_the_extras(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedkad_bench.cli.libraries.find_spec", lambda name: None)
    done = Done(*fast(data, tmp_path, "--studies", "exchange,efficiency"))
    assert done.status == 0
    remedy = "pip install fedkad-bench"
    assert f"note: no report will be written because it needs matplotlib and scipy: {remedy}" in done.err
    assert f"note: left out: the study exchange needs PyTorch: {remedy}" in done.err
    assert f"note: left out: the study efficiency needs PyTorch and scikit-learn: {remedy}" in done.err
    assert "there is no report" in done.out
    assert (tmp_path / "metrics.csv").exists()
    assert not (tmp_path / "report.html").exists()
    assert fails("bench", "report", tmp_path).endswith(f"The report needs matplotlib and scipy: {remedy}")


def test_why_all_cells_failed_is_told(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(task: object) -> float:
        raise ValueError("the sea is rough.")

    monkeypatch.setattr("fedkad_bench.running.runner.do", refuse)
    done = Done(*fast(data, tmp_path, "--studies", "none"))
    assert done.status == 1
    assert "warning: SMD/norm/0 failed: the sea is rough." in done.err
    assert "error: " not in done.err
    assert "0 cells trained, 0 evaluated, 0 kept, 0 reused, 1 failed." in done.out


def test_other_clients_are_not_added_to_a_folder(data: Path, tmp_path: Path) -> None:
    assert Done(*fast(data, tmp_path, "--studies", "none", "--quick", "--clients", 2)).status == 0
    told = fails(*command(data, tmp_path, "--datasets", "SMD", "--methods", "random", "--studies", "none"))
    assert "SMD/norm/0 is there and SMD/random/0 would be of another part of SMD, 2 clients and 3; choose" in told
    assert not (tmp_path / "cells" / "SMD" / "random").exists()
    told = fails(*command(data, tmp_path, "--datasets", "SMD", "--methods", "random", "--clients", 2))
    assert "at most 2000 training rows of a client and all; choose another --out" in told


def test_what_is_wrong_is_told_before_the_work(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "--device cuda: PyTorch cannot use a graphics" in fails(*fast(data, tmp_path, "--device", "cuda"))
    nowhere = tmp_path / "nowhere"
    assert fails(*command(nowhere, tmp_path / "out")).startswith(f"error: {nowhere}: there is no such data folder")
    own = tmp_path / "boilers"
    own.mkdir()
    assert "is inside the data folder" in fails(*command(data, own / "out", "--datasets", own))
    for option, what in (("--methods", "method"), ("--datasets", "dataset")):
        done = Done(*command(data, tmp_path / "out", option, ","))
        assert done.status == 2
        assert f"',' names no {what}" in " ".join(done.err.replace("│", " ").split())


def test_the_remedy_for_missing_data_can_be_typed(tmp_path: Path) -> None:
    (tmp_path / "NASA").mkdir()
    told = fails(*command(tmp_path, tmp_path.parent / "never", "--datasets", "MSL", "--methods", "norm"))
    assert f"`fedkad datasets get MSL --data {tmp_path}`" in told
    x = np.zeros((0, 2))
    entity = Entity("PSM", x, np.zeros((3, 2)), np.zeros(3, dtype=bool))
    with pytest.raises(ValueError, match=f"`fedkad datasets get PSM --data {tmp_path}`"):
        Dataset("PSM", (entity,), label="PSM", root=tmp_path).training()
    with pytest.raises(ValueError, match="add rows to the tables in train"):
        Dataset("pumps", (entity,), label="pumps").training()
