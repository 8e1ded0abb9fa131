"""Secure aggregation in a training carried by hand: the sum is right, and nothing but the sum is ever known."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("cryptography", reason="the extra 'fleet' is not installed")

from fedkad import KoopmanDetector, federate
from fedkad.federation import engine, wire
from fedkad.federation.client import Client
from fedkad.federation.coordinator import TrainingPlan
from fedkad.federation.devicestate import DeviceState
from fedkad.federation.history import STRIKES
from fedkad.federation.protocol import ProtocolError, Request, refusal
from fedkad.federation.secure.server import BOUND
from fedkad.koopman.subspace import relative_loss
from tests.fixtures.trainings import MODEL, NAMES, Fleet, make_terms, prepared, series, shared_directions

__all__ = ["prepared"]


Answer = dict[str, Any]
Lie = Callable[[Answer], Answer]


class SecureFleet(Fleet):
    """A fleet whose devices mask; `lost` are (device, kind) out of reach, `lies` changed answers."""

    lost: Collection[tuple[str, str]] = ()
    lies: Mapping[tuple[str, str], Lie] = MappingProxyType({})

    def round(self, names: list[str]) -> bool:
        self.seen: list[Answer] = []
        return engine.hold_round(self.training, self, names)

    def devices(self) -> Collection[str]:
        return NAMES

    def send(self, requests: Mapping[str, Request], deadline: float) -> None:
        self.asked = requests

    def answers(self) -> Iterator[tuple[str, Answer | str]]:
        for name, request in self.asked.items():
            if (name, request.kind) in self.lost:
                yield name, "The device cannot be reached."
                continue
            answer = self.said(name, request)
            if lie := self.lies.get((name, request.kind)):
                answer |= lie(answer)
            self.seen.append(answer)
            yield name, answer

    def said(self, name: str, request: Request) -> Answer:
        """What the app of a device says, whatever becomes of it."""
        try:
            return self.ask(name, request)
        except ProtocolError as error:
            return refusal(str(error))
        except ValueError:
            return refusal("The device cannot answer; the reason is in its log.")

    def struck(self) -> dict[str, int]:
        return self.training.state.ledger.strikes

    def told(self) -> list[tuple[str, str]]:
        return [(entry["device"], entry["reason"]) for entry in self.training.state.ledger.refused]

    def compare_with_plain(self) -> None:
        """What came of the sums is what comes of the same rounds without masks."""
        everybody = {name: series(name) for name in NAMES}
        schedule = self.training.state.schedule
        plain = federate(everybody, schedule=schedule, start="common", encoding="float64", **MODEL)
        np.testing.assert_allclose(shared_directions(self.delivered("a")), plain.subspace, atol=5e-5)


def make_fleet(folder: Path, prepared: dict[str, Path], start: str = "common", **changes: Any) -> SecureFleet:
    terms = make_terms(secure=True, encoding="float64", consensus={"start": start}, **changes)
    return SecureFleet(folder, prepared, terms, TrainingPlan(rounds=5, participation=1.0, poll=0.0, least=3))


def test_the_sum_is_that_of_the_plain_round(tmp_path: Path, prepared: dict[str, Path]) -> None:
    fleet = make_fleet(tmp_path, prepared)
    while not fleet.training.finished:
        assert fleet.round(list(NAMES))
    plain = federate(
        {name: series(name) for name in NAMES},
        schedule=fleet.training.state.schedule,
        start="common",
        encoding="float64",
        **MODEL,
    )
    sent = [record.bytes_down for record in fleet.training.state.records]
    assert sent == [len(NAMES) * 8 * math.prod(fleet.terms.shape)] * len(sent), "Z goes down once a round and device"
    found = shared_directions(fleet.delivered("a"))
    error = BOUND / (2 * 2**20)
    assert 0.0 < np.abs(found - plain.subspace).max() < 10 * len(fleet.training.state.records) * error
    assert error < 2e-6


def longer(boxes: list[bytes]) -> list[bytes]:
    return [box + b"." for box in boxes]


def spoilt(boxes: list[bytes]) -> list[bytes]:
    return [bytes(len(box)) for box in boxes]


ORDER_EIGHT = bytes.fromhex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800")

LIES: dict[str, tuple[str, Lie]] = {
    "short key": ("advertise", lambda said: {"masking.sharing_key": b"short"}),
    "zero key": ("advertise", lambda said: {"masking.sharing_key": bytes(32)}),
    "zero mask key": ("advertise", lambda said: {"masking.mask_key": bytes(32)}),
    "key of low order": ("advertise", lambda said: {"masking.sharing_key": ORDER_EIGHT}),
    "one key twice": ("advertise", lambda said: {"masking.mask_key": said["masking.sharing_key"]}),
    "no list": ("share", lambda said: {"masking.boxes": 7}),
    "empty lists": ("share", lambda said: {"masking.devices": [], "masking.boxes": []}),
    "for itself": ("share", lambda said: {"masking.devices": [1, 2, 3]}),
    "for strangers": ("share", lambda said: {"masking.devices": [11, 13, 14]}),
    "a box too few": ("share", lambda said: {"masking.boxes": said["masking.boxes"][1:]}),
    "long boxes": ("share", lambda said: {"masking.boxes": longer(said["masking.boxes"])}),
    "text in boxes": ("share", lambda said: {"masking.boxes": ["text"] * 3}),
    "text to commit to": ("share", lambda said: {"masking.commitment": "text"}),
    "short commitment": ("share", lambda said: {"masking.commitment": b"short"}),
    "short reply": ("admm", lambda said: {"payload": b"short"}),
    "blames itself": ("admm", lambda said: {"payload": b"", "masking.unopened": 2}),
    "blames a stranger": ("admm", lambda said: {"payload": b"", "masking.unopened": 9}),
    "blames nobody": ("admm", lambda said: {"payload": b"", "masking.unopened": "c"}),
    "others revealed": ("reveal", lambda said: {"masking.survivors": [1, 2, 3]}),
    "short shares": ("reveal", lambda said: {"masking.seed_shares": [b"short"] * 4}),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_device_that_makes_no_sense_is_refused_by_name_and_the_others_go_on(
    tmp_path: Path, prepared: dict[str, Path], lie: str
) -> None:
    fleet, (kind, changed) = make_fleet(tmp_path, prepared), LIES[lie]
    fleet.lies = {("b", kind): changed}
    assert fleet.round(list(NAMES))
    assert fleet.training.state.schedule == [NAMES if kind == "reveal" else ("a", "c", "d")]
    assert fleet.struck() == {"b": 1}
    ((name, reason),) = fleet.told()
    assert name == "b"
    assert reason.startswith(f"What it sent in the step '{kind}' of secure aggregation is invalid. ")
    fleet.compare_with_plain()


@pytest.mark.parametrize("lie", ["zero key", "empty lists"])
def test_who_keeps_lying_is_out_and_the_training_ends_well(tmp_path: Path, prepared: dict[str, Path], lie: str) -> None:
    fleet, (kind, changed) = make_fleet(tmp_path, prepared), LIES[lie]
    fleet.lies = {("b", kind): changed}
    while not fleet.training.finished:
        asked = fleet.training.choose(NAMES)
        assert ("b" in asked) == (len(fleet.training.state.records) < STRIKES)
        assert fleet.round(asked)
    assert fleet.struck() == {"b": STRIKES}
    assert all(set(names) == {"a", "c", "d"} for names in fleet.training.state.schedule)
    fleet.compare_with_plain()


def test_of_two_with_the_same_keys_one_is_refused(tmp_path: Path, prepared: dict[str, Path]) -> None:
    fleet = make_fleet(tmp_path, prepared)

    def copied(said: Answer) -> Answer:
        return {name: fleet.seen[1][name] for name in ("masking.sharing_key", "masking.mask_key")}

    fleet.lies = {("c", "advertise"): copied}
    assert fleet.round(list(NAMES))
    assert fleet.training.state.schedule == [("a", "b", "d")]
    assert fleet.struck() == {"c": 1}
    fleet.compare_with_plain()


def test_a_box_that_does_not_open_puts_out_only_who_got_it_and_names_who_made_it(
    tmp_path: Path, prepared: dict[str, Path]
) -> None:
    fleet = make_fleet(tmp_path, prepared)
    fleet.lies = {("b", "share"): lambda said: {"masking.boxes": [bytes(94), *said["masking.boxes"][1:]]}}
    assert fleet.round(list(NAMES))
    assert fleet.training.state.schedule == [("b", "c", "d")]
    assert fleet.told() == [("a", "It cannot open the shares that device 'b' made for it.")]
    assert fleet.struck() == {}
    fleet.compare_with_plain()


def test_boxes_that_nobody_can_open_end_the_round_without_a_strike(tmp_path: Path, prepared: dict[str, Path]) -> None:
    fleet = make_fleet(tmp_path, prepared)
    fleet.lies = {("b", "share"): lambda said: {"masking.boxes": spoilt(said["masking.boxes"])}}
    for _ in range(4):
        assert not fleet.round(list(NAMES))
    *named, (nobody, reason) = fleet.told()[-4:]
    assert named == [(name, "It cannot open the shares that device 'b' made for it.") for name in "acd"]
    assert (nobody, "Only 1 devices sent a masked matrix" in reason) == ("", True)
    assert fleet.struck() == {}
    fleet.lies = {}
    assert fleet.round(list(NAMES))
    fleet.compare_with_plain()


def test_shares_that_do_not_join_end_the_round_and_the_reason_names_their_maker(
    tmp_path: Path, prepared: dict[str, Path]
) -> None:
    fleet = make_fleet(tmp_path, prepared)
    fleet.lies = {("b", "share"): lambda said: {"masking.commitment": bytes(32)}}
    assert not fleet.round(list(NAMES))
    reason = "The shares of device 'b' do not join: it made wrong ones, or others returned wrong ones."
    assert fleet.told() == [("", reason)]
    assert fleet.struck() == {}


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
    assert fleet.training.state.ledger.refusals == 0


class NarrowFleet(SecureFleet):
    """Its server leaves no room for any number in the range of the sum."""

    def send(self, requests: Mapping[str, Request], deadline: float) -> None:
        narrow = {
            name: replace(request, masking={**request.masking, "bound": 1e-6})
            if request.kind == "advertise"
            else request
            for name, request in requests.items()
        }
        super().send(narrow, deadline)


def test_a_noisy_reply_that_cannot_be_sent_counts_as_sent(tmp_path: Path, prepared: dict[str, Path]) -> None:
    """That it is beyond the range tells something about it."""
    terms = make_terms(secure=True, encoding="float64", noise=1.0)
    fleet = NarrowFleet(tmp_path, prepared, terms, TrainingPlan(rounds=5, participation=1.0, poll=0.0, least=3))
    for sent in (1, 2):
        assert not fleet.round(list(NAMES))
        assert "beyond the range of the sum" in fleet.told()[0][1]
        assert [DeviceState(tmp_path / name).read_releases() for name in NAMES] == [sent] * len(NAMES)


@pytest.mark.parametrize("kind", ["advertise", "share", "admm", "reveal"])
def test_a_device_lost_at_any_step_is_as_if_it_had_not_been_asked(
    tmp_path: Path, prepared: dict[str, Path], kind: str
) -> None:
    fleet = make_fleet(tmp_path, prepared)
    fleet.round(list(NAMES))
    fleet.lost = [("b", kind)]
    assert fleet.round(list(NAMES))
    expected = NAMES if kind == "reveal" else ("a", "c", "d")  # whose sum is known has taken part
    assert fleet.training.state.schedule[-1] == expected
    fleet.lost = ()
    fleet.round(list(NAMES))
    fleet.compare_with_plain()


def test_too_few_end_the_round_and_nothing_has_happened(tmp_path: Path, prepared: dict[str, Path]) -> None:
    fleet = make_fleet(tmp_path, prepared)
    fleet.lost = [("a", "admm"), ("b", "admm")]
    assert not fleet.round(list(NAMES))
    assert "fewer than the threshold" in fleet.training.state.ledger.refused[-1]["reason"]
    fleet.lost = ()
    assert fleet.round(list(NAMES))
    assert not fleet.round(["a", "b"])
    assert "3" in fleet.training.state.ledger.refused[-1]["reason"]


def test_a_warm_start_goes_through_a_sketch(tmp_path: Path, prepared: dict[str, Path]) -> None:
    fleet = make_fleet(tmp_path, prepared, start="warm")
    while not fleet.training.finished:
        assert fleet.round(list(NAMES))
    assert [record.phase for record in fleet.training.state.records] == ["warm"] + ["admm"] * 4
    devices = [KoopmanDetector.load(prepared[name]).memory_.statistics for name in NAMES]
    plain = federate({n: series(n) for n in NAMES}, schedule=fleet.training.state.schedule, encoding="float64", **MODEL)
    found = relative_loss(devices, shared_directions(fleet.delivered("a"))) / relative_loss(devices, plain.subspace)
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
    client = Client("a", KoopmanDetector.load(prepared["a"]).memory_.statistics, fleet.terms.consensus)
    start = fleet.training.state.server.__class__(fleet.terms.dimension, fleet.terms.consensus).shared
    plain = client.reply(client.local_round(client.begin(start), start))
    assert wire.encode(plain, "float64") not in [answer["payload"] for answer in masked]


def test_noise_in_the_sum_is_what_was_asked_for(tmp_path: Path, prepared: dict[str, Path]) -> None:
    quiet = make_fleet(tmp_path / "quiet", prepared)
    noisy = make_fleet(tmp_path / "noisy", prepared, noise=0.01, clip=10.0)
    for fleet in (quiet, noisy):
        assert fleet.round(list(NAMES))
    apart = noisy.training.state.server.shared - quiet.training.state.server.shared
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
