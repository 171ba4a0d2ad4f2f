"""Signal handlers that raise: no record is lost or comes twice, and no lock stays held."""

from __future__ import annotations

import dis
import signal
import subprocess
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from netstack import blocking
from netstack.runtime.interrupts import INTERRUPTS, Deferring

from .conftest import PATIENCE_S, Pair


class SoftLimit(Exception):
    pass


def limit(number: int, frame: FrameType | None) -> None:
    raise SoftLimit


@pytest.fixture
def handled() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, limit)
    yield
    signal.signal(signal.SIGUSR1, before)


class Struck:
    """Raises the signal at one of the points where Python runs signal handlers, inside the data path and outside of it.

    They are the beginning of a function, a jump backwards, and the end of a call that is not one of a Python function.
    """

    def __init__(self, at: int) -> None:
        self.at = at
        self.count = 0
        self.last: dict[FrameType, str] = {}

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        frame.f_trace_opcodes = True
        if event == "call" and frame.f_back is not None:
            self.last[frame.f_back] = ""
        elif event == "exception":
            self.last[frame] = ""
        elif event == "opcode":
            name = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if name in ("RESUME", "JUMP_BACKWARD") or self.last.get(frame, "").startswith("CALL"):
                self.count += 1
                if self.count == self.at:
                    signal.raise_signal(signal.SIGUSR1)
            self.last[frame] = name
        return self.trace


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # struck between making and starting it
@pytest.mark.slow
def test_law_a_signal_at_any_point_costs_no_record(pair: Pair, handled: None) -> None:
    partition, gate = pair.join()
    writer = blocking.RecordWriter[int](partition, format="int64", buffer_timeout_s=0)
    reader = blocking.RecordReader[int](gate, format="int64")
    number, interrupts = 0, 0
    found: list[int] = []
    struck = Struck(0)
    while struck.count >= struck.at:
        writer.emit(number)
        struck = Struck(1 + number)
        number += 1
        before = sys.gettrace()
        while len(found) < number:
            try:
                sys.settrace(struck.trace)
                found += reader.next_records(timeout_s=PATIENCE_S) or []
            except SoftLimit:
                interrupts += 1
            finally:
                sys.settrace(before)
    assert found == list(range(number))
    assert interrupts == number - 1 > 20


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
