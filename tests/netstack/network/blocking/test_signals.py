"""Signal handlers that raise: no record is lost or comes twice, and no lock stays held."""

from __future__ import annotations

import dis
import gc
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from netstack import LocalProtocolError, UserEvent, blocking
from netstack.network import reader as reader_module
from netstack.network.waiting.interrupts import INTERRUPTS, Deferring

from .conftest import PATIENCE_S, Pair


class SoftLimit(Exception):
    pass


def limit(number: int, frame: FrameType | None) -> None:
    raise SoftLimit


@pytest.fixture
def handled() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, limit)
    gc.disable()  # Python ignores what is raised in a finalizer
    yield
    gc.enable()
    signal.signal(signal.SIGUSR1, before)


class Struck:
    """Raises the signal at one of the points where Python runs signal handlers, inside the data path and outside of it.

    They are the beginning of a function, a jump backwards, and the end of a call that is not one of a Python function.
    """

    def __init__(self, at: int) -> None:
        self.at = at
        self.count = 0
        self.last: dict[FrameType, str] = {}
        self.outside: set[str] = set()
        """The reader's coroutines that ran while the thread was outside."""

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_globals["__name__"] == "_weakrefset":  # called when an object dies, where Python ignores errors
            return None
        frame.f_trace_opcodes = True
        if event == "call":
            if frame.f_back is not None:
                self.last[frame.f_back] = ""
            self._point()
        elif event == "exception":
            self.last[frame] = ""
        elif event == "opcode":
            name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if frame.f_globals["__name__"] == reader_module.__name__ and not INTERRUPTS.is_inside:
                self.outside.add(frame.f_code.co_qualname)
            if name == "JUMP_BACKWARD" or self.last.get(frame, "").startswith("CALL"):
                self._point()
            self.last[frame] = name
        return self.trace

    def _point(self) -> None:
        self.count += 1
        if self.count == self.at:
            signal.raise_signal(signal.SIGUSR1)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # struck between making and starting it
@pytest.mark.slow
def test_law_a_signal_at_any_point_costs_no_record(pair: Pair, handled: None) -> None:
    partition, gate = pair.join()
    writer = blocking.RecordWriter[int](partition, format="int64", buffer_timeout_s=0)
    reader = blocking.RecordReader[int](gate, format="int64")
    number, interrupts = 0, 0
    actual: list[int] = []
    struck = Struck(0)
    while struck.count >= struck.at:
        struck = Struck(1 + number)
        number += 1
        before = sys.gettrace()
        has_waited = False
        while len(actual) < number:
            try:
                sys.settrace(struck.trace)
                actual += reader.next_records(timeout_s=PATIENCE_S if has_waited else 0) or []
            except SoftLimit:
                interrupts += 1
            except TimeoutError:  # it has waited, for nothing
                pass
            finally:
                sys.settrace(before)
            assert not struck.outside
            if not has_waited:
                has_waited = True
                writer.emit(number - 1)
    assert actual == list(range(number))
    assert interrupts == number - 1 > 20


def struck_at_every_point(door: Callable[[], Any], make: Callable[[], object], check: Callable[[Any], None]) -> int:
    """Strikes each point of a call, of something new each time; returns how often the handler's error came out."""
    struck, interrupts = Struck(0), 0
    while struck.count >= struck.at:
        make()
        struck = Struck(struck.at + 1)
        result, before = None, sys.gettrace()
        try:
            sys.settrace(struck.trace)
            result = door()
        except SoftLimit:
            interrupts += 1
        finally:
            sys.settrace(before)
        assert not INTERRUPTS.is_inside
        check(result)
    assert interrupts == struck.at - 1 > 5
    return interrupts


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.slow
def test_law_a_signal_at_any_point_of_emit_repeats_no_record_and_keeps_their_order(pair: Pair, handled: None) -> None:
    partition, gate = pair.join()
    writer = blocking.RecordWriter[int](partition, format="int64", buffer_timeout_s=0)
    reader = blocking.RecordReader[int](gate, format="int64")
    numbers = iter(range(0, 1 << 30, 2))
    actual: list[int] = []

    def check(_: Any) -> None:
        """The struck call wrote its record (an even number) or not; the next one writes."""
        marker = 1 + 2 * next(numbers)
        writer.emit(marker, timeout_s=PATIENCE_S)
        while not actual or actual[-1] != marker:
            actual.extend(reader.next_records(timeout_s=PATIENCE_S) or [])

    interrupts = struck_at_every_point(lambda: writer.emit(next(numbers), timeout_s=PATIENCE_S), lambda: None, check)
    markers = [number for number in actual if number % 2]
    assert len(markers) == interrupts + 1
    assert len(actual) == len(set(actual))
    evens = [number for number in actual if number % 2 == 0]
    assert evens == sorted(evens)


@pytest.mark.parametrize(
    "name", ["open_gate", "close_gate", "create", "release", "broadcast", "finish", "wait_consumed"]
)
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.slow
def test_law_a_signal_at_any_point_of_a_call_holds_up_no_other(name: str, pair: Pair, handled: None) -> None:
    """After each strike another partition is written and read to its end, and the struck call can be made again."""
    joined: list[Any] = []
    names = iter(range(1 << 30))

    def make() -> None:
        partition, channel = pair.join_later()
        gate = None if name == "open_gate" else pair.consumer.open_gate([channel], timeout_s=PATIENCE_S)
        writer = blocking.RecordWriter[int](partition, format="int64", buffer_timeout_s=0)
        if name == "wait_consumed":
            writer.finish(timeout_s=PATIENCE_S)
            assert gate is not None
            assert list(blocking.RecordReader[int](gate, format="int64")) == []
        joined[:] = [channel, gate, writer]

    def door() -> Any:
        channel, gate, writer = joined
        return {
            "open_gate": lambda: pair.consumer.open_gate([channel], timeout_s=PATIENCE_S),
            "close_gate": lambda: gate.close(),
            "create": lambda: pair.producer.create_partition(f"made {next(names)}", subpartitions=1),
            "release": lambda: pair.producer.release_partition(channel.partition_id),
            "broadcast": lambda: writer.broadcast_event(UserEvent("mark", b""), timeout_s=PATIENCE_S),
            "finish": lambda: writer.finish(timeout_s=PATIENCE_S),
            "wait_consumed": lambda: writer.wait_consumed(timeout_s=PATIENCE_S),
        }[name]()

    def check(_: Any) -> None:
        partition, gate = pair.join()
        writer = blocking.RecordWriter[int](partition, format="int64", buffer_timeout_s=0)
        writer.emit(7, timeout_s=PATIENCE_S)
        writer.finish(timeout_s=PATIENCE_S)
        assert list(blocking.RecordReader[int](gate, format="int64")) == [7]
        if name not in ("open_gate", "broadcast"):  # what may have been done is done
            door()

    struck_at_every_point(door, make, check)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.slow
def test_law_a_signal_at_any_point_of_close_leaves_a_network_that_closes(handled: None) -> None:
    """The fixture that looks for leftovers finds no thread and no socket."""
    networks: list[blocking.NetworkEnvironment] = []

    def make() -> None:
        networks[:] = [blocking.open_network("tcp://127.0.0.1:0")]

    def check(_: Any) -> None:
        networks[0].close()
        with pytest.raises(LocalProtocolError):
            networks[0].create_partition("late", subpartitions=1)

    struck_at_every_point(lambda: networks[0].close(), make, check)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.slow
def test_law_a_signal_at_any_point_of_open_network_leaves_nothing_behind(handled: None) -> None:
    before = [thread.name for thread in threading.enumerate() if "tcp://" in thread.name]

    def check(network: blocking.NetworkEnvironment | None) -> None:
        if network is not None:
            network.close()
        assert [thread.name for thread in threading.enumerate() if "tcp://" in thread.name] == before

    struck_at_every_point(lambda: blocking.open_network("tcp://127.0.0.1:0"), lambda: None, check)


def test_handlers_wait_until_the_thread_is_outside_and_run_in_order(handled: None) -> None:
    ran: list[int] = []
    old = signal.signal(signal.SIGUSR2, lambda number, frame: ran.append(number))
    try:
        INTERRUPTS.enter()
        assert type(signal.getsignal(signal.SIGUSR1)) is Deferring
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGUSR2)
        assert not ran
        with pytest.raises(SoftLimit):
            INTERRUPTS.leave()
        assert ran == [signal.SIGUSR2]
        INTERRUPTS.leave()
        with pytest.raises(SoftLimit):
            signal.raise_signal(signal.SIGUSR1)  # outside it runs at once
    finally:
        INTERRUPTS.is_inside = False
        signal.signal(signal.SIGUSR2, old)


PROGRAM = """
import os, signal, threading, time
from netstack import ChannelDescriptor, blocking

class SoftLimit(Exception):
    pass

def limit(number, frame):
    raise SoftLimit

signal.signal(signal.SIGALRM, limit)
producer, consumer = blocking.open_network("tcp://127.0.0.1:0"), blocking.open_network("tcp://127.0.0.1:0")
writer = blocking.RecordWriter(producer.create_partition("p", subpartitions=1), format="int64", buffer_timeout_s=0)
reader = blocking.RecordReader(consumer.open_gate([ChannelDescriptor(producer.address, "p")]), format="int64")

def produce():
    for number in range(1000):
        writer.emit(number)
        time.sleep(0.0005)
    writer.finish()

threading.Thread(target=produce, daemon=True).start()
found, interrupts, is_over = [], 0, False
while not is_over:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.005)
        for number in reader:
            found.append(number)
        is_over = True
        signal.setitimer(signal.ITIMER_REAL, 0)
    except SoftLimit:
        interrupts += 1
print(found == list(range(1000)), interrupts > 3, flush=True)
os._exit(0)
"""


@pytest.mark.slow
def test_a_timer_that_strikes_anywhere_costs_no_record() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["True", "True"], done.stderr
