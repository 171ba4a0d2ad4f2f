"""The portal: calls from threads, their timeouts, and the end of the thread under them."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from netstack.base.errors import ConfigError, LocalProtocolError
from netstack.network.blocking.portal import Portal

left: list[str] = []


@asynccontextmanager
async def inside() -> AsyncIterator[str]:
    try:
        yield "inside"
        left.append("cleanly")
    except trio.Cancelled:
        raise
    except BaseException:
        left.append("by an error")
        raise


@pytest.fixture
def portal() -> Iterator[Portal[str]]:
    left.clear()
    made = Portal(inside, "test")
    yield made
    made.close(clean=True)


def call(portal: Portal[str], action: Any, timeout_s: float | None = None) -> Any:
    return portal.call(action, timeout_s=timeout_s, what="a test")


async def name_of_thread() -> str:
    return threading.current_thread().name


async def fail() -> None:
    raise KeyError("mine")


def test_a_call_runs_in_the_thread_and_gives_what_it_gives_there(portal: Portal[str]) -> None:
    assert portal.inside == "inside"
    assert call(portal, name_of_thread) == "test"
    with pytest.raises(KeyError, match="mine"):
        call(portal, fail)
    assert call(portal, name_of_thread) == "test"


def test_a_call_that_takes_too_long_is_cancelled_first(portal: Portal[str]) -> None:
    ended: list[str] = []

    async def wait() -> None:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("cancelled")

    with pytest.raises(TimeoutError, match=r"a test: not within 0.01 s"):
        call(portal, wait, 0.01)
    assert ended == ["cancelled"]
    wrong: Any
    for wrong in (-1, math.nan, "1"):
        with pytest.raises(ConfigError, match=f"timeout_s={wrong!r}; give 0"):
            call(portal, wait, wrong)


def test_what_was_done_when_the_time_was_up_counts(portal: Portal[str]) -> None:
    async def stubborn() -> str:
        with trio.CancelScope(shield=True):
            await trio.sleep(0.02)
        return "done"

    assert call(portal, stubborn, 0.001) == "done"


def test_a_call_in_the_thread_itself_is_refused(portal: Portal[str]) -> None:
    async def again() -> None:
        call(portal, name_of_thread)

    async def close() -> None:
        portal.close(clean=True)

    with pytest.raises(LocalProtocolError, match="own thread"):
        call(portal, again)
    with pytest.raises(LocalProtocolError, match="own thread"):
        call(portal, close)


@pytest.mark.parametrize(("clean", "how"), [(True, "cleanly"), (False, "by an error")])
def test_closing_wakes_who_waits_and_refuses_who_comes(
    portal: Portal[str], background: Any, clean: bool, how: str
) -> None:
    async def signal() -> None:
        waiting.set()
        await trio.sleep_forever()

    waiting = threading.Event()
    first = background(lambda: call(portal, signal))
    assert waiting.wait(120)
    portal.close(clean=clean)
    with pytest.raises(LocalProtocolError, match="closed while this call waited"):
        first.outcome()
    with pytest.raises(LocalProtocolError, match="closed; open a new one"):
        call(portal, name_of_thread)
    with pytest.raises(LocalProtocolError, match="open a new one"):
        portal.post(lambda: None)
    portal.close(clean=clean)
    assert left == [how]


def test_what_cannot_be_opened_is_told_to_who_opens() -> None:
    @asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        raise OSError("no such place")
        yield

    with pytest.raises(OSError, match="no such place"):
        Portal(broken, "test")


def test_what_ends_the_thread_is_told_once_and_waiting_calls_end(background: Any) -> None:
    fuse: list[trio.CancelScope] = []

    @asynccontextmanager
    async def breaking() -> AsyncIterator[None]:
        with trio.CancelScope() as scope:
            fuse.append(scope)
            yield
        raise OSError("broke")

    portal = Portal(breaking, "test")
    begun = threading.Event()

    async def wait() -> None:
        begun.set()
        await trio.sleep_forever()

    waiting = background(lambda: portal.call(wait, timeout_s=None, what="a test"))
    assert begun.wait(120)
    portal.post(fuse[0].cancel)
    with pytest.raises(LocalProtocolError, match="closed"):
        waiting.outcome()
    with pytest.raises(OSError, match="broke"):
        portal.close(clean=True)
    portal.close(clean=True)


def test_calls_from_many_threads_while_it_closes_all_end(background: Any) -> None:
    for _ in range(20):
        portal = Portal(inside, "test")

        def work(portal: Portal[str] = portal) -> None:
            while True:
                call(portal, name_of_thread)

        workers = [background(work) for _ in range(4)]
        call(portal, name_of_thread)
        closers = [background(lambda portal=portal: portal.close(clean=True)) for _ in range(2)]
        for closer in closers:
            closer.outcome()
        for worker in workers:
            with pytest.raises(LocalProtocolError, match="closed"):
                worker.outcome()


FORKED = """
import os
from netstack import LocalProtocolError, blocking

with blocking.open_network("tcp://127.0.0.1:0") as manager:
    writer = blocking.RecordWriter(manager.create_partition("p", subpartitions=1))
    child = os.fork()
    if child == 0:
        refused = 0
        for call in (manager.statistics, lambda: writer.emit(b"x"), writer.flush, lambda: writer.emit_nowait(b"x")):
            try:
                call()
            except LocalProtocolError as error:
                refused += "this process was forked" in str(error)
        manager.close()
        os._exit(7 if refused == 4 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    print(manager.statistics().bytes_sent)
"""

FORGOTTEN = """
from netstack import blocking

manager = blocking.open_network("tcp://127.0.0.1:0")
print(manager.create_partition("left open", subpartitions=1).partition_id)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("program", "message"), [(FORKED, "0"), (FORGOTTEN, "left open")])
def test_a_forked_child_is_refused_and_a_program_that_forgets_to_close_ends(program: str, message: str) -> None:
    # Newer Pythons warn of every fork of a process with threads; what happens to the child is the question here.
    command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, message, "")
