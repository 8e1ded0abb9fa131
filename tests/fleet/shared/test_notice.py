"""The notice as a value: who may sign one, which are accepted, and whom they call."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("cryptography", reason="the extra `fleet` is not installed")

from cryptography import x509

from fedkad.fleet.shared import certificates
from fedkad.fleet.shared.certificates import KeyPair
from fedkad.fleet.shared.notice import (
    EVERYBODY,
    LIFE,
    FleetNotice,
    Invitation,
    NamedAuthority,
    NamedModel,
    NoticeBody,
    NoticeError,
    certified_since,
    check_new,
    invitation_for,
    sign,
    verify,
)

AUTHORITY = certificates.make_authority("fleet.example")
SIGNER = certificates.make_notice_certificate(AUTHORITY)
BODY = NoticeBody(60.0, Invitation("ab", 17), NamedModel("run", "0" * 64, 60_000, 12.0))
NOW = time.time()

NAMES = st.text("abcdefgh-0123456789", min_size=1, max_size=12)


def signed(body: NoticeBody = BODY, signer: KeyPair = SIGNER) -> bytes:
    return sign(body, 7, NOW, signer.key, signer.public)


@given(
    st.floats(1.0, LIFE),
    st.none() | st.builds(Invitation, st.text(max_size=20), st.integers(0, 2**32)),
    st.none() | st.builds(NamedModel, NAMES, st.text("0123456789abcdef"), st.integers(0), st.floats(0.0, 1e6)),
)
def test_what_is_signed_is_what_is_read(period: float, invitation: Invitation | None, model: NamedModel | None) -> None:
    body = NoticeBody(period, invitation, model)
    found = verify(signed(body), AUTHORITY.public)
    assert found == FleetNotice(7, int(NOW) + LIFE, body, certified_since(SIGNER.public))


@given(st.data())
def test_no_byte_can_be_changed(data: st.DataObject) -> None:
    content = bytearray(signed())
    at = data.draw(st.integers(0, len(content) - 2))  # the last one only ends the file
    content[at] ^= data.draw(st.integers(1, 255))
    try:
        found = verify(bytes(content), AUTHORITY.public)
    except NoticeError:
        return
    assert found == verify(signed(), AUTHORITY.public), "only what does not matter, such as unused bits of base64"


@given(st.binary(max_size=200))
def test_anything_else_is_refused_in_one_sentence(content: bytes) -> None:
    for found in (content, b"fedkad notice 1\n" + content):
        with pytest.raises(NoticeError, match=r"\.$"):
            verify(found, AUTHORITY.public)


def test_a_notice_is_written_as_every_release_reads_it() -> None:
    body = replace(BODY, servers=("fleet.example:8443",), authorities=(NamedAuthority(b"\x01", b"\x02"),))
    document = json.loads(signed(body).split(b"\n")[3])
    assert document == {
        **{"sequence": 7, "expires": int(NOW) + LIFE, "period": 60.0, "invitation": {"salt": "ab", "below": 17}},
        "model": {"run": "run", "sha256": "0" * 64, "size": 60_000, "spread": 12.0},
        **{"servers": ["fleet.example:8443"], "authorities": [{"certificate": "AQ==", "voucher": "Ag=="}]},
    }
    assert verify(signed(body), AUTHORITY.public).body == body


def test_a_document_of_another_kind_is_refused() -> None:
    for period in (0.0, -1.0, LIFE + 1.0, math.inf, math.nan):
        with pytest.raises(NoticeError, match="period"):
            verify(signed(replace(BODY, period=period)), AUTHORITY.public)
    with pytest.raises(NoticeError, match="install the server's release"):
        verify(signed().replace(b"notice 1", b"notice 2"), AUTHORITY.public)


def test_only_the_key_for_notices_of_this_fleet_signs() -> None:
    elsewhere = certificates.make_notice_certificate(certificates.make_authority("fleet.example"))
    with pytest.raises(NoticeError, match="not one of this fleet"):
        verify(signed(signer=elsewhere), AUTHORITY.public)
    with pytest.raises(NoticeError, match="signature is wrong"):
        verify(signed(signer=KeyPair(elsewhere.key, SIGNER.public)), AUTHORITY.public)
    server = certificates.make_server_certificate(AUTHORITY, "fleet.example")
    with pytest.raises(NoticeError, match="not an Ed25519 key"):
        signed(signer=server)
    with pytest.raises(NoticeError, match="not one for notices"):
        verify(signed(signer=KeyPair(SIGNER.key, server.public)), AUTHORITY.public)


def test_a_key_signs_only_as_long_as_it_is_certified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "HEAD_START", timedelta(days=certificates.SERVER_DAYS + 1))
    with pytest.raises(NoticeError, match="not valid now; check the clock"):
        verify(signed(signer=certificates.make_notice_certificate(AUTHORITY)), AUTHORITY.public)


@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5), st.integers(0, 5))
def test_nothing_older_is_accepted_by_its_key_and_then_by_its_number(k: int, n: int, later: int, number: int) -> None:
    last, fresh = (FleetNotice(each, int(NOW) + LIFE, BODY, since) for since, each in ((k, n), (later, number)))
    check_new(None, fresh, NOW)
    if later > k or (later == k and number >= n):
        check_new(last, fresh, NOW)
    else:
        with pytest.raises(NoticeError, match="was here before" if later == k else "fedkad fleet renew"):
            check_new(last, fresh, NOW)


def test_a_notice_of_a_stolen_key_is_refused_once_there_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certificates, "HEAD_START", timedelta(hours=12))
    fresh = certificates.make_notice_certificate(AUTHORITY)
    last = verify(sign(BODY, 7, NOW, fresh.key, fresh.public), AUTHORITY.public)
    stolen = verify(sign(BODY, 10**12, NOW, SIGNER.key, SIGNER.public), AUTHORITY.public)
    with pytest.raises(NoticeError, match="signed with an older key than the last one"):
        check_new(last, stolen, NOW)


def test_an_expired_notice_is_refused_and_calls_nobody() -> None:
    found = verify(signed(replace(BODY, invitation=EVERYBODY)), AUTHORITY.public)
    assert found.calls("pump", NOW)
    assert not found.calls("pump", NOW + LIFE)
    with pytest.raises(NoticeError, match="has expired"):
        check_new(None, found, NOW + LIFE)


@given(st.sets(NAMES, min_size=1, max_size=40), st.text(max_size=8), st.data())
def test_a_cohort_has_as_many_as_asked_and_a_wider_one_has_them_all(
    names: set[str], salt: str, data: st.DataObject
) -> None:
    count = data.draw(st.integers(0, len(names)))
    called = set(filter(invitation_for(salt, names, count).includes, names))
    assert len(called) == count
    assert called <= set(filter(invitation_for(salt, names, min(2 * count, len(names))).includes, names))
    assert all(map(EVERYBODY.includes, names))


def test_every_training_calls_others() -> None:
    names = [f"pump-{k}" for k in range(1000)]
    cohorts = [set(filter(invitation_for(f"training-{k}", names, 64).includes, names)) for k in range(20)]
    assert max(len(one & other) for one in cohorts for other in cohorts if one is not other) < 20
    assert 600 < len(set.union(*cohorts)) < 900


def test_the_key_is_certified_for_notices_alone() -> None:
    found = x509.load_pem_x509_certificate(SIGNER.public)
    found.verify_directly_issued_by(x509.load_pem_x509_certificate(AUTHORITY.public))
    assert not found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert found.not_valid_after_utc - datetime.now(UTC) < timedelta(days=certificates.SERVER_DAYS)
