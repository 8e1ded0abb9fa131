"""One-time tokens: a device that has one makes its own key, shows the token once, and is added with that key.

    fedkad://DEVICE:SECRET@SERVER/FINGERPRINT

The fingerprint is that of the fleet's authority, so that the device knows its server before it shows the secret. This
way no private key of a device ever lies on the server.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

SHAPE = re.compile(r"fedkad://([^:/@]+):([\w-]+)@([^/@]+:\d+)/([0-9a-f]{64})", re.ASCII)


class TokenError(ValueError):
    """A token that cannot be used; the message says why, and what to do."""


@dataclass(frozen=True)
class OneTimeToken:
    """What an operator gives to a device."""

    device: str
    secret: str
    server: str
    fingerprint: str  # SHA-256 of the authority's certificate

    def __str__(self) -> str:
        return f"fedkad://{self.device}:{self.secret}@{self.server}/{self.fingerprint}"

    @classmethod
    def parse(cls, text: str) -> OneTimeToken:
        """Return a token as it was printed.

        >>> str(OneTimeToken.parse("fedkad://pump-1:secret@[fd00::1]:8443/" + 64 * "0"))[:38]
        'fedkad://pump-1:secret@[fd00::1]:8443/'
        """
        match = SHAPE.fullmatch(text.strip())
        if match is None:
            raise TokenError("This is not a token as `fedkad fleet token` prints it; copy all of it, without spaces.")
        return cls(*match.groups())
