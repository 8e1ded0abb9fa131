"""Secure aggregation in a training carried by hand: the sum is right, and nothing but the sum is ever known."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="the extra 'fleet' is not installed")

from fedkad import KoopmanDetector, federate
from fedkad.federation import wire
from fedkad.federation.client import Client
from fedkad.federation.devicestate import DeviceState
from fedkad.federation.protocol import Reply, Request
from fedkad.federation.training import Plan
from fedkad.fleet.masking import quantisation_error
from fedkad.fleet.secure import BOUND, SecureParticipant, gather
from fedkad.koopman.subspace import relative_loss
from tests.test_federation_training import MODEL, NAMES, Fleet, make_terms, prepared, series

__all__ = ["prepared"]


class SecureFleet(Fleet):
    """A fleet whose devices mask; `lost` names (device, kind) whose answers never arrive."""

    lost: Collection[tuple[str, str]] = ()
    lies: ClassVar[dict[tuple[str, str], dict[str, Any]]] = {}

    def device(self, name: str) -> SecureParticipant:
        state = DeviceState(self.folder / name)
        return SecureParticipant(name, state, lambda terms: KoopmanDetector.load(self.prepared[name]))

    def round(self, names: list[str]) -> bool:
        self.seen: list[dict[str, Any]] = []
        gather(self.training, self.training.open(names), self.exchange)
        return self.training.close()

    def exchange(self, requests: dict[str, Request]) -> dict[str, Reply]:
        replies = {}
        for name, request in self.training.ask(requests).items():
            if (name, request.kind) in self.lost:
                continue
            answer = {**self.ask(name, request), **self.lies.get((name, request.kind), {})}
            self.seen.append(answer)
            reply = self.training.hear(name, answer)
            if reply is not None:
                replies[name] = reply
        return replies


def make_fleet(folder: Path, prepared: dict[str, Path], start: str = "common", **changes: Any) -> SecureFleet:
    terms = make_terms(secure=True, encoding="float64", consensus={"start": start}, **changes)
    return SecureFleet(folder, prepared, terms, Plan(rounds=5, participation=1.0, least=3))


def test_the_sum_is_that_of_the_plain_round(tmp_path: Path, prepared: dict[str, Path]) -> None:
    fleet = make_fleet(tmp_path, prepared)
    while not fleet.training.finished:
        assert fleet.round(list(NAMES))
    plain = federate(
        {name: series(name) for name in NAMES},
        schedule=fleet.training.schedule,
        start="common",
        encoding="float64",
        **MODEL,
    )
    found = fleet.delivered("a").subspace_
    error = quantisation_error(len(NAMES), BOUND, 2**20)
    assert 0.0 < np.abs(found - plain.subspace).max() < 10 * len(fleet.training.records) * error
    assert error < 2e-6


def test_where_nothing_is_masked_the_device_is_as_any_other(tmp_path: Path, prepared: dict[str, Path]) -> None:
    fleet = make_fleet(tmp_path, prepared)
    request = replace(fleet.training.open(list(NAMES))["a"], terms=replace(fleet.terms, secure=False))
    masked, plain = SecureFleet.device(fleet, "a"), Fleet.device(fleet, "a")
    assert masked.answer(request).payload == plain.answer(request).payload


LIES: dict[tuple[str, str], dict[str, Any]] = {
    ("b", "advertise"): {"masking.sharing_key": b"short"},
    ("b", "share"): {"masking.boxes": 7},
    ("b", "admm"): {"payload": b"short"},
}


@pytest.mark.parametrize("lie", LIES)
def test_a_device_that_makes_no_sense_is_refused_by_name_and_the_others_go_on(
    tmp_path: Path, prepared: dict[str, Path], lie: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = make_fleet(tmp_path, prepared)
    monkeypatch.setattr(SecureFleet, "lies", {lie: LIES[lie]})
    assert fleet.round(list(NAMES))
    assert fleet.training.schedule == [("a", "c", "d")]
    assert [refused["device"] for refused in fleet.training.ledger.refused] == ["b"]


def test_a_sum_of_two_is_never_opened(tmp_path: Path, prepared: dict[str, Path]) -> None:
    fleet = make_fleet(tmp_path, prepared)
    fleet.lost = [("b", "admm")]
    assert not fleet.round(["a", "b", "c"])
    assert fleet.round(["a", "b", "c", "d"])


@pytest.mark.parametrize("noise", [1.0, 21.0])
def test_no_noise_is_cut_off_by_the_range_of_the_sum(tmp_path: Path, prepared: dict[str, Path], noise: float) -> None:
    """Noise that was cut would be less than was promised."""
    fleet = make_fleet(tmp_path, prepared, start="warm", noise=noise)
    while not fleet.training.finished:
        assert fleet.round(list(NAMES))
    assert fleet.training.ledger.refusals == 0


@pytest.mark.parametrize("kind", ["advertise", "share", "admm", "reveal"])
def test_a_device_lost_at_any_step_is_as_if_it_had_not_been_asked(
    tmp_path: Path, prepared: dict[str, Path], kind: str
) -> None:
    fleet = make_fleet(tmp_path, prepared)
    fleet.round(list(NAMES))
    fleet.lost = [("b", kind)]
    assert fleet.round(list(NAMES))
    expected = NAMES if kind == "reveal" else ("a", "c", "d")  # whose sum is known has taken part
    assert fleet.training.schedule[-1] == expected
    fleet.lost = ()
    fleet.round(list(NAMES))
    plain = federate(
        {name: series(name) for name in NAMES},
        schedule=fleet.training.schedule,
        start="common",
        encoding="float64",
        **MODEL,
    )
    np.testing.assert_allclose(fleet.delivered("a").subspace_, plain.subspace, atol=5e-5)


def test_too_few_end_the_round_and_nothing_has_happened(tmp_path: Path, prepared: dict[str, Path]) -> None:
    fleet = make_fleet(tmp_path, prepared)
    fleet.lost = [("a", "admm"), ("b", "admm")]
    assert not fleet.round(list(NAMES))
    assert "fewer than the threshold" in fleet.training.ledger.refused[-1]["reason"]
    fleet.lost = ()
    assert fleet.round(list(NAMES))
    assert not fleet.round(["a", "b"])
    assert "3" in fleet.training.ledger.refused[-1]["reason"]


def test_a_warm_start_goes_through_a_sketch(tmp_path: Path, prepared: dict[str, Path]) -> None:
    fleet = make_fleet(tmp_path, prepared, start="warm")
    while not fleet.training.finished:
        assert fleet.round(list(NAMES))
    assert [record.phase for record in fleet.training.records] == ["warm"] + ["admm"] * 4
    devices = [KoopmanDetector.load(prepared[name]).kept()[0] for name in NAMES]
    plain = federate({n: series(n) for n in NAMES}, schedule=fleet.training.schedule, encoding="float64", **MODEL)
    found = relative_loss(devices, fleet.delivered("a").subspace_) / relative_loss(devices, plain.subspace)
    assert found == pytest.approx(1.0, abs=0.01)


def test_no_reply_can_be_read_off_what_the_server_sees(tmp_path: Path, prepared: dict[str, Path]) -> None:
    fleet = make_fleet(tmp_path, prepared)
    fleet.round(list(NAMES))
    masked = [answer for answer in fleet.seen if answer["payload"]]
    assert len(masked) == len(NAMES)
    for answer in masked:
        values = np.frombuffer(answer["payload"], dtype="<u4").astype(np.float64) / 2**32
        assert abs(values.mean() - 0.5) < 0.15  # uniform, where plain ones lie at the ends of the range
        assert 0.2 < values.std() < 0.38
        assert not any(key.startswith("diagnostics.") and key != "diagnostics.seconds" for key in answer)
    client = Client("a", KoopmanDetector.load(prepared["a"]).kept()[0], fleet.terms.consensus)
    start = fleet.training.server.__class__(fleet.terms.dimension, fleet.terms.consensus).shared
    plain = client.local_round(start)
    assert wire.encode(plain, "float64") not in [answer["payload"] for answer in masked]


def test_noise_in_the_sum_is_what_was_asked_for(tmp_path: Path, prepared: dict[str, Path]) -> None:
    quiet = make_fleet(tmp_path / "quiet", prepared)
    noisy = make_fleet(tmp_path / "noisy", prepared, noise=0.01, clip=10.0)
    for fleet in (quiet, noisy):
        assert fleet.round(list(NAMES))
    apart = noisy.training.server.shared - quiet.training.server.shared
    # Each of 4 devices adds noise · clip / √threshold, threshold 3, and the mean divides by 4.
    expected = 0.01 * 10.0 * np.sqrt(4 / 3) / 4
    assert np.sqrt(np.mean(apart**2)) == pytest.approx(expected, rel=0.4)


def test_a_step_of_another_round_is_refused(tmp_path: Path, prepared: dict[str, Path]) -> None:
    fleet = make_fleet(tmp_path, prepared)
    fleet.round(list(NAMES))
    request = replace(fleet.training.open(list(NAMES))["a"], kind="reveal")
    with pytest.raises(ValueError, match=r"has keys for round 0 .* asks for round 1"):
        fleet.ask("a", request)
    with pytest.raises(ValueError, match="no keys"):
        fleet.ask("late", request)
