"""How devices come to a server, and follow it: by one-time tokens, to another address, to another authority.

The real nginx runs in front of nothing: all of this happens without Flower.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="a fleet needs Flower: pip install 'fedkad[fleet]'")

from fedkad.fleet.device import joining
from fedkad.fleet.device.httpsclient import HttpsClient, UnreachableError
from fedkad.fleet.device.joining import join
from fedkad.fleet.device.noticeclient import NoticeClient
from fedkad.fleet.device.settings import load_device
from fedkad.fleet.flower import proxy
from fedkad.fleet.server import enrolment, registry, settings, tokens
from fedkad.fleet.server.noticeboard import NOTICE, NoticeBoard
from fedkad.fleet.server.proxysupervisor import ProxySupervisor
from fedkad.fleet.server.registry import DeviceError
from fedkad.fleet.server.settings import FleetSettings, ModelSettings, Place, ServerFolder
from fedkad.fleet.shared import certificates, devicefolder
from fedkad.fleet.shared.certificates import each_authority
from fedkad.fleet.shared.devicefolder import DeviceFolder
from fedkad.fleet.shared.files import FleetFileError, write_private
from fedkad.fleet.shared.notice import EVERYBODY, NamedAuthority, NoticeError, sign
from fedkad.fleet.shared.processes import LogFile, SupervisedProcess, ending_all
from fedkad.fleet.shared.tokens import OneTimeToken, TokenError
from fedkad.settingerror import SettingsError
from measurements.loopback import free_port, wait
from tests.fixtures.certificates import names_of
from tests.fixtures.commandline import Done, fails

if shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:{proxy.ELSEWHERE}") is None:
    pytest.skip("a server needs nginx", allow_module_level=True)

PATIENCE, HERE, THERE, DAY = 120.0, "127.0.0.1", "127.0.0.2", 86_400.0


@dataclass
class Site:
    """The folder of a server, whose nginx runs inside `running`."""

    root: Path

    @property
    def folder(self) -> ServerFolder:
        return ServerFolder(self.root / "server")

    def place(self, **changes: Any) -> None:
        """Change where the server is, while it is stopped."""
        known = self.folder.settings
        settings.save(self.folder.root, replace(known, place=replace(known.place, **changes)))

    @contextmanager
    def running(self) -> Iterator[ProxySupervisor]:
        """The server as far as newcomers and notices are concerned; it attends to them all the time."""
        folder = self.folder
        enrolment.prepare(folder)
        NoticeBoard(folder).show(60.0, EVERYBODY, 1)
        log = LogFile(folder.logs / "proxy.log")
        process = SupervisedProcess("proxy", proxy.command(folder.root), log, os.environ)
        flower = SupervisedProcess("flower", [], log, os.environ)  # nobody starts it
        door, over = ProxySupervisor(folder, process, flower), threading.Event()

        def attend() -> None:
            while not over.wait(0.1):
                door.receive()
                door.attend()
                NoticeBoard(folder).show(60.0, EVERYBODY, 1)

        with ending_all([process]):
            process.tend()
            wait(lambda: is_listening(folder.settings.place), PATIENCE, "nginx listening")
            attending = threading.Thread(target=attend)
            attending.start()
            try:
                yield door
            finally:
                over.set()
                attending.join()

    def token(self, *names: str, life: float = DAY) -> OneTimeToken:
        return enrolment.make_tokens(self.folder, names, life)[0]

    def known(self, name: str) -> str:
        return registry.read(self.folder.registry)[name].public_key

    def pump(self) -> DeviceFolder:
        """A device that was added as ever."""
        shutil.copytree(enrolment.add_device(self.folder, "pump", None), self.root / "pump")
        return load_device(self.root / "pump")


def is_listening(place: Place) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex((place.bind, place.port)) == 0


@pytest.fixture
def site(tmp_path: Path) -> Site:
    place = Place(HERE, free_port(), free_port(), bind=HERE)
    enrolment.make_fleet(tmp_path / "server", FleetSettings(place, ModelSettings(("flow", "heat"), rank=3)))
    return Site(tmp_path)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "PAUSE", 1.05)  # nginx takes one a second
    monkeypatch.setattr(joining, "KNOWN_WITHIN", 5.0)


# -- tokens ------------------------------------------------------------------------------------------------------


def test_a_device_joins_by_a_token_with_a_key_that_only_it_has(site: Site, quick: None, tmp_path: Path) -> None:
    token = site.token("pump-1")
    with site.running():
        join(token, tmp_path / "device")
        found = load_device(tmp_path / "device")
        public = certificates.public_part(found.key.read_bytes()).decode()
        assert (found.device, found.server, site.known("pump-1")) == ("pump-1", token.server, public)
        assert found.ca_certificate.read_bytes() == site.folder.ca_certificate.read_bytes()
        assert found.key.stat().st_mode & 0o777 == 0o600
        assert not site.folder.devices.exists(), "nothing of the device lies on the server"
        join(token, tmp_path / "device")  # as after a power cut: it is known by its key
        with pytest.raises(TokenError, match="was used, replaced or has expired"):
            join(token, tmp_path / "thief")
        notices = NoticeClient(found)
        notices.look()
        assert notices.is_called


def test_a_device_that_lost_power_while_it_joined_joins_by_the_same_command(
    site: Site, quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with site.running():
        for written in range(3):
            token, place, left = site.token(f"pump-{written}"), tmp_path / f"pump-{written}", iter(range(written))

            def cut(path: Path, content: bytes, left: Iterator[int] = left) -> None:
                if next(left, None) is None:
                    raise KeyboardInterrupt
                write_private(path, content)

            with monkeypatch.context() as cutting:
                cutting.setattr(devicefolder, "write_private", cut)
                with pytest.raises(KeyboardInterrupt):
                    join(token, place)
            join(token, place)
            made = certificates.public_part((place / "device.key").read_bytes()).decode()
            assert site.known(f"pump-{written}") == made


def test_many_join_at_once(site: Site, quick: None, tmp_path: Path) -> None:
    names = [f"pump-{k}" for k in range(40)]
    made = enrolment.make_tokens(site.folder, names, DAY)
    with site.running(), ThreadPoolExecutor(20) as devices:
        list(devices.map(lambda token: join(token, tmp_path / token.device), made))
    assert set(registry.read(site.folder.registry)) == set(names)
    assert tokens.read(site.folder.tokens) == {}


def test_a_stranger_is_logged_and_not_noted_and_one_token_no_more_than_a_line_a_second(site: Site) -> None:
    book, token = site.folder.root / proxy.JOIN_LOG, site.token("pump-1")
    enrolment.prepare(site.folder)
    log = LogFile(site.folder.logs / "proxy.log")
    process = SupervisedProcess("proxy", proxy.command(site.folder.root), log, os.environ)
    with ending_all([process]):  # nobody reads the book
        process.tend()
        wait(lambda: is_listening(site.folder.settings.place), PATIENCE, "nginx listening")
        files = HttpsClient([token.server], site.folder.ca_certificate, "")
        for secret in ("", "x", token.secret[:-1], f"{token.secret}x", 'x"} {"', token.device):
            assert files.get("/join", {"fedkad-token": secret, "flwr-public-key": "key"}).status == 401
        assert book.read_bytes() == b""
        knock = f'refused 401 {HERE} "GET /join HTTP/1.1" device "" key key'
        wait(lambda: log.path.read_text().count(knock) == 6, PATIENCE, "the log of those who were turned away")
        shown = {"fedkad-token": token.secret, "flwr-public-key": 'a"key'}
        began = time.monotonic()
        statuses = [files.get("/join", shown).status for _ in range(50)]
        most = time.monotonic() - began + 2.0
        assert set(statuses) == {200, 503}
        lines = [json.loads(line) for line in book.read_text().splitlines()]
        assert len(lines) == statuses.count(200) < most
        assert lines[0] == {"token": token.secret, "key": 'a"key', "from": HERE}
    enrolment.admit_newcomers(site.folder)
    assert registry.read(site.folder.registry) == {}, "that was no key"
    assert tokens.read(site.folder.tokens), "and so the token is still good"


def test_nobody_else_gets_to_see_the_token(site: Site, tmp_path: Path) -> None:
    """Whoever sits in between has another authority, even if it shows the notice of the server."""
    token = site.token("pump-1")
    other = Site(tmp_path / "other")
    place = replace(site.folder.settings.place, control_port=free_port())
    enrolment.make_fleet(other.root / "server", replace(site.folder.settings, place=place))
    NoticeBoard(site.folder).show(60.0, EVERYBODY, 1)
    with other.running():
        with pytest.raises(TokenError, match="is not the server of this token"):
            join(token, tmp_path / "device")
        assert not (tmp_path / "device").exists()
    with other.running() as door:
        shutil.copy(site.folder.public / NOTICE, door.folder.public / NOTICE)
        (door.folder.public / NOTICE).chmod(0o644)
        shown = joining.find_authority(token)
        (tmp_path / "ca.crt").write_bytes(shown)
        with pytest.raises(UnreachableError, match="cannot be verified"):
            HttpsClient([token.server], tmp_path / "ca.crt", "").get("/join", {"fedkad-token": token.secret})


def test_tokens_expire_and_are_replaced_and_withdrawn(site: Site) -> None:
    first = site.token("pump-1", "pump-2")
    assert site.token("pump-1").secret != first.secret
    site.token("pump-3", life=-1.0)
    assert set(tokens.read(site.folder.tokens)) == {"pump-1", "pump-2"}
    enrolment.revoke_device(site.folder, "pump-2")
    assert set(tokens.read(site.folder.tokens)) == {"pump-1"}
    with pytest.raises(DeviceError, match="There is no device pump-2"):
        enrolment.revoke_device(site.folder, "pump-2")
    enrolment.add_device(site.folder, "pump-4", None)
    for names in (("pump-5", "pump-4"), ("pump-5", "../x")):
        with pytest.raises(DeviceError):
            site.token(*names)
    assert set(tokens.read(site.folder.tokens)) == {"pump-1"}, "all of a list or none"
    site.folder.tokens.write_text("junk")
    with pytest.raises(FleetFileError, match=r"tokens\.json: this is not a list of tokens"):
        site.token("pump-6")


def test_a_list_of_names_is_text(site: Site, tmp_path: Path) -> None:
    path = tmp_path / "names.txt"
    path.write_bytes("Pumpe-süd\n".encode("latin-1"))
    said = fails("fleet", "token", site.folder.root, "--from", path)
    assert said == f"error: {path}: this file is not UTF-8 text; save it as UTF-8."
    path.write_bytes(b"\xef\xbb\xbfpump-1\r\n")
    assert Done("fleet", "token", site.folder.root, "--from", path).out.startswith("fedkad://pump-1:")


def test_tokens_for_a_list_on_the_command_line(site: Site, tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("pump-1\n\n pump-2 \npump-1\n")
    done = Done("fleet", "token", site.folder.root, "--from", tmp_path / "names.txt", "pump-0")
    assert [OneTimeToken.parse(line).device for line in done.out.splitlines()] == ["pump-0", "pump-1", "pump-2"]
    assert Done("fleet", "token", site.folder.root).status == 2
    assert Done("fleet", "token", site.folder.root, "pump-0", "--valid", "soon").status == 2
    assert "is not a token" in fails("fleet", "join", "fedkad://pump-1")
    token, file = done.out.split()[0], tmp_path / "names.txt"
    assert "cannot be reached" in fails("fleet", "join", token, "--folder", tmp_path / "device")
    assert f"{file}: this is a file; choose another" in fails("fleet", "join", token, "--folder", file)


# -- addresses ---------------------------------------------------------------------------------------------------


def test_a_server_moves_and_no_device_is_touched(site: Site) -> None:
    pump, port = site.pump(), site.folder.settings.place.port
    site.place(also=(THERE,))
    with site.running():
        assert {HERE, THERE} <= set(names_of(site.folder.server_certificate.read_bytes()))
        NoticeClient(pump).look()
    site.place(address=THERE, also=(HERE,), bind=THERE)
    with site.running():
        again = NoticeClient(pump)
        again.look()
        assert (pump.server, again.files.server) == (f"{HERE}:{port}", f"{THERE}:{port}")
        again.look()  # and stays there
    site.place(also=())
    with site.running():
        again.look()
        NoticeClient(pump).look()
        assert NoticeClient(pump).files.servers == (f"{HERE}:{port}", f"{THERE}:{port}")
    with pytest.raises(UnreachableError, match=rf"{THERE}.*{HERE}"):
        again.look()


def test_further_addresses_are_checked(site: Site) -> None:
    site.place(also=("https://x",))
    with pytest.raises(SettingsError, match=r"also = .*must be host names or IP addresses, without a port"):
        _ = site.folder.settings


# -- the authority -----------------------------------------------------------------------------------------------


def test_a_new_authority_takes_over_and_no_device_is_touched(site: Site, quick: None, tmp_path: Path) -> None:
    pump = site.pump()
    (first,) = each_authority(pump.ca_certificate.read_bytes())
    with site.running():
        NoticeClient(pump).look()
        asleep = replace(pump, root=shutil.copytree(pump.root, tmp_path / "asleep"))
        notices = NoticeClient(pump)
        assert "fleet renew" in Done("fleet", "renew", site.folder.root, "--authority", "begin").out
        assert "finish that first" in fails("fleet", "renew", site.folder.root, "--authority", "begin")
        second = each_authority(site.folder.ca_certificate.read_bytes())[1]
        wait(lambda: looked(notices) == [first, second], PATIENCE, "both are trusted")
        join(site.token("newcomer"), tmp_path / "newcomer")  # in the middle of it
    assert Done("fleet", "renew", site.folder.root, "--authority", "finish").status == 0
    assert "there is no next authority" in fails("fleet", "renew", site.folder.root, "--authority", "finish")
    with site.running():
        assert looked(notices) == looked(NoticeClient(pump)) == [second]
        join(site.token("later"), tmp_path / "later")
        assert each_authority((tmp_path / "later" / "ca.crt").read_bytes()) == [second]
        with pytest.raises(UnreachableError, match=r"copy ca\.crt from there again"):
            NoticeClient(asleep).look()
        shutil.copy(site.folder.ca_certificate, asleep.ca_certificate)
        assert looked(NoticeClient(asleep)) == [second]


def looked(notices: NoticeClient) -> list[bytes]:
    """Whom a device trusts after a look."""
    notices.look()
    return each_authority(notices.folder.ca_certificate.read_bytes())


def test_whoever_has_stolen_the_key_for_notices_names_no_authority(site: Site) -> None:
    pump, board = site.pump(), NoticeBoard(site.folder)
    board.show(60.0, EVERYBODY, 1)
    shown, notices = board.last(), NoticeClient(pump)
    assert shown is not None
    own = certificates.make_authority("fleet.example")
    (rogue,) = each_authority(own.public)
    for signature in (b"", certificates.cross_sign(own.key, rogue)):
        body = replace(shown.body, authorities=(*shown.body.authorities, NamedAuthority(rogue, signature)))
        key, certificate = site.folder.notice_key.read_bytes(), site.folder.notice_certificate.read_bytes()
        with pytest.raises(NoticeError, match="none of those that this device trusts has signed"):
            notices._accept(sign(body, shown.sequence + 1, time.time(), key, certificate))
    assert notices.last is None
    assert len(each_authority(pump.ca_certificate.read_bytes())) == 1


def test_a_killed_change_of_the_authority_is_done_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    class KilledError(Exception):
        pass

    def killed(folder: ServerFolder) -> None:
        raise KilledError

    enrolment.begin_authority(site.folder)
    second = each_authority(site.folder.ca_certificate.read_bytes())[1]
    with monkeypatch.context() as patch:
        patch.setattr(enrolment, "renew_server", killed)
        with pytest.raises(KilledError):
            enrolment.finish_authority(site.folder)
    enrolment.finish_authority(site.folder)
    assert each_authority(site.folder.ca_certificate.read_bytes()) == [second]
    assert not site.folder.next_certificate.exists()
    NoticeBoard(site.folder).show(60.0, EVERYBODY, 1)
    assert NoticeBoard(site.folder).last() is not None


def test_a_device_that_waits_learns_all_this_without_numpy_or_flower() -> None:
    code = "import sys, fedkad.fleet.device.joining; print(sorted({'numpy', 'flwr', 'typer'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
