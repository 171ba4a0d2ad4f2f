"""Invokables for tests: those that work, and those that go wrong in every way."""

from __future__ import annotations

import sys
import time
from operator import itemgetter
from typing import Any

import trio
from trio import sleep_forever as imported  # noqa: F401  # what an allowed module imports is not allowed by that

from netstack import RecordReader, RecordWriter
from netstack.cluster.task.invokable import InvokableTask

by_first = itemgetter(0)
"""A key function that is a value."""


class Ticks:
    """A source of a hundred records, one each hundredth of a second; returns how many it read."""

    def __init__(self) -> None:
        self.count = 0

    async def read(self) -> list[int] | None:
        await trio.sleep(0.01)
        self.count += 1
        return [self.count] if self.count <= 100 else None

    def snapshot(self, unsent: int) -> int:
        return self.count - unsent

    def finish(self, out: Any) -> int:
        return self.count


async def words(task: InvokableTask) -> int:
    """Writes as many words as it is told, and waits until they were read."""
    (partition,) = task.partitions
    writer = RecordWriter(partition, format="str", buffer_timeout_s=0)
    for number in range(task.parameters["count"]):
        await writer.emit(f"{task}-{number}")
    await writer.finish()
    await writer.wait_consumed()
    return task.parameters["count"]


async def count(task: InvokableTask) -> dict[str, Any]:
    """Reads everything."""
    gate = await task.open_gate()
    actual = [word async for word in RecordReader(gate, format="str")]
    return {"words": len(actual), "last": actual[-1] if actual else None}


async def echo(task: InvokableTask) -> str:
    """Says what it is told, until it is told to stop."""
    while True:
        message = await task.receive()
        if "stop" in message:
            return str(message["stop"])
        task.send({"heard": message})


async def hold(task: InvokableTask) -> None:
    """Writes one word, says so, and never ends."""
    for partition in task.partitions:
        await RecordWriter(partition, format="str", buffer_timeout_s=0).emit("a word")
    task.send({"event": "holding"})
    await trio.sleep_forever()


async def hold_quietly(task: InvokableTask) -> None:
    """Never ends."""
    await trio.sleep_forever()


async def compute(task: InvokableTask) -> int:
    """Computes in Python, without a checkpoint."""
    until_s = time.monotonic() + task.parameters["seconds"]
    rounds = 0
    while time.monotonic() < until_s:
        rounds += 1
    return rounds


async def fail_when_told(task: InvokableTask) -> None:
    """Holds a partition, and fails at an operator event."""
    await task.receive()
    raise ValueError("no more paper")


async def finish_at_once(task: InvokableTask) -> None:
    """Finishes its partitions and waits for nobody."""
    for partition in task.partitions:
        writer = RecordWriter(partition, format="str")
        await writer.emit("a word")
        await writer.finish()


async def write_two_words(task: InvokableTask) -> None:
    """Writes a word, and a second one after an operator event."""
    (partition,) = task.partitions
    writer = RecordWriter(partition, format="str", buffer_timeout_s=0)
    await writer.emit("a word")
    await task.receive()
    await writer.emit("another")
    await writer.finish()


async def read_forever(task: InvokableTask) -> None:
    """Reads forever; reports the first record."""
    gate = await task.open_gate()
    async for word in RecordReader(gate, format="str"):
        task.send({"word": word})


async def leave_open(task: InvokableTask) -> None:
    """Returns without finishing what it produces."""


async def fail(task: InvokableTask) -> None:
    """Raises what it is told to."""
    match task.parameters["how"]:
        case "error":
            raise ValueError("no more paper")
        case "group":
            raise BaseExceptionGroup("several", [ValueError("first"), KeyError("second")])
        case "nursery":
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_fail_soon)
                await trio.sleep_forever()
        case "exit":
            sys.exit(3)
        case "generator":
            raise GeneratorExit
        case "long":
            raise ValueError("x" * (5 << 20))
        case "surrogate":
            raise ValueError("half a \ud800 pair")
        case "cancelled":
            await _stale_cancellation()


async def result(task: InvokableTask) -> Any:
    """Returns what cannot travel, or can."""
    return {
        "object": task,
        "tuple keys": {(1, 2): 3},
        "large": b"x" * (5 << 20),
        "deep": _nested(2000),
        "number": 1 << 70,
        "plain": {"a": [1, 2.5, None, True, b"bytes", {"b": {}}]},
    }[task.parameters["what"]]


async def says(task: InvokableTask) -> None:
    """Sends what is no dict of plain data."""
    for message in ([1], None, {"a": object()}, {"a": b"x" * (5 << 20)}, {"a": {(1,): 2}}):
        try:
            task.send(message)
        except ValueError as error:
            task.send({"refused": str(error)[:200]})
        else:
            task.send({"refused": "not at all"})


async def flood(task: InvokableTask) -> None:
    """Says more than anybody takes."""
    for number in range(task.parameters["count"]):
        task.send({"number": number})
        if not number % 100:
            await trio.lowlevel.checkpoint()
    await trio.sleep_forever()


def ordinary(task: InvokableTask) -> None:
    """Is no async function."""


async def _fail_soon() -> None:
    await trio.lowlevel.checkpoint()
    raise ValueError("no more paper")


async def _stale_cancellation() -> None:
    kept: list[BaseException] = []
    with trio.CancelScope() as scope:
        scope.cancel()
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as error:
            kept.append(error)
            raise
    raise kept[0]


def _nested(depth: int) -> list[Any]:
    actual: list[Any] = []
    for _ in range(depth):
        actual = [actual]
    return actual
