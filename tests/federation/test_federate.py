"""`federate` and `admit` from outside: determinism, records, bytes, errors."""

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from fedkad import Federation, FewRowsWarning, KoopmanDetector, federate
from fedkad.detect.threshold import USUAL_SHAPE
from fedkad.federation import wire
from fedkad.federation.participant import own_threshold
from fedkad.koopman.stiefel import retract_polar
from fedkad.koopman.subspace import descend, leading_directions, relative_loss
from tests.fixtures import naive

Array = NDArray[np.float64]
SMALL: dict[str, Any] = {"window": 3, "rank": 3, "observables": 4, "validation": 0.4, "risk": 1e-3}
DIMENSION = 2 * 3 + 4
MATRIX = DIMENSION * 3


def make_fleet(devices: int, length: int = 300) -> dict[str, Array]:
    return {f"pump-{k}": naive.normal_series(length, seed=k) * (1.0 + 0.1 * k) for k in range(devices)}


@pytest.fixture(scope="module")
def fleet() -> dict[str, Array]:
    return make_fleet(8)


@pytest.fixture(scope="module")
def federation(fleet: dict[str, Array]) -> Federation:
    return federate(fleet, **SMALL)


def test_every_device_has_a_detector_on_the_shared_subspace(fleet: dict[str, Array], federation: Federation) -> None:
    assert list(federation.detectors) == list(fleet)
    np.testing.assert_allclose(federation.subspace.T @ federation.subspace, np.eye(3), atol=1e-12)
    for name, detector in federation.detectors.items():
        assert np.array_equal(detector.subspace_[:, :3], federation.subspace)
        alone = KoopmanDetector(**SMALL).prepare(fleet[name]).adopt(federation.subspace)
        np.testing.assert_allclose(detector.operator_, alone.operator_, atol=1e-12)
        assert detector.threshold_ == pytest.approx(alone.threshold_)
        assert np.array_equal(detector.predict(fleet[name]), alone.predict(fleet[name]))


def test_the_default_run_covers_the_fleet_warm_and_goes_on(federation: Federation) -> None:
    assert len(federation.history) == 8
    assert [record.phase for record in federation.history] == ["warm"] * 4 + ["admm"] * 4
    assert sorted(name for r in federation.history[:4] for name in r.participants) == sorted(federation.detectors)
    assert federation.schedule == [record["participants"] for record in federation.history]


def test_a_warm_cover_comes_near_the_centralised_solution(fleet: dict[str, Array]) -> None:
    federation = federate(fleet, rounds=4, **SMALL)
    statistics = [detector.memory_.statistics for detector in federation.detectors.values()]
    mean = np.sum([s.xx / s.energy for s in statistics], axis=0)
    best = descend(statistics, leading_directions(mean, 3).vectors, most=1000, tolerance=1e-7)
    assert relative_loss(statistics, federation.subspace) <= 1.05 * best.loss


def same(one: Federation, two: Federation) -> bool:
    return np.array_equal(one.subspace, two.subspace) and all(
        one.detectors[name].threshold_ == two.detectors[name].threshold_ for name in one.detectors
    )


@pytest.mark.parametrize("changes", [{}, {"start": "common"}, {"preset": "paper", "rounds": 6}])
def test_a_run_is_determined_by_its_seed_and_replayed_by_its_schedule(
    fleet: dict[str, Array], changes: dict[str, Any]
) -> None:
    one, again = (federate(fleet, seed=5, **changes, **SMALL) for _ in range(2))
    assert same(one, again)
    assert [r.objective for r in one.history] == [r.objective for r in again.history]
    replay = federate(fleet, seed=5, schedule=one.schedule, **{**changes, "rounds": 99}, **SMALL)
    assert same(one, replay)
    assert replay.schedule == one.schedule
    other = federate(fleet, seed=6, **changes, **SMALL)
    assert other.schedule != one.schedule
    assert not same(one, other)


@pytest.mark.parametrize(("encoding", "width"), [("float64", 8), ("float32", 4), ("float16", 2)])
def test_bytes_are_those_of_the_matrices_that_travel(fleet: dict[str, Array], encoding: Any, width: int) -> None:
    plan = [["pump-0", "pump-1"], ["pump-2"], ["pump-0", "pump-2", "pump-3"], ["pump-0", "pump-4"], ["pump-4"]]
    run = federate(fleet, schedule=plan, encoding=encoding, **SMALL)
    assert [r.phase for r in run.history] == ["warm", "warm", "admm", "admm", "admm"]
    assert [r.bytes_up for r in run.history] == [len(p) * MATRIX * width for p in plan]
    # Down: Z before the round to those who do not hold it, and Z after it to all participants.
    sent = [0, 0, 3 + 3, 1 + 2, 0 + 1]
    assert [r.bytes_down for r in run.history] == [n * MATRIX * width for n in sent]
    assert run.delivery_bytes == (8 - 1) * MATRIX * width


def test_narrow_encodings_change_the_result_by_their_rounding_only(fleet: dict[str, Array]) -> None:
    exact = federate(fleet, encoding="float64", **SMALL).subspace
    for encoding, tolerance in (("float32", 1e-5), ("float16", 0.02)):
        found = federate(fleet, encoding=encoding, **SMALL).subspace  # type: ignore[arg-type]
        assert not np.array_equal(found, exact)
        np.testing.assert_allclose(found @ found.T, exact @ exact.T, atol=tolerance)


def test_the_wire_is_little_endian_rows() -> None:
    matrix = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 1.0 / 3.0]])
    for encoding, kind in (("float64", "<f8"), ("float32", "<f4"), ("float16", "<f2")):
        payload = wire.encode(np.asfortranarray(matrix), encoding)  # type: ignore[arg-type]
        assert payload == b"".join(np.array(v, dtype=kind).tobytes() for v in matrix.ravel())
        expected = matrix.astype(kind).astype(float)
        assert np.array_equal(wire.decode(payload, (2, 3), encoding), expected)  # type: ignore[arg-type]


def test_progress_is_reported() -> None:
    seen: list[tuple[str, int, int]] = []
    federate(make_fleet(4), rounds=3, progress=lambda *what: seen.append(what), **SMALL)
    assert [s for s in seen if s[0] == "rounds"] == [("rounds", k, 3) for k in (1, 2, 3)]
    assert ("statistics", 4, 4) in seen
    assert ("detectors", 4, 4) in seen


# -- scaling ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scoring", "learnt"), [("witnesses", 300), ("paper", 180)])
def test_one_scaling_for_the_fleet_is_that_of_the_pooled_training_rows(
    fleet: dict[str, Array], scoring: str, learnt: int
) -> None:
    federation = federate(fleet, scaling="global", rounds=2, scoring=scoring, **SMALL)
    pooled = np.concatenate([series[:learnt] for series in fleet.values()])
    for detector in federation.detectors.values():
        np.testing.assert_allclose(detector.scaling_.mean, pooled.mean(axis=0), rtol=1e-10)
        np.testing.assert_allclose(detector.scaling_.scale, pooled.std(axis=0), rtol=1e-10)
    admitted = federation.admit("new", naive.normal_series(300, seed=50))
    np.testing.assert_allclose(admitted.scaling_.mean, pooled.mean(axis=0), rtol=1e-10)


@pytest.mark.parametrize(("scoring", "learnt"), [("witnesses", 300), ("paper", 180)])
def test_device_scaling_is_each_ones_own(fleet: dict[str, Array], scoring: str, learnt: int) -> None:
    for name, detector in federate(fleet, rounds=1, scoring=scoring, **SMALL).detectors.items():
        np.testing.assert_allclose(detector.scaling_.mean, fleet[name][:learnt].mean(axis=0), rtol=1e-10)


# -- the paper ----------------------------------------------------------------------------------------------------


def test_the_papers_preset(fleet: dict[str, Array]) -> None:
    run = federate(fleet, preset="paper", **SMALL)
    assert len(run.history) == 30
    assert {r.phase for r in run.history} == {"admm"}
    assert {len(r.participants) for r in run.history} == {2}  # a quarter of eight
    first_pass = [name for r in run.history[:4] for name in r.participants]
    assert len(set(first_pass)) < 8 or len({str(sorted(r.participants)) for r in run.history}) > 4  # uniform
    assert all(detector.scoring == "paper" for detector in run.detectors.values())
    # independent random starts: the residual begins near √(2r)
    assert run.history[0].consensus_residual > 0.6 * np.sqrt(6.0)
    by_hand = federate(
        fleet, preset="paper", rounds=4, step_size=0.05, start="random", sampling="uniform", penalty=1.0, **SMALL
    )
    assert by_hand.schedule == run.schedule[:4]
    assert [r.objective for r in by_hand.history] == [r.objective for r in run.history[:4]]
    # relative to the energy: at the start most of it is unexplained on each of the eight devices
    assert 0.3 * 8 < run.history[0].objective < 8


def test_what_is_given_besides_the_preset_counts(fleet: dict[str, Array]) -> None:
    run = federate(fleet, preset="paper", rounds=3, participation=0.5, scoring="witnesses", sampling="cover", **SMALL)
    assert len(run.history) == 3
    assert {len(r.participants) for r in run.history} == {4}
    assert all(detector.scoring == "witnesses" for detector in run.detectors.values())
    assert sorted(run.schedule[0] + run.schedule[1]) == sorted(fleet)


# -- admit --------------------------------------------------------------------------------------------------------


def test_a_threshold_set_by_hand_does_not_advise_newcomers(fleet: dict[str, Array]) -> None:
    """Neither in process nor over a network, where the device keeps such a threshold to itself."""
    federation = federate(fleet, **SMALL)
    own = {name: detector.threshold_ for name, detector in federation.detectors.items()}
    for name in list(own)[:6]:
        federation.detectors[name].threshold_ = 1e6
        assert own_threshold(federation.detectors[name].model_) is None
    with pytest.warns(FewRowsWarning):
        admitted = federation.admit("new", naive.normal_series(100, seed=20))
    assert admitted.model_.least_threshold == pytest.approx(np.median(list(own.values())[6:]))


@pytest.mark.parametrize("rows", [100, 150])
def test_a_new_device_works_from_few_samples(federation: Federation, rows: int) -> None:
    name = f"new-{rows}"
    with pytest.warns(FewRowsWarning, match=f"{rows} rows"):
        detector = federation.admit(name, naive.normal_series(rows, seed=20))
    assert federation.detectors[name] is detector
    assert np.array_equal(detector.subspace_[:, :3], federation.subspace)
    assert detector.model_.few_rows
    series = naive.normal_series(400, seed=21)
    assert detector.predict(series).mean() < 0.1
    series[200:230, 1] = series[200, 1]  # stuck
    series[300:305, 0] += 6.0
    assert detector.predict(series)[300:306].any()
    with pytest.raises(ValueError, match=f"'{name}'.*already"):
        federation.admit(name, series)


def test_admit_refuses_what_does_not_fit(federation: Federation) -> None:
    with pytest.raises(ValueError, match=r"Device 'x'.*3 channel.*2"):
        federation.admit("x", np.ones((200, 3)))
    with pytest.raises(ValueError, match=r"Device 'x'.*Too few rows"):
        federation.admit("x", naive.normal_series(12))
    assert "x" not in federation.detectors


def test_the_warning_about_few_rows_obeys_the_callers_filters() -> None:
    short = {name: series[:100] for name, series in make_fleet(4).items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error", FewRowsWarning)
        with pytest.raises(FewRowsWarning):
            federate(short, rounds=1, **SMALL)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore", FewRowsWarning)
        federate(short, rounds=1, **SMALL)
    assert caught == []


def test_a_mixed_fleet_says_which_devices_have_few_rows() -> None:
    fleet = make_fleet(4)
    fleet["pump-2"] = fleet["pump-2"][:90]
    with pytest.warns(FewRowsWarning):
        federation = federate(fleet, rounds=2, **SMALL)
    assert [name for name, d in federation.detectors.items() if d.model_.few_rows] == ["pump-2"]


# -- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"participation": 0.1}, "participation=0.1 of 4 device"),
        ({"participation": 1.5}, "participation=1.5"),
        ({"participation": 0.0}, "participation=0.0"),
        ({"penalty": 0.0}, "penalty=0.0"),
        ({"penalty": -1.0}, "penalty"),
        ({"local_steps": 0}, "local_steps"),
        ({"local_steps": 2.5}, "local_steps"),
        ({"rounds": -1}, "rounds"),
        ({"rounds": 0}, "rounds"),
        ({"rounds": 2.5}, "rounds"),
        ({"step_size": -0.1}, "step_size"),
        ({"step_size": 0.0}, "step_size"),
        ({"start": "cold"}, "start='cold'.*'warm'"),
        ({"sampling": "all"}, "sampling='all'.*'cover'"),
        ({"scaling": "none"}, "scaling='none'.*'global'"),
        ({"encoding": "int4"}, "encoding='int4'.*'float32'"),
        ({"preset": "nature"}, "preset='nature'.*'paper'"),
        ({"schedule": [["pump-0"], ["pump-77"]]}, "Round 1.*'pump-77'"),
        ({"schedule": [[]]}, "Round 0.*no participants"),
        ({"schedule": [["pump-0", "pump-0"]]}, "Round 0.*pump-0"),
        ({"schedule": []}, "schedule"),
        ({"rank": 1000}, "Device 'pump-0'.*rank=1000"),
        ({"seed": -1}, "seed"),
    ],
)
def test_wrong_settings_are_refused_in_words(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        federate(make_fleet(4, 290), **{**SMALL, **changes})


def test_an_empty_fleet_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        federate({}, **SMALL)


def test_a_device_that_differs_is_named() -> None:
    fleet: dict[str, Any] = make_fleet(4)
    fleet["pump-2"] = np.ones((300, 3))
    with pytest.raises(ValueError, match=r"Device 'pump-2'.*3 channel.*2"):
        federate(fleet, **SMALL)
    with pytest.raises(ValueError, match=r"Device 'pump-2'.*3 channel"):
        federate(fleet, scaling="global", **SMALL)
    frames: dict[str, Any] = {n: pd.DataFrame(x, columns=["t", "p"]) for n, x in make_fleet(4).items()}
    frames["pump-3"] = frames["pump-3"][["p", "t"]]
    with pytest.raises(ValueError, match=r"Device 'pump-3'.*p, t instead of t, p"):
        federate(frames, **SMALL)
    frames["pump-3"] = frames["pump-3"].rename(columns={"p": "q"})
    with pytest.raises(ValueError, match=r"Device 'pump-3'.*missing 'p'.*unknown 'q'"):
        federate(frames, **SMALL)
    bad = make_fleet(4)
    bad["pump-1"][7, 1] = np.inf
    with pytest.raises(ValueError, match=r"Device 'pump-1'.*Row 7 of channel 1 is infinite"):
        federate(bad, **SMALL)


def test_the_shared_subspace_is_the_polar_factor_of_the_last_consensus() -> None:
    run = federate(make_fleet(4), start="common", encoding="float64", **SMALL)
    np.testing.assert_allclose(retract_polar(run.subspace), run.subspace, atol=1e-12)


@pytest.mark.slow
def test_importing_fedkad_loads_nothing_heavy() -> None:
    code = (
        "import sys, fedkad\n"
        "heavy = 'scipy torch flwr typer rich matplotlib pandas pyarrow sklearn pymanopt kooplearn'.split()\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_two_devices_take_turns_unless_asked_for_less_than_one() -> None:
    pair = make_fleet(2, 290)
    assert {len(record.participants) for record in federate(pair, **SMALL).history} == {1}
    with pytest.raises(ValueError, match="less than one device"):
        federate(pair, participation=0.25, **SMALL)


def test_a_device_with_few_samples_borrows_the_threshold_of_the_fleet(tmp_path: Path) -> None:
    federation = federate(make_fleet(4, 290), **SMALL)
    usual = float(np.median([detector.threshold_ for detector in federation.detectors.values()]))
    alone = KoopmanDetector(**federation.parameters).prepare(make_fleet(5, 90)["pump-4"])
    with pytest.warns(FewRowsWarning):
        alone.adopt(federation.subspace)
    with pytest.warns(FewRowsWarning):
        admitted = federation.admit("pump-4", make_fleet(5, 90)["pump-4"])
    assert admitted.threshold_ == max(alone.threshold_, usual)
    with pytest.warns(FewRowsWarning):  # advice is not taken from those who were advised
        assert federation.admit("pump-5", make_fleet(5, 90)["pump-4"]).model_.least_threshold == usual
    admitted.save(tmp_path / "model")
    loaded = KoopmanDetector.load(tmp_path / "model")
    assert loaded.threshold_ == admitted.threshold_
    assert loaded.model_.rule == admitted.model_.rule
    assert loaded.model_.usual_shape == admitted.model_.usual_shape != USUAL_SHAPE
    assert admitted.learn(make_fleet(5, 900)["pump-4"]).threshold_ >= usual  # still too little of its own
    loaded.learn(make_fleet(5, 900)["pump-4"])
    more = make_fleet(5, 6000)["pump-4"]
    assert loaded.learn(more).threshold_ == pytest.approx(admitted.learn(more).threshold_)
    assert not loaded.model_.few_rows
    own = loaded.model_.settings.threshold_rule.found(loaded.model_.normal_scores)
    assert loaded.threshold_ == own.value


def test_the_shape_of_the_fleet_counts_while_scores_are_few() -> None:
    """A fleet whose scores have heavy tails makes a newcomer expect one, until it has seen enough itself."""
    series = make_fleet(2, 4000)["pump-1"]
    detector = KoopmanDetector(rank=6).fit(series[:900])
    subspace = detector.subspace_
    usual, heavy = (detector.adopt(subspace, 0.0, shape).threshold_ for shape in (USUAL_SHAPE, 0.3))
    assert heavy > 1.1 * usual
    assert detector.rejudge("quantile").rejudge("pot").threshold_ == heavy  # whatever rule sets it
    settled = detector.learn(series[900:]).model_
    assert settled.rule is not None
    assert settled.rule.shape == USUAL_SHAPE
    assert settled.threshold == settled.settings.threshold_rule.found(settled.normal_scores).value


def test_a_device_that_reads_a_constant_takes_part_without_observables() -> None:
    t = np.arange(900.0)[:, None]
    fleet = {"still": np.full((900, 2), 7.0), "pump": np.sin(t / [[7.0, 11.0]]), "fan": np.cos(t / [[5.0, 9.0]])}
    federation = federate(fleet, rank=4, observables=0, participation=1.0, rounds=3)
    assert [record.phase for record in federation.history] == ["warm", "admm", "admm"]
    assert np.isfinite(federation.detectors["still"].decision_function(fleet["still"])[20:]).all()


@pytest.mark.filterwarnings("ignore::fedkad.detect.detector.FewRowsWarning")
@pytest.mark.parametrize("scaling", ["device", "global"])
def test_a_bad_device_is_skipped_whatever_the_scaling(scaling: Any, tmp_path: Path) -> None:
    rows = np.sin(np.arange(700.0)[:, None] / [[7.0, 11.0]])
    fleet = {"short": rows[:5], "a": rows, "b": 2.0 * rows}
    skipped: dict[str, str] = {}
    trained = federate(fleet, rank=np.int64(4), scaling=scaling, skip=skipped.__setitem__)
    assert list(trained.detectors) == ["a", "b"]
    assert "Too few rows" in skipped["short"]
    trained.save(tmp_path / "fleet")
    assert list(Federation.load(tmp_path / "fleet").detectors) == ["a", "b"]
