"""The greeting: negotiates features, and detects peers of another protocol.

Takes: both hellos, or the first bytes of a stream. Gives: the features in use, or an error that names the fix.
"""

from __future__ import annotations

from typing import Final

from ...base.errors import ErrorCode, RemoteProtocolError
from .codec_native import PROOF_MAGIC, PROTOCOL_VERSION, explain_foreign_bytes
from .frames import Hello

FEATURE_CHECKSUM: Final = 1
"""Every data buffer has the CRC-32 of its payload."""

FEATURE_SESSION: Final = 2
"""The connection survives the loss of its stream (`session`)."""

FEATURE_EXPECTED: Final = 4
"""Producers announce how many buffers they expect to send in addition to their backlog (`ExpectedBuffers`)."""

FEATURE_PROMPT: Final = 8
"""Requested by a consumer for a connection with few channels, which do not share one with bulk channels."""


def agree(ours: Hello, theirs: Hello, peer: str) -> int:
    """Negotiates the features of this connection.

    A feature is used if both sides know it and one requests it: the low half of a hello's bits lists the known ones,
    the high half the requested ones.

    Raises:
        RemoteProtocolError: versions or segment sizes differ.
    """
    if theirs.version != PROTOCOL_VERSION:
        raise RemoteProtocolError(
            ErrorCode.VERSION_MISMATCH,
            f"{peer} ({theirs.software}) uses protocol version {theirs.version}, this side uses {PROTOCOL_VERSION};"
            " run the same netstack release on both sides",
        )
    if theirs.segment_size_bytes != ours.segment_size_bytes:
        raise RemoteProtocolError(
            ErrorCode.SEGMENT_SIZE_MISMATCH,
            f"{peer} uses segments of {theirs.segment_size_bytes} bytes, this side uses {ours.segment_size_bytes};"
            " set segment_size_bytes to the same value on both sides",
        )
    known = ours.features & theirs.features & 0xFFFF
    asked = (ours.features | theirs.features) >> 16
    return known & asked


def check_first_bytes(first: bytes, expected: bytes, peer: str) -> None:
    """Detects a peer of another protocol by its first bytes, before a length is trusted.

    Args:
        first: received bytes, at most as many as `expected`.
        expected: the start of a hello; its length field may differ.
        peer: its address, for error texts.

    Raises:
        RemoteProtocolError: this is not a hello.
    """
    if all(byte == expected[i] for i, byte in enumerate(first) if i not in _LENGTH_BYTES):
        return
    if first.startswith(PROOF_MAGIC):
        raise RemoteProtocolError(
            ErrorCode.NOT_NETSTACK,
            f"{peer} requires proof of a shared secret; configure the same secret on this side",
        )
    raise RemoteProtocolError(
        ErrorCode.NOT_NETSTACK,
        f"{peer} does not speak netstack's protocol but {explain_foreign_bytes(first)}"
        f" (first bytes {first[:16].hex(' ')}); check the address and port",
    )


_LENGTH_BYTES: Final = frozenset(range(4))
