"""What the jobs of these tests are made of: functions and classes that are found by name."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import trio

from netstack.cluster.task.context import OperatorContext
from netstack.cluster.task.operators import Output


def numbers(count: int = 1000) -> range:
    return range(count)


def numbers_of_subtask(context: OperatorContext, count: int = 200) -> range:
    return range(context.subtask * count, (context.subtask + 1) * count)


class Lengths:
    """A source: records of these lengths, each read alone, as bytes or as a row of an array."""

    def __init__(self, lengths: list[int], *, as_arrays: bool = False) -> None:
        self._left = list(lengths)
        self._as_arrays = as_arrays

    def read(self) -> Any:
        if not self._left:
            return None
        record = bytes(self._left.pop(0))
        return np.frombuffer(record, np.uint8).reshape(1, -1) if self._as_arrays else [record]

    def snapshot(self, unsent: int) -> int:
        return unsent


class Polled:
    """A source with one record in each third read and none in the others; it counts its reads."""

    reads: ClassVar[Counter[str]] = Counter()

    def __init__(self, count: int, name: str = "polled") -> None:
        self._count, self._name, self._turn = count, name, 0

    def read(self) -> list[int] | None:
        self.reads[self._name] += 1
        self._turn += 1
        if self._turn % 3:
            return []
        return [self._turn // 3] if self._turn <= 3 * self._count else None

    def snapshot(self, unsent: int) -> int:
        return unsent


def boxes() -> list[list[int]]:
    return [[number] for number in range(3)]


def add_in_place(box: list[int]) -> list[int]:
    box[0] += 100
    return box


def double(number: int) -> int:
    return 2 * number


def plus(number: int, addend: int) -> int:
    return number + addend


def is_even(number: int) -> bool:
    return number % 2 == 0


def twice(number: int) -> list[int]:
    return [number, number]


def modulo(number: int, by: int = 7) -> int:
    return number % by


def key_of(number: int) -> int:
    return number % 7


def last_channel(number: int, channels: int) -> int:
    return channels - 1 if number % 3 else 0


def split_by_size(number: int, out: Output) -> None:
    if number < 100:
        out.collect(number)
    elif number < 200:
        out.collect_to("middle", number)
    else:
        out.collect_to("nobody reads this", number)


def where(number: int, context: OperatorContext) -> list[int]:
    return [context.subtask, number]


class Collect:
    """A sink: all it got, in order."""

    def __init__(self) -> None:
        self.records: list[Any] = []

    def process(self, record: Any) -> None:
        self.records.append(record)

    def finish(self) -> list[Any]:
        return self.records

    def snapshot(self) -> list[Any]:
        return list(self.records)

    def restore(self, states: list[list[Any]]) -> None:
        self.records = [record for state in states for record in state]


class CollectAsync(Collect):
    async def process(self, record: Any) -> None:  # type: ignore[override]
        await trio.lowlevel.checkpoint()
        self.records.append(record)


class CollectBatches:
    """A sink: the lengths of what it got at once, and the records."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.kinds: set[str] = set()

    def process_batch(self, records: Any) -> None:
        self.kinds.add(type(records).__name__)
        self.records += records.tolist() if isinstance(records, np.ndarray) else records

    def finish(self) -> dict[str, Any]:
        return {"kinds": sorted(self.kinds), "records": self.records}


class DoubleAsync:
    async def process(self, record: int, out: Output) -> None:
        await trio.sleep(0.0001)
        await out.emit(2 * record)


class RemainderKey:
    """A key function that also takes arrays."""

    def __call__(self, number: int) -> int:
        return number % 7

    def key_batch(self, numbers: Any) -> Any:
        return numbers % 7


remainder_key = RemainderKey()


class CountArrays:
    """Counts the keys of arrays of numbers in keyed state."""

    takes_arrays = True

    def __init__(self, divisor: int = 1 << 62) -> None:
        self.divisor = divisor

    def open(self, context: OperatorContext) -> None:
        self.counts = context.keyed_state("counts", 0)

    def process_batch(self, records: Any) -> None:
        for key, count in zip(*np.unique(np.asarray(records) % self.divisor, return_counts=True), strict=True):
            self.counts[int(key)] += int(count)

    def finish(self) -> list[list[int]]:
        return [[key, count] for key, count in self.counts.items()]


class EmitsWithoutAwait:
    """A sync operator that calls what async ones await."""

    def process(self, number: int, out: Output) -> None:
        out.emit(number)
        out.emit_batch([number, number])


class EmitsLate:
    """An async operator that forgets to await."""

    async def process(self, number: int, out: Output) -> None:
        _ = out.emit(number)


async def never_runs(number: int) -> None:
    raise AssertionError(f"nothing awaits it for {number}")


def starts_nothing(number: int) -> Any:
    return never_runs(number)


def yields(number: int) -> Iterator[int]:
    yield number


async def yields_later(number: int) -> AsyncIterator[int]:
    yield number


def returns_a_value(number: int, out: Output) -> int:
    return 2 * number


class StartsNothing:
    def process_batch(self, numbers: list[int], out: Output) -> Any:
        return never_runs(len(numbers))


class DoubleBatch:
    def process_batch(self, records: Any, out: Output) -> None:
        out.collect_batch(2 * records if isinstance(records, np.ndarray) else [2 * record for record in records])


class Arrays:
    """A source of arrays of int64."""

    def __init__(self, count: int = 1000) -> None:
        self.next, self.count = 0, count

    def read(self) -> Any:
        if self.next == self.count:
            return None
        first, self.next = self.next, min(self.next + 64, self.count)
        return np.arange(first, self.next)

    def snapshot(self, unsent: int) -> int:
        return self.next - unsent

    def restore(self, states: list[int]) -> None:
        (self.next,) = states


class Count:
    """Counts records by key, in keyed state; emits the new count."""

    def open(self, context: OperatorContext) -> None:
        self.counts = context.keyed_state("counts", 0)

    def process(self, number: int, out: Output) -> None:
        key = key_of(number)
        self.counts[key] += 1
        out.collect([key, self.counts[key]])


class CountAtEnd(Count):
    """Gives its counts as a result."""

    def process(self, number: int, out: Output) -> None:
        self.counts[key_of(number)] += 1

    def finish(self) -> list[list[int]]:
        return [[key, count] for key, count in sorted(self.counts.items())]


class Join:
    """Two inputs, each by a method of its own."""

    def __init__(self) -> None:
        self.seen = [0, 0]

    def process1(self, record: Any, out: Output) -> None:
        self.seen[0] += 1
        out.collect(["left", record])

    def process2(self, record: Any, out: Output) -> None:
        self.seen[1] += 1
        out.collect(["right", record])


class JoinByContext:
    """Two inputs, told apart by the context."""

    def open(self, context: OperatorContext) -> None:
        self.context = context

    def process(self, record: Any, out: Output) -> None:
        out.collect([{1: "left", 2: "right"}[self.context.input], record])


class SlowNumbers:
    """A source: numbers, a few at a time, with a pause; it can go on from any position."""

    def __init__(self, count: int = 400, pause_s: float = 0.001, at_once: int = 7) -> None:
        self.next, self.count, self.pause_s, self.at_once = 0, count, pause_s, at_once

    def open(self, context: OperatorContext) -> None:
        self.first = context.subtask * 1_000_000

    async def read(self) -> list[int] | None:
        await trio.sleep(self.pause_s)
        if self.next == self.count:
            return None
        first, self.next = self.next, min(self.next + self.at_once, self.count)
        return [self.first + number for number in range(first, self.next)]

    def snapshot(self, unsent: int) -> int:
        return self.next - unsent

    def restore(self, states: list[int]) -> None:
        (self.next,) = states


class ReusesAnArray:
    """Emits arrays of ten numbers, from the same memory again and again."""

    def __init__(self) -> None:
        self.numbers = np.zeros(10, np.int64)

    def process(self, number: int, out: Output) -> None:
        self.numbers[number % 10] = number
        if number % 10 == 9:
            out.collect_batch(self.numbers)
            self.numbers[:] = -1


class ReusesItsResult:
    """Emits what it gets, from the same memory again and again."""

    takes_arrays = True

    def __init__(self) -> None:
        self.numbers = np.zeros(4096, np.int64)

    def process_batch(self, numbers: Any, out: Output) -> None:
        self.numbers[: len(numbers)] = numbers
        out.collect_batch(self.numbers[: len(numbers)])


class LiveState:
    """A sink that gives its own lists away, and goes on to change them."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.committed: list[Any] = []

    def process(self, number: int) -> None:
        self.seen.append(number)

    def snapshot(self) -> list[int]:
        return self.seen

    def restore(self, states: list[list[int]]) -> None:
        (self.seen,) = states

    def prepare_commit(self) -> list[int]:
        return self.seen

    def commit(self, committables: list[list[int]]) -> None:
        self.committed += committables

    def finish(self) -> dict[str, Any]:
        return {"seen": self.seen, "committed": self.committed}


class Unstorable:
    def process(self, record: Any, out: Output) -> None:
        out.collect(record)

    def snapshot(self) -> Any:
        return {"deep": [1, {"bad": {1, 2}}]}


def pair_key(pair: list[Any]) -> str:
    side: str = pair[0]
    return side


class CountPairs:
    def open(self, context: OperatorContext) -> None:
        self.counts = context.keyed_state("counts", 0)

    def process(self, pair: list[Any], out: Output) -> None:
        self.counts[pair[0]] += 1

    def finish(self) -> list[list[Any]]:
        return [[key, count] for key, count in sorted(self.counts.items())]


class Committed:
    """A sink that is told of complete checkpoints."""

    def __init__(self) -> None:
        self.complete: list[int] = []

    def process(self, record: Any) -> None:
        pass

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        self.complete.append(checkpoint_id)

    def finish(self) -> list[int]:
        return self.complete


LEDGER: list[list[Any]] = []
"""What sinks in two phases have committed, each time."""


class TwoPhase:
    """A sink that commits what came since the checkpoint before."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def process(self, record: int) -> None:
        self.rows.append(record)

    def prepare_commit(self) -> list[int] | None:
        rows, self.rows = self.rows, []
        return rows or None

    def commit(self, committables: list[list[int]]) -> None:
        LEDGER.extend(committables)

    def finish(self) -> str:
        LEDGER.append(["finish"])
        return "finished"


class SumsUp:
    """Emits at its end what it has summed up."""

    def __init__(self) -> None:
        self.sum = 0

    def process(self, record: int, out: Output) -> None:
        self.sum += record

    def finish(self, out: Output) -> None:
        out.collect(self.sum)

    def snapshot(self) -> int:
        return self.sum

    def restore(self, states: list[int]) -> None:
        self.sum = sum(states)


class ToldSource(SlowNumbers):
    """A source that acknowledges what was read."""

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        LEDGER.append([self.next])


class Slow:
    async def process(self, record: Any, out: Output) -> None:
        await trio.sleep(0.001)
        out.collect(record)


def fail(number: int) -> Any:
    return 1 // (number - number)


def fail_with_output(number: int, out: Output) -> Any:
    return 1 // (number - number)


def stop_in_the_middle(number: int) -> int:
    return next(iter([])) if number == 500 else number


class Fails:
    """A source that raises in one of its methods."""

    def __init__(self, where: str, exits: bool = False) -> None:
        self.where = where
        self.exits = exits
        self._at("made")

    def _at(self, where: str) -> None:
        if self.where == where:
            raise (SystemExit if self.exits else RuntimeError)(f"in {where}")

    def open(self, context: OperatorContext) -> None:
        self._at("open")

    def read(self) -> None:
        self._at("read")

    def snapshot(self, unsent: int) -> None:
        pass

    def finish(self) -> None:
        self._at("finish")


class Returns:
    """A source whose `read` returns what a test sets."""

    returned: Any = None

    def read(self) -> Any:
        return self.returned

    def snapshot(self, unsent: int) -> None:
        pass


class EmitsInCommit:
    """Emits each record, and one of its own in each commit."""

    def process(self, record: Any, out: Output) -> None:
        self._out = out
        out.collect(record)

    def prepare_commit(self) -> int:
        return 1

    def commit(self, committables: list[int]) -> None:
        self._out.collect(-1)


class JoinsOne:
    """Lacks `process2`."""

    def process1(self, record: Any, out: Output) -> None:
        pass


class TellsStates:
    """A sink that gives what it was restored with."""

    def __init__(self) -> None:
        self.restored: list[Any] = []

    def process(self, record: Any) -> None:
        pass

    def snapshot(self) -> str:
        return "mine"

    def restore(self, states: list[Any]) -> None:
        self.restored.append(states)

    def finish(self) -> list[Any]:
        return self.restored


class Seen:
    """Behind key_by: every record it has seen, by key, in order; slow enough for queues to be full."""

    def __init__(self, pause_s: float = 0.0005) -> None:
        self.pause_s = pause_s

    def open(self, context: OperatorContext) -> None:
        self.seen = context.keyed_state("seen", list)

    async def process(self, number: int, out: Output) -> None:
        if self.pause_s:
            await trio.sleep(self.pause_s)
        self.seen[key_of(number)].append(number)
        await out.emit(number)

    def finish(self) -> list[list[int]]:
        return [*self.seen.values()]


CLOCK = [0.0]
"""What the tasks of a test take for the processor's clock."""

LOG: list[str] = []


class BusySink:
    def __init__(self, record_s: float) -> None:
        self.record_s = record_s

    def process(self, record: int) -> None:
        CLOCK[0] += self.record_s


class SlowSink:
    async def process(self, record: int) -> None:
        await trio.sleep(0.01)


class Bursts:
    """One record becomes more than all buffers hold."""

    def process(self, record: int, out: Output) -> None:
        if record == 500:
            for number in range(1000):
                out.collect(number)
        else:
            out.collect(record)


class Everything:
    """Every method is async, but for the one that is called most."""

    async def open(self, context: OperatorContext) -> None:
        await trio.sleep(0.1)
        LOG.append(f"open {context}")

    def process(self, record: int) -> None:
        if record == 0:
            LOG.append("process")

    async def finish(self) -> None:
        await trio.sleep(0.1)
        LOG.append("finish")

    async def close(self) -> None:
        await trio.sleep(0.1)
        LOG.append("close")


OPEN = [0]
"""How many operators are open."""


class Closes:
    async def open(self, context: OperatorContext) -> None:
        OPEN[0] += 1
        await trio.lowlevel.checkpoint()

    async def process(self, record: Any, out: Output) -> None:
        await trio.sleep(0.0001)
        await out.emit(record)

    async def close(self) -> None:
        OPEN[0] -= 1
        await trio.lowlevel.cancel_shielded_checkpoint()


class AllAtTheEnd(Arrays):
    """A source that gives nothing before it finishes."""

    def read(self) -> None:
        return None

    def finish(self, out: Output) -> None:
        out.collect_batch(np.arange(self.count))


class LongReads:
    """A source of two records, each awaited for a minute; it says when reads begin, end and are cancelled."""

    def __init__(self) -> None:
        self.next = 0

    async def read(self) -> list[int] | None:
        LOG.append("begin")
        try:
            await trio.sleep(60)
        except trio.Cancelled:
            LOG.append("cancelled")
            raise
        LOG.append("end")
        self.next += 1
        return [self.next] if self.next < 3 else None

    def snapshot(self, unsent: int) -> int:
        LOG.append("snapshot")
        return self.next - unsent

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        LOG.append(f"complete {checkpoint_id}")

    def restore(self, states: list[int]) -> None:
        (self.next,) = states


class InterruptedReads(LongReads):
    can_be_interrupted = True


def ticking(count: int, record_s: float) -> Iterator[int]:
    """A source that takes its time for each record, on the clock of the test."""
    for number in range(count):
        CLOCK[0] += record_s
        yield number


class Indexed(Sequence[int]):
    """Says what it was asked for."""

    asked: ClassVar[list[int]] = []

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: Any) -> Any:
        if index >= self.count:
            raise IndexError(index)
        self.asked.append(index)
        return index


def indexed(count: int) -> Sequence[int]:
    return Indexed(count)


def as_array(count: int) -> Any:
    return np.arange(count)


def shown(record: Any, end: str = "\n") -> None:
    sys.stdout.write(f"{record}{end}")
