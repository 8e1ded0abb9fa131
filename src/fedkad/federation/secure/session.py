"""What the devices and the server of a masked round agree on, and the keys, masks and boxes derived from it."""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fedkad.federation.secure.arithmetic import MODULUS, SECRET, SHARE, Integers
from fedkad.federation.settings import FEWEST

Message = dict[str, int | float | str | bytes | list[int] | list[bytes]]
Received = Mapping[str, object]

NONCE, TAG = 12, 16
BOX = NONCE + 2 * SHARE + TAG
"""Bytes of the shares of one device for another, encrypted."""


class MaskingError(ValueError):
    """A step of secure aggregation that cannot or must not be taken; the message says why and what to do."""


class SharesError(MaskingError):
    """Shares made by a device that are of no use to others: made wrong, or changed on their way."""

    def __init__(self, device: int, message: str) -> None:
        super().__init__(message)
        self.device = device


def entry(message: Received, name: str, kind: type | tuple[type, ...]) -> Any:
    """Return one value of a message, checked for its type."""
    value = message.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise MaskingError(f"A message of the round has no {name!r}, or one of the wrong type; do not use it.")
    return value


def integers(message: Received, name: str) -> list[int]:
    """Return a list of integers in a message."""
    values: list[int] = list(entry(message, name, (list, tuple)))
    if any(type(value) is not int for value in values):
        raise MaskingError(f"{name!r} in a message of the round must be integers; do not use them.")
    return values


def blobs(message: Received, name: str, count: int, size: int | None = None) -> list[bytes]:
    """Return a list of so many byte strings in a message, each of `size` bytes if that is given."""
    values: list[bytes] = list(entry(message, name, (list, tuple)))
    if len(values) != count or any(type(value) is not bytes or size not in (None, len(value)) for value in values):
        expected = f"{count} pieces" + (f" of {size} bytes" if size else "")
        raise MaskingError(f"{name!r} in a message of the round must be {expected}; do not use them.")
    return values


def default_threshold(n: int) -> int:
    """Return two thirds of n devices, rounded up: how many must stay to the end, and could open a matrix.

    Never fewer than three: of a sum of two, each knows the other's part.

    >>> [default_threshold(n) for n in (3, 4, 8, 100)]
    [3, 3, 6, 67]
    """
    _check_number(n)
    return max(-(-2 * n // 3), FEWEST)


def _check_number(n: int) -> None:
    if n < FEWEST:
        raise MaskingError(f"{n} devices are too few to hide one among them; ask at least {FEWEST}.")


@dataclass(frozen=True)
class MaskingContext:
    """What is fixed before a masked round begins; keys derived in one context are of no use in another."""

    run: str  # with the round it names the sum: no two sums of a fleet may have both in common
    round: int
    threshold: int  # how many devices must take part to the end; more than half of those that begin
    bound: float  # of the grid of `quantise`, with its levels
    levels: int = 2**20

    def __post_init__(self) -> None:
        if self.threshold < FEWEST:
            raise MaskingError(f"threshold={self.threshold} would open the sum of too few; use {FEWEST} or more.")
        if not 0.0 < self.bound < math.inf:
            raise MaskingError(f"bound={self.bound} must be positive and finite.")
        if self.levels < 1:
            raise MaskingError(f"levels={self.levels} must be 1 or more.")

    def message(self) -> Message:
        """Return what the server sends to ask for `advertise`."""
        return asdict(self)

    @classmethod
    def from_message(cls, message: Received) -> Self:
        """Read the context that `message` made."""
        return cls(
            run=entry(message, "run", str),
            bound=float(entry(message, "bound", (int, float))),
            **{name: entry(message, name, int) for name in ("round", "threshold", "levels")},
        )


@dataclass(frozen=True)
class Session:
    """A context and its roster: the devices in ascending order, with the two public keys of each.

    Devices and server alike derive all keys and masks here.
    """

    context: MaskingContext
    devices: tuple[int, ...] = ()
    sharing_keys: tuple[bytes, ...] = ()
    mask_keys: tuple[bytes, ...] = ()

    def roster(self) -> Message:
        """Return the roster as it is sent to every device."""
        return {name: list(getattr(self, name)) for name in ("devices", "sharing_keys", "mask_keys")}

    @classmethod
    def with_roster(cls, context: MaskingContext, message: Received) -> Self:
        """Read the session whose `roster` the message is."""
        devices = integers(message, "devices")
        keys = (blobs(message, name, len(devices), SECRET) for name in ("sharing_keys", "mask_keys"))
        return cls(context, tuple(devices), *map(tuple, keys))

    def check(self) -> None:
        """Refuse a roster that repeats a device or a key, or whose size and threshold give no protection."""
        n, threshold, levels = len(self.devices), self.context.threshold, self.context.levels
        _check_number(n)
        if n < threshold:
            raise MaskingError(f"Only {n} devices sent keys, fewer than the threshold of {threshold}; ask again later.")
        if 2 * threshold <= n:
            raise MaskingError(f"threshold={threshold} is no more than half of {n} devices; raise it.")
        if list(self.devices) != sorted(set(self.devices)):
            raise MaskingError("The roster does not list every device once, in ascending order; do not answer it.")
        if len({*self.sharing_keys, *self.mask_keys}) < 2 * n:
            raise MaskingError("The roster has a public key twice; do not answer it.")
        if 2 * n * levels >= MODULUS:  # the sum, from −n · levels to n · levels, would wrap around
            raise MaskingError(
                f"The sum of {n} devices with levels={levels} does not fit into 32 bits; "
                f"use at most {(MODULUS - 1) // (2 * n)} levels."
            )

    @cached_property
    def digest(self) -> str:
        """A hash of everything agreed on; devices that were told different things share no keys."""
        keys = [key.hex() for key in (*self.sharing_keys, *self.mask_keys)]
        agreed = [asdict(self.context), self.devices, keys]
        return hashlib.sha256(json.dumps(agreed, sort_keys=True).encode()).hexdigest()

    def label(self, purpose: str, *devices: int) -> bytes:
        """Name what a key or a ciphertext is bound to: run, round, agreement, purpose, devices."""
        return json.dumps([self.context.run, self.context.round, self.digest, purpose, *devices]).encode()

    def derive(self, secret: bytes, purpose: str, *devices: int) -> bytes:
        """Derive a key from a secret by HKDF-SHA256, with the label as its info."""
        return HKDF(SHA256(), SECRET, salt=None, info=self.label(purpose, *devices)).derive(secret)

    def commitment(self, device: int, seed: bytes) -> bytes:
        """Derive what the server recognises a restored seed by; it reveals nothing about the seed or its mask."""
        return self.derive(seed, "commitment", device)

    def self_mask(self, device: int, seed: bytes, shape: tuple[int, ...]) -> Integers:
        """Derive PRG(b_i)."""
        return stream(self.derive(seed, "self mask", device), shape)

    def pair_mask(self, device: int, mask_key: bytes, peer: int, shape: tuple[int, ...]) -> Integers:
        """Derive PRG(s_ij) as `device` i adds it: itself for j > i, its negative for j < i."""
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
        """Return the public key that shares for a device are encrypted to."""
        return self.sharing_keys[self.devices.index(device)]

    def mask_key(self, device: int) -> bytes:
        """Return the public key that masks with a device are agreed by."""
        return self.mask_keys[self.devices.index(device)]

    def position(self, device: int) -> int:
        """Return the abscissa of a device's shares, from 1."""
        return self.devices.index(device) + 1


def agree(private: bytes, public: bytes) -> bytes:
    """Derive the secret that two key pairs have in common, by X25519."""
    try:
        return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise MaskingError("A public key cannot be used for an agreement; do not use it.") from None


def new_key() -> bytes:
    """Draw a fresh private X25519 key."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private: bytes) -> bytes:
    """Return the public half of an X25519 key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def stream(key: bytes, shape: tuple[int, ...]) -> Integers:
    """Return the keystream of ChaCha20 as integers modulo 2³²: a key serves for one mask, so the nonce may be 0."""
    zeros = bytes(4 * math.prod(shape))
    keystream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(zeros)
    return np.frombuffer(keystream, dtype="<u4").reshape(shape).astype(np.uint32)
