"""`tokens.json` in the server's folder: the one-time tokens that are not used yet."""

import json
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from fedkad.fleet.server import registry
from fedkad.fleet.shared.files import FleetFileError, write_private
from fedkad.locks import waiting_for


@dataclass(frozen=True)
class UnusedToken:
    """A token as the server knows it; `expires` is in seconds."""

    device: str
    secret: str
    expires: float


UnusedTokens = dict[str, UnusedToken]


def read(path: Path) -> UnusedTokens:
    """Return the tokens that are neither used nor expired, by device."""
    try:
        entries = [UnusedToken(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))["tokens"]]
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as error:
        raise FleetFileError(f"{path}: this is not a list of tokens ({error}); remove it, and make new ones.") from None
    now = time.time()
    return {entry.device: entry for entry in entries if entry.expires > now}


@contextmanager
def changing(path: Path) -> Iterator[UnusedTokens]:
    """The tokens, to be changed in place; they are written if the block succeeds, and locked until then."""
    with waiting_for(path.with_name(f".{path.name}.lock")):
        tokens = read(path)
        yield tokens
        document = {"tokens": [asdict(token) for token in tokens.values()]}
        write_private(path, (json.dumps(document, indent=2) + "\n").encode())


def issue(path: Path, devices: registry.Registry, names: Sequence[str], life: float) -> dict[str, str]:
    """Return new secrets by device, all of them or none; they take the place of those that these devices had."""
    for name in names:
        registry.check_new(devices, name)
    issued = {name: UnusedToken(name, secrets.token_urlsafe(24), time.time() + life) for name in names}
    with changing(path) as unused:
        unused.update(issued)
    return {name: token.secret for name, token in issued.items()}
