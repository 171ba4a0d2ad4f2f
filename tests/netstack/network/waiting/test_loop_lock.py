"""The lock of the data path: one at a time, whoever keeps it and whoever comes, and nobody waits for ever."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from netstack.base.errors import LocalProtocolError, PoolDestroyed, RecordError
from netstack.network.waiting.held_lock import HeldLock, holding_emitter
from netstack.network.waiting.loop_lock import LoopLock

PATIENCE_S = 120.0
RECORDS = 1_000


def holding(loop_lock: LoopLock) -> HeldLock:
    """A visitor that has the lock and is in no call."""
    held = HeldLock(loop_lock.entry)
    loop_lock.enter(held)
    loop_lock.leave_quietly(held)
    assert held.is_held
    return held


def emitter(held: HeldLock, take: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return holding_emitter(held, take, {}, lambda: None)


def test_who_stays_writes_without_entering_until_somebody_else_comes() -> None:
    loop_lock = LoopLock(float)
    held = holding(loop_lock)
    written: list[int] = []
    emit = emitter(held, lambda record: written.append(record) is None)
    assert emit(1)
    loop_lock.enter()  # takes the lock away
    assert not held.is_held
    assert not emit(2)
    loop_lock.leave_quietly()
    assert not emit(3)
    loop_lock.enter(held)
    loop_lock.leave_quietly(held)
    assert emit(4)
    assert written == [1, 4]


def test_another_thread_does_not_write_in_the_place_of_who_stays() -> None:
    held = holding(LoopLock(float))
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(emitter(held, lambda record: True)(1)))
    thread.start()
    thread.join(PATIENCE_S)
    assert answers == [False]


def test_who_is_in_a_call_is_inside_and_one_who_waits_gets_in_when_it_ends() -> None:
    loop_lock = LoopLock(float)
    held = holding(loop_lock)
    assert not loop_lock.is_mine
    others: list[threading.Thread] = []

    def take(record: Any) -> bool:
        assert loop_lock.is_mine
        others.append(threading.Thread(target=lambda: (loop_lock.enter(), loop_lock.leave_quietly())))
        others[0].start()
        while not loop_lock.entry.is_wanted:
            pass
        return True

    assert emitter(held, take)(1)
    others[0].join(PATIENCE_S)
    assert not others[0].is_alive()
    assert not held.is_held


def test_a_refused_record_is_not_written_and_other_errors_are_raised() -> None:
    held = holding(LoopLock(float))
    errors: list[Exception] = [LocalProtocolError("finished"), PoolDestroyed("released"), RecordError("no int")]

    def take(record: Any) -> bool:
        raise errors[record]

    emit = emitter(held, take)
    assert (emit(0), emit(1)) == (False, False)
    with pytest.raises(RecordError, match="no int"):
        emit(2)
    assert not held.is_active
    with pytest.raises(TypeError):
        emit()  # type: ignore[call-arg]


def test_connections_with_something_to_send_are_flushed_after_the_record() -> None:
    held = holding(LoopLock(float))
    unsent: dict[Any, None] = {}
    steps: list[str] = []

    def take(record: Any) -> bool:
        steps.append("record")
        unsent[record] = None
        return True

    assert holding_emitter(held, take, unsent, lambda: steps.append("flush"))(1)
    assert steps == ["record", "flush"]


@pytest.fixture
def many_switches() -> Iterator[None]:
    """The interpreter switches between threads as often as it can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("many_switches")
@pytest.mark.parametrize("threads", [2, 4])
def test_one_at_a_time(threads: int) -> None:
    """Threads that keep the lock, and one that never does, add to a number in two steps."""
    loop_lock = LoopLock(float)
    total = [0]

    def add(_: Any) -> bool:
        seen = total[0]
        for _ in range(3):  # where the interpreter may switch
            threading.get_ident()
        total[0] = seen + 1
        return True

    def stay_and_add() -> None:
        held = HeldLock(loop_lock.entry)
        emit = emitter(held, add)
        for _ in range(RECORDS):
            if not emit(None):
                loop_lock.enter(held)
                add(None)
                loop_lock.leave_quietly(held)

    def visit_and_add() -> None:
        for _ in range(RECORDS):
            loop_lock.enter()
            add(None)
            loop_lock.leave_quietly()

    running = [threading.Thread(target=stay_and_add, daemon=True) for _ in range(threads)]
    running.append(threading.Thread(target=visit_and_add, daemon=True))
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "a thread waits for ever"
    assert total == [RECORDS * (threads + 1)]


def test_who_would_stay_lets_in_who_waits_already() -> None:
    loop_lock = LoopLock(float)
    held = HeldLock(loop_lock.entry)
    loop_lock.enter(held)
    other = threading.Thread(target=lambda: (loop_lock.enter(), loop_lock.leave_quietly()), daemon=True)
    other.start()
    while not loop_lock.entry.is_wanted:
        pass
    loop_lock.leave_quietly(held)
    other.join(PATIENCE_S)
    assert not other.is_alive()
    assert not held.is_held
