"""Secure aggregation against plain sums, against masks computed with Python's integers, and against curiosity."""

import hmac
import json
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedkad.federation.secure.arithmetic import (
    MODULUS,
    PRIME,
    SECRET,
    SHARE,
    Integers,
    Quantised,
    join_shares,
    quantise,
    split_secret,
)
from fedkad.federation.secure.device import DeviceSecrets, advertise, mask, reveal, share
from fedkad.federation.secure.server import MaskedSum
from fedkad.federation.secure.session import (
    BOX,
    MaskingContext,
    MaskingError,
    Message,
    Session,
    SharesError,
    agree,
    default_threshold,
    public_key,
)
from tests.fixtures.draws import draws

Array = NDArray[np.float64]


def context(n: int, **changes: object) -> MaskingContext:
    return replace(MaskingContext("run", 1, default_threshold(n), bound=2.0, levels=1000), **changes)  # type: ignore[arg-type]


def matrices(n: int, shape: tuple[int, ...] = (5, 3), seed: int = 0) -> dict[int, Array]:
    """Entries within the bound, for devices whose numbers are no positions: 7, 17, 27, ..."""
    drawn = np.random.default_rng(seed)
    return {7 + 10 * k: drawn.uniform(-2.0, 2.0, shape) for k in range(n)}


@dataclass
class Play:
    """A round, step by step; every secret is written and read again before each step."""

    context: MaskingContext
    plain: dict[int, Array]
    server: MaskedSum = field(init=False)
    stored: dict[int, bytes] = field(default_factory=dict)
    publics: dict[int, Message] = field(default_factory=dict)
    roster: Message = field(default_factory=dict)
    shared: dict[int, Message] = field(default_factory=dict)
    forwarded: dict[int, Message] = field(default_factory=dict)
    masked: dict[int, Integers] = field(default_factory=dict)
    verdict: Message = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.server = MaskedSum(self.context, next(iter(self.plain.values())).shape)

    def secrets(self, device: int) -> DeviceSecrets:
        return DeviceSecrets.from_bytes(self.stored[device])

    def session(self) -> Session:
        return Session.with_roster(self.context, self.roster)

    def advertise(self) -> "Play":
        for device in self.plain:
            told = MaskingContext.from_message(self.context.message())
            self.publics[device], secrets = advertise(told, device)
            self.stored[device] = secrets.to_bytes()
            self.server.take_keys(device, self.publics[device])
        self.roster = self.server.roster()
        return self

    def share(self, without: Collection[int] = ()) -> "Play":
        for device in set(self.plain) - set(without):
            self.shared[device], secrets = share(self.secrets(device), self.roster)
            self.stored[device] = secrets.to_bytes()
            self.server.take_shares(device, self.shared[device])
        self.forwarded = self.server.forward()
        return self

    def mask_one(self, device: int) -> Quantised:
        answer, secrets = mask(self.secrets(device), self.forwarded[device], self.plain[device])
        self.stored[device] = secrets.to_bytes()
        return answer

    def mask(self, without: Collection[int] = ()) -> "Play":
        self.masked = {device: self.mask_one(device).integers for device in self.shared if device not in without}
        for device, integers in self.masked.items():
            self.server.take_masked(device, integers.tobytes())
        self.verdict = self.server.close()
        return self

    def reveal(self, without: Collection[int] = ()) -> dict[int, Message]:
        answers = {}
        for device in set(self.masked) - set(without):
            answers[device], secrets = reveal(self.secrets(device), self.verdict)
            self.stored[device] = secrets.to_bytes()
        return answers

    def unmask(self, answers: dict[int, Message]) -> Array:
        for device, answer in answers.items():
            self.server.take_revealed(device, answer)
        return self.server.unmask()


def ready(n: int = 4) -> Play:
    """A round in which everybody has shared."""
    return Play(context(n), matrices(n)).advertise().share()


# The sum.


def half_a_step(bound: float, levels: int) -> float:
    """The largest error of an entry of the mean, when none was clipped."""
    return bound / (2 * levels)


@given(st.data())
@draws(20)
def test_the_sum_is_the_plain_sum_of_the_survivors(data: st.DataObject) -> None:
    n = data.draw(st.integers(3, 7))
    plain = matrices(n, data.draw(st.sampled_from([(1, 1), (4, 2), (3, 5)])), data.draw(st.integers(0, 99)))
    spare = n - default_threshold(n)
    leaving = data.draw(st.lists(st.sampled_from(sorted(plain)), max_size=spare, unique=True))
    steps = {device: data.draw(st.sampled_from(["share", "mask", "reveal"])) for device in leaving}

    def gone(*names: str) -> set[int]:
        return {device for device, step in steps.items() if step in names}

    play = Play(context(n), plain).advertise().share(gone("share"))
    play.mask(gone("mask"))
    total = play.unmask(play.reveal(gone("reveal")))
    kept = set(plain) - gone("share", "mask")
    assert set(play.server.survivors) == kept
    error = np.abs(total - sum(plain[device] for device in kept)).max() / len(kept)
    assert error <= half_a_step(play.context.bound, play.context.levels) + 1e-12


def test_the_sum_is_the_sum_of_the_integers_exactly() -> None:
    play = ready(6).mask(without=[17])
    total = play.unmask(play.reveal(without=[27]))
    integers = sum(np.rint(play.plain[device] * 500.0) for device in play.masked)
    np.testing.assert_array_equal(total, np.asarray(integers) * (2.0 / 1000))


def test_the_largest_sum_that_fits_does_not_wrap() -> None:
    levels = (MODULUS - 1) // 6
    plain = {1: np.array([[2.0, -2.0]]), 2: np.array([[2.0, -2.0]]), 3: np.array([[2.0, -2.0]])}
    play = Play(context(3, levels=levels), plain).advertise().share().mask()
    np.testing.assert_allclose(play.unmask(play.reveal()), [[6.0, -6.0]])
    with pytest.raises(MaskingError, match=f"at most {levels} levels"):
        Play(context(3, levels=levels + 1), plain).advertise()


def test_numbers_of_devices_may_be_as_long_as_flowers() -> None:
    plain = {2**64 - 1: np.ones((1, 1)), 5: np.ones((1, 1)), 2**63 + 1: -np.ones((1, 1)), 2**62: np.ones((1, 1))}
    play = Play(context(4), plain).advertise().share().mask(without=[5])
    np.testing.assert_allclose(play.unmask(play.reveal()), [[1.0]], atol=1e-12)


@given(
    st.lists(st.floats(-3.0, 3.0), min_size=1, max_size=20),
    st.floats(0.01, 100.0),
    st.integers(1, 2**24),
)
def test_an_entry_is_off_by_half_a_step_at_most(entries: list[float], bound: float, levels: int) -> None:
    matrix = np.array([entries])
    integers, clipped = quantise(matrix, bound, levels)
    back = integers.view(np.int32) * (bound / levels)
    kept = np.clip(matrix, -bound, bound)
    assert np.abs(back - kept).max() <= half_a_step(bound, levels) * (1 + 1e-6) + 1e-15
    assert clipped == sum(abs(entry) > bound for entry in entries)


def test_the_worst_case_of_the_mean_is_reached() -> None:
    plain = {device: np.array([[0.999e-3]]) for device in (1, 2, 3)}  # just below half a step of 2/1000
    play = Play(context(3), plain).advertise().share().mask()
    mean = play.unmask(play.reveal())[0, 0] / 3
    worst = half_a_step(2.0, 1000)
    assert worst == 1e-3
    assert 0.99 * worst < abs(mean - 0.999e-3) <= worst


def test_clipped_entries_are_counted() -> None:
    play = Play(context(3), {device: np.array([[9.0, 1.0, -2.1]]) for device in (1, 2, 3)}).advertise().share()
    assert play.mask_one(1).clipped == 2


# An oracle that knows neither numpy nor the library: HKDF, X25519 and ChaCha20 from their RFCs.


def naive_hkdf(secret: bytes, info: bytes) -> bytes:
    extracted = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


def naive_x25519(private: bytes, public: bytes) -> bytes:
    prime = 2**255 - 19
    scalar = (int.from_bytes(private, "little") & ~7 & (2**255 - 1)) | 2**254
    u = int.from_bytes(public, "little") % 2**255
    (x2, z2), (x3, z3) = (1, 0), (u, 1)
    for bit in reversed(range(255)):
        flip = scalar >> bit & 1
        if flip:
            (x2, z2), (x3, z3) = (x3, z3), (x2, z2)
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        e = a * a - b * b
        x3, z3 = (d * a + c * b) ** 2 % prime, u * (d * a - c * b) ** 2 % prime
        x2, z2 = a * a * b * b % prime, e * (a * a + 121665 * e) % prime
        if flip:
            (x2, z2), (x3, z3) = (x3, z3), (x2, z2)
    return (x2 * pow(z2, -1, prime) % prime).to_bytes(32, "little")


def naive_chacha20(key: bytes, count: int) -> list[int]:
    def words(blob: bytes) -> list[int]:
        return [int.from_bytes(blob[k : k + 4], "little") for k in range(0, len(blob), 4)]

    def quarter(x: list[int], a: int, b: int, c: int, d: int) -> None:
        for into, other, turned, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            x[into] = (x[into] + x[other]) % MODULUS
            mixed = x[turned] ^ x[into]
            x[turned] = (mixed << by | mixed >> (32 - by)) % MODULUS

    def blocks() -> Iterator[int]:
        for block in range(-(-count // 16)):
            start = [*words(b"expand 32-byte k" + key), block, 0, 0, 0]
            state = list(start)
            for _ in range(10):
                for k in range(4):
                    quarter(state, k, 4 + k, 8 + k, 12 + k)
                for k in range(4):
                    quarter(state, k, 4 + (k + 1) % 4, 8 + (k + 2) % 4, 12 + (k + 3) % 4)
            yield from ((one + two) % MODULUS for one, two in zip(state, start, strict=True))

    return list(blocks())[:count]


@pytest.mark.parametrize("shape", [(1, 1), (4, 5)])
def test_masked_integers_are_those_of_the_formula(shape: tuple[int, int]) -> None:
    play = Play(context(4), matrices(4, shape)).advertise().share(without=[27])
    me, peers, count = 17, [7, 37], shape[0] * shape[1]
    secrets, session = play.secrets(me), play.session()
    expected = [round(entry * 500.0) for entry in play.plain[me].ravel().tolist()]
    key = naive_hkdf(secrets.seed, session.label("self mask", me))
    expected = [x + m for x, m in zip(expected, naive_chacha20(key, count), strict=True)]
    for peer in peers:
        public = play.publics[peer]["mask_key"]
        assert isinstance(public, bytes)
        agreed = naive_x25519(secrets.mask_key, public)
        key = naive_hkdf(agreed, session.label("pair mask", min(me, peer), max(me, peer)))
        sign = 1 if peer > me else -1
        expected = [x + sign * m for x, m in zip(expected, naive_chacha20(key, count), strict=True)]
    assert play.mask_one(me).integers.ravel().tolist() == [x % MODULUS for x in expected]


# What nobody may learn.


def chi_square_of_bytes(integers: Integers) -> float:
    """The statistic of 256 equally likely values, in standard deviations from its mean."""
    counts = np.bincount(np.frombuffer(integers.tobytes(), dtype=np.uint8), minlength=256)
    expected = counts.sum() / 256
    statistic = float(((counts - expected) ** 2).sum() / expected)
    return (statistic - 255.0) / math.sqrt(2 * 255.0)


def test_a_masked_matrix_is_uniform_and_hides_the_plain_one() -> None:
    plain = {device: np.zeros((100, 100)) for device in (1, 2, 3, 4)}
    play = Play(context(4), plain).advertise().share().mask()
    assert chi_square_of_bytes(quantise(plain[1], 2.0, 1000).integers) > 1000
    for masked in play.masked.values():
        assert abs(chi_square_of_bytes(masked)) < 8
    others = np.sum([play.masked[device] for device in (2, 3, 4)], axis=0, dtype=np.uint32)
    for guess in (play.masked[1] + others, play.masked[1] - others):
        assert abs(chi_square_of_bytes(guess)) < 8


def test_two_rounds_of_the_same_matrix_have_nothing_in_common() -> None:
    first, second = ready().mask(), ready().mask()
    assert not np.any(first.masked[7] == second.masked[7])


def test_a_matrix_that_comes_late_stays_under_its_own_mask() -> None:
    plain = {device: np.zeros((100, 100)) for device in (1, 2, 3, 4)}
    play = Play(context(4), plain).advertise().share()
    late = play.mask_one(4).integers
    play.mask(without=[4])
    answers = play.reveal()
    session = play.session()
    key = join_shares({session.position(d): blob(answers[d], "key_shares", 0) for d in (1, 2, 3)})
    assert public_key(key) == play.publics[4]["mask_key"]
    for peer in (1, 2, 3):
        late -= session.pair_mask(4, key, peer, late.shape)
    assert abs(chi_square_of_bytes(late)) < 8
    assert not np.any(play.unmask(answers))


def test_the_shares_of_fewer_than_the_threshold_give_another_secret() -> None:
    secret = bytes(range(SECRET))
    shares = dict(enumerate(split_secret(secret, 3, 5), start=1))
    for chosen in combinations(shares, 3):
        assert join_shares({position: shares[position] for position in chosen}) == secret
    for few in combinations(shares, 2):
        assert join_shares({position: shares[position] for position in few}) != secret


def test_the_field_is_one() -> None:
    """Fermat's test to many bases: no composite number of this kind passes them all by chance."""
    assert all(pow(base, PRIME - 1, PRIME) == 1 for base in range(2, 60))
    assert PRIME > 2 ** (8 * SECRET)
    assert (PRIME - 1).bit_length() <= 8 * SHARE


def test_an_answer_holds_one_secret_a_device_and_the_rest_is_forgotten() -> None:
    play = ready().mask(without=[37])
    before = play.secrets(7).shares
    answer = play.reveal()[7]
    assert {name: answer[name] for name in ("survivors", "dropped")} == {"survivors": [7, 17, 27], "dropped": [37]}
    assert answer["seed_shares"] == [before[device][:SHARE] for device in (7, 17, 27)]
    assert answer["key_shares"] == [before[37][SHARE:]]
    after = play.secrets(7)
    assert after == DeviceSecrets(play.context, 7, "revealed", session=after.session, answer=answer)


def test_keys_and_seed_are_forgotten_with_the_masked_matrix() -> None:
    play = ready()
    before = play.secrets(7)
    play.mask()
    for secret in (before.seed, before.mask_key, before.sharing_key):
        assert len(secret) == SECRET
        assert as_stored(secret) not in play.stored[7]
    assert before.seed.hex() not in repr(before)
    assert repr(before.seed) not in repr(before)


def blob(message: Message, name: str, k: int) -> bytes:
    values = message[name]
    assert isinstance(values, list)
    value = values[k]
    assert isinstance(value, bytes)
    return value


def as_stored(secret: bytes) -> bytes:
    stored = DeviceSecrets(context(3), 1, seed=secret).to_bytes()
    return str(json.loads(stored)["seed"]["base64"]).encode()


# What a device refuses.


def test_reveal_refuses_both_secrets_of_a_device() -> None:
    play = ready().mask()
    with pytest.raises(MaskingError, match="both secrets of one device"):
        reveal(play.secrets(7), {"survivors": [7, 17, 27, 37], "dropped": [37]})


def test_reveal_answers_one_question_only() -> None:
    play = ready().mask()
    first = play.reveal()[7]
    again, _ = reveal(play.secrets(7), play.verdict)
    assert again == first
    with pytest.raises(MaskingError, match="cannot reveal in round 1: its stage is 'revealed'"):
        reveal(play.secrets(7), {"survivors": [7, 17, 27], "dropped": [37]})


@pytest.mark.parametrize(
    ("survivors", "dropped", "words"),
    [
        ([7, 17], [27, 37], "open a sum of 2 devices, fewer than the threshold of 3"),
        ([7], [17, 27, 37], "open a sum of 1 devices"),
        ([17, 27, 37], [7], "told that it dropped out"),
        ([7, 17, 27], [], "other devices than those that sent it shares"),
        ([7, 17, 27, 37, 47], [], "other devices than those that sent it shares"),
        ([7, 7, 17, 27], [37], "other devices than those that sent it shares"),
    ],
)
def test_reveal_refuses(survivors: list[int], dropped: list[int], words: str) -> None:
    play = ready().mask()
    with pytest.raises(MaskingError, match=words):
        reveal(play.secrets(7), {"survivors": survivors, "dropped": dropped})


def test_no_step_is_taken_twice_or_out_of_turn() -> None:
    play = ready()
    with pytest.raises(MaskingError, match="cannot share"):
        share(play.secrets(7), play.roster)
    with pytest.raises(MaskingError, match="cannot reveal"):
        reveal(play.secrets(7), {"survivors": [7, 17, 27, 37], "dropped": []})
    play.mask_one(7)
    with pytest.raises(MaskingError, match="cannot mask"):
        play.mask_one(7)
    _, fresh = advertise(play.context, 7)
    with pytest.raises(MaskingError, match="cannot mask"):
        mask(fresh, play.forwarded[7], play.plain[7])
    assert fresh.session is None


def changed(roster: Message, name: str, change: Callable[[list[object]], object]) -> Message:
    values = roster[name]
    assert isinstance(values, list)
    edited: list[object] = [*values]
    change(edited)
    return {**roster, name: edited}  # type: ignore[dict-item]


def roster_of(agreed: MaskingContext, publics: dict[int, Message]) -> Message:
    server = MaskedSum(agreed, (1, 1))
    for device, message in publics.items():
        server.take_keys(device, message)
    return server.roster()


def test_share_refuses_a_roster_that_is_not_sound() -> None:
    play = Play(context(4), matrices(4)).advertise()
    three = {device: play.publics[device] for device in (17, 27, 37)}
    stranger = roster_of(play.context, three)
    refused = [
        (stranger, "Device 7 is not in the roster"),
        (changed(play.roster, "mask_keys", lambda keys: keys.__setitem__(3, keys[2])), "a public key twice"),
        (changed(play.roster, "devices", lambda devices: devices.__setitem__(1, 7)), "every device once"),
        (changed(play.roster, "devices", lambda devices: devices.reverse()), "every device once"),
        (changed(play.roster, "mask_keys", lambda keys: keys.__setitem__(0, bytes(32))), "other keys for device 7"),
        (changed(play.roster, "mask_keys", lambda keys: keys.__setitem__(0, b"short")), "4 pieces of 32 bytes"),
        (changed(play.roster, "sharing_keys", lambda keys: keys.pop()), "4 pieces of 32 bytes"),
        (changed(play.roster, "sharing_keys", lambda keys: keys.__setitem__(2, bytes(32))), "cannot be used"),
        ({name: values for name, values in play.roster.items() if name != "devices"}, "no 'devices'"),
        (changed(play.roster, "devices", lambda devices: devices.__setitem__(0, "7")), "must be integers"),
    ]
    for roster, words in refused:
        with pytest.raises(MaskingError, match=words):
            share(play.secrets(7), roster)
    share(play.secrets(7), play.roster)


@pytest.mark.parametrize(
    ("n", "threshold", "words"),
    [
        (2, 3, "2 devices are too few"),
        (3, 4, "Only 3 devices sent keys, fewer than the threshold of 4"),
        (6, 3, "threshold=3 is no more than half of 6 devices"),
    ],
)
def test_sizes_that_protect_nobody_are_refused_by_server_and_device(n: int, threshold: int, words: str) -> None:
    agreed = context(3, threshold=threshold)
    publics, secrets = {}, {}
    for device in range(n):
        publics[device], secrets[device] = advertise(agreed, device)
    with pytest.raises(MaskingError, match=words):
        roster_of(agreed, publics)
    lists = {f"{name}s": [publics[d][name] for d in publics] for name in ("sharing_key", "mask_key")}
    with pytest.raises(MaskingError, match=words):
        share(secrets[0], {"devices": list(publics), **lists})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"threshold": 2}, "would open the sum of too few"),
        ({"bound": 0.0}, "bound=0.0 must be"),
        ({"bound": float("nan")}, "bound=nan must be"),
        ({"levels": 0}, "levels=0 must be"),
    ],
)
def test_a_context_is_checked(changes: dict[str, float], words: str) -> None:
    with pytest.raises(MaskingError, match=words):
        context(3, **changes)


def test_the_default_threshold() -> None:
    assert [default_threshold(n) for n in range(3, 10)] == [3, 3, 4, 4, 5, 6, 6]
    assert all(2 * default_threshold(n) > n for n in range(3, 200))
    with pytest.raises(MaskingError, match="2 devices are too few"):
        default_threshold(2)
    keys = tuple(bytes([k]) for k in range(200))
    with pytest.raises(MaskingError, match="at most 21474836 levels"):
        Session(context(100, levels=2**25), tuple(range(100)), keys[:100], keys[100:]).check()


@pytest.mark.parametrize("spot", [0, 11, 12, 40, -1])
def test_a_changed_ciphertext_is_refused(spot: int) -> None:
    play = ready()
    box = bytearray(blob(play.forwarded[7], "boxes", 1))
    box[spot] ^= 1
    message = changed(play.forwarded[7], "boxes", lambda boxes: boxes.__setitem__(1, bytes(box)))
    with pytest.raises(SharesError, match="from device 27 to device 7 were changed") as refused:
        mask(play.secrets(7), message, play.plain[7])
    assert refused.value.device == 27
    play.mask()  # the refusal has spoilt nothing
    assert np.isfinite(play.unmask(play.reveal())).all()


def test_shares_of_another_sender_receiver_or_round_are_refused() -> None:
    play, other = ready(), ready()
    for message in (
        changed(play.forwarded[7], "boxes", lambda boxes: boxes.reverse()),
        {**play.forwarded[7], "boxes": play.forwarded[17]["boxes"]},
        {**play.forwarded[7], "boxes": other.forwarded[7]["boxes"]},
        changed(play.forwarded[7], "boxes", lambda boxes: boxes.__setitem__(0, b"")),
    ):
        with pytest.raises(MaskingError, match="were changed on their way"):
            mask(play.secrets(7), message, play.plain[7])


def test_devices_that_were_told_different_things_do_not_share_keys() -> None:
    play = Play(context(4), matrices(4)).advertise()
    _, stranger = advertise(play.context, 37)
    forged = changed(play.roster, "mask_keys", lambda keys: keys.__setitem__(3, public_key(stranger.mask_key)))
    told = (share(play.secrets(7), forged)[0], share(play.secrets(27), play.roster)[0])
    boxes = [blob(message, "boxes", k) for k, message in enumerate(told)]
    _, secrets = share(play.secrets(17), play.roster)
    with pytest.raises(MaskingError, match="from device 7 to device 17 were changed on their way, or made for another"):
        mask(secrets, {"senders": [7, 27], "boxes": boxes}, play.plain[17])


@pytest.mark.parametrize(
    ("senders", "words"),
    [
        ([17], "fewer than the threshold of 3"),
        ([17, 17], "twice or of a stranger"),
        ([7, 17], "twice or of a stranger"),
    ],
)
def test_mask_refuses_too_few_or_wrong_peers(senders: list[int], words: str) -> None:
    play = ready()
    box = blob(play.forwarded[7], "boxes", 0)
    with pytest.raises(MaskingError, match=words):
        mask(play.secrets(7), {"senders": senders, "boxes": [box] * len(senders)}, play.plain[7])


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_matrix_that_is_not_finite_is_refused(value: float) -> None:
    play = ready()
    play.plain[7][0, 0] = value
    with pytest.raises(MaskingError, match="not finite"):
        play.mask_one(7)


# What the server refuses.


def test_the_server_needs_the_threshold_at_every_step() -> None:
    play = Play(context(4), matrices(4)).advertise()
    with pytest.raises(MaskingError, match="Only 2 devices shared their secrets in round 1"):
        play.share(without=[7, 17])
    play = ready()
    with pytest.raises(MaskingError, match="Only 2 devices sent a masked matrix"):
        play.mask(without=[7, 17])
    play = ready().mask()
    answers = play.reveal()
    with pytest.raises(MaskingError, match="Only 2 devices revealed their shares"):
        play.unmask({device: answers[device] for device in (7, 17)})
    np.testing.assert_allclose(play.unmask(answers), sum(play.plain.values()), atol=4e-3)


def test_steps_of_the_server_keep_their_order() -> None:
    play = ready()
    early = MaskedSum(context(4), (5, 3))
    with pytest.raises(MaskingError, match="not for each of the others in the roster"):
        early.take_shares(7, play.shared[7])
    for step in (early.forward, early.close, early.unmask):
        with pytest.raises(MaskingError, match="Only 0 devices"):
            step()
    with pytest.raises(MaskingError, match="of other devices than those asked about"):
        play.server.take_revealed(7, {"survivors": [], "seed_shares": [], "dropped": [], "key_shares": []})


def test_the_server_notices_a_wrong_share() -> None:
    play = ready().mask(without=[37])
    answers = play.reveal()
    for name, owner in (("seed_shares", 7), ("key_shares", 37)):
        wrong = bytes(byte ^ 1 for byte in blob(answers[17], name, 0))
        spoilt = changed(answers[17], name, lambda shares, wrong=wrong: shares.__setitem__(0, wrong))  # type: ignore[misc]
        with pytest.raises(SharesError, match=f"shares of device {owner} do not join") as refused:
            play.unmask({**answers, 17: spoilt})
        assert refused.value.device == owner
    with pytest.raises(MaskingError, match="of other devices than those asked about"):
        play.unmask({**answers, 17: {**answers[17], "survivors": [7, 17, 37]}})


def test_the_server_refuses_matrices_that_do_not_belong_together() -> None:
    play = ready()
    masked = play.mask_one(7).integers
    for device, spoilt, words in (
        (7, masked[:2].tobytes(), "has 24 bytes and not 60"),
        (7, masked.astype(np.int64).tobytes(), "has 120 bytes and not 60"),
        (5, masked.tobytes(), "Device 5 sent a masked matrix without shares"),
    ):
        with pytest.raises(MaskingError, match=words):
            play.server.take_masked(device, spoilt)


P = 2**255 - 19
ORDER_EIGHT = (
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
)
"""The first coordinates of points of order 8, in the two halves of such points."""
LOW_ORDER = [(u + high).to_bytes(32, "little") for u in (0, 1, P - 1, P, P + 1, *ORDER_EIGHT) for high in (0, 2**255)]
"""All the ways to write a point of low order; nobody reads the highest bit."""


@pytest.mark.parametrize("point", LOW_ORDER, ids=bytes.hex)
def test_a_point_of_low_order_is_of_no_use_to_anybody_and_the_server_sees_it(point: bytes) -> None:
    for private in (bytes(32), bytes(range(32)), b"\xff" * 32, advertise(context(3), 1)[1].mask_key):
        with pytest.raises(MaskingError, match="cannot be used"):
            agree(private, point)
    sound = advertise(context(3), 1)[0]
    for name in sound:
        with pytest.raises(MaskingError, match="cannot be used"):
            MaskedSum(context(3), (1, 1)).take_keys(1, {**sound, name: point})


def test_the_server_refuses_a_key_of_another_size_or_that_was_sent_before() -> None:
    server, (first, second) = MaskedSum(context(3), (1, 1)), (advertise(context(3), device)[0] for device in (1, 2))
    for _ in range(2):  # to look again changes nothing
        server.take_keys(1, first)
    for message, words in (
        ({**second, "mask_key": b"short"}, "cannot be used"),
        ({**second, "mask_key": "text"}, "no 'mask_key'"),
        ({"sharing_key": second["sharing_key"]}, "no 'mask_key'"),
        ({**second, "mask_key": second["sharing_key"]}, "sent before"),
        ({**second, "mask_key": first["sharing_key"]}, "sent before"),
    ):
        with pytest.raises(MaskingError, match=words):
            server.take_keys(2, message)
    server.take_keys(2, second)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"devices": [], "boxes": []}, "not for each of the others"),
        ({"devices": [17, 27], "boxes": [bytes(BOX)] * 2}, "not for each of the others"),
        ({"devices": [7, 17, 27]}, "not for each of the others"),
        ({"devices": [17, 27, 47]}, "not for each of the others"),
        ({"devices": [17, 17, 27, 37], "boxes": [bytes(BOX)] * 4}, "not for each of the others"),
        ({"devices": ["17", "27", "37"]}, "must be integers"),
        ({"devices": 7}, "no 'devices'"),
        ({"boxes": [bytes(BOX)] * 2}, f"3 pieces of {BOX} bytes"),
        ({"boxes": [bytes(BOX + 1)] * 3}, f"3 pieces of {BOX} bytes"),
        ({"boxes": ["text"] * 3}, f"3 pieces of {BOX} bytes"),
        ({"boxes": 7}, "no 'boxes'"),
        ({"commitment": "text"}, "no 'commitment'"),
        ({"commitment": b"short"}, "'commitment' in a message of the round must be 32 bytes"),
    ],
)
def test_the_server_refuses_shares_without_sense(changes: dict[str, object], words: str) -> None:
    play = ready()
    play.server.take_shares(7, play.shared[7])
    with pytest.raises(MaskingError, match=words):
        play.server.take_shares(7, {**play.shared[7], **changes})
    assert play.server.forward() == play.forwarded


def test_the_server_refuses_shares_of_a_stranger() -> None:
    play = ready()
    with pytest.raises(MaskingError, match="not for each of the others"):
        play.server.take_shares(8, {**play.shared[7], "devices": [7, 17, 27, 37], "boxes": [bytes(BOX)] * 4})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"survivors": [7, 17, 37]}, "of other devices"),
        ({"dropped": [], "key_shares": []}, "of other devices"),
        ({"seed_shares": []}, "3 pieces of 33 bytes"),
        ({"key_shares": [b"short"]}, "1 pieces of 33 bytes"),
        ({"key_shares": b"short"}, "no 'key_shares'"),
    ],
)
def test_the_server_refuses_an_answer_to_another_verdict(changes: dict[str, object], words: str) -> None:
    play = ready().mask(without=[37])
    answer = play.reveal()[17]
    play.server.take_revealed(17, answer)
    with pytest.raises(MaskingError, match=words):
        play.server.take_revealed(17, {**answer, **changes})


# What is stored and sent.


def test_damaged_secrets_are_refused() -> None:
    stored = ready().stored[7]
    assert DeviceSecrets.from_bytes(stored).to_bytes() == stored
    for damaged in (b"", stored[:-9], b"{}", stored.replace(b'"device"', b'"gadget"'), b"\xff", b'{"context": 1}'):
        with pytest.raises(MaskingError, match="are damaged"):
            DeviceSecrets.from_bytes(damaged)


def test_messages_hold_what_flower_can_carry() -> None:
    play = ready().mask(without=[37])
    answers = play.reveal()
    everything = [play.context.message(), play.roster, play.verdict, *play.publics.values(), *play.shared.values()]
    for message in [*everything, *play.forwarded.values(), *answers.values()]:
        for name, value in message.items():
            assert isinstance(name, str)
            kinds = {type(entry) for entry in value} if isinstance(value, list) else {type(value)}
            assert len(kinds) <= 1
            assert kinds <= ({int, bytes} if isinstance(value, list) else {int, float, str, bytes})


def test_labels_tell_every_purpose_apart() -> None:
    session, agreed = ready().session(), context(4)
    labels = [session.label("a", 1, 2), session.label("a", 2, 1), session.label("a", 12), session.label("b", 1, 2)]
    others = [
        replace(agreed, run="other"),
        replace(agreed, round=2),
        replace(agreed, threshold=4),
        replace(agreed, bound=3.0),
        replace(agreed, levels=999),
    ]
    labels += [replace(session, context=other).label("a", 1, 2) for other in others]
    assert len(set(labels)) == len(labels)
