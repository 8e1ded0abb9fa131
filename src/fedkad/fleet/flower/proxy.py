"""The public face of the server: an nginx that lets devices reach their part of Flower and nothing else.

Flower's control interface has no authentication, and anyone who reaches it can run code on every device. So Flower
listens on its own machine only, and nginx is what listens to the network.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from fedkad.atomicfile import write_atomically
from fedkad.fleet.extra import MissingRequirementError

FILE = "nginx.conf"
ELSEWHERE = "/usr/sbin:/usr/local/sbin:/sbin"  # where nginx often is, off PATH
TEMPLATE = """\
# Written from fleet.toml each time the server starts. Paths are relative to this folder.
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
    client_max_body_size 64m;
    upstream superlink {{ server 127.0.0.1:{control_port}; keepalive 16; keepalive_timeout 4s; }}
    server {{
        listen {port} ssl;{listen_ipv6}
        ssl_certificate server/server.crt;
        ssl_certificate_key server/server.key;
        ssl_protocols TLSv1.2 TLSv1.3;
        location = /v1/fleet {{ return 403; }}
        location /v1/fleet/ {{
            # nginx resolves dots and escapes before it matches a location, but passes the path on unchanged.
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


def write_configuration(root: Path, port: int, control_port: int) -> None:
    """Write the configuration of nginx, and the folder for its temporary files, into a server's folder."""
    listen_ipv6 = f"\n        listen [::]:{port} ssl;" if Path("/proc/net/if_inet6").exists() else ""
    text = TEMPLATE.format(port=port, control_port=control_port, listen_ipv6=listen_ipv6)
    (root / "proxy").mkdir(mode=0o700, exist_ok=True)
    write_atomically(root / FILE, text.encode())


def command(root: Path) -> list[str]:
    """The command that runs nginx in the foreground in a server's folder."""
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:{ELSEWHERE}")
    if program is None:
        raise MissingRequirementError(
            "The server needs nginx to keep Flower's control interface off the network, and nginx is not on PATH; "
            "install it, for example with apt install nginx-light."
        )
    # As root, nginx would run its workers as another user, who cannot read the folder.
    as_root = ["-g", "user root root;"] if os.geteuid() == 0 else []
    return [program, "-p", f"{root}/", "-c", FILE, "-e", "stderr", *as_root]
