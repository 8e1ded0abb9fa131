"""The studies of cost: what they count is right; how long things take is no matter for a test."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedkad.federation.server import Sampler
from fedkad_bench.data.sources import fetch
from fedkad_bench.methods.interface import VALIDATION, WINDOW
from fedkad_bench.methods.neural.fedavg import Envelope
from fedkad_bench.methods.neural.local import plan_round
from fedkad_bench.methods.preparation import prepare
from fedkad_bench.studies import StudyRequest, efficiency, ondevice
from fedkad_bench.studies.measuring import apart
from tests.fixtures.fleetfolder import write_data
from tests.fixtures.memoryuse import peak_after, take

MESSAGE = (4 * WINDOW + 128) * 24
"""Numbers of one subspace of the small fleet."""


@pytest.fixture(scope="module")
def request_(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StudyRequest]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDKAD_CACHE", str(tmp_path_factory.mktemp("cache")))
        fetch.cache_clear()
        yield StudyRequest(write_data(tmp_path_factory.mktemp("data")), quick=True, datasets=("SMD",))
        fetch.cache_clear()


def test_optimiser_steps_are_those_of_the_plans() -> None:
    """The count that scales a timed step is the number of steps that FedAvg takes."""
    rng = np.random.default_rng(0)
    fleet = {name: rng.normal(size=(rows, 2)) for name, rows in {"a": 400, "b": 1111, "c": 260, "d": 900}.items()}
    learning = {name: client.learning for name, client in prepare(fleet).items()}
    envelope, total = Envelope(rounds=4), 0
    sampler = Sampler(list(fleet), envelope.participation, "uniform", 0)
    for number in range(envelope.rounds):
        own = [np.arange(len(learning[name]) - WINDOW + 1) for name in sampler.next()]
        plan = plan_round(own, [np.random.default_rng(k) for k in range(len(own))], number)
        total += int(plan.active.sum())
    counted = efficiency.optimiser_steps({name: len(series) for name, series in fleet.items()}, rounds=4)
    assert counted == total
    assert VALIDATION == 0.15


def test_efficiency_has_every_method_once_with_its_ratios(
    request_: StudyRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(efficiency, "WHOLE", ("fedkad", "pca"))
    monkeypatch.setattr(efficiency, "NETWORKS", ("lstm-ae", "tranad"))
    rows = efficiency.run(request_)
    assert [row["method"] for row in rows] == ["fedkad", "pca", "lstm-ae", "tranad"]
    ours = rows[0]
    assert ours["training_ratio"] == ours["bytes_ratio"] == ours["step_ratio"] == 1.0
    for row in rows:
        assert set(row) == set(efficiency.COLUMNS)
        assert isinstance(row["seconds_training"], float)
        assert isinstance(ours["seconds_training"], float)
        assert row["training_ratio"] == pytest.approx(row["seconds_training"] / ours["seconds_training"])
        assert isinstance(row["microseconds_per_step"], float)
        assert row["microseconds_per_step"] > 0.0
    bytes_of = {row["method"]: row["bytes_total"] for row in rows}
    assert bytes_of["lstm-ae"] == 2 * 30 * 4 * (4 * 64 * (4 + 64) + 512 + 4 * 64 * 128 + 512 + 65 * 4)
    assert bytes_of["pca"] == 0
    notes = efficiency.remarks(rows)
    assert any("faster than the fastest network" in note for note in notes)


def test_a_client_on_the_device(request_: StudyRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ondevice, "NETWORKS", ("usad",))
    rows = ondevice.run(replace(request_, datasets=("SMD",)))
    assert [row["method"] for row in rows] == ["fedkad", "fedkad-paper", "usad"]
    for row in rows:
        assert set(row) == set(ondevice.COLUMNS)
        assert row["limit_megabytes"] == ondevice.LIMIT
    assert rows[0]["kilobytes_up"] == pytest.approx(MESSAGE * 4 / 1024)
    lengths = [len(entity.train) for entity in request_.load("SMD").entities]
    assert rows[0]["rows"] == sorted(lengths)[1]


def test_the_limit_on_memory_holds() -> None:
    assert apart(take, 100) == 100 * 2**17
    with pytest.raises(ValueError, match=r"(?i)memory|allocate"):
        apart(take, 2000)


def test_the_peak_is_that_of_the_process_and_not_of_its_parent() -> None:
    kept = np.ones(400 * 2**17)  # what this process holds is no matter
    small, large = apart(peak_after, 10), apart(peak_after, 210)
    assert small < 250.0
    assert 150.0 < large - small < 250.0
    assert len(kept)


def test_a_typical_client_is_one_of_them(tmp_path: Path, request_: StudyRequest) -> None:
    dataset = request_.load("SMD")
    chosen = ondevice.typical_client(dataset)
    assert any(chosen is entity.train for entity in dataset.entities)
