"""Only good models go out: devices judge a result before it is delivered, and an earlier one can be taken back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("cryptography", reason="the extra 'fleet' is not installed")

from fedkad import KoopmanDetector
from fedkad.federation import engine, model_archive, training_files, wire
from fedkad.federation.coordinator import Coordinator, TrainingPlan
from fedkad.federation.devicestate import DeviceState
from fedkad.federation.durable import DurableParticipant
from fedkad.federation.gate import LARGEST_OPINION, Judgement, held_out_losses, verdict_of
from fedkad.federation.model_archive import CURRENT, EARLIER, KEPT_BACK, ArchiveError
from fedkad.federation.participant import OwnTerms, final_subspace
from fedkad.federation.protocol import Answer, ProtocolError, Request, Terms, refusal
from fedkad.federation.secure.server import BOUND
from fedkad.federation.training_files import RESULT, UNDER_WAY
from fedkad.koopman.stiefel import random_point
from tests.fixtures.trainings import MODEL, NAMES, make_terms, prepared, series

__all__ = ["prepared"]

Array = NDArray[np.float64]
PLAN = TrainingPlan(rounds=3, participation=1.0, poll=0.0, patience=60.0, least=3)


def _load(path: Path, terms: Terms) -> KoopmanDetector:
    return KoopmanDetector.load(path)


class Folders:
    """Devices over folders, reached as over a network; `spoil` changes what the server made before it is judged."""

    def __init__(self, root: Path, prepared: Mapping[str, Path], names: tuple[str, ...] = NAMES) -> None:
        self.root, self.place, self.plan = root, root / "training", PLAN
        sources = {name: partial(_load, prepared[name]) for name in names}
        self.known = {
            name: DurableParticipant(name, DeviceState(root / name), source) for name, source in sources.items()
        }
        self.requests: dict[str, Request] = {}

    def devices(self) -> list[str]:
        return list(self.known)

    def send(self, requests: Mapping[str, Request], deadline: float) -> None:
        self.requests = dict(requests)

    def answers(self) -> Iterator[tuple[str, Answer]]:
        requests, self.requests = self.requests, {}
        for name, request in requests.items():
            try:
                yield name, self.known[name].answer(request).header(request)
            except ProtocolError as error:
                yield name, refusal(str(error))

    def train(self, run: str, *, spoil: float = 0.0, **changes: Any) -> Coordinator:
        """A training with its delivery; one spoiled by 1 ends with a subspace that has nothing to do with devices."""
        coordinator = Coordinator(make_terms(run, **changes), self.plan, self.place)
        for _ in engine.run_rounds(coordinator, self):
            pass
        if spoil:
            other = random_point(*coordinator.state.terms.shape, np.random.default_rng(5))
            coordinator.state.server.shared = (1.0 - spoil) * coordinator.state.server.shared + spoil * other
            coordinator.state.encodings[coordinator.state.round - 1] = wire.encode(
                coordinator.state.server.shared, "float32"
            )
        engine.deliver(coordinator, self)
        return coordinator

    def subspace(self, name: str = "a") -> Array:
        return KoopmanDetector.load(self.root / name / "model.safetensors").subspace_[:, : MODEL["rank"]]


@pytest.fixture
def fleet(tmp_path: Path, prepared: dict[str, Path]) -> Folders:
    return Folders(tmp_path, prepared)


def states(fleet: Folders) -> dict[str, str]:
    return {model.run: model.state for model in model_archive.listed(fleet.place)}


def test_a_worse_model_is_kept_named_and_not_delivered(fleet: Folders, caplog: pytest.LogCaptureFixture) -> None:
    first = fleet.train("run-1")
    assert first.state.status(PLAN.rounds)["state"] == "done"
    assert first.state.gate == {}, "there was nothing to compare it with"
    before = fleet.subspace()
    spoiled = fleet.train("run-2", spoil=1.0)
    assert spoiled.state.status(PLAN.rounds)["state"] == KEPT_BACK
    assert spoiled.state.gate["judges"] == len(NAMES)
    assert spoiled.state.gate["ratio"] > 1.5
    np.testing.assert_array_equal(fleet.subspace(), before)
    assert "Training run-2 is not delivered" in caplog.text
    assert states(fleet) == {"run-2": KEPT_BACK, "run-1": CURRENT}
    held = training_files.read_delivered(fleet.place)
    assert (held["run"], held["model"], sorted(held["delivered"])) == ("run-2", "run-1", sorted(NAMES))
    assert not (fleet.place / UNDER_WAY).exists()


def test_a_good_model_is_delivered_and_the_one_before_it_is_kept(fleet: Folders) -> None:
    fleet.train("run-1")
    second = fleet.train("run-2", consensus={"penalty": 2.0})
    assert second.state.status(PLAN.rounds)["state"] == "done"
    assert second.state.gate["judges"] == len(NAMES)
    assert 0.9 < second.state.gate["ratio"] < 1.1
    assert states(fleet) == {"run-2": CURRENT, "run-1": EARLIER}


class Listening(Folders):
    """Devices that mask; `told` is all that they answer before the delivery, and a judge in `liars` says any number."""

    def __init__(self, root: Path, prepared: Mapping[str, Path]) -> None:
        super().__init__(root, prepared)
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.liars: dict[str, float] = {}
        self.silent: set[str] = set()

    def answers(self) -> Iterator[tuple[str, Answer]]:
        kinds = {name: request.kind for name, request in self.requests.items()}
        for name, answer in super().answers():
            assert isinstance(answer, dict)
            if kinds[name] == "judge":
                if name in self.silent:
                    continue
                if name in self.liars:  # masks hide whatever is added to a masked number
                    added = int.from_bytes(answer["payload"], "little") + int(self.liars[name] * 2**20 / BOUND)
                    answer["payload"] = (added % 2**32).to_bytes(4, "little")
                self.told.append((name, answer))
            yield name, answer


@pytest.fixture
def masked(tmp_path: Path, prepared: dict[str, Path]) -> Listening:
    fleet = Listening(tmp_path, prepared)
    fleet.train("run-1", secure=True)
    return fleet


def test_under_masks_the_mean_of_clipped_losses_keeps_a_worse_model_back(masked: Listening) -> None:
    before = masked.subspace()
    for device in masked.known.values():
        device._own_terms = OwnTerms(secure_aggregation=True)
    good = masked.train("run-2", secure=True, consensus={"penalty": 2.0})
    assert good.state.status(PLAN.rounds)["state"] == "done"
    assert good.state.gate["judges"] == len(NAMES)
    assert 0.9 < good.state.gate["ratio"] < 1.1
    spoiled = masked.train("run-3", secure=True, spoil=1.0)
    assert spoiled.state.status(PLAN.rounds)["state"] == KEPT_BACK
    assert spoiled.state.gate["ratio"] == pytest.approx(1.5, rel=1e-4), "each device clips what it says"
    assert states(masked) == {"run-3": KEPT_BACK, "run-2": CURRENT, "run-1": EARLIER}
    assert not np.array_equal(masked.subspace(), before)


def test_the_masked_mean_is_that_of_what_the_devices_would_say_openly(
    masked: Listening, prepared: dict[str, Path]
) -> None:
    current = masked.subspace()
    result = masked.train("run-2", secure=True, spoil=0.05)
    subspaces = [final_subspace(result.state.encoded, result.state.terms.shape, "float32"), current]
    memories = [KoopmanDetector.load(prepared[name]).memory_ for name in NAMES]
    losses = np.array([held_out_losses(memory, subspaces) for memory in memories])
    said = np.log(losses[:, 0] / losses[:, 1])
    assert 0.01 < np.abs(said).max() < LARGEST_OPINION
    assert result.state.gate["ratio"] == pytest.approx(np.exp(np.mean(said)), abs=1e-5)


def test_no_loss_can_be_read_off_what_a_judge_says_under_masks(masked: Listening) -> None:
    masked.train("run-2", secure=True)
    assert len(masked.told) == len(NAMES)
    for _, answer in masked.told:
        assert len(answer["payload"]) == 4, "one number"
        assert not any(key.startswith("diagnostics.") and key != "diagnostics.seconds" for key in answer)
    said = [int.from_bytes(answer["payload"], "little") for _, answer in masked.told]
    assert max(said) > 2**21, "an open judgement is at most a tenth of the range of 2^20 from zero"


@pytest.mark.parametrize(("said", "is_delivered"), [(0.5, False), (-40.0, False), (0.0, True)])
def test_one_liar_under_masks_can_keep_a_good_model_back(masked: Listening, said: float, is_delivered: bool) -> None:
    """Masks hide that it does not clip; what no honest judges can say in sum is never taken for praise."""
    masked.liars = {"b": len(NAMES) * said}
    assert (masked.train("run-2", secure=True).state.status(PLAN.rounds)["state"] == "done") == is_delivered


def test_judges_that_are_lost_under_masks_are_no_reason_to_keep_a_model_back(masked: Listening) -> None:
    masked.silent, masked.plan = {"a", "b"}, replace(PLAN, deadline=10.0)
    kept = masked.train("run-2", secure=True)
    assert kept.state.gate == {"judges": 0, "ratio": 1.0, "worse": False}
    assert any("fewer than the threshold" in entry["reason"] for entry in kept.state.ledger.refused)


@pytest.mark.parametrize("changes", [{"noise": 0.01}, {"noise": 0.01, "secure": True}, {"encoding": "float16"}])
def test_devices_with_noise_are_not_asked_and_another_encoding_is_no_obstacle(
    fleet: Folders, changes: dict[str, Any]
) -> None:
    fleet.train("run-1")
    assert bool(fleet.train("run-2", **changes).state.gate) == ("noise" not in changes)


@pytest.mark.parametrize("own", [OwnTerms(noise=1e-9), OwnTerms(secure_aggregation=True), OwnTerms(most_releases=99)])
def test_devices_that_do_not_judge_are_no_reason_to_keep_a_model_back(
    tmp_path: Path, prepared: dict[str, Path], own: OwnTerms
) -> None:
    """Such as those of an earlier release, or with terms of their own; and none of them gets a strike."""
    fleet = Folders(tmp_path, prepared)
    fleet.train("run-1")
    for device in fleet.known.values():
        device._own_terms = own
    coordinator = Coordinator(make_terms("run-2"), PLAN, fleet.place)
    assert engine.pass_gate(coordinator, fleet)
    assert coordinator.state.ledger.refusals == len(NAMES)
    assert not coordinator.state.ledger.strikes


@pytest.mark.parametrize("damage", ['{"run": "ru', "[]", None])
def test_who_holds_the_model_is_known_again_from_the_model_itself(fleet: Folders, damage: str | None) -> None:
    fleet.train("run-1")
    before, path = training_files.read_delivered(fleet.place), fleet.place / "result.json"
    assert model_archive.mend_delivered(fleet.place) is None
    path.unlink() if damage is None else path.write_text(damage)
    said = model_archive.mend_delivered(fleet.place)
    assert said is not None
    assert str(path) in said
    assert training_files.read_delivered(fleet.place) == before
    aside = path.with_name("result.json.unreadable-1")
    assert (aside.read_text() if aside.exists() else None) == damage
    (fleet.place / RESULT).write_bytes(b"damaged")
    path.unlink()
    assert model_archive.mend_delivered(fleet.place) is None


def test_an_earlier_model_is_taken_back_and_delivered_to_all(fleet: Folders) -> None:
    fleet.train("run-1")
    first = fleet.subspace()
    fleet.train("run-2", consensus={"penalty": 5.0})
    assert not np.array_equal(fleet.subspace(), first)
    assert model_archive.roll_back(fleet.place) == "run-1"
    assert states(fleet) == {"run-2": EARLIER, "run-1": CURRENT}
    held = training_files.read_delivered(fleet.place)
    assert (held["run"], held["model"], held["delivered"]) == ("run-2", "run-1", [])
    again = Coordinator(make_terms("run-1"), PLAN, fleet.place)
    again.restore(RESULT)
    engine.deliver(again, fleet)
    np.testing.assert_array_equal(fleet.subspace(), first)
    held = training_files.read_delivered(fleet.place)
    assert (held["run"], held["model"], sorted(held["delivered"])) == ("run-2", "run-1", sorted(NAMES))
    with pytest.raises(ArchiveError, match="no earlier model"):
        model_archive.roll_back(fleet.place)
    assert model_archive.roll_back(fleet.place, "run-2") == "run-2"
    with pytest.raises(ArchiveError, match="run-2 is the current model already"):
        model_archive.roll_back(fleet.place, "run-2")
    with pytest.raises(ArchiveError, match="run-9 is not among the models that are kept"):
        model_archive.roll_back(fleet.place, "run-9")


@pytest.mark.parametrize("step", ["write_delivered", "write_model", "unlink"])
def test_a_rollback_that_was_killed_can_be_done_again_and_reaches_all(
    fleet: Folders, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.train("run-1")
    fleet.train("run-2")

    def kill(*arguments: Any, **keywords: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as killing:
        killing.setattr(Path if step == "unlink" else model_archive, step, kill)
        with pytest.raises(KeyboardInterrupt):
            model_archive.roll_back(fleet.place, "run-1")
    with suppress(ArchiveError):  # it is the current one already
        model_archive.roll_back(fleet.place, "run-1")
    assert {model.run: model.state for model in reversed(model_archive.listed(fleet.place))} == {
        "run-1": CURRENT,
        "run-2": EARLIER,
    }
    assert training_files.read_delivered(fleet.place)["delivered"] == []
    assert training_files.read_delivered(fleet.place)["model"] == "run-1"
    assert not list(fleet.place.glob("*.unreadable"))


@pytest.mark.parametrize("damage", [b"damaged", None])
def test_a_current_model_that_is_lost_is_replaced_by_the_newest_that_is_kept(
    fleet: Folders, damage: bytes | None
) -> None:
    for run in ("run-1", "run-2", "run-3"):
        fleet.train(run)
    fleet.train("run-4", spoil=1.0)
    path = fleet.place / RESULT
    path.unlink() if damage is None else path.write_bytes(damage)
    assert len(model_archive.unreadable(fleet.place)) == (damage is not None)
    assert model_archive.roll_back(fleet.place) == "run-2"
    assert states(fleet) == {"run-4": KEPT_BACK, "run-2": CURRENT, "run-1": EARLIER}
    assert not model_archive.unreadable(fleet.place)
    aside = path.with_name("result.safetensors.unreadable-1")
    assert (aside.read_bytes() if aside.exists() else None) == damage
    assert model_archive.roll_back(fleet.place) == "run-1", "now it goes back from there"
    path.unlink()
    with pytest.raises(ArchiveError, match="no earlier model"):  # run-2 was taken back
        model_archive.roll_back(fleet.place)


def test_without_a_current_model_a_result_is_judged_by_the_newest_that_is_kept(
    fleet: Folders, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.train("run-1")
    fleet.train("run-2")
    (fleet.place / RESULT).write_bytes(b"damaged")
    spoiled = fleet.train("run-3", spoil=1.0)
    assert spoiled.state.status(PLAN.rounds)["state"] == KEPT_BACK
    assert spoiled.state.gate["judges"] == len(NAMES)
    assert "go back to an earlier model with `fedkad fleet rollback`" in caplog.text
    assert fleet.train("run-4").state.status(PLAN.rounds)["state"] == "done"
    assert states(fleet) == {"run-4": CURRENT, "run-3": KEPT_BACK, "run-1": EARLIER}


def test_one_device_gets_the_current_model_once_more(fleet: Folders) -> None:
    with pytest.raises(ArchiveError, match="no model to deliver yet"):
        model_archive.forget_delivered(fleet.place, lambda name: True)
    fleet.train("run-1")
    assert model_archive.forget_delivered(fleet.place, lambda name: name == "b") == ["b"]
    assert sorted(training_files.read_delivered(fleet.place)["delivered"]) == ["a", "c", "d"]
    again = Coordinator(make_terms("run-1"), PLAN, fleet.place)
    again.restore(RESULT)
    assert set(again.delivery.requests(NAMES)) == {"b"}


def test_only_so_many_models_are_kept(fleet: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_archive, "MOST_KEPT", 2)
    for number in range(1, 5):
        fleet.train(f"run-{number}")
    assert list(states(fleet)) == ["run-4", "run-3", "run-2"]


def test_one_liar_decides_nothing() -> None:
    honest = [Judgement(0.10, 0.10), Judgement(0.21, 0.20), Judgement(0.05, 0.05), Judgement(0.30, 0.29)]
    assert not verdict_of(honest).is_worse
    assert not verdict_of([*honest, Judgement(1e300, 1e-300)]).is_worse
    worse = [replace_new(each, 1.3) for each in honest]
    assert verdict_of(worse).is_worse
    assert verdict_of([*worse, Judgement(0.0, 1.0)]).is_worse
    assert not verdict_of(worse[:2]).is_worse, "two devices are too few to decide"
    assert verdict_of([]).ratio == 1.0


def replace_new(judgement: Judgement, factor: float) -> Judgement:
    return judgement._replace(new=factor * judgement.new)


def test_a_loss_is_that_of_a_prediction_made_by_hand() -> None:
    """The second half of the rows, predicted pair by pair with an operator that was fitted on the first half."""
    detector = KoopmanDetector(**MODEL).fit(series("a"))
    memory, subspace = detector.memory_, random_point(14, MODEL["rank"], np.random.default_rng(1))
    rows = memory.held_out.rows
    first, second = (detector.lifting_.transform(part) for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]))
    now, then = first[:-1] @ subspace, first[1:] @ subspace
    operator = np.linalg.lstsq(now, then, rcond=None)[0]
    left = second[1:] - second[:-1] @ subspace @ operator @ subspace.T
    by_hand = float(np.square(left).sum() / np.square(second[1:]).sum())
    assert held_out_losses(memory, [subspace])[0] == pytest.approx(by_hand, rel=1e-6)


@pytest.mark.parametrize(("secure", "times"), [(False, r"[0-9.]+"), (True, "more than 3")])
def test_a_device_keeps_its_model_if_the_new_one_is_far_worse_on_its_own_rows(
    fleet: Folders, secure: bool, times: str
) -> None:
    """The gate may have been passed by a majority, or there may be none: the last word is the device's."""
    fleet.train("run-1")
    before = fleet.subspace()
    coordinator = Coordinator(make_terms("run-2", secure=secure), PLAN, fleet.root / "elsewhere")
    coordinator.state.server.shared = random_point(*coordinator.state.terms.shape, np.random.default_rng(5))
    request = coordinator.delivery.requests(["a"])["a"]
    with pytest.raises(ProtocolError, match=rf"loses {times} times as much .* and keeps the one it has"):
        fleet.known["a"].answer(request)
    np.testing.assert_array_equal(fleet.subspace(), before)
    fresh = DurableParticipant("a", DeviceState(fleet.root / "fresh"), fleet.known["a"]._source)
    fresh.answer(request)  # a device that has no model of its fleet yet takes what it gets


def at_random(rows: int) -> Array:
    return np.random.default_rng(3).normal(size=(rows, 2))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (at_random(900), "no channel of its data can be predicted"),
        (np.full((900, 2), 4.2), "no channel of its data ever changes"),
        (np.column_stack([at_random(900)[:, 0], np.ones(900)]), "no channel of its data can be predicted"),
    ],
    ids=["white noise", "constant", "one of each"],
)
def test_a_device_notices_that_its_data_is_garbage_and_takes_no_part(
    tmp_path: Path, prepared: dict[str, Path], data: Array, why: str
) -> None:
    """The server and the device's own client are told why; the training goes on, and its model is for all."""
    KoopmanDetector(**MODEL).fit(data).save(tmp_path / "garbage.prepared")
    fleet = Folders(tmp_path, {**prepared, "garbage": tmp_path / "garbage.prepared"}, (*NAMES, "garbage"))
    trained = fleet.train("run-1")
    assert {name for names in trained.state.schedule for name in names} == set(NAMES)
    assert {entry["device"] for entry in trained.state.ledger.refused} == {"garbage"}
    assert why in trained.state.ledger.refused[0]["reason"]
    assert sorted(trained.state.ledger.delivered) == ["a", "b", "c", "d", "garbage"]


def test_one_predictable_channel_or_a_switch_is_worth_learning_from(tmp_path: Path, prepared: dict[str, Path]) -> None:
    noise = at_random(900)[:, 0]
    switch = np.repeat(np.random.default_rng(1).integers(0, 2, 90), 10).astype(np.float64)
    for name, beside in {"tidy": np.sin(np.arange(900.0) / 7.0), "switched": switch}.items():
        KoopmanDetector(**MODEL).fit(np.column_stack([noise, beside])).save(tmp_path / f"{name}.prepared")
    known = {**prepared, **{name: tmp_path / f"{name}.prepared" for name in ("tidy", "switched")}}
    trained = Folders(tmp_path, known, (*NAMES, "tidy", "switched")).train("run-1")
    assert trained.state.ledger.refusals == 0
