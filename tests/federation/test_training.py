"""A training carried by hand: whatever is lost, repeated or killed, the result is that of some legal schedule."""

import json
import math
import os
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedkad import FewRowsWarning, KoopmanDetector, __version__, federate
from fedkad.detect.modelfile import read_model
from fedkad.detect.tail import fit_tail
from fedkad.detect.threshold import USUAL_SHAPE, choose_level
from fedkad.federation import wire
from fedkad.federation.coordinator import Coordinator, TrainingPlan
from fedkad.federation.delivery import abandon
from fedkad.federation.devicestate import DeviceState
from fedkad.federation.durable import DurableParticipant
from fedkad.federation.history import Round
from fedkad.federation.model_archive import KIND
from fedkad.federation.participant import OwnTerms
from fedkad.federation.protocol import PROTOCOL, ProtocolError, Reply, Request, refusal
from fedkad.federation.server import WARM_REPLY
from fedkad.federation.settings import Encoding
from fedkad.federation.training_files import RESULT, UNDER_WAY
from fedkad.federation.training_state import latest_training, stored_terms
from fedkad.koopman.stiefel import random_point, retract_polar
from fedkad.koopman.subspace import relative_loss
from tests.fixtures.draws import draws
from tests.fixtures.trainings import (
    LIFTING,
    MODEL,
    NAMES,
    Fleet,
    make_terms,
    prepare,
    prepared,
    series,
    shared_directions,
)

__all__ = ["prepared"]

Array = NDArray[np.float64]


@pytest.fixture
def fleet(tmp_path: Path, prepared: dict[str, Path]) -> Fleet:
    return Fleet(tmp_path, prepared, make_terms(), TrainingPlan(rounds=6, participation=0.5))


@pytest.mark.parametrize("encoding", ["float64", "float32", "float16", "int8"])
def test_rounds_by_message_are_those_in_process(tmp_path: Path, prepared: dict[str, Path], encoding: Encoding) -> None:
    fleet = Fleet(tmp_path, prepared, make_terms(encoding=encoding), TrainingPlan(rounds=7, participation=0.5))
    while not fleet.training.finished:
        assert fleet.round(fleet.training.choose(NAMES))
    found = fleet.delivered("a")
    assert [record.phase for record in fleet.training.state.records] == ["warm"] * 2 + ["admm"] * 5
    np.testing.assert_allclose(shared_directions(found), fleet.replayed(), atol=1e-12)
    reference = federate(
        {n: series(n) for n in NAMES}, schedule=fleet.training.state.schedule, encoding=encoding, **MODEL
    )
    assert found.threshold_ == pytest.approx(reference.detectors["a"].threshold_, rel=1e-9)
    assert sum(r.bytes_up for r in fleet.training.state.records) == sum(r.bytes_up for r in reference.history)


FAULTS = ("none", "request lost", "killed before saving", "reply lost", "late", "server killed", "asked twice")


@pytest.mark.slow
@draws(20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), encoding=st.sampled_from(["float32", "int8"]))
def test_whatever_is_lost_the_result_is_of_a_legal_schedule(
    tmp_path_factory: pytest.TempPathFactory, prepared: dict[str, Path], data: st.DataObject, encoding: Encoding
) -> None:
    plan = TrainingPlan(rounds=6, participation=0.5)
    fleet = Fleet(tmp_path_factory.mktemp("fleet"), prepared, make_terms(encoding=encoding), plan)
    late: list[tuple[str, dict[str, Any]]] = []
    attempt = 0
    while not fleet.training.finished:
        attempt += 1
        there = [*NAMES, "late"] if attempt > 3 else list(NAMES)
        requests = fleet.training.open(fleet.training.choose(there))
        for name, _ in late:
            fleet.training.requests.refuse_late(name)
        late.clear()
        for name, request in requests.items():
            fault = data.draw(st.sampled_from(FAULTS)) if attempt < 12 else "none"
            if fault == "server killed":
                fleet.ask(name, request)
                fleet.kill_server()
                break
            late += suffer(fleet, name, request, fault)
        else:
            fleet.training.close()
    np.testing.assert_allclose(shared_directions(fleet.delivered("b")), fleet.replayed(), atol=1e-10)


def suffer(fleet: Fleet, name: str, request: Request, fault: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """One question with one fault; a late answer is given back."""
    if fault == "request lost":
        return
    if fault == "killed before saving":
        kept = fleet.folder / name / "consensus.safetensors"
        before = kept.read_bytes() if kept.exists() else None
        fleet.ask(name, request)
        kept.unlink(missing_ok=True)
        if before is not None:
            kept.write_bytes(before)
        return
    answer = fleet.ask(name, request)
    if fault == "asked twice":
        again = fleet.ask(name, request)
        assert again["payload"] == answer["payload"]
    if fault == "late":
        yield name, answer
    elif fault != "reply lost":
        assert fleet.training.take(name, answer)


def test_a_killed_server_goes_on_where_the_last_round_was_closed(fleet: Fleet) -> None:
    for _ in range(3):
        fleet.round(fleet.training.choose(NAMES))
    asked = fleet.training.open(fleet.training.choose(NAMES))
    name = next(iter(asked))
    assert fleet.training.take(name, fleet.ask(name, asked[name]))
    before = fleet.training.state.schedule
    fleet.kill_server()
    assert fleet.training.state.schedule == before
    assert fleet.training.state.round == 3
    while not fleet.training.finished:
        fleet.round(fleet.training.choose(NAMES))
    np.testing.assert_allclose(shared_directions(fleet.delivered("a")), fleet.replayed(), atol=1e-12)


def test_a_reply_that_was_not_accepted_leaves_the_dual_as_it_was(fleet: Fleet) -> None:
    for _ in range(2):
        fleet.round(fleet.training.choose(NAMES))
    fleet.round(["a", "b"])
    kept = fleet.folder / "a" / "consensus.safetensors"
    lost = fleet.training.open(["a", "b"])
    fleet.ask("a", lost["a"])  # the answer never arrives
    fleet.training.take("b", fleet.ask("b", lost["b"]))
    fleet.training.close()
    assert fleet.training.state.ledger.accepted == {"a": 2, "b": 3}
    after = kept.read_bytes()
    fleet.training.take("a", fleet.ask("a", fleet.training.open(["a"])["a"]))
    fleet.training.close()
    assert kept.read_bytes() != after
    np.testing.assert_allclose(shared_directions(fleet.delivered("a")), fleet.replayed(), atol=1e-12)


def honest(fleet: Fleet) -> tuple[Request, dict[str, Any]]:
    for _ in range(2):
        fleet.round(fleet.training.choose(NAMES))
    request = fleet.training.open(["a", "b"])["a"]
    return request, fleet.ask("a", request)


def encoded(matrix: Array) -> bytes:
    return wire.encode(matrix, "float32")


SHAPE = (LIFTING.dimension, MODEL["rank"])
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "not a number": ({"payload": encoded(np.full(SHAPE, np.nan))}, "not finite"),
    "infinite": ({"payload": encoded(np.full(SHAPE, np.inf))}, "not finite"),
    "huge": ({"payload": encoded(np.full(SHAPE, 1e3))}, "norm"),
    "too short": ({"payload": encoded(np.zeros((3, 3)))}, "36 bytes are not a matrix of 14 x 3"),
    "empty": ({"payload": b""}, "0 bytes"),
    "text": ({"payload": "text"}, "payload = 'text' must be of type bytes"),
    "other rank": ({"rank": 4}, "rank differs: the reply has 4; the request has 3"),
    "other dimension": ({"dimension": 15}, "lifted dimension differs: the reply has 15"),
    "old round": ({"round": 1}, "round differs: the reply has 1; the request has 2"),
    "old training": ({"run": "run-0"}, "training differs: the reply has run-0; the request has run-1"),
    "other lifting": ({"lifting": "ff"}, "digest of the lifting"),
    "other seed": ({"seed": 4}, "seed of the lifting"),
    "other encoding": ({"encoding": "float16"}, "encoding differs: the reply has float16"),
    "other name": ({"device": "b"}, "name differs: the reply has b; the request has a"),
    "no ticket": ({"ticket": ""}, "ticket"),
    "other protocol": ({"protocol": 2, "version": "9.9"}, f"speaks protocol 1 .*; upgrade .* fedkad {__version__}"),
    "diagnostic of words": ({"diagnostics.seconds": "ten"}, "diagnostics.seconds = 'ten'"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_no_honest_device_sends_is_refused_and_counted(fleet: Fleet, what: str) -> None:
    changes, words = BAD[what]
    _, answer = honest(fleet)
    assert not fleet.training.take("a", {**answer, **changes})
    told = fleet.training.state.ledger.refused[-1]
    assert (told["device"], told["round"]) == ("a", 2)
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(told["reason"])
    assert fleet.training.state.ledger.refusals == 1


def test_a_refused_answer_is_never_in_the_mean(fleet: Fleet) -> None:
    for _ in range(2):
        fleet.round(fleet.training.choose(NAMES))
    requests = fleet.training.open(["a", "b"])
    answer = fleet.ask("a", requests["a"])
    fleet.training.take("a", {**answer, "payload": encoded(np.full(SHAPE, np.nan))})
    assert not fleet.training.take("c", answer)  # nobody asked c
    fleet.training.take("b", fleet.ask("b", requests["b"]))
    assert fleet.training.requests.is_over()  # nobody is awaited
    fleet.training.close()
    assert fleet.training.state.schedule[-1] == ("b",)
    np.testing.assert_allclose(shared_directions(fleet.delivered("b")), fleet.replayed(), atol=1e-12)


@pytest.mark.parametrize("missing", ["ticket", "payload", "device", "lifting", "round"])
def test_a_message_without_a_part_is_refused(fleet: Fleet, missing: str) -> None:
    _, answer = honest(fleet)
    del answer[missing]
    assert not fleet.training.take("a", answer)
    assert missing in fleet.training.state.ledger.refused[-1]["reason"]


def test_the_device_refuses_what_is_not_meant_for_it(fleet: Fleet) -> None:
    request, _ = honest(fleet)
    header = request.header()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"protocol": 7}, "protocol 7 .* and this side speaks protocol 1"),
        ({"protocol": 0, "version": "0.0.9"}, "upgrade the side that has fedkad 0.0.9"),
        ({"lifting": "00"}, "digest of the lifting differs: the server has 00; this device has"),
        ({"seed": 1}, "digest of the lifting"),
        ({"dimension": 99}, "lifted dimension differs: the server has 99; this device has 14"),
        ({"encoding": "float8"}, "encoding = 'float8' must be one of"),
        ({"consensus.penalty": 2.0}, "settings of the consensus differ: the server"),
        ({"shared": b"123"}, "3 bytes are not a matrix"),
        ({"window": "4"}, "window = '4' must be of type int"),
    ]
    for changes, words in wrong:
        with pytest.raises(ValueError, match=words):
            fleet.device("a").answer(Request.read({**header, **changes}))


def test_an_old_request_is_refused(fleet: Fleet) -> None:
    fleet.round(["a", "b"])
    fleet.round(["c", "d"])
    old = fleet.training.open(["a"])["a"]
    fleet.training.take("a", fleet.ask("a", old))
    fleet.training.close()
    fleet.round(["a"])
    with pytest.raises(ProtocolError, match="has computed round 3 and committed round 2"):
        fleet.ask("a", old)


def test_a_device_without_its_folder_waits_for_the_next_training(fleet: Fleet) -> None:
    fleet.round(list(NAMES))
    fleet.round(["a"])
    (fleet.folder / "a" / "consensus.safetensors").unlink()
    with pytest.raises(ProtocolError, match="has no record of that round"):
        fleet.ask("a", fleet.training.open(["a"])["a"])
    other = Coordinator(replace(fleet.terms, run="run-2"), fleet.plan, fleet.folder / "again")
    assert other.take("a", fleet.ask("a", other.open(["a"])["a"]))


def test_a_damaged_state_is_set_aside(fleet: Fleet) -> None:
    fleet.round(list(NAMES))
    kept = fleet.folder / "a" / "consensus.safetensors"
    fleet.training.open(["a"])
    kept.write_bytes(b"damaged")
    assert fleet.round(["a"])
    assert (fleet.folder / "a" / "consensus.safetensors.damaged-1").read_bytes() == b"damaged"


def test_only_what_the_page_names_leaves_a_device(fleet: Fleet) -> None:
    _, answer = honest(fleet)
    identity = {"protocol", "version", "run", "seed", "lifting", "dimension", "encoding", "rank"}
    own = {"kind", "round", "ticket", "device", "payload"}
    assert set(answer) == identity | own | {f"diagnostics.{n}" for n in ("seconds", "objective", "change")}


def test_with_noise_no_diagnostic_leaves_but_the_seconds(tmp_path: Path, prepared: dict[str, Path]) -> None:
    fleet = Fleet(tmp_path, prepared, make_terms(noise=0.1), TrainingPlan(rounds=3, participation=1.0))
    for _ in range(3):
        asked = fleet.training.open(NAMES)
        for name, request in asked.items():
            answer = fleet.ask(name, request)
            assert [key for key in answer if key.startswith("diagnostics")] == ["diagnostics.seconds"]
            assert fleet.training.take(name, answer)
        fleet.training.close()
    request = fleet.training.delivery.requests(NAMES)["a"]
    assert "diagnostics.threshold" not in fleet.ask("a", request)


def test_nobody_is_asked_twice_before_everybody_was(fleet: Fleet) -> None:
    asked = [fleet.training.choose(NAMES) for _ in range(2)]
    assert sorted(chain.from_iterable(asked)) == list(NAMES)


def test_who_never_answers_does_not_hold_up_the_fleet(fleet: Fleet) -> None:
    while not fleet.training.finished:
        asked = fleet.training.open(fleet.training.choose(NAMES))
        for name, request in asked.items():
            fleet.training.take(name, refusal("no data") if name == "d" else fleet.ask(name, request))
        fleet.training.close()
    assert all("d" not in names for names in fleet.training.state.schedule)
    assert {record.phase for record in fleet.training.state.records} == {"warm", "admm"}
    np.testing.assert_allclose(shared_directions(fleet.delivered("a")), fleet.replayed(), atol=1e-12)


def test_a_round_is_over_at_its_quorum_or_its_deadline(tmp_path: Path, prepared: dict[str, Path]) -> None:
    fleet = Fleet(tmp_path, prepared, make_terms(), TrainingPlan(quorum=0.5, deadline=1000.0))
    asked = fleet.training.open(NAMES)
    for name in ("a", "b"):
        assert not fleet.training.requests.is_over()
        fleet.training.take(name, fleet.ask(name, asked[name]))
    assert fleet.training.requests.is_over()
    hasty = Fleet(tmp_path / "hasty", prepared, make_terms(), TrainingPlan(deadline=0.0))
    hasty.training.open(NAMES)
    assert hasty.training.requests.is_over()
    assert not hasty.training.close()
    assert hasty.training.state.round == 0


def test_a_quorum_is_never_less_than_a_round_needs(tmp_path: Path, prepared: dict[str, Path]) -> None:
    """Else a round would be over with two and be refused for want of a third, again and again."""
    plan = TrainingPlan(quorum=0.5, deadline=1000.0, participation=1.0, least=3)
    fleet = Fleet(tmp_path, prepared, make_terms(robust=True), plan)
    asked = fleet.training.open(NAMES)
    for name in ("a", "b", "c"):
        assert not fleet.training.requests.is_over()
        fleet.training.take(name, fleet.ask(name, asked[name]))
    assert fleet.training.requests.is_over()
    assert fleet.training.close()


def test_the_status_is_json_for_people_and_programs(fleet: Fleet) -> None:
    while not fleet.training.finished:
        fleet.round(fleet.training.choose(NAMES))
    status = json.loads((fleet.folder / "server" / "status.json").read_text())
    assert status["state"] == "delivering"
    assert status["round"] == status["rounds"] == 6
    fleet.delivered("a")
    fleet.training.delivery.finish()
    status = latest_training(fleet.folder / "server")
    assert status is not None
    assert status["state"] == "done"
    assert status["delivered"] == ["a"]
    assert [tuple(names) for names in status["participants"]] == fleet.training.state.schedule


def status_of_many(folder: Path, devices: int, rounds: int) -> tuple[int, dict[str, Any]]:
    """The bytes of the status of a training that so many devices took part in, and all that is known of it."""
    names = tuple(f"pump-{k}" for k in range(devices))
    training = Coordinator(make_terms(), TrainingPlan(), folder)
    training.state.records = [Round("admm", names, 0.5, 0.1, 10, 10, 1.0, 1.0)] * rounds
    training.state.ledger.delivered = list(names)
    for name in names:
        training.requests.refuse(name, "It has other channels.")
    training.delivery.finish()
    found = latest_training(folder)
    assert found is not None
    return (folder / "status.json").stat().st_size, found


def test_the_status_does_not_grow_with_devices_and_rounds(tmp_path: Path) -> None:
    small, _ = status_of_many(tmp_path / "small", 200, 2)
    large, found = status_of_many(tmp_path / "large", 2000, 40)
    assert large - small < 1000, "a few more digits"
    assert list(map(len, found["participants"])) == [2000] * 40, "the schedule is kept where the training is"
    assert (len(found["delivered"]), found["held_by"], found["took_part"], found["loss"]) == (2000, 2000, 2000, 0.5)


def test_the_status_shows_no_round_that_it_does_not_count(fleet: Fleet) -> None:
    """The file of the training is written first, and a reader may come in between."""
    fleet.round(list(NAMES))
    before = (fleet.folder / "server" / "status.json").read_bytes()
    fleet.round(list(NAMES))
    (fleet.folder / "server" / "status.json").write_bytes(before)
    found = latest_training(fleet.folder / "server")
    assert found is not None
    assert (found["round"], found["participants"]) == (1, [list(NAMES)])


def thresholds_of_unadvised(fleet: Fleet) -> list[float]:
    """The thresholds that the devices set themselves; all are asked before any of them has answered."""
    for name, request in fleet.training.delivery.requests(NAMES).items():
        assert fleet.training.delivery.confirm(name, fleet.ask(name, request))
    models = [KoopmanDetector.load(fleet.folder / name / "model.safetensors").model_ for name in NAMES]
    assert [model.least_threshold for model in models] == [0.0] * len(NAMES)
    return [model.threshold for model in models]


def own_shape_of(fleet: Fleet, name: str) -> float:
    """The shape of the tail of a device's scores by its own peaks."""
    model = KoopmanDetector.load(fleet.folder / name / "model.safetensors").model_
    level, peaks = choose_level(model.normal_scores, model.settings.window, least=2.0 * 1e-4 * len(model.normal_scores))
    return fit_tail(peaks - level).shape


def test_a_server_that_knows_no_shape_advises_the_usual_one(fleet: Fleet) -> None:
    request, _ = honest(fleet)
    header = {name: value for name, value in request.header().items() if name != "usual_shape"}
    assert Request.read(header) == replace(request, usual_shape=USUAL_SHAPE)


def test_a_newcomer_with_few_rows_is_advised_by_the_fleet(fleet: Fleet, tmp_path: Path) -> None:
    while not fleet.training.finished:
        fleet.round(fleet.training.choose(NAMES))
    own = thresholds_of_unadvised(fleet)
    with pytest.warns(FewRowsWarning):
        # With this risk its own threshold is lower than what the fleet advises.
        few = KoopmanDetector(**MODEL, risk=0.05).fit(series("late")[:150])
    few.save(tmp_path / "few")
    assert few.threshold_ < np.median(own)
    fleet.prepared = {**fleet.prepared, "late": tmp_path / "few"}
    late = fleet.delivered("late").model_
    assert late.least_threshold == pytest.approx(np.median(own))
    shapes = [own_shape_of(fleet, name) for name in NAMES]
    assert fleet.training.state.ledger.shapes == pytest.approx(dict(zip(NAMES, shapes, strict=True)))
    advised = (len(NAMES) * np.median(shapes) + USUAL_SHAPE) / (len(NAMES) + 1)
    assert late.usual_shape == pytest.approx(advised)
    assert late.rule is not None
    assert late.rule.shape == late.usual_shape
    assert "late" not in fleet.training.state.ledger.thresholds  # who was advised advises nobody
    assert "late" not in fleet.training.state.ledger.shapes
    fleet.terms = replace(fleet.terms, run="run-2")
    fleet.training = Coordinator(fleet.terms, fleet.plan, fleet.folder / "next")
    while not fleet.training.finished:
        fleet.round(fleet.training.choose(NAMES))
    assert fleet.delivered("late").model_.least_threshold == pytest.approx(np.median(own)), (
        "it stays so in the next training"
    )
    assert fleet.delivered("late").model_.usual_shape == pytest.approx(advised)
    assert fleet.delivered("a").model_.least_threshold == 0.0


def test_protocol_headers_survive_the_way(fleet: Fleet) -> None:
    request, answer = honest(fleet)
    assert Request.read(request.header()) == request
    reply = Reply.read(answer, request, "a")
    assert reply.header(request) == answer
    assert answer["protocol"] == PROTOCOL
    assert math.isfinite(reply.diagnostics["seconds"])


def finish(fleet: Fleet) -> None:
    while not fleet.training.finished:
        fleet.round(fleet.training.choose(NAMES))
    fleet.training.delivery.finish()


def test_a_result_outlives_the_training_that_follows(fleet: Fleet) -> None:
    finish(fleet)
    assert stored_terms(fleet.folder / "server", UNDER_WAY) is None
    fleet.terms = replace(fleet.terms, run="run-2")
    expected, fleet.training = fleet.training, Coordinator(fleet.terms, fleet.plan, fleet.folder / "server")
    fleet.round(["a", "b"])
    result = Coordinator(expected.state.terms, fleet.plan, fleet.folder / "server")
    result.restore(RESULT)
    assert result.state.done
    np.testing.assert_array_equal(result.state.server.shared, expected.state.server.shared)
    held = json.loads((fleet.folder / "server" / "result.json").read_text())
    assert held == {"run": "run-1", "model": "run-1", "delivered": []}
    result.delivery.finish()  # a delivery of it leaves the training under way alone, and what is said of that
    assert stored_terms(fleet.folder / "server", UNDER_WAY) == fleet.terms
    assert json.loads((fleet.folder / "server" / "status.json").read_text())["run"] == "run-2"


@pytest.mark.parametrize("is_delivered", [True, False])
def test_no_file_of_a_result_holds_what_a_single_device_sent(
    tmp_path: Path, prepared: dict[str, Path], is_delivered: bool
) -> None:
    """With warm rounds only, a robust server needs all their replies up to the end of the training, but no longer."""
    plan = TrainingPlan(rounds=2, participation=0.5)
    whole, fleet = (Fleet(tmp_path / name, prepared, make_terms(robust=True), plan) for name in ("whole", "killed"))
    while not whole.training.finished:
        assert whole.round(whole.training.choose(NAMES))
    folder = fleet.folder / "server"
    for heard in (2, 4):
        assert fleet.round(fleet.training.choose(NAMES))
        replies = [name for name in read_model(folder / UNDER_WAY, KIND)[1] if name.startswith(WARM_REPLY)]
        assert len(replies) == heard
        fleet.kill_server()
    assert [record.phase for record in fleet.training.state.records] == ["warm"] * 2
    end = fleet.training.delivery.finish if is_delivered else fleet.training.delivery.keep_back
    end()
    assert not (folder / UNDER_WAY).exists()
    assert [file.name for file in sorted((folder / "models").glob("*"))] == (
        [] if is_delivered else ["run-1.safetensors"]
    )
    _, arrays = read_model(folder / (RESULT if is_delivered else "models/run-1.safetensors"), KIND)
    assert sorted(arrays) == ["made.1", "shared"]
    np.testing.assert_array_equal(arrays["shared"], whole.training.state.server.shared)
    assert arrays["made.1"].tobytes() == whole.training.state.encoded


def test_a_second_answer_to_a_request_is_refused_without_a_strike(fleet: Fleet) -> None:
    requests = fleet.training.open(["a", "b"])
    answer = fleet.ask("a", requests["a"])
    assert fleet.training.take("a", answer)
    for _ in range(5):
        assert not fleet.training.take("a", answer)
    assert {refused["reason"] for refused in fleet.training.state.ledger.refused} == {"It has answered already."}
    assert not fleet.training.state.ledger.is_out("a")
    assert fleet.training.close()
    assert fleet.training.state.schedule == [("a",)]
    assert not fleet.training.take("a", answer)
    assert "came too late" in fleet.training.state.ledger.refused[-1]["reason"]


def test_a_file_that_cannot_be_read_is_set_aside(fleet: Fleet) -> None:
    fleet.round(["a"])
    path = fleet.folder / "server" / UNDER_WAY
    path.write_bytes(b"damaged")
    assert stored_terms(fleet.folder / "server", UNDER_WAY) is None
    assert path.with_name("training.safetensors.unreadable-1").read_bytes() == b"damaged"


def test_a_delivery_of_an_old_training_leaves_the_new_one_alone(fleet: Fleet) -> None:
    finish(fleet)
    old = fleet.training.delivery.requests(["a"])["a"]
    fleet.training = Coordinator(replace(fleet.terms, run="run-2"), fleet.plan, fleet.folder / "server")
    fleet.round(list(NAMES))
    fleet.round(["a", "b"])
    kept = (fleet.folder / "a" / "consensus.safetensors").read_bytes()
    fleet.ask("a", old)
    assert (fleet.folder / "a" / "consensus.safetensors").read_bytes() == kept
    assert fleet.round(["a", "b"])


def test_a_server_that_went_back_in_time_is_refused(fleet: Fleet) -> None:
    """Its checkpoint was restored from a backup: the duals of the devices are of rounds that it does not know."""
    fleet.round(list(NAMES))
    path = fleet.folder / "server" / UNDER_WAY
    backup = path.read_bytes()
    for _ in range(3):
        fleet.round(["a"])
    path.write_bytes(backup)
    fleet.kill_server()
    for names in (["b"], ["c"], ["d"]):
        fleet.round(names)
    with pytest.raises(ProtocolError, match="asks for round 4, having accepted round -1"):
        fleet.ask("a", fleet.training.open(["a"])["a"])


def test_a_late_process_of_the_same_device_changes_nothing(fleet: Fleet) -> None:
    """A request that was overtaken by the next one is refused, and what the next one left is kept."""
    fleet.round(list(NAMES))
    overtaken = fleet.training.open(["a", "b"])
    fleet.training.take("b", fleet.ask("b", overtaken["b"]))
    fleet.training.close()
    assert fleet.round(["a", "b"])
    with pytest.raises(ProtocolError, match="asks for round 1"):
        fleet.ask("a", overtaken["a"])
    assert fleet.round(["a", "b"])
    np.testing.assert_allclose(shared_directions(fleet.delivered("a")), fleet.replayed(), atol=1e-12)


def test_answers_are_given_one_at_a_time(fleet: Fleet) -> None:
    request = fleet.training.open(["a"])["a"]
    done: list[str] = []
    with DeviceState(fleet.folder / "a").locked("round"):
        waiting = threading.Thread(target=lambda: done.append(str(fleet.ask("a", request)["kind"])))
        waiting.start()
        waiting.join(0.3)
        assert not done
    waiting.join(20)
    assert done == ["warm"]


def test_a_threshold_set_by_hand_stays(fleet: Fleet) -> None:
    finish(fleet)
    fleet.delivered("a")
    path = fleet.folder / "a" / "model.safetensors"
    used = KoopmanDetector.load(path)
    used.threshold_ = 99.0
    used.save(path)
    fleet.training.state.ledger.delivered.clear()
    assert fleet.delivered("a").threshold_ == 99.0
    assert json.loads((fleet.folder / "a" / "delivered.json").read_text()) == {"run": "run-1"}


def test_what_killed_writers_left_is_removed(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    left, written = f".consensus.safetensors.{ended.pid}-1.part", f".model.safetensors.{os.getpid()}-1.part"
    out_of_sight = f".model.safetensors.{ended.pid}-2.part"  # as a writer in another container is
    for name in (left, written, out_of_sight):
        (tmp_path / name).write_bytes(b"half")
    for name in (left, written):
        os.utime(tmp_path / name, (0.0, 0.0))
    DeviceState(tmp_path)
    assert {path.name for path in tmp_path.glob(".*.part")} == {written, out_of_sight}


def durable(folder: Path, prepared: dict[str, Path], own_terms: OwnTerms) -> DurableParticipant:
    return DurableParticipant("a", DeviceState(folder), lambda terms: KoopmanDetector.load(prepared["a"]), own_terms)


def test_a_device_stops_when_it_has_said_enough_even_if_the_noise_is_switched_off(
    tmp_path: Path, prepared: dict[str, Path]
) -> None:
    device = durable(tmp_path / "a", prepared, OwnTerms(most_releases=3))
    for number, noise in enumerate((1.0, 0.0, 0.0)):
        terms = make_terms(f"run-{number}", noise=noise)
        fleet = Fleet(tmp_path / str(number), prepared, terms, TrainingPlan(rounds=3))
        request = fleet.training.open(["a"])["a"]
        assert fleet.training.take("a", device.answer(request).header(request))
    for noise in (0.0, 1.0):
        training = Coordinator(make_terms("another", noise=noise), TrainingPlan(rounds=3))
        with pytest.raises(ProtocolError, match="has sent 3 replies, all that most_releases in its device"):
            device.answer(training.open(["a"])["a"])


def test_a_device_that_cannot_read_what_it_has_said_sends_nothing_and_names_the_file(
    tmp_path: Path, prepared: dict[str, Path]
) -> None:
    device = durable(tmp_path / "a", prepared, OwnTerms())
    for content in (b"", b"[]", b"\x91"):
        (tmp_path / "a" / "releases.json").write_bytes(content)
        with pytest.raises(ValueError, match=r"releases\.json: this does not say how many replies"):
            device.answer(Coordinator(make_terms(), TrainingPlan()).open(["a"])["a"])


@pytest.mark.parametrize(
    ("own_terms", "asked", "words"),
    [
        (OwnTerms(noise=1.0), {"noise": 0.5}, "asks for noise 0.5, and device 'a' takes part only with at least 1"),
        (OwnTerms(noise=1.0), {}, "asks for noise 0, and device 'a' takes part only with at least 1"),
        (OwnTerms(noise=1.0), {"noise": math.nan}, "asks for noise nan, and device 'a' takes part only with at least"),
        (
            OwnTerms(secure_aggregation=True),
            {"noise": 9.0},
            "without masks, and device 'a' takes part only with secure",
        ),
    ],
)
def test_a_server_that_asks_for_less_than_a_device_demands_is_refused(
    tmp_path: Path, prepared: dict[str, Path], own_terms: OwnTerms, asked: dict[str, Any], words: str
) -> None:
    training, device = Coordinator(make_terms(**asked), TrainingPlan()), durable(tmp_path / "a", prepared, own_terms)
    with pytest.raises(ProtocolError, match=words):
        device.answer(training.open(["a"])["a"])
    assert DeviceState(tmp_path / "a").read_releases() == 0


@pytest.mark.parametrize("own_terms", [OwnTerms(noise=1.0), OwnTerms(most_releases=1)])
def test_a_device_with_terms_takes_part_by_them_and_tells_nothing_else(tmp_path: Path, own_terms: OwnTerms) -> None:
    learned = KoopmanDetector(**MODEL).fit(np.tile(series("a"), (4, 1)))  # enough rows to advise others
    noisy, plain = (Coordinator(make_terms(f"run-{k}", noise=k), TrainingPlan()) for k in (2.0, 0.0))
    for own, told in ((own_terms, False), (OwnTerms(), True)):
        device = DurableParticipant("a", DeviceState(tmp_path / str(told)), lambda terms: learned, own)
        assert device.answer(noisy.open(["a"])["a"]).payload
        assert ("threshold" in device.answer(plain.delivery.requests(["a"])["a"]).diagnostics) == told


def test_rounds_are_never_smaller_than_asked_for(tmp_path: Path, prepared: dict[str, Path]) -> None:
    """A median of one is that one: a poisoned device would only have to wait for the end of a pass."""
    fleet = Fleet(tmp_path, prepared, make_terms(robust=True), TrainingPlan(rounds=9, participation=0.25, least=3))
    while not fleet.training.finished:
        assert fleet.round(fleet.training.choose(NAMES))
    first, *others = fleet.training.state.schedule
    assert sorted(first) == sorted(NAMES), "who is left over could not hold a warm round of its own"
    assert {len(names) for names in others} == {3}
    counts = Counter(chain.from_iterable(others))
    assert max(counts.values()) - min(counts.values()) <= 1
    requests = fleet.training.open(["a", "b", "c"])
    for name in ("a", "b"):
        fleet.training.take(name, fleet.ask(name, requests[name]))
    assert not fleet.training.close()
    assert fleet.training.choose(["a", "b"]) == []


def test_a_poisoned_device_does_not_rule_a_robust_fleet(tmp_path: Path, prepared: dict[str, Path]) -> None:
    losses = {}
    for robust in (False, True):
        fleet = Fleet(
            tmp_path / str(robust), prepared, make_terms(robust=robust), TrainingPlan(8, participation=1.0, least=3)
        )
        evil = random_point(*SHAPE, np.random.default_rng(5))
        while not fleet.training.finished:
            for name, request in fleet.training.open([*NAMES, "late"]).items():
                answer = fleet.ask(name, request)
                if name == "late":
                    answer["payload"] = encoded(evil / np.sqrt(SHAPE[1]) if request.kind == "warm" else evil)
                assert fleet.training.take(name, answer)
            fleet.training.close()
        devices = [KoopmanDetector.load(prepared[name]).memory_.statistics for name in NAMES]
        losses[robust] = relative_loss(devices, retract_polar(fleet.training.state.server.shared))
    assert losses[True] < 0.8 * losses[False]
    status = latest_training(tmp_path / "True" / "server")
    assert status is not None
    assert status["left_out"] == ["late"]
    assert fleet.training.state.schedule == [(*NAMES, "late")] * 8, (
        "it is left out of the directions, not of the rounds"
    )


def test_what_keeps_a_training_from_its_next_round_is_said_once(
    tmp_path: Path, prepared: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    fleet = Fleet(tmp_path, prepared, make_terms(), TrainingPlan(participation=1.0, least=3))
    waits = fleet.folder / "server" / "waits"
    for _ in range(2):
        assert fleet.training.choose(["a", "b"]) == []
    assert waits.read_text() == "waits for devices; 2 online, 3 needed"
    for _ in range(3):
        asked = fleet.training.open(fleet.training.choose(NAMES))
        for name, request in asked.items():
            answer = {**fleet.ask(name, request), "payload": b""} if name in ("c", "d") else fleet.ask(name, request)
            fleet.training.take(name, answer)
        assert not fleet.training.close()
        assert waits.read_text() == "waits for usable answers; 2 came, 3 needed, none from c, d"
    assert fleet.training.choose(NAMES) == []
    left_out = "and left out because their answers could not be used: c, d"
    assert waits.read_text() == f"waits for devices; 4 online, 3 needed, {left_out}"
    assert len(caplog.messages) == 3
    assert fleet.round(["a", "b", "late"])
    assert not waits.exists()


def test_a_training_that_is_abandoned_begins_anew_and_the_current_model_goes_to_all_again(fleet: Fleet) -> None:
    folder = fleet.folder / "server"
    finish(fleet)
    for name in NAMES:
        fleet.delivered(name)
    fleet.training.delivery.finish()
    for rounds, held in ((1, sorted(NAMES)), (6, [])):
        fleet.terms = replace(fleet.terms, run=f"run-{rounds}")
        fleet.training = Coordinator(fleet.terms, fleet.plan, folder)
        while fleet.training.state.round < rounds:
            fleet.round(fleet.training.choose(NAMES))
        abandon(folder)
        assert stored_terms(folder, UNDER_WAY) is None
        status = json.loads((folder / "status.json").read_text())
        assert (status["run"], status["state"]) == (fleet.terms.run, "cancelled")
        known = json.loads((folder / "result.json").read_text())
        assert (known["model"], sorted(known["delivered"])) == ("run-1", held), "whoever may have got the result"
    before = (folder / "status.json").read_text()
    abandon(folder)
    assert (folder / "status.json").read_text() == before


def test_three_strikes_and_a_device_is_out(fleet: Fleet) -> None:
    for _ in range(3):
        request = fleet.training.open(["a", "b"])["a"]
        fleet.training.take("a", {**fleet.ask("a", request), "payload": b""})
    assert "a" not in [name for _ in range(4) for name in fleet.training.choose(NAMES)]


def test_reasons_are_kept_short_and_plain(fleet: Fleet) -> None:
    fleet.training.open(["a"])
    fleet.training.take("a", refusal("\x1b[31m" + 10**6 * "x\n"))
    reason = fleet.training.state.ledger.refused[-1]["reason"]
    assert len(reason) <= 300
    assert reason.isprintable()


@pytest.mark.parametrize("noise", [0.1, 21.0])
def test_noise_has_a_bound_too(tmp_path: Path, prepared: dict[str, Path], noise: float) -> None:
    fleet = Fleet(tmp_path, prepared, make_terms(noise=noise), TrainingPlan(rounds=4, participation=1.0))
    while not fleet.training.finished:
        assert fleet.round(list(NAMES))
    request = fleet.training.open(["a"])["a"]
    answer = {**fleet.ask("a", request), "payload": encoded(np.full(SHAPE, 1e6))}
    assert not fleet.training.take("a", answer)


def test_deliveries_wait_for_all(tmp_path: Path, prepared: dict[str, Path]) -> None:
    fleet = Fleet(tmp_path, prepared, make_terms(), TrainingPlan(rounds=2, participation=1.0, quorum=0.5))
    finish(fleet)
    requests = fleet.training.delivery.requests(NAMES)
    for name in NAMES:
        assert not fleet.training.requests.is_over()
        fleet.training.delivery.confirm(name, fleet.ask(name, requests[name]))
    assert fleet.training.requests.is_over()


# -- trainings of earlier releases --------------------------------------------------------------------------------


EARLIER = {**MODEL, "scoring": "paper"}
"""A model that learns from the first part of the rows only, as that of release 0.1.0 did."""


@pytest.fixture(scope="module")
def prepared_earlier(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return prepare(tmp_path_factory.mktemp("earlier"), EARLIER)


def recorded(folder: Path, prepared: dict[str, Path], **changes: Any) -> Fleet:
    """A training that release 0.1.0 left in the middle of its fifth round, continued from a copy of its files."""
    kind = "secure" if changes.get("secure") else "plain"
    shutil.copytree(Path(__file__).parents[1] / "recorded" / "0.1.0" / "trainings" / kind, folder, dirs_exist_ok=True)
    terms = stored_terms(folder / "server", UNDER_WAY)
    assert terms == make_terms(**changes)
    fleet = Fleet(folder, prepared, terms, TrainingPlan(rounds=6, participation=0.5), EARLIER)
    fleet.kill_server()
    assert fleet.training.state.round == 4
    return fleet


def test_a_training_of_an_earlier_release_goes_on(tmp_path: Path, prepared_earlier: dict[str, Path]) -> None:
    fleet = recorded(tmp_path, prepared_earlier, encoding="int8")
    while not fleet.training.finished:
        assert fleet.round(fleet.training.choose(NAMES))
    assert fleet.training.state.ledger.refusals == 0
    np.testing.assert_allclose(shared_directions(fleet.delivered("a")), fleet.replayed(), atol=1e-12)
    fleet.training.delivery.finish()
    assert json.loads((tmp_path / "server" / "status.json").read_text())["state"] == "done"


def test_a_masked_round_of_an_earlier_release_goes_on(tmp_path: Path, prepared_earlier: dict[str, Path]) -> None:
    pytest.importorskip("cryptography", reason="the extra 'fleet' is not installed")
    from fedkad.federation.secure.device import DeviceSecrets

    fleet = recorded(tmp_path, prepared_earlier, encoding="float64", secure=True)
    stages = [DeviceSecrets.from_bytes((tmp_path / name / "masking.json").read_bytes()).stage for name in NAMES]
    assert stages == ["shared", "advertised", "advertised", "advertised"]
    request = fleet.training.open(list(NAMES))["a"]
    with pytest.raises(ValueError, match="cannot share in round 4: its stage is 'shared'"):
        fleet.ask("a", replace(request, kind="share"))


@pytest.mark.parametrize(("online", "asked"), [(9, 5), (8, 5), (7, 7), (4, 4), (3, 3), (2, 0)])
def test_a_round_asks_five_where_there_are_five_and_never_fewer_than_three(online: int, asked: int) -> None:
    """Of seven all are asked, because the two left over could not hold their own warm round."""
    training = Coordinator(make_terms(robust=True), TrainingPlan(participation=0.1, least=3, asked=5))
    assert len(training.choose([f"device-{k}" for k in range(online)])) == asked


@pytest.mark.parametrize("start", ["warm", "common"])
def test_a_fleets_own_aggregation_can_be_replayed_in_process(start: Any) -> None:
    data = {name: series(name) for name in NAMES}
    for robust in (False, True):
        first = federate(data, rounds=4, participation=0.75, start=start, robust=robust, **MODEL)
        again = federate(data, schedule=first.schedule, start=start, robust=robust, **MODEL)
        np.testing.assert_array_equal(first.subspace, again.subspace)
    assert not np.array_equal(first.subspace, federate(data, schedule=first.schedule, start=start, **MODEL).subspace)
