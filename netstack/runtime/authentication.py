"""A shared secret, proven by both ends of a stream before anything else is read: `wire/SPEC.md`, section 15.

Takes: a connected `ByteStream`, a `Secret`. Gives: a stream whose next byte is the first one of the protocol, or
`AuthenticationFailed`.

Rules:
- Exactly the bytes of the proof are read: what follows them stays in the stream.
- The secret never travels, and the acceptor says nothing that depends on it before the dialler has proven itself.
- What is proven is said about this stream: the address that was dialled and, with TLS, both certificates go into it. So
  who was dialled by mistake cannot pass the proof on to somebody else and be taken for the dialler there.
- It is a proof of who is there when the connection begins, no encryption: who can change what others send is kept out
  by TLS (`tls+tcp://`) or the network, not by this.
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

from ..errors import AuthenticationFailed, ConfigError, ConnectionLost, Refusal
from ..transport import ByteStream
from ..wire.codec_native import MAGIC, PROOF_MAGIC, explain_foreign_bytes

NONCE_BYTES: Final = 32
MIN_SECRET_BYTES: Final = 16
MAX_SECRET_BYTES: Final = 4096
"""A longer file is another one."""

MIN_DIFFERENT_BYTES: Final = 8
"""Of a secret from a file; 16 random hex digits have fewer in one of 2,000 files, 32 in none that will ever be made."""

Token: TypeAlias = Callable[[int], bytes]
"""That many bytes nobody can foresee."""

KNOWN_AS_VARIABLE: Final = "NETSTACK_KNOWN_AS"
"""Environment variable: addresses (`host:port`, separated by commas) under which others reach this process where that
is not the address of its sockets, such as that of a host in front of a container."""

_GREETING_BYTES: Final = len(PROOF_MAGIC) + NONCE_BYTES
_PROOF_BYTES: Final = hashlib.sha256().digest_size
_DIALLER: Final = b"netstack dialler"
_ACCEPTOR: Final = b"netstack acceptor"
_OTHER_PROOFS: Final = PROOF_MAGIC[:3]
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
            # A pipe would keep us waiting.
            with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise ConfigError(
                        f"the secret file {os.fspath(path)} is no regular file; write the secret into one"
                    )
                mode = stat.S_IMODE(status.st_mode)
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
        """A new one of 256 random bits, as printable ASCII."""
        return cls(secrets.token_urlsafe(32).encode())

    def reveal(self) -> bytes:
        """The secret itself, for whoever hands it to another process."""
        return self._value

    @property
    def metrics_token(self) -> str:
        """What a scraper shows to read metrics: made of the secret, which cannot be had from it."""
        return self.proof(b"netstack metrics", b"", b"").hex()

    def web_token(self, expires_s: float = 12 * 3600.0) -> str:
        """What a browser shows to read a JobManager's page: made of the secret, which cannot be had from it.

        Args:
            expires_s: for how long from now it is good, by the clocks of both hosts.
        """
        end = str(int(time.time() + expires_s))
        return f"{end}.{self._web_proof(end)}"

    def end_of_web_token(self, token: str) -> int | None:
        """When a token ends or ended, in seconds since 1970; None if this secret did not make it."""
        end, _, proof = token.partition(".")
        if not (end.isascii() and end.isdigit() and len(end) < 20):
            return None
        is_ours = hmac.compare_digest(proof.encode("utf-8", "replace"), self._web_proof(end).encode())
        return int(end) if is_ours else None

    def _web_proof(self, end: str) -> str:
        return self.proof(b"netstack web", b"", b"", end.encode()).hex()

    def proof(self, label: bytes, first: bytes, second: bytes, about: bytes = b"") -> bytes:
        """HMAC-SHA256 over a label, two nonces, and what is said about the stream."""
        return hmac.digest(self._value, label + first + second + about, "sha256")

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
    about = _about(stream, stream.endpoints()[1])
    await _send(stream, secret.proof(_DIALLER, mine, theirs, about))
    try:
        proof = await _receive_proof(stream)
    except AuthenticationFailed:  # a reset says the same as an end
        proof = b""
    if len(proof) < _PROOF_BYTES:
        raise AuthenticationFailed(
            Refusal.SECRETS_DIFFER,
            f"{stream.peer} closed the connection instead of answering our proof: its shared secret is another one;"
            " give both sides the same",
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
    """Has whoever dialled us prove that it knows the secret, then proves the same: see `prove_dialler`.

    Args:
        stream: accepted, and not used yet.
        secret: shared.
        also: another one that is good, too.
        known_as: addresses (`host:port`) besides that of the stream under which we are dialled, where something between
            translates them.
        token: makes the nonce.

    Returns:
        Whether it was `secret` that was proven, and not `also`.
    """
    await trio.lowlevel.checkpoint()
    mine = token(NONCE_BYTES)
    await _send(stream, PROOF_MAGIC + mine)
    theirs = await _receive_nonce(stream)
    proof = await _receive_proof(stream)
    if len(proof) < _PROOF_BYTES:
        raise _closed(stream)
    ours = stream.endpoints()[0]
    for address in dict.fromkeys((ours, *known_as, "")):  # "": the dialler's stream knows no addresses
        about = _about(stream, address)
        for each in (secret, also):
            if each is not None and hmac.compare_digest(proof, each.proof(_DIALLER, theirs, mine, about)):
                await _send(stream, each.proof(_ACCEPTOR, mine, theirs, about))
                return each is secret
    raise _secrets_differ(stream, ours)


def _about(stream: ByteStream, address: str) -> bytes:
    """What the proof says about the stream: nothing, where there is nothing to say."""
    binding = stream.channel_binding()
    return address.encode() + b"\0" + binding if address or binding else b""


async def _receive_nonce(stream: ByteStream) -> bytes:
    """The peer's nonce; a peer that sends something else than a greeting is recognised as early as can be."""
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
            f"{stream.peer} proves its shared secret as another release does; run the same netstack release on both"
            " sides",
        )
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


def _secrets_differ(stream: ByteStream, ours: str = "") -> AuthenticationFailed:
    dialled = f"; or it dialled another address than {ours}: something between passes connections on" if ours else ""
    hint = f"; if that is meant, name the address in {KNOWN_AS_VARIABLE}" if ours else ""
    return AuthenticationFailed(
        Refusal.SECRETS_DIFFER,
        f"{stream.peer} knows another shared secret than this side, give both the same{dialled}{hint}",
    )


def _closed(stream: ByteStream, why: str = "") -> AuthenticationFailed:
    return AuthenticationFailed(
        Refusal.CLOSED,
        f"{stream.peer} closed the connection before the shared secret was proven{why}: it asks for none, takes no more"
        " connections, or is gone",
    )
