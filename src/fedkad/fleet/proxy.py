"""The door of the server: an nginx that lets devices reach their part of Flower and nothing else.

Whoever reaches Flower's control interface can run code on every device, for it asks nobody who they are. So Flower
listens on its own machine only, and what is reached from outside is this.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from fedkad.fleet.settings import Place

FILE = "nginx.conf"
LARGEST_MESSAGE = "64m"
ELSEWHERE = "/usr/sbin:/usr/local/sbin:/sbin"

TEMPLATE = """\
# Made from fleet.toml each time the server starts. Paths are relative to this folder.
daemon off;
worker_processes 1;
pid proxy/nginx.pid;
error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    server_tokens off;
    client_body_temp_path proxy/body;
    proxy_temp_path proxy/reply;
    fastcgi_temp_path proxy/fastcgi;
    uwsgi_temp_path proxy/uwsgi;
    scgi_temp_path proxy/scgi;
    client_max_body_size {largest};
    upstream superlink {{ server 127.0.0.1:{control_port}; keepalive 16; keepalive_timeout 4s; }}
    server {{
        listen {port} ssl;{listen_ipv6}
        ssl_certificate server/server.crt;
        ssl_certificate_key server/server.key;
        ssl_protocols TLSv1.2 TLSv1.3;
        location = /v1/fleet {{ return 403; }}
        location /v1/fleet/ {{
            # A location is matched after dots and escapes are resolved, but what is passed on is as it came.
            if ($request_uri !~ "^/v1/fleet/[a-z-]+$") {{ return 403; }}
            proxy_pass https://superlink;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host localhost;
            proxy_ssl_verify on;
            proxy_ssl_trusted_certificate ca/ca.crt;
            proxy_ssl_name localhost;
            proxy_next_upstream off;
        }}
        location / {{ return 403; }}
    }}
}}
"""


class NoProxyError(ValueError):
    """There is no nginx on this machine."""


def configuration(place: Place) -> str:
    """The configuration of nginx for a server's ports."""
    listen_ipv6 = f"\n        listen [::]:{place.port} ssl;" if _has_ipv6() else ""
    return TEMPLATE.format(
        largest=LARGEST_MESSAGE, port=place.port, control_port=place.control_port, listen_ipv6=listen_ipv6
    )


def command(root: Path) -> list[str]:
    """The command that runs nginx in the foreground in the folder of a server."""
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:{ELSEWHERE}")
    if program is None:
        raise NoProxyError(
            "The server needs nginx, which keeps Flower's control interface off the network, and it is not on PATH; "
            "install it, for example with apt install nginx-light."
        )
    # A master that is root gives its workers to another user, who may not read the folder.
    as_root = ["-g", "user root root;"] if os.geteuid() == 0 else []
    return [program, "-p", f"{root}/", "-c", FILE, "-e", "stderr", *as_root]


def _has_ipv6() -> bool:
    return Path("/proc/net/if_inet6").exists()
