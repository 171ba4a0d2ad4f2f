"""How many calls one record, and one barrier, takes from `emit` to the reader's hand, and how often it comes back.

Both ends run in one process, as sources. A call into a file that the record was in before, and has left, is a return:
whoever follows the record has to find his place there again. The limits keep the way as short as it is.

    NETSTACK_PURE=1 python tests/system/test_way_of_a_record.py [barrier]     prints the calls, file by file
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import cache
from types import CodeType, FrameType
from typing import Any

import pytest
import trio
import trio.testing

import netstack
from netstack.base import build
from netstack.base.own_packages import package_folders

FOLDERS = tuple(map(str, package_folders()))
WARM_UP = 100

Call = tuple[str, str]
"""The file below netstack, without its suffix, and the function."""


@cache
def _beginning(code: CodeType) -> int:
    """Where a function begins: one that goes on is further."""
    return next(each.offset for each in dis.get_instructions(code) if each.opname == "RESUME")


@cache
def _place(file: str) -> str:
    """The path of a file of ours below its package, without the suffix."""
    (folder,) = (each for each in FOLDERS if file.startswith(f"{each}/"))
    return file[len(folder) + 1 : -3]


class Trace:
    """The calls of functions of netstack in this thread, in order."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._frames: list[FrameType] = []  # kept, so that no other one gets the same identity

    def __enter__(self) -> Trace:
        sys.setprofile(self._on_event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _on_event(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(FOLDERS) or any(each is frame for each in self._frames):
            return
        self._frames.append(frame)  # a coroutine that goes on is no call
        is_wait = code.co_name.startswith("wait")  # for what comes after the record
        if frame.f_lasti <= _beginning(code) and not is_wait:
            self.calls.append((_place(code.co_filename), code.co_qualname))

    @property
    def visits(self) -> list[tuple[str, list[str]]]:
        """The calls, file by file: as long as they stay in one file they are one visit."""
        visits: list[tuple[str, list[str]]] = []
        for file, function in self.calls:
            if not visits or visits[-1][0] != file:
                visits.append((file, []))
            visits[-1][1].append(function)
        return visits

    @property
    def files(self) -> set[str]:
        return {file for file, _ in self.calls}

    @property
    def returns(self) -> int:
        """Visits of files that were left before."""
        return len(self.visits) - len(self.files)

    def __str__(self) -> str:
        seen: set[str] = set()
        lines = []
        for file, functions in self.visits:
            lines.append(f"{'  again ' if file in seen else '        '}{file:32} {', '.join(functions)}")
            seen.add(file)
        lines.append(f"{len(self.calls)} calls, {len(self.files)} files, {self.returns} returns")
        return "\n".join(lines)


async def way_of(send: Callable[[netstack.RecordWriter[bytes]], Awaitable[object]]) -> tuple[Any, Trace]:
    """What the reader got, and the calls that it took."""
    async with AsyncExitStack() as stack:
        producer = await stack.enter_async_context(netstack.open_network("tcp://127.0.0.1:0"))
        consumer = await stack.enter_async_context(netstack.open_network("tcp://127.0.0.1:0"))
        partition = producer.create_partition("records", subpartitions=1)
        writer = netstack.RecordWriter[bytes](partition, buffer_timeout_s=0)
        gate = await consumer.open_gate([netstack.ChannelDescriptor(producer.address, "records")])
        reader = stack.enter_context(netstack.RecordReader[bytes](gate))
        for _ in range(WARM_UP):
            await writer.emit(b"12345678")
            await anext(reader)
        got: list[Any] = []

        async def read() -> None:
            got.append(await anext(reader))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked(0.01)  # the reader waits; what was due is said
            with Trace() as trace:
                await send(writer)
                while not got:
                    await trio.lowlevel.checkpoint()
        gate.close()
        return got[0], trace


async def way_of_a_record() -> Trace:
    record, trace = await way_of(lambda writer: writer.emit(b"abcdefgh"))
    assert record == b"abcdefgh"
    return trace


async def way_of_a_barrier() -> Trace:
    barrier = netstack.CheckpointBarrier(1, 0)
    event, trace = await way_of(lambda writer: writer.broadcast_event(barrier))
    assert event.checkpoint_id == barrier.checkpoint_id
    return trace


in_python = pytest.mark.skipif(build.kind == "compiled", reason="compiled functions are not seen by sys.setprofile")


def shortest(way: Callable[[], Awaitable[Trace]]) -> Trace:
    """Of five: what else happens meanwhile, as a heartbeat, is no part of the way."""
    return min((trio.run(way) for _ in range(5)), key=lambda trace: trace.returns)


@in_python
def test_the_way_of_a_record_is_short() -> None:
    trace = shortest(way_of_a_record)
    assert trace.returns < 27, trace  # 24, and one or two more on a busy machine


@in_python
def test_the_way_of_a_barrier_is_short() -> None:
    trace = shortest(way_of_a_barrier)
    assert trace.returns < 25, trace


if __name__ == "__main__":
    chosen = way_of_a_barrier if sys.argv[1:] == ["barrier"] else way_of_a_record
    sys.stdout.write(f"{trio.run(chosen)}\n")
