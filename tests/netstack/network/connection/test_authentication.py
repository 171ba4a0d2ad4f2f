"""The proof of a shared secret: who passes it, who does not, and what either end learns."""

from __future__ import annotations

import hmac
import itertools
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from netstack.base.errors import AuthenticationFailed, ConnectionLost, Refusal
from netstack.base.transport import ByteStream, Piece, transport_for
from netstack.exchange.wire.codec_native import PROOF_MAGIC, PROTOCOL_VERSION, NativeCodec
from netstack.exchange.wire.frames import Hello
from netstack.network.connection.authentication import Secret, prove_acceptor, prove_dialler

SECRET = Secret(b"a secret of all who belong")
OTHER = Secret(b"a secret of somebody else")
HELLO = NativeCodec().encode_control(Hello(PROTOCOL_VERSION, 256, 0, "a peer without a secret"))
CONTROL_HELLO = bytes.fromhex("0000001b") + b"\x93\xb0netstack control\x01\xa7somebody"
GREETING_BYTES = 36
PROOF_BYTES = 32
numbers = itertools.count()


class Narrow(ByteStream):
    """Moves one byte at a time in either direction, and is often not ready; keeps what it moved."""

    def __init__(self, below: ByteStream, scope: trio.CancelScope | None = None, cancelled_at: int = -1) -> None:
        self.peer = below.peer
        self.sent = bytearray()
        self.received = bytearray()
        self._below = below
        self._turns = itertools.count()
        self._scope = scope
        self._waits_left = cancelled_at

    def try_send(self, pieces: Sequence[Piece]) -> int:
        if next(self._turns) % 2:
            return 0
        count = self._below.try_send([memoryview(pieces[0])[:1]])
        self.sent += bytes(pieces[0][:count])
        return count

    def try_receive_into(self, windows: Sequence[memoryview]) -> int | None:
        if next(self._turns) % 2:
            return None
        count = self._below.try_receive_into([windows[0][:1]])
        self.received += bytes(windows[0][: count or 0])
        return count

    async def wait_writable(self) -> None:
        self._count()
        await self._below.wait_writable()

    async def wait_readable(self) -> None:
        self._count()
        await self._below.wait_readable()

    def send_eof(self) -> None:
        self._below.send_eof()

    def close(self) -> None:
        self._below.close()

    def _count(self) -> None:
        if self._scope is not None and not self._waits_left:
            self._scope.cancel()
        self._waits_left -= 1


async def pair() -> tuple[ByteStream, ByteStream]:
    """Who dialled, who accepted."""
    address = f"memory://authentication-{next(numbers)}"
    listener = await transport_for(address).listen(address)
    dialler = await transport_for(address).connect(address)
    acceptor = await listener.accept()
    listener.close()
    return dialler, acceptor


def tokens(seed: int) -> Callable[[int], bytes]:
    """Nonces of a test."""
    return lambda count: bytes([seed]) * count


async def outcome(call: Awaitable[None], stream: ByteStream, into: list[Refusal | None]) -> None:
    """Why a proof failed, None if it did not; closes the stream then, as its owner would."""
    failed = None
    try:
        await call
    except AuthenticationFailed as error:
        failed = error
        stream.close()
    into.append(None if failed is None else failed.reason)
    assert failed is None or stream.peer in str(failed)


async def meet(
    dialler: ByteStream, acceptor: ByteStream, ours: Secret = SECRET, theirs: Secret = SECRET
) -> tuple[Refusal | None, Refusal | None]:
    """What dialler and acceptor find."""
    actual: tuple[list[Refusal | None], list[Refusal | None]] = ([], [])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outcome, prove_dialler(dialler, ours), dialler, actual[0])
        nursery.start_soon(outcome, prove_acceptor(acceptor, theirs), acceptor, actual[1])
    return actual[0][0], actual[1][0]


class Told(Narrow):
    """Has addresses, as a socket has."""

    def __init__(self, below: ByteStream, here: str, there: str) -> None:
        super().__init__(below)
        self._endpoints = here, there

    def endpoints(self) -> tuple[str, str]:
        return self._endpoints


@pytest.mark.parametrize(("dialled", "is_refused"), [("10.0.0.2:1", False), ("10.0.0.3:1", True)])
async def test_a_proof_is_good_for_the_address_that_was_dialled_and_for_no_other(
    autojump_clock: MockClock, dialled: str, is_refused: bool
) -> None:
    dialler, acceptor = await pair()
    actual = await meet(Told(dialler, "10.0.0.1:9", dialled), Told(acceptor, "10.0.0.2:1", "10.0.0.1:9"))
    assert actual == ((Refusal.SECRETS_DIFFER, Refusal.SECRETS_DIFFER) if is_refused else (None, None))
    for stream in (dialler, acceptor):
        stream.close()


async def receive(stream: ByteStream, count: int) -> bytes:
    data = bytearray(count)
    position = 0
    while position < count:
        arrived = stream.try_receive_into([memoryview(data)[position:]])
        if arrived is None:
            await stream.wait_readable()
        else:
            assert arrived, "the stream has ended"
            position += arrived
    return bytes(data)


def everything_of(stream: ByteStream) -> bytes:
    """What has arrived."""
    window = memoryview(bytearray(4096))
    actual = b""
    while count := stream.try_receive_into([window]):
        actual += window[:count]
    return actual


# The proof.


async def test_both_ends_with_the_same_secret_are_content(autojump_clock: MockClock) -> None:
    assert await meet(*await pair()) == (None, None)


async def test_other_secrets_are_noticed_by_both_and_only_the_dialler_has_said_anything_of_its_own(
    autojump_clock: MockClock,
) -> None:
    dialler, acceptor = await pair()
    taken = Narrow(acceptor)
    assert await meet(dialler, taken, theirs=OTHER) == (Refusal.SECRETS_DIFFER, Refusal.SECRETS_DIFFER)
    assert len(taken.sent) == GREETING_BYTES


async def test_an_acceptor_that_does_not_know_the_secret_is_noticed(autojump_clock: MockClock) -> None:
    dialler, acceptor = await pair()
    acceptor.try_send([PROOF_MAGIC + bytes(32) + bytes(32)])
    with pytest.raises(AuthenticationFailed, match="has another shared secret") as caught:
        await prove_dialler(dialler, SECRET)
    assert caught.value.reason is Refusal.SECRETS_DIFFER


async def test_the_bytes_that_follow_stay_in_the_stream(autojump_clock: MockClock) -> None:
    dialler, acceptor = await pair()

    async def dial() -> None:
        await prove_dialler(dialler, SECRET)
        dialler.try_send([b"the dialler's first frame"])

    async def accept() -> None:
        await prove_acceptor(acceptor, SECRET)
        acceptor.try_send([b"the acceptor's first frame"])

    async with trio.open_nursery() as nursery:
        nursery.start_soon(dial)
        nursery.start_soon(accept)
    assert everything_of(dialler) == b"the acceptor's first frame"
    assert everything_of(acceptor) == b"the dialler's first frame"


async def test_bytes_that_come_right_behind_a_proof_stay_in_the_stream(autojump_clock: MockClock) -> None:
    """In the same write: an acceptor that is fast, a dialler that does not wait."""
    dialler, acceptor = await pair()
    mine, theirs = bytes([1]) * 32, bytes([2]) * 32
    accepts = hmac.digest(SECRET.reveal(), b"netstack acceptor" + theirs + mine, "sha256")
    acceptor.try_send([PROOF_MAGIC + theirs + accepts + b"hello"])
    await prove_dialler(dialler, SECRET, token=tokens(1))
    assert everything_of(dialler) == b"hello"
    dialler, acceptor = await pair()
    dials = hmac.digest(SECRET.reveal(), b"netstack dialler" + mine + theirs, "sha256")
    dialler.try_send([PROOF_MAGIC + mine + dials + b"hello"])
    await prove_acceptor(acceptor, SECRET, token=tokens(2))
    assert everything_of(acceptor) == b"hello"


async def test_one_byte_at_a_time(autojump_clock: MockClock) -> None:
    dialler, acceptor = await pair()
    dials, accepts = Narrow(dialler), Narrow(acceptor)
    assert await meet(dials, accepts) == (None, None)
    assert dials.sent == accepts.received
    assert accepts.sent == dials.received
    assert len(dials.sent) == len(accepts.sent) == GREETING_BYTES + PROOF_BYTES
    dialler, acceptor = await pair()
    assert await meet(Narrow(dialler), Narrow(acceptor), theirs=OTHER) == (Refusal.SECRETS_DIFFER,) * 2


# Those who know what went over another stream.


async def overhear() -> tuple[bytes, bytes]:
    """All that dialler and acceptor say when they succeed."""
    dialler, acceptor = await pair()
    dials = Narrow(dialler)
    assert await meet(dials, acceptor) == (None, None)
    return bytes(dials.sent), bytes(dials.received)


async def test_a_replay_convinces_nobody(autojump_clock: MockClock) -> None:
    dialled, accepted = await overhear()
    dialler, acceptor = await pair()
    dialler.try_send([dialled])
    with pytest.raises(AuthenticationFailed, match="has another") as caught:
        await prove_acceptor(acceptor, SECRET)
    assert caught.value.reason is Refusal.SECRETS_DIFFER
    dialler, acceptor = await pair()
    acceptor.try_send([accepted])
    with pytest.raises(AuthenticationFailed, match="has another"):
        await prove_dialler(dialler, SECRET)


async def test_a_mirror_convinces_nobody(autojump_clock: MockClock) -> None:
    """Everything that is said comes back."""
    for prove in (prove_dialler, prove_acceptor):
        stream, mirror = await pair()
        actual: list[Refusal | None] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outcome, prove(stream, SECRET), stream, actual)
            mirror.try_send([await receive(mirror, GREETING_BYTES)])
            if prove is prove_dialler:
                mirror.try_send([await receive(mirror, PROOF_BYTES)])
            else:
                mirror.try_send([bytes(PROOF_BYTES)])
        assert actual == [Refusal.SECRETS_DIFFER]


async def test_two_ends_that_both_dialled_convince_nobody(autojump_clock: MockClock) -> None:
    """A dialler is played off against another: neither's proof is one of an acceptor."""
    one, other = await pair()
    actual: list[Refusal | None] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outcome, prove_dialler(one, SECRET), one, actual)
        nursery.start_soon(outcome, prove_dialler(other, SECRET), other, actual)
    assert actual == [Refusal.SECRETS_DIFFER] * 2


# Peers of another kind.


@pytest.mark.parametrize(
    ("message", "reason", "text"),
    [
        (HELLO, Refusal.NO_SECRET, "proves no shared secret; give it this side's secret"),
        (CONTROL_HELLO, Refusal.NO_SECRET, "proves no shared secret"),
        (b"NSDC" + bytes(16), Refusal.NO_SECRET, "proves no shared secret"),
        (b"NSDR0123456789abcdef", Refusal.NO_SECRET, "proves no shared secret"),
        (b"GET / HTTP/1.1\r\n", Refusal.NOT_NETSTACK, "speaks HTTP "),
        (b"SSH-2.0-OpenSSH_9.6\r\n", Refusal.NOT_NETSTACK, "speaks SSH "),
        (bytes.fromhex("0000002abadc0ffe02"), Refusal.NOT_NETSTACK, "speaks Flink's network protocol"),
        (bytes(100), Refusal.NOT_NETSTACK, "speaks another protocol"),
        (b"NSA1" + bytes(32), Refusal.NOT_NETSTACK, "run the same netstack release on both sides"),
        (b"NSB2" + bytes(32), Refusal.NOT_NETSTACK, "check the address and port"),
    ],
)
@pytest.mark.parametrize("prove", [prove_dialler, prove_acceptor])
@pytest.mark.parametrize("narrow", [False, True], ids=["whole", "bytes"])
async def test_a_peer_of_another_kind_is_recognised_before_it_ends(
    autojump_clock: MockClock,
    message: bytes,
    reason: Refusal,
    text: str,
    prove: Callable[[ByteStream, Secret], Awaitable[None]],
    narrow: bool,
) -> None:
    stream, peer = await pair()
    peer.try_send([message])
    with pytest.raises(AuthenticationFailed, match=text) as caught:
        await prove(Narrow(stream) if narrow else stream, SECRET)
    assert caught.value.reason is reason


@pytest.mark.parametrize("message", [0, 3, 4, 35, 36, 50])
@pytest.mark.parametrize("prove", [prove_dialler, prove_acceptor])
async def test_a_peer_that_leaves_is_told_apart(
    autojump_clock: MockClock, message: int, prove: Callable[[ByteStream, Secret], Awaitable[None]]
) -> None:
    stream, peer = await pair()
    peer.try_send([(PROOF_MAGIC + bytes(64))[:message]])
    peer.send_eof()
    has_seen_our_proof = prove is prove_dialler and message >= GREETING_BYTES
    text = "instead of answering our proof" if has_seen_our_proof else "closed the connection before"
    with pytest.raises(AuthenticationFailed, match=text) as caught:
        await prove(stream, SECRET)
    assert caught.value.reason is (Refusal.SECRETS_DIFFER if has_seen_our_proof else Refusal.CLOSED)


@pytest.mark.parametrize("prove", [prove_dialler, prove_acceptor])
async def test_a_stream_that_breaks_is_a_closed_one(
    autojump_clock: MockClock, prove: Callable[[ByteStream, Secret], Awaitable[None]]
) -> None:
    stream, peer = await pair()
    peer.close()  # writing fails
    with pytest.raises(AuthenticationFailed, match="closed the connection before") as caught:
        await prove(stream, SECRET)
    assert caught.value.reason is Refusal.CLOSED
    stream, _ = await pair()

    class Broken(Narrow):
        def try_receive_into(self, windows: Sequence[memoryview]) -> int | None:
            raise ConnectionLost("reset by peer")

    with pytest.raises(AuthenticationFailed, match="reset by peer"):
        await prove(Broken(stream), SECRET)


@pytest.mark.parametrize(
    ("prove", "prove_other"), [(prove_dialler, prove_acceptor), (prove_acceptor, prove_dialler)], ids=["dial", "accept"]
)
async def test_cancelled_at_any_wait_it_ends_there_and_the_peer_hears_of_it(
    autojump_clock: MockClock,
    prove: Callable[[ByteStream, Secret], Awaitable[None]],
    prove_other: Callable[[ByteStream, Secret], Awaitable[None]],
) -> None:
    for wait in itertools.count():
        below, other = await pair()
        scope = trio.CancelScope()
        mine = Narrow(below, scope, wait)
        actual: list[Refusal | None] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outcome, prove_other(other, SECRET), other, actual)
            with scope:
                await prove(mine, SECRET)
            if scope.cancelled_caught:
                mine.close()
        if not scope.cancelled_caught:
            assert actual == [None]
            assert wait > GREETING_BYTES + PROOF_BYTES
            break
        assert len(mine.sent) + len(mine.received) <= wait + 1
        # None: the dialler was cancelled while the acceptor's last bytes were on their way.
        assert actual[0] in (Refusal.CLOSED, Refusal.SECRETS_DIFFER, None)


async def test_a_reset_instead_of_an_answer_says_that_the_secrets_differ() -> None:
    async def refuse(accepted: trio.SocketStream) -> None:
        async with accepted:
            await accepted.send_all(PROOF_MAGIC + bytes(32))
            while len(await accepted.socket.recv(100, socket.MSG_PEEK)) < GREETING_BYTES + PROOF_BYTES:
                await trio.lowlevel.checkpoint()  # closed with something unread, it resets

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, refuse, 0, host="127.0.0.1"))
        url = f"tcp://127.0.0.1:{listener.socket.getsockname()[1]}"
        stream = await transport_for(url).connect(url)
        with pytest.raises(AuthenticationFailed, match="its shared secret differs") as caught:
            await prove_dialler(stream, SECRET)
        address = url.removeprefix("tcp://")
        assert f"a port forward or proxy leads to it, then add {address} to NETSTACK_KNOWN_AS" in str(caught.value)
        assert caught.value.reason is Refusal.SECRETS_DIFFER
        stream.close()
        nursery.cancel_scope.cancel()
