"""A shared secret, proven by both ends of a stream before anything else is read: `wire/SPEC.md`, section 15.

Takes: a connected `ByteStream`, a `Secret`. Gives: a stream whose next byte is the first one of the protocol, or
`AuthenticationFailed`.

Rules:
- Exactly the bytes of the proof are read: what follows them stays in the stream.
- The secret never travels, and the acceptor says nothing that depends on it before the dialler has proven itself.
- It is a proof of who is there when the connection begins, no encryption: who can change what others send, or pass it
  on between two honest ends, is kept out by the network (a VPN, TLS in between), not by this.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias, final

import trio

from ..errors import AuthenticationFailed, ConfigError, ConnectionLost, Refusal
from ..transport import ByteStream
from ..wire.codec_native import MAGIC, PROOF_MAGIC, explain_foreign_bytes

NONCE_BYTES: Final = 32
MIN_SECRET_BYTES: Final = 16
MAX_SECRET_BYTES: Final = 4096
"""A longer file is another one."""

Token: TypeAlias = Callable[[int], bytes]
"""That many bytes nobody can foresee."""

_GREETING_BYTES: Final = len(PROOF_MAGIC) + NONCE_BYTES
_PROOF_BYTES: Final = hashlib.sha256().digest_size
_DIALLER: Final = b"netstack dialler"
_ACCEPTOR: Final = b"netstack acceptor"
_ROUTES: Final = (b"NSDC", b"NSDR")
"""What a connection to a service begins with when no secret is proven (`control/routing`)."""
_FLINK_MAGIC: Final = bytes.fromhex("badc0ffe")


@final
class Secret:
    """What all who belong know; never shown."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        """Raises ConfigError: shorter than `MIN_SECRET_BYTES`."""
        if len(value) < MIN_SECRET_BYTES:
            raise ConfigError(f"a shared secret of {len(value)} bytes can be guessed; give {MIN_SECRET_BYTES} or more")
        self._value = bytes(value)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Secret:
        """The bytes of a file, without one newline at the end.

        Raises:
            ConfigError: it cannot be read, others than its owner may read it, or it holds no secret; the text says what
                to do.
        """
        try:
            with Path(path).open("rb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
                value = file.read(MAX_SECRET_BYTES + 2)
        except OSError as error:
            raise ConfigError(
                f"the secret file {os.fspath(path)} cannot be read: {error.strerror or error}; check path and owner"
            ) from error
        if mode & 0o077:
            raise ConfigError(
                f"the secret file {os.fspath(path)} is open to others (mode {mode:04o});"
                f" run: chmod 600 {os.fspath(path)}"
            )
        value = value.removesuffix(b"\n")
        if not MIN_SECRET_BYTES <= len(value) <= MAX_SECRET_BYTES:
            more = "more than " if len(value) > MAX_SECRET_BYTES else ""
            raise ConfigError(
                f"the secret file {os.fspath(path)} holds {more}{min(len(value), MAX_SECRET_BYTES)} bytes; give"
                f" {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} random ones (openssl rand -hex 32)"
            )
        return cls(value)

    @classmethod
    def generate(cls) -> Secret:
        """A new one of 256 random bits, as printable ASCII."""
        return cls(secrets.token_urlsafe(32).encode())

    def reveal(self) -> bytes:
        """The secret itself, for whoever hands it to another process."""
        return self._value

    @property
    def metrics_token(self) -> str:
        """What a scraper shows to read metrics: made of the secret, which cannot be had from it."""
        return self.proof(b"netstack metrics", b"", b"").hex()

    def proof(self, label: bytes, first: bytes, second: bytes) -> bytes:
        """HMAC-SHA256 over a label and two nonces."""
        return hmac.digest(self._value, label + first + second, "sha256")

    def __repr__(self) -> str:
        return "Secret(...)"


async def prove_dialler(stream: ByteStream, secret: Secret, *, token: Token = secrets.token_bytes) -> None:
    """Proves to whoever was dialled that we know the secret, and has it prove the same.

    Args:
        stream: connected, and not used yet. The caller closes it when this does not succeed.
        secret: shared.
        token: makes the nonce.

    Raises:
        AuthenticationFailed: see its `reason`.

    Without a limit on time: that is the caller's. Cancellation: the stream is of no more use.
    """
    await trio.lowlevel.checkpoint()
    mine = token(NONCE_BYTES)
    await _send(stream, PROOF_MAGIC + mine)
    theirs = await _receive_nonce(stream)
    await _send(stream, secret.proof(_DIALLER, mine, theirs))
    proof = await _receive_proof(stream)
    if len(proof) < _PROOF_BYTES:
        raise AuthenticationFailed(
            Refusal.SECRETS_DIFFER,
            f"{stream.peer} closed the connection instead of answering our proof: its shared secret is another one;"
            " give both sides the same",
        )
    if not hmac.compare_digest(proof, secret.proof(_ACCEPTOR, theirs, mine)):
        raise _secrets_differ(stream)


async def prove_acceptor(stream: ByteStream, secret: Secret, *, token: Token = secrets.token_bytes) -> None:
    """Has whoever dialled us prove that it knows the secret, then proves the same: see `prove_dialler`."""
    await trio.lowlevel.checkpoint()
    mine = token(NONCE_BYTES)
    await _send(stream, PROOF_MAGIC + mine)
    theirs = await _receive_nonce(stream)
    proof = await _receive_proof(stream)
    if len(proof) < _PROOF_BYTES:
        raise _closed(stream)
    if not hmac.compare_digest(proof, secret.proof(_DIALLER, theirs, mine)):
        raise _secrets_differ(stream)
    await _send(stream, secret.proof(_ACCEPTOR, mine, theirs))


async def _receive_nonce(stream: ByteStream) -> bytes:
    """The peer's nonce; whoever says something else than a greeting is recognised as early as can be."""
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
    if MAGIC in first or first.startswith(_ROUTES):
        raise AuthenticationFailed(
            Refusal.NO_SECRET,
            f"{stream.peer} speaks netstack's protocol but proves no shared secret; give it this side's secret, or take"
            " the secret away here",
        )
    # A hello and a control frame begin with a length below 65,536, and say the name within the bytes we may read.
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


def _secrets_differ(stream: ByteStream) -> AuthenticationFailed:
    return AuthenticationFailed(
        Refusal.SECRETS_DIFFER, f"{stream.peer} knows another shared secret than this side; give both the same"
    )


def _closed(stream: ByteStream, why: str = "") -> AuthenticationFailed:
    return AuthenticationFailed(
        Refusal.CLOSED,
        f"{stream.peer} closed the connection before the shared secret was proven{why}: it asks for none, takes no more"
        " connections, or is gone",
    )
