"""`BarrierTask`: the rank and address of a task of a barrier stage, and the exchange of messages with all others."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

AllGather: TypeAlias = Callable[[str], Sequence[str]]
"""Exchanges one message of each task with all tasks, in the order of ranks. It blocks for about a second and returns up
to a second apart in different tasks, so it is no start signal."""


@final
@dataclass(frozen=True, slots=True)
class BarrierTask:
    """A task of a barrier stage.

    Attributes:
        rank: the number of its partition.
        host: the address at which the other tasks reach this host.
        all_gather: called exactly once by every task.
        stage: Spark's id of the stage.
        attempt: Spark's id of the task's attempt; a later attempt has a greater number.
    """

    rank: int
    tasks: int
    host: str
    all_gather: AllGather
    stage: int = 0
    attempt: int = 0

    @classmethod
    def current(cls) -> BarrierTask:
        """Returns the task that this process runs."""
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        infos = context.getTaskInfos()
        rank = context.partitionId()
        host, attempt = host_of(infos[rank].address), int(context.taskAttemptId())
        return cls(rank, len(infos), host, context.allGather, context.stageId(), attempt)

    def meet(self, message: dict[str, Any]) -> list[dict[str, Any]]:
        """Returns the messages of all tasks, in the order of ranks.

        Raises:
            TimeoutError: a task did not arrive; Spark raises an EOFError without a reason.
        """
        try:
            messages = self.all_gather(json.dumps(message))
        except EOFError as error:
            raise TimeoutError(f"task {self.rank}: a peer did not arrive in time, or the job was cancelled") from error
        return [json.loads(each) for each in messages]


def host_of(address: str) -> str:
    """Returns the host of a task's address, `host:port`; loopback in local mode."""
    host = address.rpartition(":")[0]
    return "127.0.0.1" if host in ("", "localhost") else host
