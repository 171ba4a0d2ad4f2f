"""The proof of a secret, byte for byte as section 15 of SPEC.md has it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from netstack.base.transport import ByteStream, transport_for
from netstack.network.connection.authentication import Secret, prove_acceptor, prove_dialler

SPEC = (Path(__file__).resolve().parents[2] / "netstack/exchange/wire/SPEC.md").read_text(encoding="utf-8")


def lines() -> list[tuple[str, bytes]]:
    """Who says what."""
    actual = re.search(r"^```proof\n(.*?)^```$", SPEC, re.MULTILINE | re.DOTALL)
    assert actual is not None
    words = (line.partition(";")[0].split(maxsplit=1) for line in actual[1].splitlines())
    return [(who, bytes.fromhex(data)) for who, data in words]


@pytest.mark.parametrize(("us", "prove"), [("dialler", prove_dialler), ("acceptor", prove_acceptor)])
def test_each_end_says_what_the_page_says(us: str, prove: Callable[..., Awaitable[None]]) -> None:
    (_, secret), *message = lines()
    ours = b"".join(data for who, data in message if who == us)
    theirs = b"".join(data for who, data in message if who != us)
    nonce = ours[4:36]

    def token(count: int) -> bytes:
        assert count == len(nonce)
        return nonce

    async def main() -> None:
        stream, peer = await pair()
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: prove(stream, Secret(secret), token=token))
                peer.try_send([theirs, b"HELLO"])
        window = memoryview(bytearray(200))
        assert peer.try_receive_into([window]) == len(ours) == 68
        assert window[:68] == ours
        assert stream.try_receive_into([window]) == 5
        assert window[:5] == b"HELLO"

    trio.run(main)


async def pair() -> tuple[ByteStream, ByteStream]:
    listener = await transport_for("memory://proof").listen("memory://proof")
    dialler = await transport_for("memory://proof").connect("memory://proof")
    acceptor = await listener.accept()
    listener.close()
    return dialler, acceptor
