"""What both sides of a new connection must agree on, and how a stranger is recognised.

Takes: both hellos, or the first bytes that came. Gives: the features in use, or an error that says what to change.
"""

from __future__ import annotations

from typing import Final

from ..errors import ErrorCode, RemoteProtocolError
from .codec_native import PROOF_MAGIC, PROTOCOL_VERSION, explain_foreign_bytes
from .frames import Hello

FEATURE_CHECKSUM: Final = 1
"""Every data buffer carries the CRC-32 of its payload."""

FEATURE_SESSION: Final = 2
"""The connection outlives the stream that carries it, see `session`."""

FEATURE_EXPECTED: Final = 4
"""Producers tell how many buffers they expect to send beyond those that wait (`ExpectedBuffers`)."""

FEATURE_PROMPT: Final = 8
"""A consumer asks for it: the channels of this connection are few, and do not share one with those that move much."""


def agree(ours: Hello, theirs: Hello, peer: str) -> int:
    """The features that this connection uses.

    A feature one side asks for is used when both know it: a hello lists what is known in the low half, asked for in the
    high.

    Args:
        ours: what we said.
        theirs: what the peer said.
        peer: its address, for messages.

    Raises:
        RemoteProtocolError: versions or segment sizes differ.
    """
    if theirs.version != PROTOCOL_VERSION:
        raise RemoteProtocolError(
            ErrorCode.VERSION_MISMATCH,
            f"{peer} ({theirs.software}) speaks protocol version {theirs.version}, we speak {PROTOCOL_VERSION};"
            " run the same netstack release on both sides",
        )
    if theirs.segment_size_bytes != ours.segment_size_bytes:
        raise RemoteProtocolError(
            ErrorCode.SEGMENT_SIZE_MISMATCH,
            f"{peer} uses segments of {theirs.segment_size_bytes} bytes, we use {ours.segment_size_bytes};"
            " set segment_size_bytes to the same value on both sides",
        )
    known = ours.features & theirs.features & 0xFFFF
    asked = (ours.features | theirs.features) >> 16
    return known & asked


def check_first_bytes(first: bytes, expected: bytes, peer: str) -> None:
    """Recognises a peer of another protocol by its first bytes, before their lengths are believed.

    Args:
        first: what came, no more than `expected` has.
        expected: how a hello begins; its length may differ.
        peer: its address, for messages.

    Raises:
        RemoteProtocolError: this is no hello.
    """
    if all(byte == expected[i] for i, byte in enumerate(first) if i not in _LENGTH_BYTES):
        return
    if first.startswith(PROOF_MAGIC):
        raise RemoteProtocolError(
            ErrorCode.NOT_NETSTACK,
            f"{peer} wants a shared secret to be proven first; give this side the same secret",
        )
    raise RemoteProtocolError(
        ErrorCode.NOT_NETSTACK,
        f"{peer} does not speak netstack's protocol but {explain_foreign_bytes(first)}"
        f" (first bytes {first[:16].hex(' ')}); check the address and port",
    )


_LENGTH_BYTES: Final = frozenset(range(4))
