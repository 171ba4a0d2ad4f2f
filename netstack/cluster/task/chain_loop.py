"""The main loop of a task: processes records in slices, and handles barriers, timers and requests between them.

Takes: a chain, its input and output, its mailbox and checkpoints. Gives: records to the output; how the input ended.

Rules:
- Barriers, timers and requests of the coordinator are handled between two records only. That includes the time in which
  the task waits for output (soft back-pressure). Within a record the task waits for output only if the record needs
  more than the overdraft buffers; a barrier then waits for that record. The task also waits for the `read` of an async
  source. It interrupts that only if the source allows it; otherwise requests are handled after the read.
- The loop reads no clock, awaits nothing and checks no connection per record of a normal operator. It does so between
  slices of records that take about two milliseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias, final

import numpy as np
import trio

from ...base.errors import ConfigError, NetstackError
from ...base.text.safe_text import type_text
from ...base.timing.waits import WaitMeter
from ...network.environment import NetworkEnvironment
from ...schedule.descriptors.information import InputInformation
from .chain import ChainedOperator, OperatorChain
from .checkpoints import TaskCheckpoints
from .fused import Records, Target, listed
from .input import TaskInput
from .latency import TaskLatencies
from .mailbox import Mailbox
from .operators import operator_failed
from .output import TaskOutput

SLICE_S: Final = 0.002
"""Approximate duration of a slice of records. A slice of arrays has a fixed cost of about 100 us: with 1 ms, on busy
cores, a shuffle took a tenth longer."""

TURN_S: Final = 0.005
"""Time without a wait after which other trio tasks get a turn, such as those that read barriers from the network. A
turn costs 20 to 50 us."""

EMPTY_READ_S: Final = 0.01
"""Time after which sources that had no record are read again, unless something wakes the task earlier."""

_Step: TypeAlias = Callable[[Any, int, int], Awaitable[int]]
"""Processes some records of [first, last) of a list or array, at least one; returns the index of the next record."""

MAX_SLICE: Final = 4096

_NO_LISTS: Final = (str, bytes, bytearray, memoryview, deque)
"""Sequences that a source returns by mistake, as one record, or that cannot be cut."""


def each(push: Callable[[Any], None]) -> Callable[[Records], None]:
    """Returns a function that pushes several records one by one."""

    def push_each(records: Records) -> None:
        for record in listed(records):
            push(record)

    return push_each


def check_read(source: str, records: object) -> None:
    """Checks that the `read` of a source returned several records.

    Raises:
        ConfigError: it returned something else, such as one record.
    """
    is_array = isinstance(records, np.ndarray) and records.ndim
    if not is_array and (not isinstance(records, Sequence) or isinstance(records, _NO_LISTS)):
        raise ConfigError(
            f"source {source!r}: read returned {type_text(records)}; return a list or an array of records, an empty"
            " list if there are none now, or None at the end"
        )


def next_part(part: int, count: int, staged_bytes: int, most_bytes: int) -> int:
    """The number of records to process before the staged output is written.

    Args:
        part: the last such number.
        count: the number of records that were processed.
        staged_bytes: size of the output of these records.
        most_bytes: maximum size of the staged output.
    """
    if staged_bytes > most_bytes:
        return max(1, count * most_bytes // staged_bytes)
    return min(2 * part, MAX_SLICE) if count == part and 2 * staged_bytes <= most_bytes else part


@final
class ChainLoop:
    """Runs the chain of one task.

    Args:
        on_consumable: called with the index of each output at its first record, if given.

    Attributes:
        reading: the time in which sources waited for something to read.
    """

    def __init__(
        self,
        chain: OperatorChain,
        output: TaskOutput,
        mailbox: Mailbox,
        checkpoints: TaskCheckpoints,
        environment: NetworkEnvironment,
        latencies: TaskLatencies,
        inputs: Sequence[InputInformation],
        on_consumable: Callable[[int], None] | None,
    ) -> None:
        self.reading = WaitMeter(environment.now())
        self._chain = chain
        self._output = output
        self._mailbox = mailbox
        self._checkpoints = checkpoints
        self._now = environment.now
        self._ticks = environment.ticks
        self._latencies = latencies
        self._inputs = inputs
        self._on_consumable = on_consumable
        self._unreported = [] if on_consumable is None else [*range(len(output.partitions))]
        self._input: TaskInput | None = None
        self._drain = True
        self._slice = 1
        self._part = 1
        self._waited_at = 0.0
        self._empty_reads = 0  # since the last record

    async def run(self, inputs: TaskInput | None) -> bool:
        """Processes all input.

        Args:
            inputs: the task's gates; None for a task that has only sources.

        Returns:
            Whether the data has ended; False if the job was stopped with a savepoint.

        Raises:
            RecordError: a record does not fit its format.
            ConfigError: sources that would block each other.
            Exception: an operator raised it.

        Cancellation: the task has ended.
        """
        self._waited_at = self._ticks()
        self._input = inputs
        sources = self._chain.sources
        if inputs is None:
            await self._run_sources(sources)
        elif sources:
            await self._run_mixed(inputs, sources)
        else:
            await self._run_operators(inputs)
        return self._drain

    async def _run_operators(self, inputs: TaskInput) -> None:
        output, mailbox, checkpoints = self._output, self._mailbox, self._checkpoints
        steps = self._steps()
        while True:
            if mailbox.is_urgent:
                await self._settle()
            elif not output.is_available:
                await self._wait(output.wait)
            else:
                records = inputs.poll()
                if records is not None and len(records):
                    self._enter(inputs.gate_index)
                    await self._in_slices(records, steps[inputs.gate_index], inputs.processed)
                elif records is None:
                    if inputs.is_finished:
                        self._drain = inputs.ended_with_drain
                        return
                    await self._wait(inputs.wait)
                elif checkpoints.is_due:
                    await checkpoints.perform()
                elif self._ticks() - self._waited_at > TURN_S:
                    await self._wait(trio.lowlevel.checkpoint)

    async def _run_sources(self, sources: Sequence[ChainedOperator]) -> None:
        """Reads the sources in turn. Several sources must all be synchronous, since a waiting one would block them."""
        left = [source for source in sources if not source.bound.is_finished]
        self._check_mixed(left, 1)
        turn = 0
        while left:
            if self._mailbox.is_urgent:
                await self._settle()
            elif self._checkpoints.is_held:
                await self._wait(self._mailbox.wait)
            elif self._checkpoints.is_stopped:
                self._drain = False
                return
            elif not self._output.is_available:
                await self._wait(self._output.wait)
            else:
                turn = (turn + 1) % len(left)
                if await self._read(left[turn]) is False:
                    del left[turn]
                elif self._empty_reads >= len(left):
                    await self._pause(None)

    async def _run_mixed(self, inputs: TaskInput, sources: Sequence[ChainedOperator]) -> None:
        """Reads gates and chained sources in turn."""
        left = [source for source in sources if not source.bound.is_finished]
        self._check_mixed(left, 0)
        output, mailbox, checkpoints = self._output, self._mailbox, self._checkpoints
        steps = self._steps()
        while (left and self._drain) or not inputs.is_finished:
            if mailbox.is_urgent:
                await self._settle()
            elif not output.is_available:
                await self._wait(output.wait)
            else:
                self._drain = inputs.ended_with_drain  # False: the job was stopped, and the sources stop with it
                records = None if inputs.is_finished else inputs.poll()
                if records is not None and len(records):
                    self._empty_reads = 0
                    self._enter(inputs.gate_index)
                    await self._in_slices(records, steps[inputs.gate_index], inputs.processed)
                elif records is not None and checkpoints.is_due:
                    await checkpoints.perform()
                elif records is None and not left:
                    if not inputs.is_finished:
                        await self._wait(inputs.wait)
                    continue
                if left and await self._read(left[0]) is False:
                    del left[0]
                elif left:
                    left.append(left.pop(0))
                if records is None and left and self._empty_reads >= len(left):
                    await self._pause(inputs)
                elif self._ticks() - self._waited_at > TURN_S:
                    await self._wait(trio.lowlevel.checkpoint)
        self._drain = inputs.ended_with_drain

    def _check_mixed(self, sources: Sequence[ChainedOperator], allowed: int) -> None:
        waits = [source.bound.name for source in sources if source.bound.is_async]
        if waits and len(sources) > allowed:
            raise ConfigError(
                f"source {waits[0]!r} is async and chained with other inputs, which it would block while it waits;"
                " start a new chain after it"
            )

    async def _read(self, source: ChainedOperator) -> bool:
        """Reads a source once and processes the records, if there are any. Returns False at its end."""
        bound = source.bound
        if bound.is_async:
            self.reading.begin(self._now())
            try:
                if not bound.can_be_interrupted:
                    records = await self._mailbox.serving(bound.process)
                else:
                    has_read, records = await self._mailbox.unless_urgent(bound.process)
                    if not has_read:
                        return True
            finally:
                self.reading.end(self._now())
                self._waited_at = self._ticks()
        else:
            try:
                records = bound.process()
            except NetstackError:
                raise
            except (Exception, SystemExit) as error:  # of user code; other sources may have the same class
                raise operator_failed(bound.name, error) from error
        if records is None:
            return False
        if not isinstance(records, list):
            check_read(bound.name, records)
        if not len(records) and bound.is_skipping:
            if self._ticks() - self._waited_at > TURN_S:
                await self._wait(trio.lowlevel.checkpoint)
            return True
        if not len(records):
            self._empty_reads += 1
            return True
        self._empty_reads = 0
        source.read, source.sent = len(records), 0
        await self._in_slices(records, self._step_of(source.main), source.has_sent)
        if not self._checkpoints.is_stopped:
            source.read = source.sent = 0
        return True

    async def _pause(self, inputs: TaskInput | None) -> None:
        """Waits for `EMPTY_READ_S`, or until there is something else to do: no source had a record."""
        with trio.move_on_after(EMPTY_READ_S):
            if inputs is not None and not inputs.is_finished:
                await inputs.wait()
            else:
                self.reading.begin(self._now())
                try:
                    await self._mailbox.wait()
                finally:
                    self.reading.end(self._now())
        self._waited_at = self._ticks()

    def report_first_output(self) -> None:
        """Reports the outputs that have their first record now."""
        output, report = self._output, self._on_consumable
        if report is None:
            return
        for index in list(self._unreported):
            if output.partitions[index].counters.records or not output.edges[index].is_empty:
                self._unreported.remove(index)
                report(index)

    def _enter(self, gate: int) -> None:
        head = self._chain.head
        assert head is not None
        head.bound.context.input = self._inputs[gate].edge.input_number

    async def _in_slices(self, records: Records, step: _Step, processed: Callable[[int], None]) -> None:
        """Processes records with `step`, a slice at a time, and does what is due between slices."""
        output, mailbox, chain, checkpoints = self._output, self._mailbox, self._chain, self._checkpoints
        done, count = 0, len(records)
        while done < count:
            last = min(done + self._slice, count)
            began, waits = self._ticks(), output.waits
            reached = await step(records, done, last)
            if self._unreported:  # before the task waits for consumers, which may be deployed only after this report
                self.report_first_output()
            if not chain.is_settled:
                await chain.settle()
            chain.records_in += reached - done
            processed(reached)
            now = self._ticks()
            if now >= self._latencies.due:
                self._latencies.mark(now)
            if output.waits == waits:  # otherwise the elapsed time includes waits
                self._adapt(reached - done, now - began)
            done = reached
            if now - self._waited_at > TURN_S:
                await self._wait(trio.lowlevel.checkpoint)
            while done < count:
                if mailbox.is_urgent:
                    await self._settle()
                elif checkpoints.is_held:
                    await self._wait(mailbox.wait)
                elif checkpoints.is_stopped:
                    return
                elif not output.is_available:
                    await self._wait(output.wait)
                else:
                    break

    def _adapt(self, count: int, elapsed_s: float) -> None:
        """Adjusts the number of records per slice, so that a slice takes about `SLICE_S`."""
        if elapsed_s > SLICE_S:
            self._slice = max(1, int(count * SLICE_S / elapsed_s))
        elif count == self._slice and 2 * elapsed_s < SLICE_S:
            self._slice = min(2 * count, MAX_SLICE)

    # Steps, see `_Step`.

    def _steps(self) -> list[_Step]:
        """One step for every gate."""
        head = self._chain.head
        assert head is not None
        if head.waits:
            return [self._step_of_waiting(head)] * len(self._chain.inputs)
        return [self._step_of(target) for target in self._chain.inputs]

    def _step_of(self, target: Target) -> _Step:
        """Processes records in parts whose output is about as large as may be staged, until no buffer is free."""
        output, chain = self._output, self._chain
        # Records are pushed one by one if an operator collects them: it then gets the records of a slice in one list.
        push_list = each(target.push) if chain.has_waiting else target.push_batch

        async def step(records: Records, first: int, last: int) -> int:
            done = first
            while done < last:
                is_list = isinstance(records, list)
                part = 1 if chain.settles_often else self._part if is_list else last - done
                stop = min(done + part, last)
                written = output.written_bytes
                try:
                    (push_list if is_list else target.push_batch)(records[done:stop])
                except BaseException:
                    output.flush()  # the records before the failed one; an error of theirs comes first
                    raise
                is_all = output.flush()
                if is_list:
                    self._part = next_part(part, stop - done, output.written_bytes - written, output.staged_bytes)
                done = stop
                if chain.settles_often:
                    await chain.settle()
                if not is_all or self._mailbox.is_urgent or not output.is_available:
                    break
            return done

        return step

    def _step_of_waiting(self, head: ChainedOperator) -> _Step:
        """The step of a head that is async, or takes lists."""
        chain, output = self._chain, self._output

        async def slice_at_once(records: Records, first: int, last: int) -> int:
            await chain.process(head, records[first:last])
            return last

        async def each(records: Records, first: int, last: int) -> int:
            for index in range(first, last):
                await chain.process(head, records[index : index + 1])
                if not chain.is_settled:
                    await chain.settle()
                if self._mailbox.is_urgent or not output.is_available:
                    return index + 1
            return last

        return slice_at_once if head.bound.is_batched else each

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

    async def settle_until(self, condition: Callable[[], bool]) -> None:
        """Does what is due until a condition is true. Changes of the condition must wake the mailbox."""
        while True:
            if self._mailbox.is_urgent:
                await self._settle()
            elif condition():
                return
            else:
                await self._mailbox.wait()
