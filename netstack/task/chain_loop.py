"""The loop of a task: records from gates and sources through the chain, a slice at a time, and what is due in between.

Takes: a chain, its input and output, its mailbox and checkpoints. Gives: records to the output; how the input ended.

Rules:
- Between two records, and only there: barriers, timers, the coordinator's wishes. So also while it waits for output
  (soft back-pressure). Inside a record it waits for output only when the record needs more than the overdraft gives;
  then a barrier waits for that record. It also waits for the `read` of an async source, which it interrupts only if
  the source says that it can be; what the coordinator says meanwhile is heard, and done behind that read.
- No clock, no await, no look at the network per record of an ordinary operator: records are processed in slices that
  take about two milliseconds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeAlias, final

import trio

from ..errors import ConfigError, RecordError
from ..runtime.network_environment import NetworkEnvironment
from ..schedule.descriptors.information import InputInformation
from ..waits import WaitMeter
from .chain import ChainedOperator, OperatorChain
from .checkpoints import TaskCheckpoints
from .fused import Records, Target, listed
from .input import TaskInput
from .latency import TaskLatencies
from .mailbox import Mailbox
from .output import TaskOutput

SLICE_S: Final = 0.002
"""Records are processed in slices of about this duration; between two of them a clock is read. Of arrays a slice costs
some 100 us beside its records: with 1 ms, on cores that other threads want too, a shuffle took a tenth longer."""

TURN_S: Final = 0.005
"""After so long without a wait other tasks get a turn, among them those that read barriers from the network; a turn
costs 20 to 50 us."""

_Step: TypeAlias = Callable[[Any, int, int], Awaitable[int]]
"""Processes records [first, last) of a list or array, or only the first of these; gives the index of the next."""

MAX_SLICE: Final = 4096


def each(push: Callable[[Any], None]) -> Callable[[Records], None]:
    """Takes several records, and pushes one after the other."""

    def push_each(records: Records) -> None:
        for record in listed(records):
            push(record)

    return push_each


def next_part(part: int, count: int, staged_bytes: int, most_bytes: int) -> int:
    """How many records to process before what they emit is written.

    Args:
        part: how many it was.
        count: how many there were.
        staged_bytes: what these emitted.
        most_bytes: what they should emit at most.
    """
    if staged_bytes > most_bytes:
        return max(1, count * most_bytes // staged_bytes)
    return min(2 * part, MAX_SLICE) if count == part and 2 * staged_bytes <= most_bytes else part


@final
class ChainLoop:
    """Runs the chain of one task.

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
        """Nothing runs yet.

        Args:
            chain: what processes the records.
            output: where they go.
            mailbox: what is due between records.
            checkpoints: of the task.
            environment: its clocks.
            latencies: tells when markers are due.
            inputs: what the gates bring, in their order.
            on_consumable: told of each output when its first record is there; None does not want to know.
        """
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
        self._untold = [] if on_consumable is None else [*range(len(output.partitions))]
        self._input: TaskInput | None = None
        self._drain = True
        self._slice = 1
        self._part = 1
        self._waited_at = 0.0

    async def run(self, inputs: TaskInput | None) -> bool:
        """Processes everything that comes.

        Args:
            inputs: the task's gates; None of a task that has only sources.

        Returns:
            Whether the data ended; False if the job was stopped, to go on elsewhere.

        Raises:
            RecordError: a source read nothing, or a record does not fit.
            ConfigError: sources that would hold each other up.
            Exception: whatever an operator raises.

        Cancellation: the task is over.
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
        """Sources in turn; with several each must be an ordinary one, since one that waits would hold up the others."""
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

    async def _run_mixed(self, inputs: TaskInput, sources: Sequence[ChainedOperator]) -> None:
        """Gates and chained sources in turn."""
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
                self._drain = inputs.ended_with_drain  # else the job was stopped, and the sources with it
                records = None if inputs.is_finished else inputs.poll()
                if records is not None and len(records):
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
                if self._ticks() - self._waited_at > TURN_S:
                    await self._wait(trio.lowlevel.checkpoint)
        self._drain = inputs.ended_with_drain

    def _check_mixed(self, sources: Sequence[ChainedOperator], allowed: int) -> None:
        waits = [source.bound.name for source in sources if source.bound.is_async]
        if waits and len(sources) > allowed:
            raise ConfigError(
                f"source {waits[0]!r} is async, and chained as an input beside others, whom its waits would hold up;"
                " start a chain behind it"
            )

    async def _read(self, source: ChainedOperator) -> bool:
        """Has a source read once, and sends what it gave; False at its end."""
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
            records = bound.process()
        if records is None:
            return False
        if not len(records) and bound.is_skipping:
            if self._ticks() - self._waited_at > TURN_S:
                await self._wait(trio.lowlevel.checkpoint)
            return True
        if not len(records):
            raise RecordError(f"source {bound.context} read nothing; give at least one record, or None at the end")
        source.read, source.sent = len(records), 0
        await self._in_slices(records, self._step_of(source.main), source.has_sent)
        if not self._checkpoints.is_stopped:
            source.read = source.sent = 0
        return True

    def tell_first_output(self) -> None:
        """Tells of outputs that have their first record now."""
        output, tell = self._output, self._on_consumable
        if tell is None:
            return
        for index in list(self._untold):
            if output.partitions[index].counters.records or not output.edges[index].is_empty:
                self._untold.remove(index)
                tell(index)

    def _enter(self, gate: int) -> None:
        head = self._chain.head
        assert head is not None
        head.bound.context.input = self._inputs[gate].edge.input_number

    async def _in_slices(self, records: Records, step: _Step, processed: Callable[[int], None]) -> None:
        """Has `step` process records, a slice at a time, with what is due in between."""
        output, mailbox, chain, checkpoints = self._output, self._mailbox, self._chain, self._checkpoints
        done, count = 0, len(records)
        while done < count:
            last = min(done + self._slice, count)
            began, waits = self._ticks(), output.waits
            reached = await step(records, done, last)
            if self._untold:  # before anything waits for consumers that are not there yet
                self.tell_first_output()
            if not chain.is_settled:
                await chain.settle()
            chain.records_in += reached - done
            processed(reached)
            now = self._ticks()
            if now >= self._latencies.due:
                self._latencies.mark(now)
            if output.waits == waits:  # else who knows how much of it was work
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
        """Makes slices take about `SLICE_S`."""
        if elapsed_s > SLICE_S:
            self._slice = max(1, int(count * SLICE_S / elapsed_s))
        elif count == self._slice and 2 * elapsed_s < SLICE_S:
            self._slice = min(2 * count, MAX_SLICE)

    # Steps: each processes at least one record, and says which is next.

    def _steps(self) -> list[_Step]:
        """One for every gate."""
        head = self._chain.head
        assert head is not None
        if head.waits:
            return [self._step_of_waiting(head)] * len(self._chain.inputs)
        return [self._step_of(target) for target in self._chain.inputs]

    def _step_of(self, target: Target) -> _Step:
        """Hands records on in parts, each with about as much output as may be staged, until there is no room."""
        output, chain = self._output, self._chain
        # A list is one only for the reader; what waits for several at a time gets all of a slice.
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
                    output.flush()  # what came before it; an error of that is the first
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
        """Of a head that is async, or takes several records at a time."""
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
        """Does what is due until something is true; whatever makes it so wakes the mailbox."""
        while True:
            if self._mailbox.is_urgent:
                await self._settle()
            elif condition():
                return
            else:
                await self._mailbox.wait()
