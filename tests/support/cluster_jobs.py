"""Jobs that tests run in real processes: functions that TaskManagers import by name, and the jobs made of them."""

from __future__ import annotations

import ctypes
import logging
import os
import re
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import trio

from netstack.schedule import StreamEnvironment, StreamSettings
from netstack.schedule.checkpoint.instructions import CheckpointSettings
from netstack.schedule.graph.settings import RestartSettings
from netstack.schedule.graph.stream_builder import OperatorStream
from netstack.schedule.graph.stream_graph import Partitioner

LINES = 2000


def lines(context: Any) -> Iterator[str]:
    """Lines of a text, shared out among the subtasks."""
    for number in range(context.subtask, LINES, context.parallelism):
        yield f"the quick brown fox {number % 7}"


def split(line: str) -> list[str]:
    return line.split()


class Count:
    """How often each word came; told at the end."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def process(self, item: str, out: Any) -> None:
        self.counts[item] = self.counts.get(item, 0) + 1

    def finish(self, out: Any) -> None:
        for item, count in self.counts.items():
            out.collect([item, count])


class Collect:
    """Returns what came, sorted."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    def process(self, item: Any) -> None:
        self.items.append(item)

    def finish(self, out: Any) -> list[Any]:
        return sorted(self.items)


def expected_counts() -> list[list[Any]]:
    """What `word_count` returns."""
    counts: dict[str, int] = {}
    for number in range(LINES):
        for item in f"the quick brown fox {number % 7}".split():
            counts[item] = counts.get(item, 0) + 1
    return sorted([item, count] for item, count in counts.items())


def word_count(parallelism: int = 2) -> StreamEnvironment:
    job = StreamEnvironment("word count", parallelism=parallelism)
    counted = job.source(lines).flat_map(split).key_by(same).process(Count, name="count")
    counted.sink(Collect, name="result").set_parallelism(1)
    return job


def endless(context: Any) -> Iterator[int]:
    number = 0
    while True:
        number += 1
        yield number


def same(item: Any) -> Any:
    return item


def ignore(item: Any) -> None:
    pass


def forever(parallelism: int = 1, restarts: int = 0) -> StreamEnvironment:
    """Runs until it is told to end, or has failed more often than that."""
    restart = RestartSettings(kind="fixed_delay", delay_s=0.1, attempts=restarts) if restarts else None
    job = StreamEnvironment("forever", parallelism=parallelism, settings=StreamSettings(restart=restart))
    job.source(endless).rebalance().sink(ignore)
    return job


def two_vertices(first: int = 6, second: int = 3) -> StreamEnvironment:
    """A6 to B3, all to all."""
    job = StreamEnvironment("two vertices")
    job.source(endless, name="A").set_parallelism(first).rebalance().sink(ignore, name="B").set_parallelism(second)
    return job


def two_groups(first: int = 10, second: int = 20) -> StreamEnvironment:
    """Two slot sharing groups: takes `first` + `second` slots."""
    job = StreamEnvironment("two groups")
    source = job.source(endless, name="A").set_parallelism(first).slot_sharing_group("left")
    source.rebalance().sink(ignore, name="B").set_parallelism(second).slot_sharing_group("right")
    return job


class OddResult:
    """Returns what JSON has no words for."""

    def process(self, item: Any) -> None:
        pass

    def finish(self, out: Any) -> dict[Any, Any]:
        return {b"word": 1, "part": float("nan"), 2.5: b"\xff", None: [float("inf")]}


ODD_AS_JSON = {"word": 1, "part": None, "2.5": "\\xff", "null": [None]}


def odd_results(seconds: float = 2.0) -> StreamEnvironment:
    """Two pipelines: one has an odd result at once, the other computes for a while."""
    job = StreamEnvironment("odd results")
    job.source(three, name="short").sink(OddResult, name="odd")
    job.source(three, name="long").map(computes, seconds=seconds).sink(Collect, name="result")
    return job


class Large:
    """Returns as much as one task may."""

    def process(self, item: Any) -> None:
        pass

    def finish(self, out: Any) -> str:
        return "x" * (3 << 20)


def large_results() -> StreamEnvironment:
    """Together more than an answer holds, while another pipeline goes on."""
    job = StreamEnvironment("large results")
    job.source(three, name="short").rebalance().sink(Large, name="large").set_parallelism(2)
    long = job.source(three, name="long").slot_sharing_group("apart")  # it blocks its process
    long.map(computes, seconds=2.0).sink(Collect, name="result")
    return job


def page_faults(context: Any) -> Iterator[int]:
    """The page faults of records that are made and dropped, hundreds at a time."""
    assert len([bytes(1024) for _ in range(2048)]) == 2048
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        assert len([bytes(1024) for _ in range(2048)]) == 2048
    yield resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def faulting() -> StreamEnvironment:
    job = StreamEnvironment("faulting", parallelism=1)
    job.source(page_faults, name="source").sink(Collect, name="collect")
    return job


def _three(job: StreamEnvironment) -> OperatorStream:
    return job.source(three, name="three")


def three(context: Any) -> Iterator[int]:
    yield from range(3)


def raises_at_2(item: int) -> int:
    if item == 2:
        raise ValueError(f"no room for {item}")
    return item


def raising() -> StreamEnvironment:
    job = StreamEnvironment("raising")
    _three(job).map(raises_at_2, name="check").partition_by(Partitioner.GLOBAL).sink(Collect)
    return job


def looks_up(item: int) -> int:
    try:
        return {0: 0, 1: 1}[item]
    except KeyError as error:
        raise LookupError(f"nobody knows \x1b[31m{item}") from error


class Unstorable:
    """Reads until a checkpoint wants its state, which is none that can be stored."""

    async def read(self) -> list[int]:
        await trio.sleep(0.01)
        return [1]

    def snapshot(self, unsent: int) -> Any:
        return {"seen": {1, 2}}


class Refuses:
    """Takes no parameter that is negative."""

    def __init__(self, limit: int) -> None:
        if limit < 0:
            raise ValueError(f"limit={limit}")

    def process(self, item: int, out: Any) -> None:
        out.collect(item)


class OpensWithoutContext(Refuses):
    def open(self) -> None:
        """Lacks the argument `context`."""


class TakesThree(Refuses):
    def process(self, item: int, out: Any, more: int) -> None:  # type: ignore[override]
        """Has one argument too many."""


def imports_nothing(item: int) -> int:
    import no_such_module  # type: ignore[import-not-found]

    return int(no_such_module.change(item))


def failing(how: str = "looks_up") -> StreamEnvironment:
    """Fails in one of many ways; its restarts would take minutes."""
    restart = RestartSettings(kind="fixed_delay", delay_s=0.1 if how == "looks_up" else 60.0, attempts=2)
    checkpoints = CheckpointSettings(interval_s=0.2) if how == "unstorable" else None
    job = StreamEnvironment("failing", settings=StreamSettings(restart=restart, checkpoints=checkpoints))
    if how == "unstorable":
        job.source(Unstorable, name="odd").sink(ignore)
        return job
    if how == "builds":
        return _build_more(job)
    three_of = _three(job)
    if how == "refuses":
        three_of.process(Refuses, name="odd", limit=-1).sink(Collect)
    elif how == "opens":
        three_of.process(OpensWithoutContext, name="odd", limit=1).sink(Collect)
    elif how == "takes_three":
        three_of.process(TakesThree, name="odd", limit=1).sink(Collect)
    else:
        functions: dict[str, Any] = {"looks_up": looks_up, "imports": imports_nothing}
        three_of.map(functions.get(how, f"{how}:change"), name="odd").sink(Collect)
    return job


def _build_more(job: StreamEnvironment) -> StreamEnvironment:
    job.source(three).map(lambda item: item)
    return job


class RaisesOnce:
    """In its first attempt only."""

    def open(self, context: Any) -> None:
        self.attempt = context.attempt

    def process(self, item: int, out: Any) -> None:
        out.collect(raises_at_2(item) if self.attempt == 0 else item)


def raising_once() -> StreamEnvironment:
    restart = RestartSettings(kind="fixed_delay", delay_s=0.05)
    job = StreamEnvironment("raising once", settings=StreamSettings(restart=restart))
    _three(job).process(RaisesOnce, name="check").sink(Collect, name="result")
    return job


def prints_and_exits(item: int) -> int:
    print(f"saw {item}", flush=True)  # noqa: T201  # an operator may
    os._exit(3)


def exiting() -> StreamEnvironment:
    job = StreamEnvironment("exiting")
    _three(job).map(prints_and_exits).sink(Collect)
    return job


def computes(item: int, seconds: float) -> int:
    """Pure Python all the time, so that nothing else of the process gets more than its slice."""
    end = time.monotonic() + seconds
    while item == 1 and time.monotonic() < end:
        pass
    return item


def computing(seconds: float = 3.0) -> StreamEnvironment:
    job = StreamEnvironment("computing")
    _three(job).map(computes, seconds=seconds).rebalance().sink(Collect, name="result")
    return job


def with_code_of(module: str, parallelism: int = 4) -> StreamEnvironment:
    """An operator whose function may not be everywhere."""
    job = StreamEnvironment("elsewhere", parallelism=parallelism)
    job.source(lines).map(f"{module}:same").sink(ignore)
    return job


class Deadly:
    """Does something to its process, once in the life of a folder; later attempts only count."""

    def __init__(self, how: str, folder: str) -> None:
        self.how = how
        self.mark = os.path.join(folder, f"done-{how}")
        self.count = 0

    def process(self, item: int, out: Any) -> None:
        self.count += 1
        if self.count == 2 and not os.path.exists(self.mark):
            with open(self.mark, "w"):
                pass
            do_to_process(self.how)

    def finish(self, out: Any) -> int:
        return self.count


def do_to_process(how: str) -> None:
    """What user code may do to the process that it runs in."""
    if how == "exit":
        os._exit(3)
    if how == "segfault":
        ctypes.string_at(0)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "keyboard_interrupt":
        raise KeyboardInterrupt
    if how == "system_exit":
        raise SystemExit(5)
    if how == "close_descriptors":
        os.closerange(3, 1024)
    if how == "thread":
        threading.Thread(target=time.sleep, args=(600.0,)).start()
        raise ValueError("it leaves a thread behind")
    if how.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[how])
        return
    if how == "forked_child_stays":
        if not os.fork():
            time.sleep(600.0)
        return
    if how == "forked_child_raises" and os.fork():
        return
    if how == "forked_child_raises":
        raise ValueError("a child that was forked goes on")
    if how == "forked_child_goes_on":
        os.fork()
        return
    if how == "forked_child_exits":
        if not os.fork():
            sys.exit(7)
        return
    if how == "forked_without_end":
        for _ in range(20):
            if not os.fork():
                time.sleep(600.0)
        os._exit(9)
    if how == "loop":
        while True:
            pass
    if how == "regex":
        re.match(r"(a+)+$", "a" * 60 + "b")
    if how == "sleep":
        time.sleep(600.0)  # it sleeps
    kept = []
    while True:
        kept.append(bytearray(16 << 20))


def deadly(how: str, folder: str) -> StreamEnvironment:
    """Counts three records, although its process dies on the way."""
    restart = RestartSettings(kind="fixed_delay", delay_s=0.1, attempts=20)
    job = StreamEnvironment(f"deadly {how}", settings=StreamSettings(restart=restart))
    job.source(three).sink(Deadly, name="deadly", how=how, folder=folder)
    return job


def burn(number: int) -> int:
    return computes(1, seconds=0.05)


def busy() -> StreamEnvironment:
    """Computes for ever, and takes a breath after each record."""
    job = StreamEnvironment("busy")
    job.source(endless).map(burn, name="busy").sink(ignore, name="ignore")
    return job


class Until:
    """A source of 1, 2, ... every so often until a file is there."""

    def __init__(self, path: str, pause_s: float) -> None:
        self.path, self.pause_s, self.next = path, pause_s, 0

    async def read(self) -> list[int] | None:
        if await trio.Path(self.path).exists():
            return None
        await trio.sleep(self.pause_s)
        self.next += 1
        return [self.next]

    def snapshot(self, unsent: int) -> int:
        return self.next - unsent


class InOrder:
    """Its result is how many came, if they were 1, 2, ... in order."""

    def __init__(self) -> None:
        self.last = 0

    def process(self, item: int) -> None:
        if item != self.last + 1:
            raise ValueError(f"{item} came after {self.last}")
        self.last = item

    def finish(self) -> int:
        return self.last


def honest(until: str) -> StreamEnvironment:
    """Two tasks in two slots, one record a millisecond."""
    job = StreamEnvironment("honest")
    numbers = job.source(Until, name="numbers", parameters={"path": until, "pause_s": 0.001}).slot_sharing_group("left")
    numbers.rebalance().sink(InOrder, name="count").slot_sharing_group("right")
    return job


class Numbers:
    """A source that reads one number every so often, and remembers where it is."""

    def __init__(self, count: int, pause_s: float) -> None:
        self.count, self.pause_s, self.next = count, pause_s, 0

    async def read(self) -> list[int] | None:
        if self.next == self.count:
            return None
        await trio.sleep(self.pause_s)
        self.next += 1
        return [self.next]

    def snapshot(self, unsent: int) -> int:
        return self.next - unsent


class Sum:
    """Its result is the sum of what came."""

    def __init__(self) -> None:
        self.sum = 0

    def process(self, item: int) -> None:
        self.sum += item

    def finish(self) -> int:
        return self.sum


def neighbour(count: int = 200, pause_s: float = 0.02) -> StreamEnvironment:
    """A job that is to notice nothing of the others."""
    job = StreamEnvironment("neighbour")
    numbers = job.source(Numbers, name="numbers", parameters={"count": count, "pause_s": pause_s})
    numbers.rebalance().sink(Sum, name="sum")
    return job


def says_much(item: int) -> int:
    if item == 1:
        print("printed")  # noqa: T201  # an operator may
        print("an error of ours", file=sys.stderr)  # noqa: T201
        logging.getLogger("shop.stock").warning("logged")
        logging.getLogger("shop.stock").info("not shown")
        warnings.warn("warned", stacklevel=1)
    return item


class EmitsInClose:
    """An operator that still emits when its task has ended."""

    def process(self, item: Any, out: Any) -> None:
        self._out = out

    def close(self) -> None:
        self._out.collect("too late")


def saying_much() -> StreamEnvironment:
    """A job whose operators speak in every way that Python has, and err at the end."""
    job = StreamEnvironment("saying much")
    _three(job).map(says_much).process(EmitsInClose, name="late").sink(Collect, name="all")
    return job
