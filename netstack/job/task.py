"""One subtask of a job: reads, processes, writes, and takes part in checkpoints, until its input ends.

Takes: an operator or a source, an input, an output. Gives: records to the consumers; a final state.

How a task ends (FLIP-147): all records processed -> `finish` -> EndOfData to the consumers -> they have processed it
all -> EndOfPartition -> ended. Up to EndOfPartition it takes part in checkpoints as always: barriers follow EndOfData,
unaligned ones overtake it. What it had in the end counts in every later checkpoint.

Rules:
- Between two records, and only there: barriers, timers, the coordinator's wishes. So also while it waits for output
  (soft back-pressure) or, as a source, for something to read. Inside a record it waits for output only when the record
  needs more than the overdraft gives; then a barrier waits for that record.
- No clock, no await, no look at the network per record of an ordinary operator: records are processed in slices that
  take about a millisecond.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from operator import length_hint
from typing import Any, Final, TypeAlias, final

import numpy as np
import numpy.typing as npt
import trio

from ..checkpoint.barrier import BarrierStatistics
from ..checkpoint.storage import CheckpointStorage
from ..errors import PoolDestroyed, RecordError
from ..events import CheckpointBarrier
from ..inbound.gate import SingleInputGate
from ..runtime.network_environment import NetworkEnvironment
from ..runtime.record_writer import RecordWriter
from .input import TaskInput
from .mailbox import Mailbox
from .operators import BoundOperator, TaskContext
from .output import TaskOutput
from .task_checkpoints import InThread, TaskCheckpoints, TaskControl

SLICE_S: Final = 0.001
"""Records are processed in slices of about this duration; between two of them a clock is read."""

TURN_S: Final = 0.005
"""After so long without a wait other tasks get a turn, among them those that read barriers from the network; a turn
costs 20 to 50 us."""

_Step: TypeAlias = Callable[[Any, int, int], Awaitable[int]]
"""Processes records [first, last) of a list or array, or only the first of these; gives the index of the next."""

MAX_SLICE: Final = 4096


@final
class Task:
    """One subtask. Use: `open`, `restore`, `run`, and `close` whatever happened.

    Attributes:
        context: who it is.
        output: what it writes to.
    """

    def __init__(
        self,
        context: TaskContext,
        operator: BoundOperator,
        writers: Sequence[RecordWriter],
        control: TaskControl,
        manager: NetworkEnvironment,
        *,
        storage: CheckpointStorage | None,
        in_thread: InThread,
    ) -> None:
        """Takes over the writers.

        Args:
            context: who it is.
            operator: what it does.
            writers: one for every task that reads this one.
            control: where it reports its checkpoints.
            manager: where it lives.
            storage: for snapshots; None where the job takes none.
            in_thread: runs what blocks.
        """
        self.context = context
        self._operator = operator
        self._manager = manager
        self._mailbox = Mailbox()
        self.output = TaskOutput(writers, self._mailbox)
        self._checkpoints = TaskCheckpoints(
            context, operator, self.output, control, storage, manager, self._mailbox, in_thread
        )
        self._input: TaskInput | None = None
        self._slice = 1
        self._ticks = manager.ticks
        self._is_open = False
        self._waited_at = self._ticks()
        # Of a source: what it read last, and how much of that was sent.
        self._read = 0
        self._sent = 0

    # Before.

    async def open(
        self,
        gates: Sequence[SingleInputGate],
        formats: Sequence[str],
        recovered: dict[str, list[bytes]],
        states: list[Any],
        *,
        exactly_once: bool,
        unaligned: bool,
    ) -> None:
        """Takes over its gates and opens the operator, with what it goes on with after a restart.

        Args:
            gates: one for each input; none for a source.
            formats: of the records of each.
            recovered: records that were in flight to it, by the index of their input.
            states: of its operator; empty without any.
            exactly_once: whether barriers are aligned.
            unaligned: whether a checkpoint may be, or become, unaligned.
        """
        if gates:
            self._input = self._checkpoints.inputs = TaskInput(
                gates,
                formats,
                self.context,
                self._mailbox,
                self._checkpoints,
                self._manager,
                exactly_once=exactly_once,
                unaligned=unaligned,
                recovered=recovered,
            )
        else:
            self._checkpoints.unsent_by(lambda: self._read - self._sent)
        self._is_open = True
        await self._operator.call("open", self.context)
        if states:
            await self._operator.call("restore", states)

    # From the coordinator, at any time.

    def trigger(self, barrier: CheckpointBarrier) -> None:
        """Takes a checkpoint between two records, because nobody sends this task barriers."""
        self._mailbox.post(partial(self._checkpoints.trigger_here, barrier, self._manager.now()))

    def abort_checkpoint(self, checkpoint_id: int) -> None:
        """The checkpoint will not happen."""
        self._mailbox.post(partial(self._checkpoints.abort_here, checkpoint_id))

    # The run.

    async def run(self) -> Any:
        """Works until the end of the input.

        Returns:
            The operator's final state.

        Raises:
            NetstackError: a channel failed, a record does not fit, ...
            Exception: whatever the operator raises.

        Cancellation: the task is over; `close` it.
        """
        failure: BaseException | None = None
        state: Any = None
        async with trio.open_nursery() as nursery:  # it waits for the last snapshots
            self._checkpoints.nursery = nursery
            try:
                state = await self._work()
            except trio.Cancelled:
                raise
            except BaseException as error:  # leaves as it is, not inside this nursery's group
                failure = error
                nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return state

    async def close(self) -> None:
        """Closes the operator and the input; the output belongs to its consumers. Idempotent."""
        if self._input is not None:
            self._input.close()
        if self._is_open:
            self._is_open = False
            await self._operator.call("close")

    def statistics(self) -> BarrierStatistics | None:
        """How barriers come together here; None of a source."""
        return None if self._input is None else self._input.statistics()

    async def _work(self) -> Any:
        await trio.lowlevel.checkpoint()
        if self._input is None:
            await self._run_source()
        else:
            await self._run_operator(self._input)
            await self._operator.call("finish", self.output)
            await self.output.drain()
        await self._end()
        return await self._checkpoints.take_state()

    async def _run_operator(self, inputs: TaskInput) -> None:
        output, mailbox, checkpoints = self.output, self._mailbox, self._checkpoints
        step = self._step_of_operator()
        while True:
            if mailbox.is_urgent:
                await self._settle()
            elif not output.is_available:
                await self._wait(output.wait)
            else:
                records = inputs.poll()
                if records:
                    await self._in_slices(records, step, inputs.processed)
                elif records is None:
                    if inputs.is_finished:
                        return
                    await self._wait(inputs.wait)
                elif checkpoints.is_due:
                    await checkpoints.perform()
                elif self._ticks() - self._waited_at > TURN_S:
                    await self._wait(trio.lowlevel.checkpoint)

    async def _run_source(self) -> None:
        operator = self._operator
        while True:
            if self._mailbox.is_urgent:
                await self._settle()
            elif not self.output.is_available:
                await self._wait(self.output.wait)
            else:
                if operator.is_async:
                    has_read, records = await self._mailbox.unless_urgent(operator.process)
                    if not has_read:
                        continue
                else:
                    records = operator.process()
                if records is None:
                    return
                if not len(records):
                    raise RecordError(
                        f"source {self.context} read nothing; give at least one record, or None at the end"
                    )
                self._read, self._sent = len(records), 0
                step = self._send_array if isinstance(records, np.ndarray) else self._send_each
                await self._in_slices(records, step, self._has_sent)
                self._read = self._sent = 0

    def _step_of_operator(self) -> _Step:
        if self._operator.is_batched:
            return self._batch_async if self._operator.is_async else self._batch
        return self._each_async if self._operator.is_async else self._each

    async def _in_slices(self, records: Any, step: _Step, processed: Callable[[int], None]) -> None:
        """Has `step` process records, a slice at a time, with what is due in between."""
        output, mailbox = self.output, self._mailbox
        done, count = 0, len(records)
        while done < count:
            last = min(done + self._slice, count)
            began = self._ticks()
            reached = await step(records, done, last)
            if output.kept:
                await output.drain()
            processed(reached)
            now = self._ticks()
            self._adapt(reached - done, now - began)
            done = reached
            if now - self._waited_at > TURN_S:
                await self._wait(trio.lowlevel.checkpoint)
            while done < count:
                if mailbox.is_urgent:
                    await self._settle()
                elif not output.is_available:
                    await self._wait(output.wait)
                else:
                    break

    def _adapt(self, count: int, elapsed_s: float) -> None:
        """Makes slices take about `SLICE_S`."""
        if elapsed_s > SLICE_S:
            self._slice = max(1, int(count * SLICE_S / elapsed_s))
        elif count == self._slice and 2 * elapsed_s < SLICE_S:
            self._slice = min(2 * count, MAX_SLICE)

    # Steps: each processes at least one record, and says which is next.

    async def _each(self, records: list[Any], first: int, last: int) -> int:
        output, process = self.output, self._operator.process
        if output.is_sink:
            for record in records[first:last]:
                process(record, output)
            return last
        kept, room = output.kept, output.room
        rest = iter(records[first:last])
        for record in rest:
            process(record, output)
            if kept or not room.is_available:
                break
        return last - length_hint(rest)

    async def _each_async(self, records: list[Any], first: int, last: int) -> int:
        output, mailbox, process = self.output, self._mailbox, self._operator.process
        for index in range(first, last):
            await process(records[index], output)
            if output.kept or mailbox.is_urgent or not output.is_available:
                return index + 1
        return last

    async def _batch(self, records: list[Any], first: int, last: int) -> int:
        self._operator.process(records[first:last], self.output)
        return last

    async def _batch_async(self, records: list[Any], first: int, last: int) -> int:
        await self._operator.process(records[first:last], self.output)
        return last

    async def _send_each(self, records: list[Any], first: int, last: int) -> int:
        output = self.output
        kept, room, collect = output.kept, output.room, output.collect
        rest = iter(records[first:last])
        for record in rest:
            collect(record)
            if kept or not room.is_available:
                break
        return last - length_hint(rest)

    async def _send_array(self, records: npt.NDArray[Any], first: int, last: int) -> int:
        await self.output.emit_batch(records[first:last])
        return last

    def _has_sent(self, count: int) -> None:
        self._sent = count

    # Between records.

    async def _settle(self) -> None:
        """Does what is due between two records."""
        while self._mailbox.is_urgent:
            self._mailbox.open()
            if self._input is not None:
                self._input.poll_priority()
            await self._checkpoints.perform()

    async def _wait(self, wait: Callable[[], Any]) -> None:
        await wait()
        self._waited_at = self._ticks()

    async def _end(self) -> None:
        """See the module."""
        await self.output.end_of_data()
        await self._settle_until(lambda: self.output.is_consumed)
        for partition in self.output.partitions:
            if partition.is_released:
                raise PoolDestroyed(f"partition {partition.partition_id!r} was released before it was consumed")
        self.output.finish()
        self._checkpoints.close()
        await self._settle_until(lambda: not self._checkpoints.is_gathering)  # barriers may still be in the queues

    async def _settle_until(self, condition: Callable[[], bool]) -> None:
        while True:
            if self._mailbox.is_urgent:
                await self._settle()
            elif condition():
                return
            else:
                await self._mailbox.wait()
