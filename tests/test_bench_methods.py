"""The methods of the benchmark that are our own or classical: what they score, that seeds matter, what they cost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from fedkad import KoopmanDetector, federate
from fedkad_bench.methods.classical import KINDS, ClassicalMethod
from fedkad_bench.methods.interface import VALIDATION, WINDOW, Method
from fedkad_bench.methods.koopman import VARIANTS, KoopmanMethod
from fedkad_bench.methods.registry import GROUPS, METHODS, MissingExtraError, make, require, settings_of

Array = NDArray[np.float64]

OWN = [*VARIANTS, *KINDS]
SEEDED = [*VARIANTS, "kmeansad", "random"]


def waves(rows: int, seed: int) -> Array:
    """Three coupled channels with noise."""
    t = np.arange(rows)[:, None] + 100.0 * seed
    clean: Array = np.sin(t / np.array([[5.0 + seed, 7.0, 11.0]]))
    return clean + 0.1 * np.random.default_rng(seed).normal(size=clean.shape)


@pytest.fixture(scope="module")
def fleet() -> dict[str, Array]:
    return {f"pump-{k}": waves(900, k) for k in range(4)}


@pytest.fixture(scope="module")
def broken() -> Array:
    """A test series of pump-1 with a stuck sensor."""
    series = waves(600, 1)
    series[400:440, 0] = 4.0
    return series


def small(name: str) -> Method:
    return KoopmanMethod(name, rank=6, observables=16) if name in VARIANTS else ClassicalMethod(name)


@pytest.mark.parametrize("name", OWN)
def test_a_method_scores_held_out_rows_and_a_series(name: str, fleet: Mapping[str, Array], broken: Array) -> None:
    fitted = small(name).fit(fleet, seed=0)
    validation, scores = fitted.validation("pump-1"), fitted.score("pump-1", broken)
    assert not np.isnan(validation).any()
    assert len(validation) == int(VALIDATION * 900)
    assert scores.shape == (600,)
    first = int(np.flatnonzero(~np.isnan(scores))[0])
    assert first == {
        "norm": 0,
        "range": 0,
        "random": 0,
        "persistence": 1,
        "pca": WINDOW - 1,
        "kmeansad": WINDOW - 1,
    }.get(name, WINDOW)
    assert not np.isnan(scores[first:]).any()
    assert np.array_equal(scores, fitted.score("pump-1", broken), equal_nan=True)
    if name == "persistence":
        assert np.nanargmax(scores) in (400, 440)
    elif name != "random":
        assert np.nanmean(scores[405:440]) > 1.5 * np.nanmean(scores[100:390])


@pytest.mark.parametrize("name", OWN)
def test_scores_look_back_only_and_stop_at_gaps(name: str, fleet: Mapping[str, Array], broken: Array) -> None:
    fitted = small(name).fit(fleet, seed=0)
    holed = broken.copy()
    holed[300] = np.nan
    scores = fitted.score("pump-1", holed)
    assert np.isnan(scores[300])
    if name != "random":
        np.testing.assert_allclose(scores[:300], fitted.score("pump-1", broken)[:300], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(
            scores[300 + 2 * WINDOW :], fitted.score("pump-1", broken)[300 + 2 * WINDOW :], rtol=1e-9, atol=1e-9
        )
        changed = broken.copy()
        changed[500:] = 0.0
        np.testing.assert_allclose(
            fitted.score("pump-1", changed)[:500], fitted.score("pump-1", broken)[:500], rtol=1e-9, atol=1e-9
        )


@pytest.mark.parametrize("name", OWN)
def test_seeds_matter_where_something_is_random(name: str, fleet: Mapping[str, Array], broken: Array) -> None:
    method = small(name)
    one, same, other = (method.fit(fleet, seed=seed).score("pump-1", broken) for seed in (0, 0, 1))
    assert np.array_equal(one, same, equal_nan=True)
    assert np.array_equal(one, other, equal_nan=True) != (name in SEEDED)


@pytest.mark.parametrize("name", OWN)
def test_the_last_rows_of_training_are_held_out(name: str, fleet: Mapping[str, Array], broken: Array) -> None:
    """Whatever stands in the held-out rows, the scores of a series are the same."""
    changed = {client: series.copy() for client, series in fleet.items()}
    for series in changed.values():
        series[-int(VALIDATION * 900) :] += 3.0
    scores = small(name).fit(fleet, seed=0).score("pump-1", broken)
    assert np.array_equal(scores, small(name).fit(changed, seed=0).score("pump-1", broken), equal_nan=True)


@pytest.mark.parametrize("name", OWN)
def test_one_scaling_for_all(name: str, fleet: Mapping[str, Array], broken: Array) -> None:
    scores = small(name).fit(fleet, seed=0, scaling="global").score("pump-1", broken)
    assert np.isfinite(scores[WINDOW:]).all()


def test_fedkad_is_what_federate_makes(fleet: Mapping[str, Array], broken: Array) -> None:
    fitted = small("fedkad").fit(fleet, seed=3)
    federation = federate(fleet, rank=6, observables=16, smoothing=1, seed=3)
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
    alone = KoopmanDetector(rank=6, observables=16, smoothing=1).fit(fleet["pump-1"])
    scores = small("fedkad-local").fit(fleet, seed=0).score("pump-1", broken)
    assert np.array_equal(scores, alone.decision_function(broken), equal_nan=True)


def test_the_centralised_solution_is_no_worse_than_the_federated(fleet: Mapping[str, Array]) -> None:
    from fedkad.koopman.subspace import relative_loss

    losses = {}
    for name in ("fedkad-centralised", "fedkad", "fedkad-untrained"):
        detectors = KoopmanMethod(name, rank=6, observables=16).fit(fleet, seed=0).detectors.values()
        statistics = [detector.kept()[0] for detector in detectors]
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
    with pytest.raises(ValueError, match="choose among fedkad, "):
        make("fedcad")
    monkeypatch.setattr("fedkad_bench.methods.registry.find_spec", lambda name: None)
    require(["fedkad", "pca", "random"])
    with pytest.raises(
        MissingExtraError, match=r"tranad, kmeansad need PyTorch and scikit-learn: pip install fedkad-bench"
    ):
        require(["fedkad", "tranad", "kmeansad"])


def test_the_registry_imports_no_heavy_library() -> None:
    code = (
        "import sys, fedkad_bench.cli.bench; print(sorted({'torch', 'sklearn', 'scipy', 'pandas'} & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"
