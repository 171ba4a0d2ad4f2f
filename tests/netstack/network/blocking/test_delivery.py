"""Delivery through blocking ends: any sequence of calls, two processes over TCP, Ctrl-C, other loops beside it."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import trio
from hypothesis import example, given, strategies as st

import netstack
from netstack import ChannelDescriptor, KeyGroupSelector, UserEvent, blocking

from .conftest import PATIENCE_S, Background, Pair

CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("emit"), st.integers(1, 3000)),
        st.tuples(st.just("nowait"), st.integers(1, 200)),
        st.tuples(st.just("batch"), st.integers(0, 60_000)),
        st.tuples(st.just("impatient"), st.integers(1, 60_000)),
        st.tuples(st.sampled_from(["event", "flush", "background"]), st.just(0)),
    ),
    max_size=12,
)
BUFFER_TIMEOUTS = st.sampled_from([0, 0.002, 0.1, None])


def write(writer: blocking.RecordWriter, calls: list[tuple[str, int]]) -> int:
    """Writes the numbers from 0 on by these calls. Returns how many were taken."""
    taken = 0
    for call, count in calls:
        numbers = np.arange(taken, taken + count)
        try:
            if call in ("batch", "impatient"):
                writer.emit_batch(numbers, timeout_s=0 if call == "impatient" else PATIENCE_S)
                taken += count
            elif call == "event":
                writer.broadcast_event(UserEvent(str(taken)), timeout_s=PATIENCE_S)
            elif call == "flush":
                writer.flush(timeout_s=PATIENCE_S)
            elif call == "background":  # from another thread, when this one waits for it
                Background(lambda: writer.flush(timeout_s=0.001)).outcome()
            else:
                for number in numbers.tolist():
                    writer.emit_nowait(number) if call == "nowait" else writer.emit(number, timeout_s=PATIENCE_S)
                    taken += 1
        except (TimeoutError, blocking.WouldBlock):
            continue  # nothing of it was taken
    writer.finish(timeout_s=PATIENCE_S)
    return taken


@given(
    calls=CALLS,
    channels=st.integers(1, 3),
    keyed=st.booleans(),
    buffer_timeout_s=BUFFER_TIMEOUTS,
    patience_s=st.sampled_from([0, 0.001, PATIENCE_S]),
)
@example(  # a batch behind a run of records that are not in memory yet
    calls=[("emit", 5), ("batch", 2)], channels=2, keyed=False, buffer_timeout_s=None, patience_s=0
)
@pytest.mark.slow
def test_per_channel_every_record_that_was_taken_once_and_in_order(
    lasting_pair: Pair,
    calls: list[tuple[str, int]],
    channels: int,
    keyed: bool,
    buffer_timeout_s: float | None,
    patience_s: float,
) -> None:
    partition, gate = lasting_pair.join(channels)
    selector = KeyGroupSelector(max_parallelism=16) if keyed else None
    writer = blocking.RecordWriter(partition, format="int64", selector=selector, buffer_timeout_s=buffer_timeout_s)
    writing = Background(lambda: write(writer, calls))
    reader = blocking.RecordReader(gate, format="int64")
    actual: list[list[int]] = [[] for _ in range(channels)]
    events = 0
    while True:
        try:
            records = reader.next_records(timeout_s=patience_s)
        except TimeoutError:
            writing.check()
            continue
        if records is None:
            break
        for record in records:
            if isinstance(record, UserEvent):
                events += 1
                assert all(number < int(record.name) for number in actual[reader.channel_index])
            else:
                actual[reader.channel_index].append(record)
    reader.close()
    taken = writing.outcome()
    writer.wait_consumed(timeout_s=PATIENCE_S)
    if keyed and channels > 1:
        assert sorted(itertools.chain(*actual)) == list(range(taken))
        assert all(numbers == sorted(numbers) for numbers in actual)
    else:
        assert actual == [list(range(start, taken, channels)) for start in range(channels)]
    assert events == channels * sum(call == "event" for call, _ in calls)
    assert partition.statistics().is_released


PRODUCER = """
import sys
from netstack import Secret, blocking

with blocking.open_network("tcp://127.0.0.1:0", secret=Secret(b"s" * 32)) as manager:
    partition = manager.create_partition("numbers", subpartitions=1)
    print(manager.address, flush=True)
    writer = blocking.RecordWriter(partition, format="int64", buffer_timeout_s=0.01)
    for number in range(100_000):
        writer.emit(number)
    writer.finish()
    writer.wait_consumed(timeout_s=60)
"""


def start(program: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def address_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.slow
def test_two_processes_over_tcp() -> None:
    process = start(PRODUCER)
    secret = netstack.Secret(b"s" * 32)
    with blocking.open_network("tcp://127.0.0.1:0", secret=secret) as manager:
        gate = manager.open_gate([ChannelDescriptor(address_of(process), "numbers")], timeout_s=PATIENCE_S)
        assert list(blocking.RecordReader(gate, format="int64")) == list(range(100_000))
    output, errors = process.communicate(timeout=120)
    assert (process.returncode, output, errors) == (0, "", "")


INTERRUPTED = """
from netstack import ChannelDescriptor, blocking

with (
    blocking.open_network("tcp://127.0.0.1:0") as producer,
    blocking.open_network("tcp://127.0.0.1:0") as consumer,
):
    partition = producer.create_partition("p", subpartitions=1)
    writer = blocking.RecordWriter(partition, format="bytes")
    reader = blocking.RecordReader(consumer.open_gate([ChannelDescriptor(producer.address, "p")]))
    taken = []
    try:
        print("reading", flush=True)
        list(reader)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    try:
        while True:
            number = len(taken)
            writer.emit(b"%d " % number + bytes(50_000))
            taken.append(number)
            if number == 8:
                print("writing", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    while len(taken):
        for record in reader.next_records(timeout_s=20):
            # The one that was under way when it was interrupted is there whole, or not at all.
            assert int(record.split()[0]) == (taken.pop(0) if taken else number)
    print("whole", flush=True)
    writer.finish()
    writer.wait_consumed()
"""


@pytest.mark.whole
def test_ctrl_c_ends_any_call_and_tears_nothing() -> None:
    process = start(INTERRUPTED)
    message = [address_of(process)]
    for _ in range(2):
        for _ in range(3):  # until it waits, which nobody can see from outside
            trio.run(trio.sleep, 0.1)
        os.kill(process.pid, signal.SIGINT)
        message += [address_of(process), address_of(process)]
    trio.run(trio.sleep, 0.2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert message == ["reading", "interrupted", "writing", "interrupted", "whole"]
    assert process.returncode == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")


def deliver(pair: Pair) -> list[Any]:
    partition, gate = pair.join()
    writer = blocking.RecordWriter(partition, format="str")
    writer.emit("word")
    writer.finish()
    return list(blocking.RecordReader(gate, format="str"))


def test_beside_asyncio(pair: Pair) -> None:
    async def main() -> list[Any]:
        return await asyncio.to_thread(deliver, pair)

    assert asyncio.run(main()) == ["word"]


def test_beside_trio_and_with_a_task_manager_of_trio(pair: Pair) -> None:
    partition, _ = pair.join()
    writer = blocking.RecordWriter(pair.producer.create_partition("to trio", subpartitions=1), format="str")

    async def main() -> list[Any]:
        assert await trio.to_thread.run_sync(deliver, pair) == ["word"]
        writer.emit("other end")
        writer.finish()
        async with netstack.open_network("tcp://127.0.0.1:0") as manager:
            gate = await manager.open_gate([ChannelDescriptor(pair.producer.address, "to trio")])
            return [word async for word in netstack.RecordReader(gate, format="str")]

    assert trio.run(main) == ["other end"]
    assert partition.subpartitions == 1


def test_a_gate_that_opens_while_a_signal_ends_its_call_is_closed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = pair.consumer.portal.inside
    open_gate = manager.open_gate

    async def open_and_signal(descriptors: Any) -> Any:
        gate = await open_gate(descriptors)
        signal.raise_signal(signal.SIGUSR1)
        return gate

    def end_call(*_: Any) -> None:
        pair.consumer.statistics()  # asked in the loop, after the gate has opened there
        raise InterruptedError

    monkeypatch.setattr(manager, "open_gate", open_and_signal)
    before = signal.signal(signal.SIGUSR1, end_call)
    try:
        with pytest.raises(InterruptedError):
            pair.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert pair.consumer.statistics().gates == ()
