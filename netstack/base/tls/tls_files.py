"""The certificates of one end of a TLS connection, reloaded when their files change.

Takes: an address, and its folder with `ca.pem`, `certificate.pem` and `key.pem`, as `netstack certificate` or another
authority writes them. Gives: `ssl.SSLContext`s for the next connection.

Rules: a renewed certificate is used from the next connection on, without a restart. While the files do not match each
other, as during a renewal, the previous ones stay in use and a warning is logged. A private key that other users can
access is refused.
"""

from __future__ import annotations

import functools
import hashlib
import ipaddress
import logging
import os
import ssl
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final
from urllib.parse import parse_qsl, urlencode

from ..errors import ConfigError

LOGGER: Final = logging.getLogger("netstack")
PREFIX: Final = "tls+"
FOLDER_VARIABLE: Final = "NETSTACK_TLS"
CA_NAME: Final = "ca.pem"
CERTIFICATE_NAME: Final = "certificate.pem"
KEY_NAME: Final = "key.pem"
_NAMES: Final = (CA_NAME, CERTIFICATE_NAME, KEY_NAME)
_MAX_BYTES: Final = 1 << 20
_VERSIONS: Final = {"1.3": ssl.TLSVersion.TLSv1_3, "1.2": ssl.TLSVersion.TLSv1_2}


@dataclass(frozen=True, slots=True)
class Credentials:
    """The TLS contexts of one connection.

    Attributes:
        server: for accepted connections.
        client: for dialled connections.
        digest: SHA-256 of our own certificate, as the peer sees it.
    """

    server: ssl.SSLContext
    client: ssl.SSLContext
    digest: bytes


@final
class CertificateFolder:
    """The certificates in one folder.

    Args:
        checks_names: whether a client compares the dialled name with the names in the certificate.
        minimum: the lowest accepted version of TLS.
    """

    def __init__(self, path: str, *, checks_names: bool, minimum: ssl.TLSVersion) -> None:
        self.path = path
        self._checks_names = checks_names
        self._minimum = minimum
        self._seen: tuple[tuple[int, int, int], ...] | None = None
        self._current: Credentials | None = None
        self._browsed: ssl.SSLContext | None = None

    def credentials(self) -> Credentials:
        """Returns the contexts for the current files.

        Raises:
            ConfigError: the files cannot be used, and no earlier version of them could; the text names the file and the
                remedy.
        """
        try:
            seen = tuple(self._look(name) for name in _NAMES)
            if seen != self._seen or self._current is None:
                self._current = self._load()
                self._seen = seen
        except ConfigError as error:
            if self._current is None:
                raise
            LOGGER.warning("renewed certificates cannot be used yet, the previous ones stay in use: %s", error)
        return self._current

    def server_without_client(self) -> ssl.SSLContext:
        """A server context for browsers, which present a token instead of a certificate. Raises as `credentials`."""
        self.credentials()
        assert self._browsed is not None
        return self._browsed

    def _look(self, name: str) -> tuple[int, int, int]:
        path = os.path.join(self.path, name)
        try:
            status = os.stat(path)
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be read: {error.strerror}; TLS takes {', '.join(_NAMES)} in one folder: make them with"
                " `netstack certificate`"
            ) from error
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
            raise ConfigError(f"{path} is not a PEM file")
        if name == KEY_NAME and stat.S_IMODE(status.st_mode) & 0o077:
            raise ConfigError(f"the private key {path} is accessible to other users; run: chmod 600 {path}")
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _load(self) -> Credentials:
        ca, certificate, key = (os.path.join(self.path, name) for name in _NAMES)
        contexts = []
        try:
            for purpose in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT, ssl.PROTOCOL_TLS_SERVER):
                context = ssl.SSLContext(purpose)
                context.minimum_version = self._minimum
                context.load_cert_chain(certificate, key)
                context.load_verify_locations(ca)
                contexts.append(context)
            # The first certificate of a chain is our own.
            text = Path(certificate).read_text("ascii")
            end = text.index(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER)
            own = ssl.PEM_cert_to_DER_cert(text[text.index(ssl.PEM_HEADER) : end])
        except (ssl.SSLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise ConfigError(
                f"the certificates in {self.path} cannot be used: {reason}; {CERTIFICATE_NAME} must match {KEY_NAME},"
                f" and {CA_NAME} must be the authority that signs the peers' certificates"
            ) from error
        server, client, self._browsed = contexts
        server.verify_mode = ssl.CERT_REQUIRED  # both ends present a certificate
        server.num_tickets = 0  # connections are long; a resumed session would present no certificate
        client.check_hostname = self._checks_names
        client.verify_mode = ssl.CERT_REQUIRED
        return Credentials(server, client, hashlib.sha256(own).digest())


@functools.cache
def certificate_folder(path: str, checks_names: bool, minimum: ssl.TLSVersion) -> CertificateFolder:
    """Returns this process's only object for a folder."""
    return CertificateFolder(path, checks_names=checks_names, minimum=minimum)


def dial_as(listen: str) -> None:
    """Makes this process, and the processes it starts, dial with the certificates of its listening address.

    Addresses received from peers carry no TLS parameters, so the dialling process chooses its own certificates.

    Raises:
        ConfigError: the address uses TLS but names no certificates.
    """
    if listen.startswith(PREFIX):
        _, query, folder = split_tls(listen)
        if query:
            rest = [(name, value) for name, value in parse_qsl(query) if name != "folder"]
            os.environ[FOLDER_VARIABLE] = f"{folder.path}?{urlencode(rest)}" if rest else folder.path


def split_tls(url: str) -> tuple[str, str, CertificateFolder]:
    """Splits an address of the form `tls+X://...?folder=...`.

    Returns:
        (URL of the underlying transport, the unchanged query, the certificates).

    Raises:
        ConfigError: the address does not have this form; the text shows the form.
    """
    base, _, query = url.partition("?")
    inner_url = base.removeprefix(PREFIX)
    if inner_url == base:
        raise ConfigError(f"address {url!r} names no transport to encrypt; write it like tls+tcp://127.0.0.1:6121")
    own_path, _, own = os.environ.get(FOLDER_VARIABLE, "").partition("?")
    given = dict(parse_qsl(query or own, keep_blank_values=True))
    path = given.pop("folder", None) or own_path
    names = given.pop("names", "on")
    version = given.pop("tls", "1.3")
    if given or names not in ("on", "off") or version not in _VERSIONS:
        raise ConfigError(f"address {url!r}: known are folder=PATH, names=on|off, tls=1.3|1.2")
    if not path:
        raise ConfigError(
            f"address {url!r}: no certificates given; set {FOLDER_VARIABLE} to the folder that has them, or add"
            " ?folder=PATH; `netstack certificate` makes them"
        )
    return inner_url, query, certificate_folder(os.path.abspath(path), names == "on", _VERSIONS[version])


def names_of(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """The host names and IP addresses in what `ssl.SSLObject.getpeercert` returned."""
    kinds = ("DNS", "IP Address")
    return tuple(str(name) for kind, name in certificate.get("subjectAltName", ()) if kind in kinds)


def covers(names: Iterable[str], host: str) -> bool:
    """Whether a certificate with these names is valid for a dialled host name or IP address."""
    address = _address(host)
    if address is not None:
        return any(_address(name) == address for name in names)
    wanted = host.rstrip(".").lower()
    parent = wanted.partition(".")[2]
    return any(name.lower() in (wanted, f"*.{parent}" if parent else wanted) for name in names)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.strip())
    except ValueError:
        return None
