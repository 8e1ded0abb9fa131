"""Passwords, tokens and certificates in files that the settings name: read at each use, and by --check."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from fedkad.settingerror import SettingsError

if TYPE_CHECKING:
    import ssl


def check_readable(path: str, key: str) -> None:
    """Refuse a path, unless it is empty, that is not a file or cannot be read; `key` is where it is written."""
    if not path:
        return
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe must not block
    except FileNotFoundError:
        raise SettingsError(f"{path}: no such file; {key} must name one.") from None
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}; {key} must name a file that can be read.") from None
    try:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise SettingsError(f"{path}: this is a folder; {key} must name a file.")
    finally:
        os.close(descriptor)


def read_password(path: str, section: str) -> str | None:
    """Return the password in a file, without the line end; None without a file."""
    key = f"password_file in [{section}]"
    check_readable(path, key)
    try:
        return Path(path).read_text().strip("\r\n") if path else None
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: {key} must hold text ({error}).") from None


def read_token(path: str, section: str) -> str:
    """Return the token in a file, which no message may show; empty without a file."""
    key = f"token_file in [{section}]"
    check_readable(path, key)
    token = Path(path).read_bytes().strip() if path else b""  # bytes, since it may not be text at all
    if path and not re.fullmatch(rb"[!-~]+", token):  # http.client would quote it in its error
        raise SettingsError(f"{path}: {key} must hold one word of plain characters.")
    return token.decode()


def tls_context(section: str, ca_file: str, certificate_file: str = "", key_file: str = "") -> ssl.SSLContext:
    """Return TLS that verifies the other side, with a certificate of our own if there is one."""
    import ssl

    files = {"ca_file": ca_file, "certificate_file": certificate_file, "key_file": key_file}
    for key, path in files.items():
        check_readable(path, f"{key} in [{section}]")
    try:
        context = ssl.create_default_context(cafile=ca_file or None)
        if certificate_file:
            context.load_cert_chain(certificate_file, key_file)
    except (OSError, ssl.SSLError) as error:
        named = {key: path for key, path in files.items() if path}
        what = "a file of certificates" if len(named) == 1 else "files of certificates and their key"
        raise SettingsError(
            f"{', '.join(named.values())}: {error}; {', '.join(named)} in [{section}] must name {what}."
        ) from None
    return context
