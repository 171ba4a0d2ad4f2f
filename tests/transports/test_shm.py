"""What is particular to shared memory: another process, its death, and what it may hand over or write."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import itertools
import os
import platform
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from netstack.base.errors import ConfigError, ConnectionLost
from netstack.base.transport import ByteStream, Listener, is_private, transport_for
from netstack.testing.contracts import clog, connected, is_at_end, pattern_of, receive, send_all
from netstack_transports.shm import MAX_NAME_BYTES, PREFIX, ShmTransport, unsupported
from netstack_transports.shm.ring import READ, WRITTEN
from netstack_transports.shm.stream import CAPACITIES, GREETING, MEMORY_BYTES, hand_over
from transports import shm_process

pytestmark = pytest.mark.skipif(bool(unsupported()), reason=unsupported() or "supported")
SHM = ShmTransport()
ROOT = Path(__file__).parents[2]
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
numbers = itertools.count()


def new_url() -> str:
    return f"shm://test-{os.getpid()}-{next(numbers)}"


@contextmanager
def process(
    url: str, *role: str, command: tuple[str, ...] = (shm_process.__file__,)
) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests/support'}"}
    words = [sys.executable, *command, url, *role]
    with subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


# Names.


@pytest.mark.parametrize("url", ["shm://", "shm:///x", "shm://a/b", "shm://a?b=c"])
async def test_a_name_and_no_more(url: str) -> None:
    for attempt in (SHM.listen, SHM.connect):
        with pytest.raises(ConfigError, match="needs a name only, such as shm://a"):
            await attempt(url)


async def test_the_longest_name() -> None:
    name = f"{os.getpid()}-".ljust(MAX_NAME_BYTES, "x")
    listener = await SHM.listen(f"shm://{name}")
    (await SHM.connect(listener.address)).close()
    listener.close()
    for attempt in (SHM.listen, SHM.connect):
        with pytest.raises(ConfigError, match=f"longer than {MAX_NAME_BYTES} bytes"):
            await attempt(f"shm://{name}x")


@pytest.mark.parametrize(("system", "machine"), [("Linux", "aarch64"), ("Darwin", "x86_64")])
async def test_it_is_refused_where_it_cannot_be_right(
    system: str, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "system", lambda: system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    for attempt in (SHM.listen, SHM.connect):
        with pytest.raises(ConfigError, match=rf"on Linux and x86-64.* on {system}, {machine}; use tcp:// or unix://"):
            await attempt("shm://a")


async def test_it_is_found_by_its_scheme_and_is_private() -> None:
    url = new_url()
    assert is_private(url)
    listener = await transport_for(url).listen(url)
    near, far = await connected(listener)
    assert near.peer == url
    assert far.peer == f"process {os.getpid()}, a client of {url}"
    assert near.descriptor() is None
    for closable in (near, far, listener):
        closable.close()


# Bytes.


async def test_the_capacity_is_exact_and_room_is_worth_waking_up_for() -> None:
    listener = await SHM.listen(new_url())
    near, far = await connected(listener)
    assert near.try_send([bytes(CAPACITIES[0] - 1), b"12"]) == CAPACITIES[0]
    assert near.try_send([b"2"]) == 0
    await receive(far, 10, windows=(10,))
    assert near.try_send([bytes(11)]) == 10
    with trio.move_on_after(0.01) as few:
        await near.wait_writable()
    assert few.cancelled_caught
    async with trio.open_nursery() as nursery:
        nursery.start_soon(near.wait_writable)
        await receive(far, CAPACITIES[0] // 4, windows=(CAPACITIES[0] // 4,))
    for closable in (near, far, listener):
        closable.close()


async def test_what_is_awake_makes_no_system_call(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = await SHM.listen(new_url())
    near, far = await connected(listener)
    await send_all(near, [b"."])
    await receive(far, 1)
    written: list[int] = []
    original = os.eventfd_write
    monkeypatch.setattr(os, "eventfd_write", lambda bell, value: written.append(bell) or original(bell, value))
    window = memoryview(bytearray(10))
    for _ in range(1000):
        assert near.try_send([b"x"]) == 1
        assert far.try_receive_into([window]) == 1
    assert written == []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(far.wait_readable)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(10):
            assert near.try_send([b"x"]) == 1
    assert len(written) == 1, "a reader that sleeps is woken once"
    for closable in (near, far, listener):
        closable.close()


@pytest.mark.slow
async def test_another_process_sends_back_everything() -> None:
    url = new_url()
    listener = await SHM.listen(url)
    with process(url, "echo") as child:
        stream = await listener.accept()
        assert stream.peer.startswith(f"process {child.pid}, ")
        message = pattern_of(5 * CAPACITIES[1] + 7)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_all, stream, [message])
            assert await receive(stream, len(message), windows=(7, 100_000)) == message
        stream.send_eof()
        assert await is_at_end(stream)
        assert child.wait(120) == 0
    stream.close()
    listener.close()


@pytest.mark.slow
@pytest.mark.parametrize("messages", [20_000, pytest.param(600_000, marks=pytest.mark.long)])
def test_no_wake_up_is_lost(messages: int) -> None:
    """Both directions at once, with pauses about as long as falling asleep takes; a lost one would be for ever."""

    async def both() -> None:
        url = new_url()
        listener = await SHM.listen(url)
        with process(url, "exchange", "1", str(messages)) as child:
            stream = await listener.accept()
            with trio.fail_after(300 + messages / 200):
                await shm_process.exchange(stream, 2, messages)
            assert child.wait(120) == 0
        stream.close()
        listener.close()

    trio.run(both)


# The end of a peer.


@pytest.mark.slow
@pytest.mark.parametrize("waits_for", ["bytes", "room"])
async def test_a_killed_peer_is_noticed_at_once_and_what_it_wrote_is_read_first(waits_for: str) -> None:
    url = new_url()
    listener = await SHM.listen(url)
    with process(url, "write") as child:
        stream = await listener.accept()
        await stream.wait_readable()
        await clog(stream)
        assert await receive(stream, 5, windows=(5,)) == b"last "
        if waits_for == "bytes":
            await receive(stream, 5)
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.wait_readable if waits_for == "bytes" else stream.wait_writable)
                await trio.testing.wait_all_tasks_blocked()
                child.kill()
        if waits_for == "room":
            assert await receive(stream, 5) == b"words"
        await stream.wait_readable()
        with pytest.raises(ConnectionLost, match=rf"process {child.pid}.* broke: its process .*has ended"):
            stream.try_receive_into([memoryview(bytearray(10))])
    with pytest.raises(ConnectionLost, match=f"process {child.pid}"):
        stream.try_send([b"x"])
    stream.close()
    listener.close()


async def test_a_process_that_was_forked_does_not_hide_the_end() -> None:
    listener = await SHM.listen(new_url())
    near, far = await connected(listener)
    await send_all(near, [b"x"])
    await receive(far, 1)
    copy = os.dup(near._socket.fileno())  # type: ignore[attr-defined]
    await clog(far)
    near.close()
    with trio.fail_after(120):
        await far.wait_writable()
    assert await is_at_end(far)
    os.close(copy)
    far.close()
    listener.close()


@pytest.mark.parametrize("attempt", range(20))  # trio wakes the two in either order
async def test_closed_by_another_task_while_it_is_woken(attempt: int) -> None:
    """The number of the eventfd may be another file's by then: the wait does not read from it."""
    listener = await SHM.listen(new_url())
    near, far = await connected(listener)
    await send_all(near, [b"x"])
    await receive(far, 1)
    taken: list[int] = []

    async def close_when_woken() -> None:
        await near.wait_readable()
        near.close()
        far.close()
        taken.extend(os.eventfd(5, os.EFD_NONBLOCK) for _ in range(8))  # the numbers are somebody else's now

    async def wait() -> None:
        with contextlib.suppress(trio.ClosedResourceError):
            await far.wait_readable()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        nursery.start_soon(close_when_woken)
        await trio.testing.wait_all_tasks_blocked()
        near.try_send([b"x"])
        far.try_send([b"x"])
    assert [os.eventfd_read(eventfd) for eventfd in taken] == [5] * 8
    for eventfd in taken:
        os.close(eventfd)
    listener.close()


# What is not believed.


async def raw_connection() -> tuple[Listener, socket.socket, ByteStream]:
    """A listener, a client's socket that has handed nothing over yet, and the accepted stream."""
    url = new_url()
    listener = await SHM.listen(url)
    raw = socket.socket(socket.AF_UNIX)
    raw.connect(PREFIX + url.removeprefix("shm://"))
    return listener, raw, await listener.accept()


async def refusal(hand: Callable[[socket.socket], object]) -> str:
    """What the accepting side says of what was handed over; both waits tell, and the client is hung up on."""
    listener, raw, stream = await raw_connection()
    assert stream.try_send([b"x"]) == 0, "there is no memory yet"
    hand(raw)
    with trio.fail_after(120):
        await stream.wait_readable()
        await stream.wait_writable()
    with pytest.raises(ConnectionLost) as on_read:
        stream.try_receive_into([memoryview(bytearray(1))])
    with pytest.raises(ConnectionLost) as on_write:
        stream.try_send([b"x"])
    assert str(on_read.value) == str(on_write.value)
    assert stream.peer in str(on_read.value)
    stream.close()
    raw.close()
    listener.close()
    return str(on_read.value)


def send(raw: socket.socket, memory: int, *bells: int, greeting: bytes = GREETING) -> None:
    socket.send_fds(raw, [greeting], [memory, *bells])
    for descriptor in (memory, *bells):
        os.close(descriptor)


def memfd(size: int = MEMORY_BYTES, seals: int = SEALS) -> int:
    memory = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, size)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, seals)
    return memory


def a_file() -> int:
    with tempfile.TemporaryFile() as file:
        file.truncate(MEMORY_BYTES)
        return os.dup(file.fileno())


def bells(count: int = 2) -> list[int]:
    return [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(count)]


HOSTILE: dict[str, tuple[Callable[[socket.socket], object], str]] = {
    "no seals": (lambda raw: send(raw, memfd(seals=0), *bells()), "has the seals 0x0, not 0x7"),
    "may grow": (
        lambda raw: send(raw, memfd(seals=SEALS & ~fcntl.F_SEAL_GROW), *bells()),
        "has the seals 0x3, not 0x7",
    ),
    "cannot be written": (
        lambda raw: send(raw, memfd(seals=SEALS | fcntl.F_SEAL_WRITE), *bells()),
        "has the seals 0xf, not 0x7",
    ),
    "too small": (lambda raw: send(raw, memfd(4096), *bells()), "has 4096 bytes"),
    "too large": (lambda raw: send(raw, memfd(2 * MEMORY_BYTES), *bells()), f"has {2 * MEMORY_BYTES} bytes"),
    "a file": (lambda raw: send(raw, a_file(), *bells()), "is not a memfd"),
    "a memfd for an eventfd": (lambda raw: send(raw, memfd(), memfd(), *bells(1)), "for an eventfd"),
    "too few": (lambda raw: send(raw, memfd(), *bells(1)), "handed over 2 descriptors"),
    "too many": (lambda raw: send(raw, memfd(), *bells(9)), "descriptors or more, not 3"),
    "none": (lambda raw: raw.send(GREETING), "handed over 0 descriptors"),
    "another greeting": (
        lambda raw: send(raw, memfd(), *bells(), greeting=b"netstack-shm 2 4096"),
        "greets with b'netstack-shm 2 4096'",
    ),
    "a part of a greeting": (lambda raw: raw.send(GREETING[:5]), "greets with b'netst'"),
    "hangs up": (lambda raw: raw.close(), "hung up before it greeted"),
}


@pytest.mark.parametrize("case", HOSTILE)
async def test_what_is_handed_over_is_checked(case: str) -> None:
    hand, text = HOSTILE[case]
    before = open_descriptors()
    assert text in await refusal(hand)
    assert open_descriptors() == before


async def test_who_hands_nothing_over_holds_up_nobody() -> None:
    listener, raw, silent = await raw_connection()
    near, far = await connected(listener)
    await send_all(near, [b"x"])
    assert await receive(far, 1) == b"x"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(silent.wait_readable)
        nursery.start_soon(silent.wait_writable)
        await trio.testing.wait_all_tasks_blocked()
        memory = hand_over(raw)
        memory.writer(0).write([b"late"])
    assert await receive(silent, 4) == b"late"
    memory.close()
    for closable in (near, far, silent, raw, listener):
        closable.close()


async def test_an_end_before_the_memory_came_is_told_with_it() -> None:
    listener, raw, stream = await raw_connection()
    stream.send_eof()
    memory = hand_over(raw)
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert memory.reader(1).read_into([memoryview(bytearray(1))]) == 0
    memory.close()
    for closable in (stream, raw, listener):
        closable.close()


@pytest.mark.parametrize(
    ("ring", "word", "value", "text"),
    [(0, WRITTEN, 5 + CAPACITIES[0] + 1, "has written"), (1, READ, CAPACITIES[1] + 1, "has read")],
)
async def test_wrong_positions_end_the_connection_with_a_clear_text(
    ring: int, word: int, value: int, text: str
) -> None:
    """See `test_shm_ring` for which are wrong."""
    listener, raw, stream = await raw_connection()
    memory = hand_over(raw)
    memory.writer(0).write([b"sound"])
    assert await receive(stream, 5) == b"sound"
    assert await clog(stream) == CAPACITIES[1]
    memory._words[ring][word] = value
    attempts = [lambda: stream.try_receive_into([memoryview(bytearray(1))]), lambda: stream.try_send([b"x"])]
    for attempt in attempts if word == WRITTEN else reversed(attempts):
        with pytest.raises(ConnectionLost, match=rf"{stream.peer} broke: the memory .* damaged: it says .*{text}"):
            attempt()
    await stream.wait_readable()
    await stream.wait_writable()
    stream.close()
    assert raw.recv(1) == b"", "the peer is hung up on"
    memory.close()
    raw.close()
    listener.close()


@pytest.mark.parametrize("waits_for", ["bytes", "room"])
async def test_who_waits_is_woken_when_the_memory_turns_out_to_be_damaged(waits_for: str) -> None:
    listener, raw, stream = await raw_connection()
    memory = hand_over(raw)
    await stream.wait_writable()
    if waits_for == "room":
        await clog(stream)
    woken = trio.Event()

    async def wait() -> None:
        await (stream.wait_readable() if waits_for == "bytes" else stream.wait_writable())
        woken.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert not woken.is_set()
        ring, word = (1, READ) if waits_for == "bytes" else (0, WRITTEN)
        memory._words[ring][word] = 2 * CAPACITIES[1]
        if waits_for == "bytes":
            stream.try_send([bytes(CAPACITIES[1])])  # whoever finds no room looks at the reader's position
        with pytest.raises(ConnectionLost, match="damaged"):  # found by another task
            stream.try_send([b"x"]) if waits_for == "bytes" else stream.try_receive_into([memoryview(bytearray(1))])
        with trio.fail_after(120):
            await woken.wait()
    stream.close()
    memory.close()
    raw.close()
    listener.close()


async def test_a_process_of_another_user_is_refused_by_either_side(monkeypatch: pytest.MonkeyPatch) -> None:
    url = new_url()
    listener = await SHM.listen(url)
    ours = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: ours + 1)
    with pytest.raises(ConnectionLost, match=rf"the peer \(process \d+\) runs as user {ours}"):
        await SHM.connect(url)
    raw = socket.socket(socket.AF_UNIX)
    raw.connect(PREFIX + url.removeprefix("shm://"))

    async def accept() -> None:
        await listener.accept()
        raise AssertionError("a foreign process was let in")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        assert await trio.to_thread.run_sync(raw.recv, 1) == b""
        nursery.cancel_scope.cancel()
    raw.close()
    listener.close()


AS_NOBODY = """
import os, sys, trio, netstack_transports.shm
from transports import shm_process
os.setuid(65534)
try:
    trio.run(shm_process.main, *sys.argv[1:])
except Exception as error:
    sys.exit(str(error))
"""


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="needs to run as root")
async def test_a_process_that_is_another_user_s_gets_nowhere() -> None:
    url = new_url()
    listener = await SHM.listen(url)
    with process(url, "echo", command=("-c", AS_NOBODY)) as child:
        assert child.wait(120) == 1
        assert child.stderr is not None
        assert "as user 65534" in child.stderr.read()
    listener.close()


# Nothing is left.


def open_descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


async def test_nothing_is_left_of_many_connections() -> None:
    async def several() -> None:
        url = new_url()
        listener = await SHM.listen(url)
        for number in range(25):
            near, far = await connected(listener)
            if number % 2:
                await send_all(near, [b"x"])
                await receive(far, 1)
            if number % 3:
                with trio.move_on_after(0):
                    await near.wait_readable()
            near.close()
            far.close()
        early = await SHM.connect(url)  # is never accepted
        early.close()
        with trio.CancelScope() as scope:
            scope.cancel()
            await SHM.connect(url)
        assert scope.cancelled_caught
        listener.close()
        with pytest.raises(ConnectionLost):
            await SHM.connect(url)

    await several()
    await trio.testing.wait_all_tasks_blocked()
    before = open_descriptors()
    for _ in range(4):
        await several()
    await trio.testing.wait_all_tasks_blocked()
    assert open_descriptors() == before
