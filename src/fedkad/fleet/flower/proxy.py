"""The public face of the server: an nginx that lets devices reach their part of Flower and nothing else.

`nginx.conf.in` is its configuration, with slots for what the settings and the devices of a fleet decide.

Flower's control interface has no authentication, and anyone who reaches it can run code on the server. So Flower
listens on its own machine only, and nginx is what listens to the network.

Flower reads the whole body of a request into memory and parses it before it checks who has sent it. So nginx lets a
request through only if what it costs is bounded:

- Every request of a device carries its public key in a header, which nginx looks up before it reads the body: a
  stranger without the key of a registered device is answered at once. A public key is no secret in theory, but it
  is sent over TLS only, and has 384 random bits. Flower then checks the signature, which nginx cannot.
- A body may be as large as an honest one of this fleet at this endpoint, with a margin, and is kept in memory: no
  request and no answer goes to a temporary file.
- Requests are limited per device (by its key) and not per address, because many devices may share one address. nginx
  cannot count a connection whose header is incomplete: these are closed after ten seconds, and there is room for
  `most_connections` in all. One in the middle of a TLS handshake takes OpenSSL up to 50 kB.

nginx also serves the files of the notice board by itself, without Flower: the notice to anybody, because its signature
is all that counts, and models to registered devices. Devices that look every minute resume their TLS session, which
saves the server the signature of a handshake.

A device asks before it connects whose key it has (`WHOSE_KEY`): Flower would let it in under the name of another.

A device says now and then who looks at the notice, and nginx writes that into another log (`POLL_LOG`).

A device that is not registered yet shows its one-time token and its public key, in headers. nginx knows the tokens, and
writes both into a log (`JOIN_LOG`) that the server reads, for each token once a second at most. So a stranger reaches
nothing but nginx.
"""

import grp
import os
import pwd
import resource
import shutil
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template

from fedkad.atomicfile import write_atomically
from fedkad.fleet.server.settings import Place
from fedkad.fleet.shared.extra import MissingRequirementError
from fedkad.fleet.shared.processes import ChildProcess

FILE = "nginx.conf"
KEYS, PID, PUBLIC = "proxy/devices.conf", "proxy/nginx.pid", "public"
WHOSE_KEY = "/whose-key"
TOKENS, JOIN_LOG, POLL_LOG = "proxy/tokens.conf", "proxy/newcomers.log", "proxy/looks.log"
ELSEWHERE = "/usr/sbin:/usr/local/sbin:/sbin"  # where nginx often is, off PATH
NOBODY = "nobody"  # who serves the network if the server is started by root

REPLY, ANNOUNCEMENT = "push-object", "push-messages"
SMALL = (
    *("activate-node", "deactivate-node", "send-node-heartbeat", "get-run", "get-fab"),
    *("pull-messages", "pull-object", "confirm-message-received"),
)
"""Endpoints of a device that take a few identifiers. A device with a key does not use the two that register nodes."""

LARGEST_SMALL, LARGEST_ANNOUNCEMENT = 4_096, 32_768  # bytes of a few identifiers, and of the names of a reply's parts

BURST = 200  # requests of one device at once, on top of those in the long run
KEPT_FILES = 64  # files that nginx needs beside its connections

# What Flower answers to a device that it does not know, so that nothing changes for an honest one.
NOT_ADMITTED = """return 412 '{"code":2004,"detail":"Failed to activate SuperNode."}';"""


class _ConfigurationTemplate(Template):
    """A file of nginx with slots such as @{port}; $ marks nginx's own variables."""

    delimiter = "@"


def _template(name: str) -> _ConfigurationTemplate:
    return _ConfigurationTemplate(Path(__file__).with_name(name).read_text())


def configuration(place: Place, largest_reply: int, devices: int) -> str:
    """Return what nginx does in front of this many devices and tokens; none sends more than `largest_reply` bytes."""
    sizes = dict.fromkeys(SMALL, LARGEST_SMALL)
    sizes |= {ANNOUNCEMENT: LARGEST_ANNOUNCEMENT, REPLY: largest_reply}
    refusals, location = {"activate-node": NOT_ADMITTED}, _template("nginx_location.conf.in")
    locations = (
        location.substitute(name=name, largest=size, refusal=refusals.get(name, "return 401;"))
        for name, size in sizes.items()
    )
    # nginx would refuse more files than the system allows.
    allowed, files = resource.getrlimit(resource.RLIMIT_NOFILE)[1], place.most_connections + KEPT_FILES
    files = files if allowed == resource.RLIM_INFINITY else min(files, allowed)
    return _template("nginx.conf.in").substitute(
        files=files,
        connections=files - KEPT_FILES,
        largest=max(sizes.values()),
        hash_size=max(2048, 2 * devices),
        zone=1 + devices // 4000,  # an entry takes 128 bytes
        burst=BURST,
        control_port=place.control_port,
        listen="\n        ".join(f"listen {where} ssl;" for where in listening(place)),
        locations="".join(locations),
        **{"keys": KEYS, "tokens": TOKENS, "pid": PID},
        **{"join_log": JOIN_LOG, "poll_log": POLL_LOG, "whose_key": WHOSE_KEY},
    )


def listening(place: Place) -> list[str]:
    """Return where nginx listens: at one address or at all, IPv6 included if this machine has it.

    >>> listening(Place(bind="192.0.2.1")), listening(Place(bind="fd00::1"))
    (['192.0.2.1:8443'], ['[fd00::1]:8443'])
    """
    if place.bind:
        return [f"[{place.bind}]:{place.port}" if ":" in place.bind else f"{place.bind}:{place.port}"]
    everywhere = [str(place.port)]
    return [*everywhere, f"[::]:{place.port}"] if Path("/proc/net/if_inet6").exists() else everywhere


def known_keys(public_keys: Mapping[str, str]) -> str:
    """Return the devices by the header with their public key, as Flower's SuperNode sends it, for nginx to look up."""
    keys = {name: b64encode(key.encode()).decode() for name, key in public_keys.items()}
    return "".join(f'"{key}" "{name}";\n' for name, key in keys.items())


def write_configuration(
    root: Path, place: Place, largest_reply: int, public_keys: Mapping[str, str], tokens: Mapping[str, str]
) -> bool:
    """Write the files of nginx into a server's folder, with tokens by device; False if nothing has changed."""
    (root / "proxy").mkdir(mode=0o700, exist_ok=True)
    texts = {
        KEYS: known_keys(public_keys),
        TOKENS: "".join(f'"{token}" "{name}";\n' for name, token in tokens.items()),
        FILE: configuration(place, largest_reply, len(public_keys) + len(tokens)),
    }
    changed = {name: text for name, text in texts.items() if _content(root / name) != text}
    for name, text in changed.items():
        write_atomically(root / name, text.encode(), mode=0o600)
    return bool(changed)


def _content(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


def command(root: Path) -> list[str]:
    """Return the command that runs nginx in the foreground in a server's folder.

    Started by root, it reads keys and configuration as root and serves the network as nobody, who can read neither.
    """
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:{ELSEWHERE}")
    if program is None:
        raise MissingRequirementError(
            "The server needs nginx to keep Flower's control interface off the network, and nginx is not on PATH; "
            "install it, for example with apt install nginx-light."
        )
    arguments = [program, "-p", f"{root}/", "-c", FILE, "-e", "stderr"]
    if os.geteuid() == 0:
        arguments += ["-g", f"user {NOBODY} {grp.getgrgid(pwd.getpwnam(NOBODY).pw_gid).gr_name};"]
    return ["/bin/sh", "-c", 'cd "$0" && exec "$@"', f"{root}/{PUBLIC}", *arguments]


def environment(sockets: Sequence[int]) -> dict[str, str]:
    """Return the environment of nginx: it takes over listening sockets that it is told of, as when it replaces itself.

    So a server may run in a network namespace of its own, where no other process reaches Flower's control interface,
    and still be reached at a socket that was opened outside of it.

    >>> environment([3, 4])["NGINX"]
    '3;4;'
    """
    return {**os.environ, **({"NGINX": "".join(f"{each};" for each in sockets)} if sockets else {})}


def reload(root: Path, process: ChildProcess) -> bool:
    """Have a running nginx read its files again, without closing a connection that is in use.

    False while it is only starting: it writes its number once it understands the signal, which would end it before.
    """
    if _content(root / PID) != f"{process.process.pid}\n":
        return False
    process.reload()
    return True
