"""Mutual proof of a shared secret before anything else is read from a stream: `exchange/wire/SPEC.md`, section 15.

Takes: a connected `ByteStream`, a `Secret`. Gives: a stream whose next byte belongs to the protocol, or
`AuthenticationFailed`.

Rules:
- Only the bytes of the proof are read: later bytes stay in the stream.
- The secret is never sent, and the acceptor sends nothing that depends on it before the dialler has proven itself.
- The proof covers the dialled address and, with TLS, both certificates. So a process that was dialled by mistake cannot
  forward the proof to another one and impersonate the dialler.
- The proof authenticates the start of a connection and encrypts nothing: only TLS (`tls+tcp://`) or the network keeps
  out attackers who can change traffic.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias, final

import trio

from ...base.errors import AuthenticationFailed, ConfigError, ConnectionLost, Refusal
from ...base.transport import ByteStream
from ...exchange.wire.codec_native import MAGIC, PROOF_MAGIC, explain_foreign_bytes

NONCE_BYTES: Final = 32
MIN_SECRET_BYTES: Final = 16
MAX_SECRET_BYTES: Final = 4096
"""A longer file is probably not a secret."""

MIN_DIFFERENT_BYTES: Final = 8
"""The fewest distinct bytes in a secret file. 1 in 2,000 files of 16 random hex digits has fewer; with 32 digits
practically none.
"""

Token: TypeAlias = Callable[[int], bytes]
"""Returns the given number of unpredictable bytes."""

KNOWN_AS_VARIABLE: Final = "NETSTACK_KNOWN_AS"
"""Environment variable: addresses (`host:port`, separated by commas) under which peers dial this process, if these
differ from the addresses of its sockets, as behind a container's host.
"""

_GREETING_BYTES: Final = len(PROOF_MAGIC) + NONCE_BYTES
_PROOF_BYTES: Final = hashlib.sha256().digest_size
_DIALLER: Final = b"netstack dialler"
_ACCEPTOR: Final = b"netstack acceptor"
_OTHER_PROOFS: Final = PROOF_MAGIC[:3]
_ROUTES: Final = (b"NSDC", b"NSDR")
"""The first bytes of a connection to a service without a secret (`cluster/control/routing`)."""
_FLINK_MAGIC: Final = bytes.fromhex("badc0ffe")


@final
class Secret:
    """The shared secret of a cluster; `repr` hides it."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        """Raises ConfigError: shorter than `MIN_SECRET_BYTES`."""
        if len(value) < MIN_SECRET_BYTES:
            raise ConfigError(f"a shared secret of {len(value)} bytes can be guessed; give {MIN_SECRET_BYTES} or more")
        self._value = bytes(value)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Secret:
        """Reads a secret from a file, without one newline at the end.

        Raises:
            ConfigError: the file cannot be read, other users can access it, or it holds no secret; the text says what
                to do.
        """
        try:
            # Non-blocking, because a pipe would block.
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise ConfigError(
                        f"the secret file {os.fspath(path)} is not a regular file; write the secret into one"
                    )
                mode = stat.S_IMODE(status.st_mode)
                value = file.read(MAX_SECRET_BYTES + 2)
        except OSError as error:
            raise ConfigError(
                f"the secret file {os.fspath(path)} cannot be read: {error.strerror or error}; check path and owner"
            ) from error
        if mode & 0o077:
            raise ConfigError(
                f"the secret file {os.fspath(path)} is accessible to other users (mode {mode:04o});"
                f" run: chmod 600 {os.fspath(path)}"
            )
        if status.st_uid not in (os.geteuid(), 0):
            raise ConfigError(
                f"the secret file {os.fspath(path)} belongs to user {status.st_uid}, who can change it; run: chown"
                f" {os.geteuid()} {os.fspath(path)}"
            )
        value = value.removesuffix(b"\n")
        if not MIN_SECRET_BYTES <= len(value) <= MAX_SECRET_BYTES:
            more = "more than " if len(value) > MAX_SECRET_BYTES else ""
            raise ConfigError(
                f"the secret file {os.fspath(path)} holds {more}{min(len(value), MAX_SECRET_BYTES)} bytes; give"
                f" {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} random ones (openssl rand -hex 32)"
            )
        if len(set(value)) < MIN_DIFFERENT_BYTES:
            raise ConfigError(
                f"the secret file {os.fspath(path)} holds {len(value)} bytes of only {len(set(value))} kinds, which can"
                " be guessed; give random ones (openssl rand -hex 32)"
            )
        return cls(value)

    @classmethod
    def generate(cls) -> Secret:
        """Returns a new secret of 256 random bits, as printable ASCII."""
        return cls(secrets.token_urlsafe(32).encode())

    def reveal(self) -> bytes:
        """The secret's bytes, to be passed to another process."""
        return self._value

    @property
    def metrics_token(self) -> str:
        """The token with which a scraper may read metrics; derived from the secret without revealing it."""
        return self.proof(b"netstack metrics", b"", b"").hex()

    def web_token(self, expires_s: float = 12 * 3600.0) -> str:
        """The token with which a browser may use a JobManager's page; derived from the secret without revealing it.

        Args:
            expires_s: how long it is valid from now, by the clocks of both hosts.
        """
        end = str(int(time.time() + expires_s))
        return f"{end}.{self._web_proof(end)}"

    def end_of_web_token(self, token: str) -> int | None:
        """The expiry of a token, in seconds since 1970; None if it was not derived from this secret."""
        end, _, proof = token.partition(".")
        if not (end.isascii() and end.isdigit() and len(end) < 20):
            return None
        is_ours = hmac.compare_digest(proof.encode("utf-8", "replace"), self._web_proof(end).encode())
        return int(end) if is_ours else None

    def _web_proof(self, end: str) -> str:
        return self.proof(b"netstack web", b"", b"", end.encode()).hex()

    def proof(self, label: bytes, first: bytes, second: bytes, about: bytes = b"") -> bytes:
        """HMAC-SHA256 over a label, two nonces, and facts about the stream."""
        return hmac.digest(self._value, label + first + second + about, "sha256")

    def __repr__(self) -> str:
        return "Secret(...)"


async def prove_dialler(stream: ByteStream, secret: Secret, *, token: Token = secrets.token_bytes) -> None:
    """Proves to the dialled process that we know the secret, and checks its proof.

    Args:
        stream: connected and unused. The caller closes it if this fails.
        secret: the shared secret.
        token: creates the nonce.

    Raises:
        AuthenticationFailed: see its `reason`.

    There is no time limit; the caller sets one. Cancellation: the stream cannot be used any more.
    """
    await trio.lowlevel.checkpoint()
    mine = token(NONCE_BYTES)
    await _send(stream, PROOF_MAGIC + mine)
    theirs = await _receive_nonce(stream)
    address = stream.endpoints()[1]
    about = _about(stream, address)
    await _send(stream, secret.proof(_DIALLER, mine, theirs, about))
    try:
        proof = await _receive_proof(stream)
    except AuthenticationFailed:  # a reset means the same as an end of the stream
        proof = b""
    if len(proof) < _PROOF_BYTES:
        raise AuthenticationFailed(
            Refusal.SECRETS_DIFFER,
            f"{stream.peer} closed the connection instead of answering our proof: its shared secret differs, give both"
            f" sides the same; or a port forward or proxy leads to it, then add {address or 'the dialled address'} to"
            f" {KNOWN_AS_VARIABLE} of that process",
        )
    if not hmac.compare_digest(proof, secret.proof(_ACCEPTOR, theirs, mine, about)):
        raise _secrets_differ(stream)


async def prove_acceptor(
    stream: ByteStream,
    secret: Secret,
    *,
    also: Secret | None = None,
    known_as: Sequence[str] = (),
    token: Token = secrets.token_bytes,
) -> bool:
    """Checks the dialler's proof, then proves that we know the secret: see `prove_dialler`.

    Args:
        stream: accepted and unused.
        secret: the shared secret.
        also: a second secret that is accepted too.
        known_as: addresses (`host:port`), besides that of the stream, under which we may have been dialled, if the
            network translates addresses.
        token: creates the nonce.

    Returns:
        Whether `secret` was proven, rather than `also`.
    """
    await trio.lowlevel.checkpoint()
    mine = token(NONCE_BYTES)
    await _send(stream, PROOF_MAGIC + mine)
    theirs = await _receive_nonce(stream)
    proof = await _receive_proof(stream)
    if len(proof) < _PROOF_BYTES:
        raise _closed(stream)
    ours = stream.endpoints()[0]
    for address in dict.fromkeys((ours, *known_as, "")):  # "": the dialler's transport has no addresses
        about = _about(stream, address)
        for each in (secret, also):
            if each is not None and hmac.compare_digest(proof, each.proof(_DIALLER, theirs, mine, about)):
                await _send(stream, each.proof(_ACCEPTOR, mine, theirs, about))
                return each is secret
    raise _secrets_differ(stream, ours)


def _about(stream: ByteStream, address: str) -> bytes:
    """The facts about the stream that the proof covers; empty if there are none."""
    binding = stream.channel_binding()
    return address.encode() + b"\0" + binding if address or binding else b""


async def _receive_nonce(stream: ByteStream) -> bytes:
    """Returns the peer's nonce; detects as early as possible a peer that sends something other than a greeting."""
    greeting = bytearray(_GREETING_BYTES)
    count = 0
    while count < _GREETING_BYTES:
        arrived = await _receive_some(stream, memoryview(greeting)[count:])
        if not arrived:
            raise _closed(stream)
        count += arrived
        _check_greeting(stream, bytes(greeting[:count]))
    return bytes(greeting[len(PROOF_MAGIC) :])


def _check_greeting(stream: ByteStream, first: bytes) -> None:
    if len(first) < len(PROOF_MAGIC) or first.startswith(PROOF_MAGIC):
        return
    if first.startswith(_OTHER_PROOFS):
        raise AuthenticationFailed(
            Refusal.NOT_NETSTACK,
            f"{stream.peer} uses the authentication of another release; run the same netstack release on both sides",
        )
    if MAGIC in first or first.startswith(_ROUTES):
        raise AuthenticationFailed(
            Refusal.NO_SECRET,
            f"{stream.peer} speaks netstack's protocol but proves no shared secret; give it this side's secret, or"
            " remove the secret here",
        )
    # A hello and a control frame begin with a length below 65,536 and contain the magic within the bytes that we read.
    is_foreign = first[:2] != bytes(2) or first[4:8] == _FLINK_MAGIC
    if is_foreign or len(first) == _GREETING_BYTES:
        raise AuthenticationFailed(
            Refusal.NOT_NETSTACK,
            f"{stream.peer} does not prove a shared secret but speaks {explain_foreign_bytes(first)} (first bytes"
            f" {first[:16].hex(' ')}); check the address and port",
        )


async def _receive_proof(stream: ByteStream) -> bytes:
    """The peer's proof; shorter if the stream ends."""
    proof = bytearray(_PROOF_BYTES)
    count = 0
    while count < _PROOF_BYTES and (arrived := await _receive_some(stream, memoryview(proof)[count:])):
        count += arrived
    return bytes(proof[:count])


async def _receive_some(stream: ByteStream, window: memoryview) -> int:
    try:
        while (count := stream.try_receive_into((window,))) is None:
            await stream.wait_readable()
    except ConnectionLost as error:
        raise _closed(stream, f" ({error})") from error
    return count


async def _send(stream: ByteStream, data: bytes) -> None:
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[stream.try_send((rest,)) :]
            if rest:
                await stream.wait_writable()
    except ConnectionLost as error:
        raise _closed(stream, f" ({error})") from error


def _secrets_differ(stream: ByteStream, ours: str = "") -> AuthenticationFailed:
    dialled = f"; or it dialled another address than {ours}, and a proxy forwards connections" if ours else ""
    hint = f"; if that is intended, add the address to {KNOWN_AS_VARIABLE}" if ours else ""
    return AuthenticationFailed(
        Refusal.SECRETS_DIFFER,
        f"{stream.peer} has another shared secret than this side, give both the same{dialled}{hint}",
    )


def _closed(stream: ByteStream, why: str = "") -> AuthenticationFailed:
    return AuthenticationFailed(
        Refusal.CLOSED,
        f"{stream.peer} closed the connection before the shared secret was proven{why}: it uses no secret, or TLS where"
        " this side does not, accepts no more connections, or has ended",
    )
