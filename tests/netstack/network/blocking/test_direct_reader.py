"""A reader in the caller's own thread, at the sockets: when it is chosen, and how everything ends that can end."""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from netstack import (
    Alignment,
    ChannelDescriptor,
    CheckpointBarrier,
    ConfigError,
    ConnectionLost,
    LocalProtocolError,
    NetworkConfig,
    RecordFormat,
    RemoteProtocolError,
    UserEvent,
    blocking,
)
from netstack.base.tls.certificates import make_authority, make_host
from netstack.network.connection import pump

from .conftest import PATIENCE_S, Background, Pair
from .middlebox import Middlebox


def reader_of(pair: Pair, **settings: Any) -> tuple[blocking.RecordWriter, blocking.RecordReader[int]]:
    partition, gate = pair.join()
    writer = blocking.RecordWriter(partition, format="int64", buffer_timeout_s=0)
    return writer, blocking.RecordReader(gate, format="int64", **settings)


def test_the_way_is_chosen_and_told(pair: Pair) -> None:
    writer, reader = reader_of(pair)
    assert reader.statistics().is_direct
    assert repr(reader) == "<RecordReader of 1 channels, directly>"
    _, other = reader_of(pair, direct=False)
    assert other.statistics() == blocking.ReaderStatistics(is_direct=False, waits=0)
    assert repr(other) == "<RecordReader of 1 channels, through the TaskManager's thread>"
    writer.emit(1)
    assert reader.next_records(timeout_s=PATIENCE_S) == [1]


def test_what_another_gate_reads_as_well_is_not_left_to_a_thread(pair: Pair) -> None:
    first, reader = reader_of(pair)
    second, other = reader_of(pair)  # over the same connection, which the loop takes back
    assert (reader.statistics().is_direct, other.statistics().is_direct) == (True, False)
    with pytest.raises(ConfigError, match="that another gate reads"):
        blocking.RecordReader(pair.join()[1], direct=True)
    for number in range(100):
        second.emit(number)
        first.emit(-number)
        assert other.next_records(timeout_s=PATIENCE_S) == [number]
        assert reader.next_records(timeout_s=PATIENCE_S) == [-number]


@pytest.mark.parametrize(
    "address", ["memory://direct", "impaired+tcp://127.0.0.1:0?delay=1ms", "tls+tcp://127.0.0.1:0"]
)
def test_what_is_no_plain_socket_is_read_through_the_thread(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if address.startswith("tls"):
        pytest.importorskip("cryptography")
        make_authority(tmp_path / "authority")
        make_host(tmp_path / "host", tmp_path / "authority", ["127.0.0.1"])
        monkeypatch.setenv("NETSTACK_TLS", str(tmp_path / "host"))
    if address.startswith("memory"):  # is of one loop: both ends are the same TaskManager's
        with blocking.open_network(address) as manager:
            writer = blocking.RecordWriter(manager.create_partition("p", subpartitions=1), format="int64")
            writer.emit(7)
            writer.finish()
            reader = blocking.RecordReader(manager.open_gate([ChannelDescriptor(manager.address, "p")]), format="int64")
            assert not reader.statistics().is_direct
            assert list(reader) == [7]
        return
    with blocking.open_network(address) as producer, blocking.open_network(address) as consumer:
        writer = blocking.RecordWriter(producer.create_partition("p", subpartitions=1), format="int64")
        gate = consumer.open_gate([ChannelDescriptor(producer.address, "p")], timeout_s=PATIENCE_S)
        reader = blocking.RecordReader(gate, format="int64")
        assert not reader.statistics().is_direct
        writer.emit(7)
        writer.finish()
        assert list(reader) == [7]


def test_what_goes_on_after_a_cut_is_the_loops_to_read_and_to_write() -> None:
    pair = Pair(NetworkConfig(resume_grace_s=5.0))
    partition = pair.producer.create_partition("p", subpartitions=1)
    box = Middlebox(pair.producer.address)
    try:
        gate = pair.consumer.open_gate([ChannelDescriptor(box.address, "p")], timeout_s=PATIENCE_S)
        writer = blocking.RecordWriter(partition, format="int64", buffer_timeout_s=0)
        reader = blocking.RecordReader[int](gate, format="int64")
        assert (writer.statistics().is_direct, reader.statistics().is_direct) == (True, False)
        writing = Background(lambda: ([writer.emit(number) for number in range(50_000)], writer.finish()))
        assert list(reader) == list(range(50_000))
        writing.outcome()
    finally:
        box.close()
        pair.close()


CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("records"), st.integers(1, 300)),
        st.tuples(st.just("large"), st.integers(1, 3)),
        st.tuples(st.sampled_from(["aligned", "unaligned", "timeout", "event", "first", "flush"]), st.just(0)),
    ),
    max_size=14,
)


def write(writers: list[blocking.RecordWriter], calls: list[tuple[str, int]]) -> None:
    """The same on each of the partitions."""
    records = itertools.count()
    checkpoints = itertools.count(1)
    for call, count in calls:
        made = [b"%d" % next(records) + bytes(70_000 if call == "large" else 20) for _ in range(count)]
        checkpoint = next(checkpoints)
        for writer in writers:
            for record in made:
                writer.emit(record, timeout_s=PATIENCE_S)
            if call == "flush":
                writer.flush(timeout_s=PATIENCE_S)
            elif call in ("event", "first"):
                event = UserEvent(f"{call} {checkpoint}")
                writer.broadcast_event(event, priority=call == "first", timeout_s=PATIENCE_S)
            elif call in ("aligned", "unaligned", "timeout"):
                alignment = Alignment.UNALIGNED if call == "unaligned" else Alignment.ALIGNED
                barrier = CheckpointBarrier(
                    checkpoint, alignment=alignment, aligned_timeout_ns=1 if call == "timeout" else 0
                )
                writer.broadcast_event(barrier, priority=call == "unaligned", timeout_s=PATIENCE_S)
    for writer in writers:
        writer.finish(timeout_s=PATIENCE_S)


def read(reader: blocking.RecordReader[Any], patience_s: float) -> dict[int, list[Any]]:
    """What comes, by channel."""
    actual: dict[int, list[Any]] = {}
    while True:
        try:
            elements = reader.next_records(timeout_s=patience_s)
        except TimeoutError:
            continue
        if elements is None:
            return actual
        actual.setdefault(reader.channel_index, []).extend(elements)


def plain(elements: list[Any]) -> list[Any]:
    """In the order that is promised: records, aligned barriers and events behind each other; how old is left out."""
    return [
        ("barrier", element.checkpoint_id) if isinstance(element, CheckpointBarrier) else element
        for element in elements
        if not overtakes(element)
    ]


def overtakes(element: Any) -> bool:
    """Whether it has no place among the records: what is behind it when it comes depends on time."""
    if isinstance(element, UserEvent):
        return element.name.startswith("first")
    return isinstance(element, CheckpointBarrier) and (
        element.alignment is Alignment.UNALIGNED or bool(element.aligned_timeout_ns)
    )


def names(elements: list[Any]) -> list[str]:
    """Of what overtakes."""
    return sorted(
        element.name if isinstance(element, UserEvent) else str(element.checkpoint_id)
        for element in elements
        if overtakes(element)
    )


@given(calls=CALLS, partitions=st.integers(1, 3), patience_s=st.sampled_from([0, 0.001, PATIENCE_S]))
@pytest.mark.slow
def test_both_ways_read_the_same(
    lasting_pair: Pair, calls: list[tuple[str, int]], partitions: int, patience_s: float
) -> None:
    """Records, barriers of all kinds, events and the end, of one schedule; several partitions through one gate."""
    seen = []
    for direct in (True, False):
        made = [lasting_pair.join_later() for _ in range(partitions)]
        gate = lasting_pair.consumer.open_gate([descriptor for _, descriptor in made], timeout_s=PATIENCE_S)
        reader = blocking.RecordReader[Any](gate, direct=direct)
        assert reader.statistics().is_direct is direct
        writers = [blocking.RecordWriter(partition, buffer_timeout_s=0.001) for partition, _ in made]
        writing = Background(lambda writers=writers: write(writers, calls))  # type: ignore[misc]
        actual = read(reader, patience_s)
        writing.outcome()
        reader.close()
        for writer in writers:
            writer.wait_consumed(timeout_s=PATIENCE_S)
        seen.append(actual)
    direct_way, door = seen
    assert {channel: plain(elements) for channel, elements in direct_way.items()} == {
        channel: plain(elements) for channel, elements in door.items()
    }
    assert {channel: names(elements) for channel, elements in direct_way.items()} == {
        channel: names(elements) for channel, elements in door.items()
    }


def test_arrays(pair: Pair) -> None:
    partition, gate = pair.join(subpartitions=2)
    writer = blocking.RecordWriter(partition, format="int64")
    reader = blocking.ArrayReader(gate, "<i8")
    assert reader.statistics().is_direct
    writing = Background(lambda: (writer.emit_batch(np.arange(200_000)), writer.finish()))
    each: list[list[Any]] = [[], []]
    for array in reader:
        each[reader.channel_index].append(array)
    writing.outcome()
    assert [np.concatenate(arrays).tolist() for arrays in each] == [list(range(s, 200_000, 2)) for s in (0, 1)]


@contextlib.contextmanager
def behind_a_box(config: NetworkConfig | None = None) -> Iterator[tuple[blocking.RecordWriter, Any, Middlebox]]:
    pair = Pair(config)
    partition = pair.producer.create_partition("p", subpartitions=1)
    box = Middlebox(pair.producer.address)
    try:
        gate = pair.consumer.open_gate([ChannelDescriptor(box.address, "p")], timeout_s=PATIENCE_S)
        writer = blocking.RecordWriter(partition, format="int64", buffer_timeout_s=0)
        reader = blocking.RecordReader[Any](gate, format="int64", direct=True)
        writer.emit(1)
        assert reader.next_records(timeout_s=PATIENCE_S) == [1]
        yield writer, reader, box
    finally:
        box.close()
        pair.close()


def test_a_connection_that_breaks_while_it_waits() -> None:
    with behind_a_box() as (_, reader, box):
        waiting = wait_in_background(reader)
        box.reset()
        with pytest.raises(ConnectionLost, match="reset by peer"):
            waiting.outcome()
        assert reader.next_records(timeout_s=PATIENCE_S) is None  # its only channel has ended


def test_a_peer_that_talks_nonsense() -> None:
    with behind_a_box() as (_, reader, box):
        waiting = wait_in_background(reader)
        box.say(b"\xff" * 64)
        with pytest.raises((ConnectionLost, RemoteProtocolError)):
            waiting.outcome()


def test_a_peer_that_goes_silent_is_lost_while_the_reader_waits_and_while_it_is_away() -> None:
    quick = NetworkConfig(heartbeat_interval_s=0.2, heartbeat_timeout_s=1.5)
    for is_waiting in (True, False):
        with behind_a_box(quick) as (_, reader, box):
            waiting = Background(reader.next_records) if is_waiting else None
            box.go_mute()
            with pytest.raises(ConnectionLost, match="did not answer"):
                waiting.outcome() if waiting is not None else ask_until_failed(reader)


def ask_until_failed(reader: Any) -> None:
    """Is away most of the time: what the peer does is the loop's to notice."""
    for _ in range(round(PATIENCE_S / 0.2)):
        with contextlib.suppress(TimeoutError):
            reader.next_records(timeout_s=0)
        time.sleep(0.2)


def test_a_reader_that_is_away_is_no_dead_peer() -> None:
    """The loop looks in for it: pings are answered, and what came waits."""
    pair = Pair(NetworkConfig(heartbeat_interval_s=0.05, heartbeat_timeout_s=PATIENCE_S))
    try:
        writer, reader = reader_of(pair)
        writer.emit(1)
        assert reader.next_records(timeout_s=PATIENCE_S) == [1]
        writer.emit(2)
        measured: set[float | None] = set()
        while len(measured) < 10:  # it is away while these pings are answered
            measured.add(pair.producer.statistics().accepted[0].connection.round_trip_s)
            time.sleep(0.01)
        writer.emit(3)
        assert reader.next_records(timeout_s=PATIENCE_S) == [2]
        assert reader.next_records(timeout_s=PATIENCE_S) == [3]
    finally:
        pair.close()


@pytest.mark.parametrize("what", ["reader", "gate", "manager"])
def test_closing_in_another_thread_wakes_it(pair: Pair, what: str) -> None:
    _, gate = pair.join()
    reader = blocking.RecordReader[int](gate, format="int64", direct=True)
    waiting = wait_in_background(reader)
    {"reader": reader.close, "gate": gate.close, "manager": pair.consumer.close}[what]()
    with pytest.raises(LocalProtocolError, match="closed"):
        waiting.outcome()
    with pytest.raises(LocalProtocolError, match="closed"):
        reader.next_records()


def wait_in_background(reader: blocking.RecordReader[Any]) -> Background:
    """A call that has gone to sleep, once at least."""
    before = reader.statistics().waits
    waiting = Background(reader.next_records)
    while reader.statistics().waits == before:
        time.sleep(0.001)
    return waiting


@pytest.fixture
def unattended(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pair]:
    """Nobody looks in for a thread, or pings: what it does not say is not said."""
    monkeypatch.setattr(pump, "LOOK_IN_S", 3600.0)
    made = Pair(NetworkConfig(heartbeat_interval_s=None))
    yield made
    made.close()


def test_what_a_trickle_gives_back_is_told_when_the_reader_waits_again(unattended: Pair) -> None:
    writer, reader = reader_of(unattended, direct=True)

    def sent() -> int:
        return unattended.consumer.statistics().dialled[0].connection.bytes_sent

    waiting = wait_in_background(reader)
    at_first = sent()
    for number in range(20):
        before = sent()
        writer.emit(number)
        assert waiting.outcome() == [number]
        assert sent() == before, "a record is there before anything else is done"
        waiting = wait_in_background(reader)
    assert sent() > at_first, "and its credit was told"
    writer.finish()
    assert waiting.outcome() is None


def test_who_stops_reading_a_trickle_says_so(unattended: Pair) -> None:
    writer, reader = reader_of(unattended, direct=True)
    for number in range(3):
        waiting = wait_in_background(reader)
        writer.emit(number)
        assert waiting.outcome() == [number]
    reader.close()
    writer.finish()
    writer.wait_consumed(timeout_s=PATIENCE_S)


def test_a_format_that_calls_its_own_task_manager_is_told(pair: Pair) -> None:
    partition, gate = pair.join()

    class Asking(RecordFormat):
        name = "asking"

        def encode(self, record: Any) -> bytes:
            return bytes(record)

        def decode(self, view: memoryview) -> Any:
            return pair.consumer.statistics()

    writer = blocking.RecordWriter(partition, buffer_timeout_s=0)
    reader = blocking.RecordReader[Any](gate, format=Asking(), direct=True)
    writer.emit(b"12345678")
    with pytest.raises(LocalProtocolError, match="inside another call"):
        reader.next_records(timeout_s=PATIENCE_S)


def test_ctrl_c_in_a_call_that_spins_is_raised_when_it_parks(pair: Pair) -> None:
    partition, gate = pair.join()
    reader = blocking.RecordReader[bytes](gate)
    parking, loop_lock = reader._parking, pair.consumer.portal.inside.loop_lock
    loop_lock.enter(parking.held)
    signal.raise_signal(signal.SIGINT)  # deferred, because this thread is inside
    raised = []
    for step in (parking._relax, loop_lock.leave):  # the first leaves for a moment
        try:
            step()
        except KeyboardInterrupt:  # anywhere else it would end the tests
            raised.append(step)
    assert raised == [loop_lock.leave]
    writer = blocking.RecordWriter(partition)
    writer.emit(b"1")
    writer.finish()
    assert list(reader) == [b"1"]


INTERRUPTED = """
import os, signal, threading, time
from netstack import ChannelDescriptor, RecordFormat, blocking

class Interrupted(RecordFormat):
    name = "interrupted"
    times = 0

    def encode(self, record):
        return b"%d" % record

    def decode(self, view):  # in the main thread, in the middle of a buffer
        self.times += 1
        if self.times % 50 == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return int(bytes(view))

with (
    blocking.open_network("tcp://127.0.0.1:0") as producer,
    blocking.open_network("tcp://127.0.0.1:0") as consumer,
):
    writer = blocking.RecordWriter(producer.create_partition("p", subpartitions=1), format=Interrupted())
    gate = consumer.open_gate([ChannelDescriptor(producer.address, "p")])
    reader = blocking.RecordReader(gate, format=Interrupted(), direct=True)

    def interrupt():
        while not reader.statistics().waits:
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    waker = threading.Thread(target=interrupt)
    waker.start()
    try:
        reader.next_records()
    except KeyboardInterrupt:
        print("interrupted")
    waker.join()
    for number in range(20_000):
        writer.emit(number)
    writer.finish()
    found, interrupts = [], 0
    while True:
        try:
            records = reader.next_records()
        except KeyboardInterrupt:
            interrupts += 1
            continue
        if records is None:
            break
        found += records
    print(found == list(range(20_000)), interrupts > 3)
    writer.wait_consumed(timeout_s=60)
"""


@pytest.mark.slow
def test_ctrl_c_ends_a_wait_and_strikes_nothing_half_way() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout.split(), done.stderr) == (["interrupted", "True", "True"], "")


def test_many_readers_in_threads_and_the_loop_share_one_data_path() -> None:
    """Each gate of its own TaskManager's connection; statistics are asked meanwhile."""
    consumer = blocking.open_network("tcp://127.0.0.1:0")
    producers = [blocking.open_network("tcp://127.0.0.1:0") for _ in range(3)]
    try:
        readers, writings = [], []
        for producer in producers:
            partition = producer.create_partition("p", subpartitions=1)
            writer = blocking.RecordWriter(partition, format="int64", buffer_timeout_s=0)
            gate = consumer.open_gate([ChannelDescriptor(producer.address, "p")], timeout_s=PATIENCE_S)
            reader = blocking.RecordReader[int](gate, format="int64", direct=True)
            readers.append(Background(lambda reader=reader: list(reader)))  # type: ignore[misc]
            numbers = range(random.Random(1).randrange(20_000, 30_000))

            def write_all(writer: Any = writer, numbers: range = numbers) -> int:
                for number in numbers:
                    writer.emit(number)
                writer.finish()
                return len(numbers)

            writings.append(Background(write_all))
        asked = 0
        while any(writing._thread.is_alive() for writing in writings):
            asked += len(consumer.statistics().gates)
        for writing, reading in zip(writings, readers, strict=True):
            assert reading.outcome() == list(range(writing.outcome()))
        assert asked
    finally:
        consumer.close()
        for producer in producers:
            producer.close()
