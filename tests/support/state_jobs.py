"""Jobs whose sources, keys and savepoints are tested in real processes; TaskManagers import this module by its name."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import uuid
from pathlib import Path
from typing import Any

import trio

from netstack import CheckpointSettings, OperatorContext, RestartSettings, StreamEnvironment, StreamSettings


def environment(name: str, *, interval_s: float | None = 0.1) -> StreamEnvironment:
    settings = StreamSettings(
        checkpoints=CheckpointSettings(interval_s=interval_s),
        restart=RestartSettings(kind="fixed_delay", delay_s=0.05),
    )
    return StreamEnvironment(name, parallelism=1, max_parallelism=128, settings=settings)


class Collect:
    """Returns what came, in its order."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    def process(self, item: Any) -> None:
        self.items.append(item)

    def snapshot(self) -> list[Any]:
        return list(self.items)

    def restore(self, states: list[list[Any]]) -> None:
        self.items = [item for state in states for item in state]

    def finish(self) -> list[Any]:
        return self.items


class Advancing:
    """A source that advances, then awaits for longer than checkpoints are apart."""

    def __init__(self) -> None:
        self.next = 0

    async def read(self) -> list[int] | None:
        if self.next == 60:
            return None
        first, self.next = self.next, min(self.next + 5, 60)  # a checkpoint may come between any two records
        await trio.sleep(0.15)
        return list(range(first, self.next))

    def snapshot(self, unsent: int) -> int:
        return self.next - unsent

    def restore(self, states: list[int]) -> None:
        (self.next,) = states


def advancing() -> StreamEnvironment:
    job = environment("advancing", interval_s=0.02)
    job.source(Advancing).sink(Collect, name="sink")
    return job


KEYS = (0.0, -0.0, 1, 1.0, True, float("nan"))
ROUNDS = 20


class Keys:
    """A source: every key once in each round."""

    def __init__(self) -> None:
        self.round = 0

    async def read(self) -> list[Any] | None:
        await trio.sleep(0.05)
        self.round += 1
        return list(KEYS) if self.round <= ROUNDS else None

    def snapshot(self, unsent: int) -> list[int]:
        return [self.round, unsent]

    def restore(self, states: list[list[int]]) -> None:
        ((self.round, unsent),) = states
        self.round -= unsent // len(KEYS)


def same(item: Any) -> Any:
    return item


class CountKeys:
    def open(self, context: Any) -> None:
        self.counts = context.keyed_state("counts", 0)

    def process(self, key: Any, out: Any) -> None:
        self.counts[key] += 1

    def finish(self, out: Any) -> None:
        for key, count in self.counts.items():
            out.collect([repr(key), count])


def keys(parallelism: int = 1) -> StreamEnvironment:
    job = environment("keys")
    counted = job.source(Keys).key_by(same).process(CountKeys, name="count").set_parallelism(parallelism)
    counted.sink(Collect, name="sink").set_parallelism(1)
    return job


class CountInLists(CountKeys):
    def open(self, context: Any) -> None:
        self.counts = context.keyed_state("counts", list)


def changed(name: str = "count", uid: str = "", process: str = "CountKeys") -> StreamEnvironment:
    """As `keys`, by other names and of other types."""
    job = environment("keys")
    counted = job.source(Keys).key_by(same).process(f"state_jobs:{process}", name=name)
    (counted.uid(uid) if uid else counted).sink(Collect, name="sink")
    return job


class TwoPhase:
    """Writes files, which get their names when they are committed. Behind its last commit subtask 1 is killed, once."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.rows: list[Any] = []

    def open(self, context: OperatorContext) -> None:
        self.context = context

    def process(self, record: Any) -> None:
        self.rows.append(record)

    def prepare_commit(self) -> str | None:
        rows, self.rows = self.rows, []
        if not rows:
            return None
        name = uuid.uuid4().hex
        (self.folder / f"{name}.part").write_text(json.dumps(rows))
        return name

    def commit(self, names: list[str]) -> None:
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # it was renamed, and the process died
                (self.folder / f"{name}.part").rename(self.folder / f"{name}.json")
        self._die_once()

    def finish(self) -> None:
        self.is_finished = True

    def _die_once(self) -> None:
        killed = self.folder / "killed"
        if getattr(self, "is_finished", False) and self.context.subtask == 1 and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def two_phases(folder: str, interval_s: float | None = 0.1, takes_checkpoints: bool = True) -> StreamEnvironment:
    made = environment("two phases", interval_s=interval_s)
    if not takes_checkpoints:
        restart = RestartSettings(kind="fixed_delay", delay_s=0.05)
        made = StreamEnvironment("two phases", parallelism=1, settings=StreamSettings(restart=restart))
    made.source(Advancing, name="source").rebalance().sink(TwoPhase, name="sink", folder=folder).set_parallelism(2)
    return made
