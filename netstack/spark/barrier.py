"""What a task of a barrier stage knows of itself and the others.

Takes: Spark's BarrierTaskContext. Gives: `BarrierTask`: rank, address, and the one exchange of words.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

AllGather: TypeAlias = Callable[[str], Sequence[str]]
"""Gives every task's words to every task, in the order of ranks; blocks, about a second. No start signal: tasks come
back up to a second apart."""


@final
@dataclass(frozen=True, slots=True)
class BarrierTask:
    """One task.

    Attributes:
        rank: its number, that of its partition.
        tasks: how many there are.
        host: the address others reach this host at.
        all_gather: called exactly once by every task.
        stage: Spark's number of the stage.
        attempt: of the task; a later one of the stage has a greater number.
    """

    rank: int
    tasks: int
    host: str
    all_gather: AllGather
    stage: int = 0
    attempt: int = 0

    @classmethod
    def current(cls) -> BarrierTask:
        """The task this process runs."""
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        infos = context.getTaskInfos()
        rank = context.partitionId()
        host, attempt = host_of(infos[rank].address), int(context.taskAttemptId())
        return cls(rank, len(infos), host, context.allGather, context.stageId(), attempt)

    def meet(self, words: dict[str, Any]) -> list[dict[str, Any]]:
        """Every task's words, in the order of ranks.

        Raises:
            TimeoutError: somebody did not come; Spark says no more than that.
        """
        try:
            said = self.all_gather(json.dumps(words))
        except EOFError as error:
            raise TimeoutError(f"task {self.rank}: a peer did not arrive in time, or the job was cancelled") from error
        return [json.loads(each) for each in said]


def host_of(address: str) -> str:
    """The host of what Spark calls a task's address, `host:port`; loopback in local mode."""
    host = address.rpartition(":")[0]
    return "127.0.0.1" if host in ("", "localhost") else host
