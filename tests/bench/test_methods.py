"""The methods of the benchmark that are our own or classical: what they score, that seeds matter, what they cost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from fedkad import KoopmanDetector, federate
from fedkad_bench.methods.classical import KINDS, ClassicalMethod
from fedkad_bench.methods.interface import WINDOW
from fedkad_bench.methods.koopman import VARIANTS, KoopmanMethod
from fedkad_bench.methods.motion import MOTION
from fedkad_bench.methods.registry import GROUPS, METHODS, MissingLibraryError, make, require, settings_of
from tests.checks.methods import CHECKS, broken_series, scores_of_broken, small, small_fleet

Array = NDArray[np.float64]

OWN = [*VARIANTS, *KINDS]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_contract(check: Callable[[str], None], name: str) -> None:
    check(name)


@pytest.fixture(scope="module")
def fleet() -> dict[str, Array]:
    return small_fleet()


@pytest.fixture(scope="module")
def broken() -> Array:
    return broken_series()


@pytest.mark.parametrize("name", OWN)
def test_a_stuck_sensor_stands_out(name: str) -> None:
    scores = scores_of_broken(name)
    if name == "persistence":
        assert np.nanargmax(scores) in (400, 440)
    elif name != "random":
        assert np.nanmean(scores[405:440]) > 1.5 * np.nanmean(scores[100:390])


@pytest.mark.parametrize("name", OWN)
def test_the_first_score_needs_no_more_rows_than_the_method(name: str) -> None:
    first = int(np.flatnonzero(~np.isnan(scores_of_broken(name)))[0])
    own = {"norm": 0, "range": 0, "random": 0, "persistence": 1, "pca": WINDOW - 1, "kmeansad": WINDOW - 1}
    assert first == own.get(name, WINDOW)


def test_fedkad_is_what_federate_makes(fleet: Mapping[str, Array], broken: Array) -> None:
    fitted = small("fedkad").fit(fleet, seed=3)
    federation = federate(fleet, rank=6, observables=16, smoothing=1, seed=3, scoring=MOTION)
    assert np.array_equal(
        fitted.score("pump-1", broken), federation.detectors["pump-1"].decision_function(broken), equal_nan=True
    )
    up = sum(record.bytes_up for record in federation.history)
    down = sum(record.bytes_down for record in federation.history)
    assert (fitted.cost.bytes_up, fitted.cost.bytes_down, fitted.cost.rounds) == (up, down, 8)
    assert fitted.cost.bytes_delivered == federation.delivery_bytes


def test_the_paper_s_preset_and_a_device_alone(fleet: Mapping[str, Array], broken: Array) -> None:
    paper = federate(fleet, rank=6, observables=16, smoothing=1, seed=0, preset="paper")
    scores = small("fedkad-paper").fit(fleet, seed=0).score("pump-1", broken)
    assert np.array_equal(scores, paper.detectors["pump-1"].decision_function(broken), equal_nan=True)
    alone = KoopmanDetector(rank=6, observables=16, smoothing=1, scoring=MOTION).fit(fleet["pump-1"])
    scores = small("fedkad-local").fit(fleet, seed=0).score("pump-1", broken)
    assert np.array_equal(scores, alone.decision_function(broken), equal_nan=True)


def test_the_centralised_solution_is_no_worse_than_the_federated(fleet: Mapping[str, Array]) -> None:
    from fedkad.koopman.subspace import relative_loss

    losses = {}
    for name in ("fedkad-centralised", "fedkad", "fedkad-untrained"):
        detectors = KoopmanMethod(name, rank=6, observables=16).fit(fleet, seed=0).detectors.values()
        statistics = [detector.memory_.statistics for detector in detectors]
        losses[name] = relative_loss(statistics, next(iter(detectors)).subspace_)
    assert losses["fedkad-centralised"] <= losses["fedkad"] < 0.9 * losses["fedkad-untrained"]


def test_short_series_are_counted_and_not_warned_of(fleet: Mapping[str, Array]) -> None:
    fitted = KoopmanMethod("fedkad", rank=6, observables=16).fit({**fleet, "new": fleet["pump-0"][:300]}, seed=0)
    assert fitted.facts["clients_with_few_rows"] == 1


def test_pca_is_that_of_the_windows(fleet: Mapping[str, Array], broken: Array) -> None:
    """Against the plain way: all windows in one matrix."""
    fitted = ClassicalMethod("pca").fit(fleet, seed=0)
    client = fitted.clients["pump-1"]
    cut = np.lib.stride_tricks.sliding_window_view(client.learning, WINDOW, axis=0).transpose(0, 2, 1)
    windows = cut.reshape(len(cut), -1)[:-1]
    mean = windows.mean(axis=0)
    _, singular, directions = np.linalg.svd(windows - mean, full_matrices=False)
    kept = int(np.searchsorted(np.cumsum(singular**2) / (singular**2).sum(), 0.9)) + 1
    tested = np.lib.stride_tricks.sliding_window_view(client.transform(broken), WINDOW, axis=0).transpose(0, 2, 1)
    centred = tested.reshape(len(tested), -1) - mean
    rest = centred - centred @ directions[:kept].T @ directions[:kept]
    np.testing.assert_allclose(fitted.score("pump-1", broken)[WINDOW - 1 :], (rest**2).mean(axis=1), rtol=1e-6)


def test_a_client_that_never_moves_is_scored() -> None:
    fleet = {"still": np.ones((300, 2))}
    moved = np.ones((100, 2))
    moved[50:] = 3.0
    for name in ("pca", "kmeansad", "norm"):
        scores = ClassicalMethod(name).fit(fleet, seed=0).score("still", moved)
        assert scores[WINDOW] == 0.0 < scores[60]


def test_too_few_rows_are_told() -> None:
    with pytest.raises(ValueError, match="consecutive training rows"):
        ClassicalMethod("kmeansad").fit({"a": np.zeros((20, 1))}, seed=0)


def test_the_registry_is_complete_and_ordered() -> None:
    from fedkad_bench.methods.neural.method import NETWORKS

    assert set(METHODS) == {*VARIANTS, *KINDS, *NETWORKS}
    groups = list(dict.fromkeys(entry.group for entry in METHODS.values()))
    assert groups == list(GROUPS)
    for name, entry in METHODS.items():
        method = make(name, dataset="SMD", quick=True)
        assert (method.name, method.title) == (name, entry.title)
        assert settings_of(method) == settings_of(make(name, dataset="MSL", quick=True))
    assert settings_of(make("tranad", quick=True))["rounds"] < settings_of(make("tranad"))["rounds"] == 30
    assert settings_of(make("usad", proximal=0.1, rounds=3)) == {
        "rounds": 3,
        "participation": 0.25,
        "epochs": 5,
        "proximal": 0.1,
        "device": "cpu",
    }


def test_wrong_names_and_missing_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="choose from fedkad, "):
        make("fedcad")
    monkeypatch.setattr("fedkad_bench.methods.registry.find_spec", lambda name: None)
    require(["fedkad", "pca", "random"])
    with pytest.raises(
        MissingLibraryError, match=r"tranad, kmeansad need PyTorch and scikit-learn: pip install fedkad-bench"
    ):
        require(["fedkad", "tranad", "kmeansad"])


def test_the_registry_imports_no_heavy_library() -> None:
    code = (
        "import sys, fedkad_bench.cli.bench; print(sorted({'torch', 'sklearn', 'scipy', 'pandas'} & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
