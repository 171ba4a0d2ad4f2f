"""What happens on a byte stream before the protocol begins, and when it is over.

Takes: a secret, a greeting, a way to connect. Gives: dialled streams that are ready for the hello.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import final

from ...base.transport import ByteStream, transport_for
from .admission import Admission
from .authentication import Secret, prove_dialler


async def connect_stream(address: str) -> ByteStream:
    """Returns a stream to an address, by the transport of its scheme. Raises `ConnectionLost`: nobody answers."""
    return await transport_for(address).connect(address)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """What the streams of one network environment have in common.

    Attributes:
        secret: proven first on every dialled stream; None proves none.
        admission: checks the accepted streams; None accepts all, because there is no secret or another process has
            admitted them.
        greet: a further greeting on a dialled stream, after the proof. If it raises, the stream is closed.
        connect: creates a stream to an address, as `connect_stream`.
        on_accepted_end: called when the connection on an accepted stream is over; not used if there is `admission`.
    """

    secret: Secret | None = None
    admission: Admission | None = None
    greet: Callable[[ByteStream], Awaitable[None]] | None = None
    connect: Callable[[str], Awaitable[ByteStream]] = connect_stream
    on_accepted_end: Callable[[ByteStream], None] | None = None

    async def dial(self, address: str) -> ByteStream:
        """Returns a stream to an address, ready for the hello.

        Raises:
            ConnectionLost: nobody answers.
            AuthenticationFailed: the peer does not prove the secret, or rejects our proof.

        Cancellation: the stream is closed.
        """
        stream = await self.connect(address)
        try:
            if self.secret is not None:
                await prove_dialler(stream, self.secret)
            if self.greet is not None:
                await self.greet(stream)
        except BaseException:
            stream.close()
            raise
        return stream
