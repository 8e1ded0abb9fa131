"""The public face of the server: an nginx that lets devices reach their part of Flower and nothing else.

Flower's control interface has no authentication, and anyone who reaches it can run code on the server. So Flower
listens on its own machine only, and nginx is what listens to the network.

Flower reads the whole body of a request into memory and parses it before it checks who has sent it. So nginx lets a
request through only if what it costs is bounded:

- Every request of a device carries its public key in a header, which nginx looks up before it reads the body: whoever
  does not know the key of a registered device is answered at once. A public key is nobody's secret in theory, but it
  is sent over TLS only, and has 384 random bits. Flower then checks the signature, which nginx cannot.
- A body may be as large as an honest one of this fleet at this endpoint, with a margin, and is kept in memory: no
  request and no answer goes to a temporary file.
- Requests are limited per device (by its key) and not per address, because many devices may share one address. nginx
  cannot count a connection whose header is incomplete: these are closed after `HEADER_SECONDS`, and there is room for
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

from __future__ import annotations

import grp
import os
import pwd
import resource
import shutil
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedkad.atomicfile import write_atomically
from fedkad.fleet.server.settings import Place
from fedkad.fleet.shared.extra import MissingRequirementError
from fedkad.fleet.shared.processes import ChildProcess

FILE = "nginx.conf"
KEYS, PID, PUBLIC, LOG = "proxy/devices.conf", "proxy/nginx.pid", "public", "logs/proxy.log"
WHOSE_KEY = "/whose-key"
TOKENS, JOIN_LOG, POLL_LOG = "proxy/tokens.conf", "proxy/newcomers.log", "proxy/looks.log"
KEY_LENGTH = 320  # characters of the header with a public key that are logged; a key has fewer
ELSEWHERE = "/usr/sbin:/usr/local/sbin:/sbin"  # where nginx often is, off PATH
NOBODY = "nobody"  # who serves the network if the server is started by root

REPLY, ANNOUNCEMENT = "push-object", "push-messages"
SMALL = (
    *("activate-node", "deactivate-node", "send-node-heartbeat", "get-run", "get-fab"),
    *("pull-messages", "pull-object", "confirm-message-received"),
)
"""Endpoints of a device that take a few identifiers. A device with a key does not use the two that register nodes."""

LARGEST_SMALL, LARGEST_ANNOUNCEMENT = 4_096, 32_768
"""Bytes of a body: a few identifiers, and the names of the parts of a reply."""

HEADER_SECONDS, BODY_SECONDS, SEND_SECONDS = 10, 15, 30
RATE, BURST, AT_ONCE = 20, 200, 12
"""Requests of one device: per second in the long run, on top of that at once, and in progress at the same time."""

KEPT_FILES = 64
"""Files that nginx needs beside its connections."""

NOT_ADMITTED = """return 412 '{"code":2004,"detail":"Failed to activate SuperNode."}';"""
"""What Flower answers to a device that it does not know, so that nothing changes for an honest one."""

TEMPLATE = """\
# Written from fleet.toml each time it or the list of devices changes. Paths are relative to this folder.
daemon off;
worker_processes 1;
worker_rlimit_nofile {files};
worker_shutdown_timeout 10s;
pid {pid};
error_log stderr warn;
events {{ worker_connections {connections}; }}
http {{
    server_tokens off;
    default_type application/json;
    client_body_temp_path proxy/body;
    proxy_temp_path proxy/reply;
    fastcgi_temp_path proxy/fastcgi;
    uwsgi_temp_path proxy/uwsgi;
    scgi_temp_path proxy/scgi;
    client_header_timeout {header_seconds}s;
    client_body_timeout {body_seconds}s;
    send_timeout {send_seconds}s;
    lingering_time 10s;
    lingering_timeout 2s;
    reset_timedout_connection on;
    client_header_buffer_size 2k;
    large_client_header_buffers 2 4k;
    client_body_buffer_size {largest};
    proxy_max_temp_file_size 0;
    map_hash_bucket_size 1024;
    map_hash_max_size {hash_size};
    map $http_flwr_public_key $device {{
        default "";
        include {keys};
    }}
    map $http_fedkad_token $newcomer {{
        default "";
        include {tokens};
    }}
    map $newcomer:$status $is_noted {{
        default 0;
        "~^.+:200$" 1;
    }}
    map $device:$status $is_seen {{
        default 0;
        "~^.+:(200|304)$" 1;
    }}
    log_format look '$msec $device';
    log_format newcomer escape=json
        '{{"token": "$http_fedkad_token", "key": "$http_flwr_public_key", "from": "$remote_addr"}}';
    limit_req_zone $newcomer zone=newcomers:{zone}m rate=1r/s;
    # Only who was turned away. The key is shortened to the length of an honest one.
    map $http_flwr_public_key $shown_key {{
        default "-";
        "~^(?<key_start>.{{1,{key_length}}})" $key_start;
    }}
    map $status $is_refused {{
        default 0;
        "~^(4(?!99)|503)" 1;
    }}
    log_format refusal '$time_iso8601 refused $status $remote_addr "$request" device "$device" key $shown_key';
    access_log {log} refusal if=$is_refused;
    limit_req_log_level info;
    limit_conn_log_level info;
    limit_req_zone $device zone=requests:{zone}m rate={rate}r/s;
    limit_conn_zone $device zone=connections:{zone}m;
    limit_req zone=requests burst={burst} nodelay;
    limit_conn connections {at_once};
    upstream superlink {{ server 127.0.0.1:{control_port}; keepalive 16; keepalive_timeout 4s; }}
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    proxy_set_header Host localhost;
    proxy_ssl_verify on;
    proxy_ssl_trusted_certificate ca/ca.crt;
    proxy_ssl_name localhost;
    proxy_next_upstream off;
    server {{
        {listen}
        ssl_certificate server/server.crt;
        ssl_certificate_key server/server.key;
        ssl_protocols TLSv1.2 TLSv1.3;
        ssl_session_cache shared:sessions:4m;
        ssl_session_timeout 1h;
        ssl_buffer_size 4k;
        # Started by root, nginx serves as nobody, who may not pass through the folders above this one; it starts in it.
        root /proc/self/cwd;
        location = /notice {{
            if ($request_method !~ "^(GET|HEAD)$") {{ return 403; }}
            default_type text/plain;
            keepalive_requests 16;
            access_log {log} refusal if=$is_refused;
            access_log {poll_log} look if=$is_seen;
        }}
        location = /join {{
            if ($request_method != GET) {{ return 403; }}
            if ($device != "") {{ return 204; }}
            if ($newcomer = "") {{ return 401; }}
            limit_req zone=newcomers;
            access_log {log} refusal if=$is_refused;
            access_log {join_log} newcomer if=$is_noted;
        }}
        location = {whose_key} {{
            if ($request_method != GET) {{ return 403; }}
            if ($device = "") {{ return 401; }}
            default_type text/plain;
            return 200 $device;
        }}
        location ~ "^/models/[0-9a-f]{{64}}$" {{
            if ($request_method !~ "^(GET|HEAD)$") {{ return 403; }}
            if ($device = "") {{ return 401; }}
            default_type application/octet-stream;
        }}
{locations}        location / {{ return 403; }}
    }}
}}
"""
LOCATION = """\
        location = /v1/fleet/{name} {{
            # nginx resolves dots and escapes before it matches a location, but passes the path on unchanged.
            if ($request_uri != "/v1/fleet/{name}") {{ return 403; }}
            if ($request_method != POST) {{ return 403; }}
            if ($device = "") {{ {refusal} }}
            client_max_body_size {largest};
            proxy_pass https://superlink;
        }}
"""


def configuration(place: Place, largest_reply: int, devices: int) -> str:
    """What nginx does in front of so many devices and tokens, none of which sends more than `largest_reply` bytes."""
    sizes = dict.fromkeys(SMALL, LARGEST_SMALL)
    sizes |= {ANNOUNCEMENT: LARGEST_ANNOUNCEMENT, REPLY: largest_reply}
    refusals = {"activate-node": NOT_ADMITTED}
    locations = (
        LOCATION.format(name=name, largest=size, refusal=refusals.get(name, "return 401;"))
        for name, size in sizes.items()
    )
    files = _open_files(place.most_connections)
    return TEMPLATE.format(
        files=files,
        connections=files - KEPT_FILES,
        header_seconds=HEADER_SECONDS,
        body_seconds=BODY_SECONDS,
        send_seconds=SEND_SECONDS,
        largest=max(sizes.values()),
        hash_size=max(2048, 2 * devices),
        keys=KEYS,
        tokens=TOKENS,
        join_log=JOIN_LOG,
        poll_log=POLL_LOG,
        whose_key=WHOSE_KEY,
        log=LOG,
        key_length=KEY_LENGTH,
        pid=PID,
        zone=1 + devices // 4000,  # an entry takes 128 bytes
        rate=RATE,
        burst=BURST,
        at_once=AT_ONCE,
        control_port=place.control_port,
        listen="\n        ".join(f"listen {where} ssl;" for where in listening(place)),
        locations="".join(locations),
    )


def listening(place: Place) -> list[str]:
    """Where nginx listens: at one address or at all, IPv6 included if this machine has it.

    >>> listening(Place(bind="192.0.2.1")), listening(Place(bind="fd00::1"))
    (['192.0.2.1:8443'], ['[fd00::1]:8443'])
    """
    if place.bind:
        return [f"[{place.bind}]:{place.port}" if ":" in place.bind else f"{place.bind}:{place.port}"]
    everywhere = [str(place.port)]
    return [*everywhere, f"[::]:{place.port}"] if Path("/proc/net/if_inet6").exists() else everywhere


def known_keys(public_keys: Mapping[str, str]) -> str:
    """The devices by the header with their public key, as Flower's SuperNode sends it, for nginx to look up."""
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


def _open_files(connections: int) -> int:
    """How many files nginx needs for so many connections; no more than the system allows, which would be refused."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = connections + KEPT_FILES
    return wanted if allowed == resource.RLIM_INFINITY else min(wanted, allowed)


def command(root: Path) -> list[str]:
    """The command that runs nginx in the foreground in a server's folder.

    Started by root, it reads keys and configuration as root and serves the network as nobody, who can read neither.
    """
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:{ELSEWHERE}")
    if program is None:
        raise MissingRequirementError(
            "The server needs nginx to keep Flower's control interface off the network, and nginx is not on PATH; "
            "install it, for example with apt install nginx-light."
        )
    own = [program, "-p", f"{root}/", "-c", FILE, "-e", "stderr", *(_as_nobody() if os.geteuid() == 0 else ())]
    return ["/bin/sh", "-c", 'cd "$0" && exec "$@"', f"{root}/{PUBLIC}", *own]


def environment(sockets: Sequence[int]) -> dict[str, str]:
    """The environment of nginx: it takes over listening sockets that it is told of, as when it replaces itself.

    So a server may run in a network namespace of its own, where nobody else reaches Flower's control interface, and
    still be reached at a socket that was opened outside of it.

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


def _as_nobody() -> tuple[str, str]:
    group = grp.getgrgid(pwd.getpwnam(NOBODY).pw_gid).gr_name
    return "-g", f"user {NOBODY} {group};"
