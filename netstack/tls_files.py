"""The certificates of one end of a TLS connection, read anew whenever their files change.

Takes: an address, and the folder it names, with `ca.pem`, `certificate.pem` and `key.pem` (what `netstack certificate`
writes, or anybody else). Gives: `ssl.SSLContext`s for the next connection.

Rules: a certificate that was renewed is used from the next connection on, without a restart. While files do not fit
each other, as in the middle of a renewal, the ones before stay in use, and a warning says so. A key that others than
its owner may read is refused.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import ssl
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final
from urllib.parse import parse_qsl, urlencode

from .errors import ConfigError

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
    """What one connection uses.

    Attributes:
        server: for who is dialled.
        client: for who dials.
        digest: SHA-256 of our own certificate, as the peer sees it.
    """

    server: ssl.SSLContext
    client: ssl.SSLContext
    digest: bytes


@final
class CertificateFolder:
    """One folder.

    Args:
        path: of the folder.
        checks_names: whether who dials compares the name it dialled with those in the certificate.
        minimum: the lowest version of TLS.
    """

    def __init__(self, path: str, *, checks_names: bool, minimum: ssl.TLSVersion) -> None:
        self.path = path
        self._checks_names = checks_names
        self._minimum = minimum
        self._seen: tuple[tuple[int, int, int], ...] | None = None
        self._current: Credentials | None = None
        self._browsed: ssl.SSLContext | None = None

    def credentials(self) -> Credentials:
        """Of the files as they are now.

        Raises:
            ConfigError: they cannot be used, and never could; the text names the file and what to do.
        """
        try:
            seen = tuple(self._look(name) for name in _NAMES)
            if seen != self._seen or self._current is None:
                self._current = self._load()
                self._seen = seen
        except ConfigError as error:
            if self._current is None:
                raise
            LOGGER.warning("renewed certificates are not used yet: %s", error)
        return self._current

    def server_without_client(self) -> ssl.SSLContext:
        """For who is dialled by browsers, which show a token instead of a certificate. Raises as `credentials`."""
        self.credentials()
        assert self._browsed is not None
        return self._browsed

    def _look(self, name: str) -> tuple[int, int, int]:
        path = os.path.join(self.path, name)
        try:
            found = os.stat(path)
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be read: {error.strerror}; TLS takes {', '.join(_NAMES)} in one folder: make them with"
                " `netstack certificate`"
            ) from error
        if not stat.S_ISREG(found.st_mode) or found.st_size > _MAX_BYTES:
            raise ConfigError(f"{path} is no PEM file")
        if name == KEY_NAME and stat.S_IMODE(found.st_mode) & 0o077:
            raise ConfigError(f"the private key {path} is open to others; run: chmod 600 {path}")
        return found.st_mtime_ns, found.st_size, found.st_ino

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
            # The first certificate of a chain is the end's own.
            text = Path(certificate).read_text("ascii")
            end = text.index(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER)
            own = ssl.PEM_cert_to_DER_cert(text[text.index(ssl.PEM_HEADER) : end])
        except (ssl.SSLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise ConfigError(
                f"the certificates in {self.path} cannot be used: {reason}; {CERTIFICATE_NAME} has to belong to"
                f" {KEY_NAME}, and {CA_NAME} to whoever signs those of the peers"
            ) from error
        server, client, self._browsed = contexts
        server.verify_mode = ssl.CERT_REQUIRED  # both ends show a certificate
        server.num_tickets = 0  # connections last; a resumed session would show no certificate
        client.check_hostname = self._checks_names
        client.verify_mode = ssl.CERT_REQUIRED
        return Credentials(server, client, hashlib.sha256(own).digest())


@functools.cache
def certificate_folder(path: str, checks_names: bool, minimum: ssl.TLSVersion) -> CertificateFolder:
    """The one object for a folder in this process."""
    return CertificateFolder(path, checks_names=checks_names, minimum=minimum)


def dial_as(listen: str) -> None:
    """Has this process, and those it starts, dial with the certificates that it listens with.

    What others tell of their addresses are places: how they are dialled is ours to say.

    Raises:
        ConfigError: it is an address with TLS and without certificates.
    """
    if listen.startswith(PREFIX):
        _, query, folder = split_tls(listen)
        if query:
            rest = [(name, value) for name, value in parse_qsl(query) if name != "folder"]
            os.environ[FOLDER_VARIABLE] = f"{folder.path}?{urlencode(rest)}" if rest else folder.path


def split_tls(url: str) -> tuple[str, str, CertificateFolder]:
    """What `tls+X://...?folder=...` says.

    Returns:
        (URL of the transport underneath, the query as it is, where the certificates are).

    Raises:
        ConfigError: it is no such address; the text says how it is written.
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
            f"address {url!r}: where are the certificates? Set {FOLDER_VARIABLE} to the folder that has them, or add"
            " ?folder=PATH; `netstack certificate` makes them"
        )
    return inner_url, query, certificate_folder(os.path.abspath(path), names == "on", _VERSIONS[version])
