"""Names of certificates are compared as TLS clients compare them."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from netstack.base.tls.certificates import make_host
from netstack.base.tls.tls_files import covers, names_of

NAMES = ["node-1.lab", "*.pool.lab", "10.0.0.1", "fe80::1"]
HOSTS = [
    "node-1.lab",
    "NODE-1.LAB",
    "node-2.lab",
    "a.node-1.lab",
    "a.pool.lab",
    "a.b.pool.lab",
    "pool.lab",
    "lab",
    "10.0.0.1",
    "10.0.0.2",
    "fe80::1",
    "fe80:0:0:0:0:0:0:1",
    "fe80::2",
]


def is_accepted(folder: Path, host: str) -> bool:
    """Whether OpenSSL's client accepts the certificate for this name."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    client.load_verify_locations(folder / "ca.pem")
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(back, there, server_hostname=host),
        server.wrap_bio(there, back, server_side=True),
    )
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            except ssl.SSLCertVerificationError:
                return False
            if end is ends[0]:
                return True
    raise AssertionError("the handshake did not end")


def test_it_agrees_with_the_client_that_will_dial(authority: Path, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    make_host(tmp_path / "host", authority, NAMES)
    accepted = {host: is_accepted(tmp_path / "host", host) for host in HOSTS}
    assert accepted == {host: covers(NAMES, host) for host in HOSTS}
    assert set(accepted.values()) == {True, False}


def test_names_are_those_that_clients_compare() -> None:
    certificate = {
        "subject": ((("commonName", "old.lab"),),),
        "subjectAltName": (("DNS", "a.lab"), ("email", "x@a.lab"), ("IP Address", "10.0.0.1")),
    }
    assert names_of(certificate) == ("a.lab", "10.0.0.1")
    assert names_of({"subject": ((("commonName", "old.lab"),),)}) == ()
