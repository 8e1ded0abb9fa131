"""The server's side of a masked sum."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from fedkad.federation.secure.grid import Array, Integers, restore
from fedkad.federation.secure.messages import MaskingError, Message, Received, SharesError, blob, blobs, entry, integers
from fedkad.federation.secure.session import BOX, MaskingContext, Roster, Session, agree, public_key
from fedkad.federation.secure.shamir import SECRET, SHARE, join_shares


class MaskedSum:
    """The server's side of one sum: what it sends after each step, and at last the sum.

    Each step takes what the devices answered, by device; a device that did not answer is left out. So must be one whose
    answer `check_keys`, `check_shares` or `check_revealed` refuses: in the step itself it would end the round for all.
    A device is whatever integer the transport knows it by.
    """

    def __init__(self, context: MaskingContext) -> None:
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
        keys = entry(message, "sharing_key", bytes), entry(message, "mask_key", bytes)
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
        if device not in devices or integers(message, "devices") != others:
            raise MaskingError("The boxes are not for each of the others in the roster; do not use them.")
        blob(message, "commitment", SECRET)
        return dict(zip(others, blobs(message, "boxes", len(others), BOX), strict=True))

    def forward(self, shares: Mapping[int, Received]) -> dict[int, Message]:
        """After `share`: for each device that shared, the boxes that the others made for it."""
        self._begun()
        self._enough(shares, "shared their secrets")
        boxes = {sender: self.check_shares(sender, message) for sender, message in shares.items()}
        self._commitments = {sender: blob(shares[sender], "commitment", SECRET) for sender in sorted(shares)}
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
        if len({values.shape for values in masked.values()}) > 1:
            raise MaskingError(
                "The masked matrices differ in shape; give all devices the same window, rank and channels."
            )
        for device, values in masked.items():
            if values.dtype != np.uint32:
                raise MaskingError(
                    f"The masked matrix of device {device} is {values.dtype} and not uint32; leave it out."
                )
        self._survivors = sorted(masked)
        self._dropped = [device for device in self._commitments if device not in masked]
        self._total = np.sum(list(masked.values()), axis=0, dtype=np.uint32)
        return {"survivors": list(self._survivors), "dropped": list(self._dropped)}

    def check_revealed(self, message: Received) -> None:
        """Refuse shares that were not asked for; whether they are the right ones shows when they are joined."""
        for asked, name, devices in self._asked():
            if integers(message, asked) != devices:
                raise MaskingError("The shares are of other devices than those asked about; do not use them.")
            blobs(message, name, len(devices), SHARE)

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
        columns = {position: blobs(answer, name, len(devices), SHARE) for position, answer in answers.items()}
        return {
            device: join_shares({position: column[k] for position, column in columns.items()})
            for k, device in enumerate(devices)
        }

    @staticmethod
    def _verify(fits: bool, device: int) -> None:
        if not fits:
            raise SharesError(device, f"The shares of device {device} do not join to its secret; begin a new round.")
