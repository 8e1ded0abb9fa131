"""The sum of the devices' matrices without any single matrix: secure aggregation with double masks.

The protocol is that of Bonawitz et al. (2017), "Practical Secure Aggregation for Privacy-Preserving Machine
Learning", in its version against an honest but curious server, with a mask between every pair of devices. Device i
rounds its matrix to integers x_i and sends, modulo 2³²,

    y_i = x_i + PRG(b_i) + Σ_{j>i} PRG(s_ij) − Σ_{j<i} PRG(s_ij),

where s_ij is agreed between i and j, and b_i is its own. In the sum over all devices the masks of pairs cancel. To
take away the rest, every device has shared b_i and its mask key among all the others, so that `threshold` of them
can restore either: b_i of a device whose y_i came (a survivor), the mask key of one that vanished before. Never both:
with both, y_i would be open.

This module moves no message. Each step takes what arrived and returns what to send; the steps in their order are
`advertise`, `share`, `mask` and `reveal` on a device, and the methods of `MaskedSum` on the server.

>>> context = Context(run="example", round=1, threshold=default_threshold(4), bound=1.0, levels=1000)
>>> matrices = {device: np.full((1, 2), 0.1 * device) for device in (1, 2, 3, 4)}
>>> server, secrets, publics = MaskedSum(context), {}, {}
>>> for device in matrices:
...     publics[device], secrets[device] = advertise(context, device)
>>> roster = server.roster(publics)
>>> boxes = server.forward({device: share(secrets[device], roster) for device in matrices})
>>> masked = {device: mask(secrets[device], boxes[device], matrices[device]) for device in (1, 2, 3)}  # 4 vanishes
>>> verdict = server.settle({device: entry.integers for device, entry in masked.items()})
>>> verdict
{'survivors': [1, 2, 3], 'dropped': [4]}
>>> server.unmask({device: reveal(secrets[device], verdict) for device in (1, 2, 3)}).round(3)
array([[0.6, 0.6]])

What this protects: one device's matrix, from a server that follows the protocol and keeps all it sees, together with
fewer than `threshold` devices that tell it all they know. They learn the sum over the survivors, and what follows from
it: with every matrix but one at hand, the sum gives away the last.

What this does not protect:

- Public keys come through the server, and nothing here checks whose they are. A server that actively lies about keys
  can play the peers of a device itself and open its matrix. Against that, keys must be signed by something that the
  server does not hold.
- A server that names one device a survivor to some and dropped to others gets both secrets only if `threshold` devices
  answer each way. As 2·threshold > n, honest devices alone are too few for that; with c colluding devices,
  2·threshold > n + c would be needed. There is no further round in which devices compare what they were told.
- Nothing stops a device from sending a poisoned matrix: the server sees no norm and no direction of any single one.
- Nothing stops a device from ending a round. An answer without sense is refused, and the others go on; but shares that
  nobody can use, in boxes that do not open or with a wrong number inside, are noticed too late to repair the sum.
- What the sum itself says about a device is not blurred; that is a matter of noise, not of masks.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from secrets import randbelow
from typing import Any, NamedTuple

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedkad.fleet.settings import FEWEST

Array = NDArray[np.float64]
Integers = NDArray[np.uint32]
Message = dict[str, int | float | str | bytes | list[int] | list[bytes]]
Received = Mapping[str, object]

MODULUS = 2**32
SECRET = 32  # bytes of a seed and of a key
PRIME = 2**256 + 297  # the first beyond all secrets, so that each is one number of Shamir's field
SHARE = 33  # bytes of a number below it
NONCE, TAG = 12, 16
BOX = NONCE + 2 * SHARE + TAG  # bytes of the shares of one device for another, encrypted


class MaskingError(ValueError):
    """A step of the secure aggregation that cannot or must not be taken; the message says why and what to do."""


class SharesError(MaskingError):
    """Shares of a device that are of no use to others: made wrong, or changed by who passed them on."""

    def __init__(self, device: int, message: str) -> None:
        super().__init__(message)
        self.device = device


# The integers: a grid with `levels` steps from 0 to `bound`, on either side.


class Quantised(NamedTuple):
    """A matrix on the grid, modulo 2³², and how many of its entries lay beyond the bound."""

    integers: Integers
    clipped: int


def quantise(matrix: Array, bound: float, levels: int) -> Quantised:
    """Round to x = rint(levels · clip(matrix, ±bound) / bound), a negative x as 2³² + x.

    Rounding is to the nearest integer, not stochastic: half a step is then the worst case and not a whole one, the
    same matrix gives the same integers, and with the many levels that fit, the bias that stochastic rounding avoids
    lies far below what the consensus resolves.

    >>> quantise(np.array([[0.26, -0.5, 7.0]]), bound=1.0, levels=4)
    Quantised(integers=array([[         1, 4294967294,          4]], dtype=uint32), clipped=1)
    """
    if not np.isfinite(matrix).all():
        raise MaskingError("The matrix to mask has entries that are no finite numbers; leave this device out.")
    scaled = np.rint(np.clip(matrix, -bound, bound) * (levels / bound))
    return Quantised(scaled.astype(np.int64).astype(np.uint32), int(np.count_nonzero(np.abs(matrix) > bound)))


def restore(integers: Integers, bound: float, levels: int) -> Array:
    """The sum of matrices that a sum of their integers stands for: (bound / levels) · X, X taken in [−2³¹, 2³¹).

    >>> restore(np.array([[1, 4294967294]], dtype=np.uint32), bound=1.0, levels=4)
    array([[ 0.25, -0.5 ]])
    """
    return integers.view(np.int32).astype(np.float64) * (bound / levels)


def quantisation_error(n: int, bound: float, levels: int) -> float:
    """The most that an entry of the mean over n devices is off, when no entry was clipped: bound / (2 · levels).

    Each device rounds by at most half a step, |e_i| ≤ bound / (2 · levels), so |(1/n) Σ e_i| is no more than that
    either, whatever n; the sum is off by up to n times as much. But n · levels must stay below 2³¹, so that more
    devices leave room for fewer levels.

    >>> quantisation_error(100, bound=1.0, levels=2**20) < 5e-7
    True
    """
    check_range(n, levels)
    return bound / (2 * levels)


def check_range(n: int, levels: int) -> None:
    """Refuse a grid on which the sum of n devices, from −n · levels to n · levels, would wrap around 2³²."""
    if 2 * n * levels >= MODULUS:
        raise MaskingError(
            f"The sum of {n} devices with levels={levels} does not fit into 32 bits; "
            f"take at most {(MODULUS - 1) // (2 * n)} levels."
        )


# What everybody in a round agrees on.


def default_threshold(n: int) -> int:
    """Two thirds of n devices, rounded up: how many must stay to the end, and how many could open a matrix.

    Never fewer than three: of a sum of two, each knows the other's part.

    >>> [default_threshold(n) for n in (3, 4, 8, 100)]
    [3, 3, 6, 67]
    """
    if n < FEWEST:
        raise MaskingError(f"{n} devices are too few to hide one among them; ask at least {FEWEST}.")
    return max(-(-2 * n // 3), FEWEST)


@dataclass(frozen=True)
class Context:
    """What is fixed before a round of masking begins; keys derived in one context are of no use in another.

    Parameters
    ----------
    run, round
        Name the sum: no two sums of a fleet may have both in common.
    threshold
        How many devices must take part to the end; more than half of those that begin.
    bound, levels
        The grid of `quantise`.
    """

    run: str
    round: int
    threshold: int
    bound: float
    levels: int = 2**20

    def __post_init__(self) -> None:
        if self.threshold < 2:
            raise MaskingError(f"threshold={self.threshold} would open single matrices; take 2 or more.")
        if not 0.0 < self.bound < math.inf:
            raise MaskingError(f"bound={self.bound} must be a finite number above 0.")
        if self.levels < 1:
            raise MaskingError(f"levels={self.levels} must be 1 or more.")

    def message(self) -> Message:
        """What the server sends to ask for `advertise`."""
        return asdict(self)

    @classmethod
    def from_message(cls, message: Received) -> Context:
        """The context that `message` made."""
        bound = _entry(message, "bound", (int, float))
        return cls(
            _entry(message, "run", str),
            _entry(message, "round", int),
            _entry(message, "threshold", int),
            float(bound),
            _entry(message, "levels", int),
        )


@dataclass(frozen=True)
class Roster:
    """The devices of a round in ascending order, with the two public keys of each."""

    devices: tuple[int, ...]
    sharing_keys: tuple[bytes, ...]
    mask_keys: tuple[bytes, ...]

    def message(self) -> Message:
        """The roster as it is sent to every device."""
        return {
            "devices": list(self.devices),
            "sharing_keys": list(self.sharing_keys),
            "mask_keys": list(self.mask_keys),
        }

    @classmethod
    def from_message(cls, message: Received) -> Roster:
        """The roster that `message` made."""
        devices = _integers(message, "devices")
        keys = (_blobs(message, name, len(devices), SECRET) for name in ("sharing_keys", "mask_keys"))
        return cls(tuple(devices), *(tuple(blobs) for blobs in keys))

    def check(self, context: Context) -> None:
        """Refuse a roster that repeats a device or a key, or whose size and threshold give no protection."""
        n, threshold = len(self.devices), context.threshold
        if n < FEWEST:
            raise MaskingError(f"{n} devices are too few to hide one among them; ask at least {FEWEST}.")
        if n < threshold:
            raise MaskingError(f"Only {n} devices sent keys, fewer than the threshold of {threshold}; ask again later.")
        if 2 * threshold <= n:
            raise MaskingError(f"threshold={threshold} is no more than half of {n} devices; raise it.")
        if list(self.devices) != sorted(set(self.devices)):
            raise MaskingError("The roster does not list every device once, in ascending order; do not answer it.")
        if len({*self.sharing_keys, *self.mask_keys}) < 2 * n:
            raise MaskingError("The roster has a public key twice; do not answer it.")
        check_range(n, context.levels)


@dataclass(frozen=True)
class Session:
    """A context and the roster that came of it: all keys and masks are derived here, by devices and server alike."""

    context: Context
    roster: Roster

    @cached_property
    def digest(self) -> str:
        """A hash of everything agreed on; devices that were told different things share no keys."""
        keys = [key.hex() for key in (*self.roster.sharing_keys, *self.roster.mask_keys)]
        agreed = [asdict(self.context), self.roster.devices, keys]
        return hashlib.sha256(json.dumps(agreed, sort_keys=True).encode()).hexdigest()

    def label(self, purpose: str, *devices: int) -> bytes:
        """What a key or a ciphertext is bound to: the run, the round, the agreement, its purpose, its devices."""
        return json.dumps([self.context.run, self.context.round, self.digest, purpose, *devices]).encode()

    def derive(self, secret: bytes, purpose: str, *devices: int) -> bytes:
        """HKDF-SHA256 of a secret, with the label as its info."""
        return HKDF(SHA256(), SECRET, salt=None, info=self.label(purpose, *devices)).derive(secret)

    def commitment(self, device: int, seed: bytes) -> bytes:
        """What the server knows a restored seed by; it says nothing of the seed or its mask."""
        return self.derive(seed, "commitment", device)

    def self_mask(self, device: int, seed: bytes, shape: tuple[int, ...]) -> Integers:
        """PRG(b_i)."""
        return stream(self.derive(seed, "self mask", device), shape)

    def pair_mask(self, device: int, mask_key: bytes, peer: int, shape: tuple[int, ...]) -> Integers:
        """PRG(s_ij) as `device` i adds it: itself for j > i, its negative for j < i."""
        agreed = agree(mask_key, self.mask_key(peer))
        mask = stream(self.derive(agreed, "pair mask", *sorted((device, peer))), shape)
        return mask if peer > device else np.negative(mask)

    def box(self, sharing_key: bytes, sender: int, receiver: int, content: bytes) -> bytes:
        """Encrypt `content` from `sender`, whose key this is, to `receiver`: nonce, then ciphertext and tag."""
        key = self.derive(agree(sharing_key, self.sharing_key(receiver)), "box", sender, receiver)
        nonce = os.urandom(NONCE)
        return nonce + ChaCha20Poly1305(key).encrypt(nonce, content, self.label("shares", sender, receiver))

    def open(self, sharing_key: bytes, sender: int, receiver: int, boxed: bytes) -> bytes:
        """Decrypt what `sender` put into a box for `receiver`, whose key this is."""
        key = self.derive(agree(sharing_key, self.sharing_key(sender)), "box", sender, receiver)
        nonce, ciphertext = boxed[:NONCE], boxed[NONCE:]
        try:
            content = ChaCha20Poly1305(key).decrypt(nonce, ciphertext, self.label("shares", sender, receiver))
        except (InvalidTag, ValueError):
            content = b""
        if len(content) != 2 * SHARE:
            raise SharesError(
                sender,
                f"The shares from device {sender} to device {receiver} were changed on their way, or made for another "
                f"round or roster; leave this round.",
            )
        return content

    def sharing_key(self, device: int) -> bytes:
        """The public key that shares for a device are encrypted to."""
        return self.roster.sharing_keys[self.roster.devices.index(device)]

    def mask_key(self, device: int) -> bytes:
        """The public key that masks with a device are agreed by."""
        return self.roster.mask_keys[self.roster.devices.index(device)]

    def position(self, device: int) -> int:
        """The abscissa of a device's shares, from 1."""
        return self.roster.devices.index(device) + 1


# The primitives.


def agree(private: bytes, public: bytes) -> bytes:
    """X25519: the secret that two key pairs have in common."""
    try:
        return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise MaskingError("A public key is of no use for an agreement; do not use it.") from None


def public_key(private: bytes) -> bytes:
    """The public half of an X25519 key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def stream(key: bytes, shape: tuple[int, ...]) -> Integers:
    """PRG: the keystream of ChaCha20 as integers modulo 2³². A key serves for one mask, so that the nonce may be 0."""
    zeros = bytes(4 * math.prod(shape))
    keystream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(zeros)
    return np.frombuffer(keystream, dtype="<u4").reshape(shape).astype(np.uint32)


def split_secret(secret: bytes, threshold: int, n: int) -> list[bytes]:
    """Shamir's shares of a secret: the values at 1 to n of a random polynomial of degree t − 1 that is it at 0."""
    coefficients = [int.from_bytes(secret), *(randbelow(PRIME) for _ in range(threshold - 1))]
    values = []
    for position in range(1, n + 1):
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * position + coefficient) % PRIME
        values.append(value.to_bytes(SHARE))
    return values


def join_shares(shares: Mapping[int, bytes]) -> bytes:
    """The secret that as many shares as the threshold, by their positions, stand for; fewer give another one.

    >>> shares = split_secret(b"0123456789abcdef" * 2, threshold=2, n=3)
    >>> join_shares({1: shares[0], 3: shares[2]})
    b'0123456789abcdef0123456789abcdef'
    """
    weights = _weights_at_zero(tuple(shares))
    value = sum(weight * int.from_bytes(share) for weight, share in zip(weights, shares.values(), strict=True)) % PRIME
    secret: int = value % 2 ** (8 * SECRET)
    return secret.to_bytes(SECRET)


@lru_cache(maxsize=8)
def _weights_at_zero(positions: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's weights Π_{j≠i} x_j / (x_j − x_i): the same for the secrets of all devices."""
    weights = []
    for here in positions:
        above = below = 1
        for other in positions:
            if other != here:
                above, below = above * other % PRIME, below * (other - here) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(weights)


# The device.


@dataclass
class DeviceSecrets:
    """What a device must remember between its steps, and nobody else may see.

    Every step moves `stage` on, in place, and forgets what no later step needs. Write `to_bytes` to disk *before* the
    answer of a step is sent: an older state would let the step be taken twice, which can open the matrix.
    """

    context: Context
    device: int
    stage: str = "advertised"  # then "shared", "masked", "revealed"
    sharing_key: bytes = field(default=b"", repr=False)
    mask_key: bytes = field(default=b"", repr=False)
    seed: bytes = field(default=b"", repr=False)
    roster: Roster | None = None
    shares: dict[int, bytes] = field(default_factory=dict, repr=False)  # by device: share of its seed, then of its key
    answer: Message = field(default_factory=dict, repr=False)

    def to_bytes(self) -> bytes:
        """The secrets as JSON; bytes in it are base64."""
        document = {
            **vars(self),
            "context": self.context.message(),
            "roster": self.roster.message() if self.roster else None,
            "shares": [list(self.shares), list(self.shares.values())],
        }
        return json.dumps(document, default=lambda blob: {"base64": base64.b64encode(blob).decode()}).encode()

    @classmethod
    def from_bytes(cls, stored: bytes) -> DeviceSecrets:
        """The secrets that `to_bytes` wrote."""
        try:
            document = json.loads(stored, object_hook=_unpacked)
            document["context"] = Context.from_message(document["context"])
            document["roster"] = Roster.from_message(document["roster"]) if document["roster"] else None
            document["shares"] = dict(zip(*document["shares"], strict=True))
            return cls(**document)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise MaskingError("The stored secrets of a round are damaged; leave this round.") from None

    @property
    def session(self) -> Session:
        """The context with the roster, known from `share` on."""
        if self.roster is None:
            raise MaskingError(f"Device {self.device} has no roster yet; call share first.")
        return Session(self.context, self.roster)

    def require(self, stage: str, step: str) -> None:
        """Refuse a step out of turn, a repeated one above all."""
        if self.stage != stage:
            raise MaskingError(
                f"Device {self.device} cannot {step} in round {self.context.round}: its stage is {self.stage!r} and "
                f"not {stage!r}; take part in a new round."
            )


def advertise(context: Context, device: int) -> tuple[Message, DeviceSecrets]:
    """Step 0: two fresh key pairs, one to encrypt shares and one to agree on masks."""
    sharing, masking = (X25519PrivateKey.generate().private_bytes_raw() for _ in range(2))
    secrets = DeviceSecrets(context, device, sharing_key=sharing, mask_key=masking)
    return {"sharing_key": public_key(sharing), "mask_key": public_key(masking)}, secrets


def share(secrets: DeviceSecrets, roster: Received) -> Message:
    """Step 1: draw the seed b_i, and share it and the mask key among all devices of the roster."""
    secrets.require("advertised", "share")
    session = Session(secrets.context, Roster.from_message(roster))
    _check_roster(secrets, session)
    devices, me = session.roster.devices, secrets.device
    seed = os.urandom(SECRET)
    seeds, keys = (split_secret(secret, secrets.context.threshold, len(devices)) for secret in (seed, secrets.mask_key))
    contents = dict(zip(devices, map(bytes.__add__, seeds, keys), strict=True))
    own = contents.pop(me)
    boxes = [session.box(secrets.sharing_key, me, peer, content) for peer, content in contents.items()]
    secrets.stage, secrets.roster, secrets.seed, secrets.shares = "shared", session.roster, seed, {me: own}
    return {"devices": list(contents), "boxes": boxes, "commitment": session.commitment(me, seed)}


def mask(secrets: DeviceSecrets, forwarded: Received, matrix: Array) -> Quantised:
    """Step 2: the matrix on the grid, under the device's own mask and those with all peers whose shares arrived.

    y_i = x_i + PRG(b_i) + Σ_{j>i} PRG(s_ij) − Σ_{j<i} PRG(s_ij) modulo 2³². Keys and seed are forgotten: what is left
    to do needs only the shares received from others.
    """
    secrets.require("shared", "mask")
    session, me, context = secrets.session, secrets.device, secrets.context
    peers = _integers(forwarded, "senders")
    boxes = _blobs(forwarded, "boxes", len(peers))
    if len(set(peers)) < len(peers) or not set(peers) <= set(session.roster.devices) - {me}:
        raise MaskingError(f"Device {me} was sent shares of a device twice or of a stranger; leave this round.")
    if len(peers) + 1 < context.threshold:
        raise MaskingError(
            f"Device {me} has shares of {len(peers)} peers and with its own fewer than the threshold of "
            f"{context.threshold}; leave this round."
        )
    received = {
        peer: session.open(secrets.sharing_key, peer, me, boxed) for peer, boxed in zip(peers, boxes, strict=True)
    }
    integers, clipped = quantise(matrix, context.bound, context.levels)
    integers += session.self_mask(me, secrets.seed, integers.shape)
    for peer in peers:
        integers += session.pair_mask(me, secrets.mask_key, peer, integers.shape)
    secrets.shares |= received
    secrets.stage, secrets.seed, secrets.mask_key, secrets.sharing_key = "masked", b"", b"", b""
    return Quantised(integers, clipped)


def reveal(secrets: DeviceSecrets, verdict: Received) -> Message:
    """Step 3: the shares of the survivors' seeds and of the mask keys of those that dropped.

    It is answered once: all other shares are forgotten with the answer, which is given again to the same question.
    """
    survivors, dropped = (sorted(_integers(verdict, name)) for name in ("survivors", "dropped"))
    if secrets.stage == "revealed" and (survivors, dropped) == (secrets.answer["survivors"], secrets.answer["dropped"]):
        return dict(secrets.answer)
    secrets.require("masked", "reveal")
    _check_verdict(secrets, survivors, dropped)
    secrets.answer = {
        "survivors": survivors,
        "seed_shares": [secrets.shares[device][:SHARE] for device in survivors],
        "dropped": dropped,
        "key_shares": [secrets.shares[device][SHARE:] for device in dropped],
    }
    secrets.stage, secrets.shares = "revealed", {}
    return dict(secrets.answer)


def _check_roster(secrets: DeviceSecrets, session: Session) -> None:
    """A roster must be sound, and hold this device with the keys that it sent."""
    session.roster.check(session.context)
    if secrets.device not in session.roster.devices:
        raise MaskingError(f"Device {secrets.device} is not in the roster that it was sent; leave this round.")
    sent = public_key(secrets.sharing_key), public_key(secrets.mask_key)
    if (session.sharing_key(secrets.device), session.mask_key(secrets.device)) != sent:
        raise MaskingError(f"The roster has other keys for device {secrets.device} than it sent; leave this round.")


def _check_verdict(secrets: DeviceSecrets, survivors: Sequence[int], dropped: Sequence[int]) -> None:
    """Each device that shared must be named once, this one as a survivor, and survivors must reach the threshold."""
    me, threshold = secrets.device, secrets.context.threshold
    if set(survivors) & set(dropped):
        raise MaskingError(f"Device {me} was asked for both secrets of one device; leave this round.")
    if sorted([*survivors, *dropped]) != sorted(secrets.shares):
        raise MaskingError(
            f"Device {me} was asked about other devices than those that sent it shares; leave this round."
        )
    if me not in survivors:
        raise MaskingError(f"Device {me} was told that it dropped out, and does not answer; take part in a new round.")
    if len(survivors) < threshold:
        raise MaskingError(
            f"Device {me} was asked to open a sum of {len(survivors)} devices, fewer than the threshold of "
            f"{threshold}; leave this round."
        )


# The server.


class MaskedSum:
    """The server's side of one sum: what it sends after each step, and at last the sum.

    Each step takes what the devices answered, by device; a device that did not answer is left out. So must be one whose
    answer `check_keys`, `check_shares` or `check_revealed` refuses: in the step itself it would end the round for all.
    A device is whatever whole number the transport knows it by.
    """

    def __init__(self, context: Context) -> None:
        self.context = context
        self._session: Session | None = None
        self._owners: dict[bytes, int] = {}  # of public keys
        self._commitments: dict[int, bytes] = {}
        self._survivors: list[int] = []
        self._dropped: list[int] = []
        self._total: Integers | None = None

    def check_keys(self, device: int, message: Received) -> tuple[bytes, bytes]:
        """The public keys that a device advertised; refused if the others could not answer a roster with them.

        Nobody has seen the keys of others in this step: a key that comes twice is of two devices in league.
        """
        keys = _entry(message, "sharing_key", bytes), _entry(message, "mask_key", bytes)
        for key in keys:
            agree(bytes(SECRET), key)  # private keys are multiples of 8: a point of low order fails with all or none
        if keys[0] == keys[1] or any(self._owners.setdefault(key, device) != device for key in keys):
            raise MaskingError("A public key was sent before, and fresh ones never are; do not use it.")
        return keys

    def roster(self, publics: Mapping[int, Received]) -> Message:
        """After `advertise`: the public keys of all who answered, to be sent to each of them."""
        keys = {device: self.check_keys(device, publics[device]) for device in sorted(publics)}
        roster = Roster(tuple(keys), *(tuple(pair[k] for pair in keys.values()) for k in (0, 1)))
        roster.check(self.context)
        self._session = Session(self.context, roster)
        return roster.message()

    def check_shares(self, device: int, message: Received) -> dict[int, bytes]:
        """The boxes that a device made, by receiver; what is in them only the receivers can tell."""
        devices = self._begun().roster.devices
        others = [peer for peer in devices if peer != device]
        if device not in devices or _integers(message, "devices") != others:
            raise MaskingError("The boxes are not for each of the others in the roster; do not use them.")
        _blob(message, "commitment", SECRET)
        return dict(zip(others, _blobs(message, "boxes", len(others), BOX), strict=True))

    def forward(self, shares: Mapping[int, Received]) -> dict[int, Message]:
        """After `share`: for each device that shared, the boxes that the others made for it."""
        self._begun()
        self._enough(shares, "shared their secrets")
        boxes = {sender: self.check_shares(sender, message) for sender, message in shares.items()}
        self._commitments = {sender: _blob(shares[sender], "commitment", SECRET) for sender in sorted(shares)}
        forwarded: dict[int, Message] = {}
        for receiver in self._commitments:
            senders = [sender for sender in self._commitments if sender != receiver]
            forwarded[receiver] = {"senders": senders, "boxes": [boxes[sender][receiver] for sender in senders]}
        return forwarded

    def settle(self, masked: Mapping[int, Integers]) -> Message:
        """After `mask`: add up what came, and say who survived and who dropped; to be sent to the survivors."""
        self._enough(masked, "sent a masked matrix")
        strangers = set(masked) - set(self._commitments)
        if strangers:
            raise MaskingError(f"Device {min(strangers)} sent a masked matrix without shares; leave it out.")
        if len({integers.shape for integers in masked.values()}) > 1:
            raise MaskingError(
                "The masked matrices differ in shape; give all devices the same window, rank and channels."
            )
        for device, integers in masked.items():
            if integers.dtype != np.uint32:
                raise MaskingError(
                    f"The masked matrix of device {device} is {integers.dtype} and not uint32; leave it out."
                )
        self._survivors = sorted(masked)
        self._dropped = [device for device in self._commitments if device not in masked]
        self._total = np.sum(list(masked.values()), axis=0, dtype=np.uint32)
        return {"survivors": list(self._survivors), "dropped": list(self._dropped)}

    def check_revealed(self, message: Received) -> None:
        """Refuse shares that were not asked for; whether they are the right ones shows when they are joined."""
        for asked, name, devices in self._asked():
            if _integers(message, asked) != devices:
                raise MaskingError("The shares are of other devices than those asked about; do not use them.")
            _blobs(message, name, len(devices), SHARE)

    def _asked(self) -> tuple[tuple[str, str, list[int]], ...]:
        """What an answer to the verdict holds: the list of devices, that of their shares, and which devices."""
        return ("survivors", "seed_shares", self._survivors), ("dropped", "key_shares", self._dropped)

    def unmask(self, revealed: Mapping[int, Received]) -> Array:
        """After `reveal`: the sum of the survivors' matrices, Σ x_i · bound / levels.

        From Σ y_i are taken PRG(b_i) of each survivor i, and the pair masks that it added with each dropped device.
        """
        if self._total is None:
            raise MaskingError("There is nothing to unmask yet; call settle with the masked matrices first.")
        session, total = self._begun(), self._total.copy()
        answers = {device: revealed[device] for device in self._survivors if device in revealed}
        self._enough(answers, "revealed their shares")
        helpers = {session.position(device): answers[device] for device in list(answers)[: self.context.threshold]}
        for answer in helpers.values():
            self.check_revealed(answer)
        seeds, keys = (self._restored(helpers, name, devices) for _, name, devices in self._asked())
        for device, seed in seeds.items():
            self._verify(session.commitment(device, seed) == self._commitments[device], device)
            total -= session.self_mask(device, seed, total.shape)
        for device, key in keys.items():
            self._verify(public_key(key) == session.mask_key(device), device)
            for survivor in self._survivors:
                total += session.pair_mask(device, key, survivor, total.shape)  # the negative of the survivor's
        return restore(total, self.context.bound, self.context.levels)

    @property
    def survivors(self) -> list[int]:
        """The devices whose matrices are in the sum."""
        return list(self._survivors)

    def _begun(self) -> Session:
        if self._session is None:
            raise MaskingError("The round has no roster yet; call roster with the public keys first.")
        return self._session

    def _enough(self, answers: Iterable[int], what: str) -> None:
        count = len(set(answers))
        if count < self.context.threshold:
            raise MaskingError(
                f"Only {count} devices {what} in round {self.context.round}, fewer than the threshold of "
                f"{self.context.threshold}; begin a new round."
            )

    @staticmethod
    def _restored(answers: Mapping[int, Received], name: str, devices: Sequence[int]) -> dict[int, bytes]:
        """The secrets of `devices`, joined from the list `name` of every answer, by the positions of who gave it."""
        columns = {position: _blobs(answer, name, len(devices), SHARE) for position, answer in answers.items()}
        return {
            device: join_shares({position: column[k] for position, column in columns.items()})
            for k, device in enumerate(devices)
        }

    @staticmethod
    def _verify(fits: bool, device: int) -> None:
        if not fits:
            raise SharesError(device, f"The shares of device {device} do not join to its secret; begin a new round.")


# Entries of messages, checked where they come in.


def _entry(message: Received, name: str, kind: type | tuple[type, ...]) -> Any:
    value = message.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise MaskingError(f"A message of the round has no {name!r}, or one of the wrong type; do not use it.")
    return value


def _integers(message: Received, name: str) -> list[int]:
    values: list[int] = list(_entry(message, name, (list, tuple)))
    if any(type(value) is not int for value in values):
        raise MaskingError(f"{name!r} in a message of the round must be whole numbers; do not use them.")
    return values


def _blobs(message: Received, name: str, count: int, size: int | None = None) -> list[bytes]:
    values: list[bytes] = list(_entry(message, name, (list, tuple)))
    if len(values) != count or any(type(value) is not bytes or size not in (None, len(value)) for value in values):
        expected = f"{count} pieces" + (f" of {size} bytes" if size else "")
        raise MaskingError(f"{name!r} in a message of the round must be {expected}; do not use them.")
    return values


def _blob(message: Received, name: str, size: int) -> bytes:
    value: bytes = _entry(message, name, bytes)
    if len(value) != size:
        raise MaskingError(f"{name!r} in a message of the round must be {size} bytes; do not use it.")
    return value


def _unpacked(entry: dict[str, Any]) -> Any:
    return base64.b64decode(entry["base64"], validate=True) if set(entry) == {"base64"} else entry
