"""A small certificate authority for TLS between the hosts of one cluster; the command is `netstack certificate`.

Takes: folders, the names of a host. Gives: `ca.pem` and `ca-key.pem`; `certificate.pem` and `key.pem` signed by it.

Rules: keys are ECDSA on P-256, readable only by their owner, and written before their certificates. Each file is
replaced atomically, so a concurrent reader gets the old or the new file. TLS does not depend on this module:
certificates of any other authority work too.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate

CA_DAYS: Final = 3650
HOST_DAYS: Final = 397
_HOST_NAME: Final = re.compile(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*\.?")
_EARLIER: Final = datetime.timedelta(hours=1)
"""How far certificates are backdated, because the clocks of hosts differ."""


def make_authority(folder: Path, *, name: str = "netstack", days: int = CA_DAYS) -> None:
    """Creates an authority: `ca.pem`, which every host gets, and `ca-key.pem`, which stays in this folder.

    Raises:
        ConfigError: the folder already has an authority, or the package `cryptography` is not installed.
        OSError: the folder cannot be written.
    """
    x509, hashes, ec = _cryptography()
    if (folder / "ca-key.pem").exists():
        raise ConfigError(f"{folder / 'ca-key.pem'} exists; remove it first, and then give every host the new ca.pem")
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"{name} authority")])
    builder = _builder(x509, subject, subject, key, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(x509, signs=True), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    _write_key(folder / "ca-key.pem", key)
    _write(folder / "ca.pem", _pem(builder.sign(key, hashes.SHA256())), 0o644)


def make_host(folder: Path, authority: Path, names: Sequence[str], *, days: int = HOST_DAYS) -> None:
    """Creates the files of one host: `certificate.pem`, `key.pem`, and a copy of the authority's `ca.pem`.

    To renew a certificate, call this again before it expires; new connections use the new files.

    Args:
        folder: where the host's files are written.
        authority: the folder given to `make_authority`.
        names: the host names and IP addresses under which peers dial this host.
        days: how long the certificate is valid.

    Raises:
        ConfigError: `names` is empty or contains what is no host name, `authority` has no authority, or the package
            `cryptography` is not installed.
        OSError: a folder cannot be read or written.
    """
    x509, hashes, ec = _cryptography()
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    if not names:
        raise ConfigError("names is empty; give at least one host name or IP address under which peers dial this host")
    try:
        ca = x509.load_pem_x509_certificate((authority / "ca.pem").read_bytes())
        ca_key = load_pem_private_key((authority / "ca-key.pem").read_bytes(), None)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"no authority in {authority}: {error}; make one there: netstack certificate authority {authority}"
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[0][:64])])
    builder = _builder(x509, subject, ca.subject, key, days)
    alternatives = x509.SubjectAlternativeName([_general_name(x509, each) for each in names])
    builder = builder.add_extension(alternatives, critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(x509, signs=False), critical=True)
    both = x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH, x509.ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = builder.add_extension(both, critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.public_key())
    builder = builder.add_extension(issuer, critical=False)
    _write(folder / "ca.pem", _pem(ca), 0o644)
    _write_key(folder / "key.pem", key)
    _write(folder / "certificate.pem", _pem(builder.sign(ca_key, hashes.SHA256())), 0o644)


def _cryptography() -> tuple[Any, Any, Any]:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as error:
        raise ConfigError(
            "creating certificates requires the package cryptography: run pip install 'cryptography>=42', or use"
            " certificates of another authority"
        ) from error
    return x509, hashes, ec


def _builder(x509: Any, subject: Any, issuer: Any, key: EllipticCurvePrivateKey, days: int) -> Any:
    if days < 1:
        raise ConfigError(f"days={days}; give at least 1")
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _usage(x509: Any, *, signs: bool) -> Any:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(x509: Any, name: str) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    if not _HOST_NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is neither a host name nor an IP address; omit scheme and port")
    return x509.DNSName(name)


def _pem(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    data: bytes = certificate.public_bytes(Encoding.PEM)
    return data


def _write_key(path: Path, key: EllipticCurvePrivateKey) -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    _write(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)


def _write(path: Path, data: bytes, mode: int) -> None:
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        os.fsync(file.fileno())
    temporary.replace(path)
