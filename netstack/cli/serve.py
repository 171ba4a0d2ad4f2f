"""The command `netstack serve`: serves a partition to remote consumers, such as Flink task managers.

Takes: a partition id and the number of subpartitions; the number of records, or a file with one record per line.
Gives: a line with the address once it listens, and a summary of each subpartition at the end.

A blocking or hybrid partition is stored in files. A blocking one can be requested once it is complete, a hybrid one at
once, both any number of times. They are served until the command is stopped or times out.

Rules: records are distributed round robin. A pipelined partition ends when its consumers have acknowledged all records,
or some time after they were sent. A consumer that disconnects has released its subpartition. Once all consumers have
disconnected, the remaining records are counted but not sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final
from urllib.parse import urlsplit

import click
import trio

from ..base.config import SHUFFLE_COMPRESSIONS, NetworkConfig
from ..base.errors import ConfigError, NetstackError
from ..base.events import EndOfData, EndOfPartition, Event
from ..base.ids import ResultPartitionType
from ..base.timing.wakeup import Signal
from ..base.units import counted
from ..exchange.buffer.requirements import PartitionPlan
from ..exchange.outbound.partition import ResultPartition
from ..exchange.outbound.subpartition import ResultSubpartition
from ..exchange.record.flink import value_format_named
from ..exchange.wire.flink_events import flink_name
from ..network.environment import NetworkEnvironment, open_network
from ..network.writer import RecordWriter
from .exchange import (
    CLOSED_EARLY,
    ERROR,
    FINISHED,
    ChannelAccount,
    exchange_config,
    exchange_flags,
    partition_named,
    print_summary,
    until_stopped,
)
from .json_document import print_document
from .stopping import keep_results
from .values import COUNT, DURATION, LENGTH

LEAVE_GRACE_S: Final = 5.0
"""How long to wait for consumers to release the partition after its end; usually they need milliseconds."""

DEFAULT_RECORDS: Final = 1000
TURN_RECORDS: Final = 1000
"""Records between two trio checkpoints; a writer that has buffers never blocks by itself."""

_TYPES: Final = [kind for kind in ResultPartitionType if kind is not ResultPartitionType.PIPELINED_APPROXIMATE]

_Value = int | str | bytes


@dataclass(frozen=True, slots=True)
class ServePlan:
    """The arguments of one run of `netstack serve`.

    Attributes:
        partition_id: id of the partition, in the library's notation.
        records: number of records, if there is no file.
        input_path: a file whose lines are the records.
        kind: type of the records: long, string or bytes.
        buffer_timeout_s: longest time a record waits in a part-filled buffer; None waits until the buffer is full.
        ack_timeout_s: how long to wait for consumers to acknowledge all records before the partition ends anyway; 0
            does not wait.
        timeout_s: time after which the run fails; None waits forever.
    """

    listen: str
    partition_id: str
    subpartitions: int
    config: NetworkConfig
    records: int = 0
    input_path: Path | None = None
    kind: str = "long"
    buffer_timeout_s: float | None = 0.1
    ack_timeout_s: float = 1.0
    timeout_s: float | None = None
    type: ResultPartitionType = ResultPartitionType.PIPELINED_BOUNDED


@final
class Serving:
    """One run of `netstack serve`.

    Args:
        ready: receives the address once the partition can be requested.

    Attributes:
        outcome: finished (all records were distributed), closed-early (the run was cancelled before) or error.
        is_released: whether every consumer has released its subpartition.
    """

    def __init__(self, plan: ServePlan, ready: Callable[[str], None]) -> None:
        self.accounts = {subpartition: ChannelAccount() for subpartition in range(plan.subpartitions)}
        self.outcome = CLOSED_EARLY
        self.error: NetstackError | None = None
        self.is_released = False
        self.task_events: list[str] = []
        self._plan = plan
        self._ready = ready
        self._changed = Signal()
        self._writing = trio.CancelScope()
        self._is_written = False

    async def run(self) -> None:
        """Serves until every subpartition was consumed; a partition in files is served until the timeout.

        Raises:
            ConfigError, OSError: the address is invalid or cannot be bound, or there are no subpartitions.

        Cancellation: closes the connections of consumers.
        """
        timeout_s = self._plan.timeout_s
        with trio.move_on_after(math.inf if timeout_s is None else timeout_s) as scope:
            await self._exchange()
        if scope.cancelled_caught and not (self._plan.type.is_released_by_scheduler and self.outcome == FINISHED):
            self._fail(NetstackError(f"not consumed within {timeout_s:g} s (--timeout)"))

    def document(self) -> dict[str, Any]:
        """The summary; its keys are a contract."""
        document: dict[str, Any] = {"kind": "served", "outcome": self.outcome}
        if self.error is not None:
            document["error"] = str(self.error)
        return document | {
            "partition_id": self._plan.partition_id,
            "all_released": self.is_released,
            "task_events": self.task_events,
            "channels": [account.document() for account in self.accounts.values()],
        }

    async def _exchange(self) -> None:
        plan = self._plan
        async with open_network(plan.listen, plan.config) as manager:
            handle = manager.create_partition(plan.partition_id, subpartitions=plan.subpartitions, kind=plan.type)
            partition = handle._engine
            partition.on_task_event = lambda event: self.task_events.append(flink_name(event))
            writer = RecordWriter(handle, format=value_format_named(plan.kind), buffer_timeout_s=plan.buffer_timeout_s)
            writer.outwait_consumers()  # `on_change` ends the writing
            wake_writer = partition.on_acknowledged
            assert wake_writer is not None

            def on_change() -> None:
                wake_writer()
                self._changed.wake()
                have_left = partition.store is None and partition.all_acknowledged
                if have_left and not self._is_written:  # no consumer reads the remaining records
                    self._writing.cancel()

            partition.on_acknowledged = on_change
            if not plan.type.is_blocking:
                self._ready(manager.address)
            try:
                await self._write(writer)
                if partition.store is not None:
                    await writer.finish()
            except (NetstackError, OSError) as error:
                self._fail(error if isinstance(error, NetstackError) else NetstackError(str(error)))
                partition.fail(str(error))
                return
            if partition.store is None:
                await self._end(writer, manager)
            else:
                await self._keep(manager.address)

    async def _write(self, writer: RecordWriter) -> None:
        dealt = self._dealt()
        with self._writing:
            for count, value in enumerate(dealt, 1):
                await writer.emit(value)
                if count % TURN_RECORDS == 0:
                    await trio.lowlevel.checkpoint()
        for count, _ in enumerate(dealt, 1):  # no consumer is left: only count them
            if count % TURN_RECORDS == 0:
                await trio.lowlevel.checkpoint()
        self._is_written = True

    async def _end(self, writer: RecordWriter, manager: NetworkEnvironment) -> None:
        partition = writer._partition
        self.outcome = FINISHED
        self._count_event(EndOfData())
        if not self._writing.cancelled_caught:
            await writer.broadcast_event(EndOfData())
            await self._wait_acknowledged(partition)
            partition.finish()
        self._count_event(EndOfPartition())
        partition.close()
        manager.flush_connections()
        while not partition.is_released:
            # A consumer that has not acknowledged may still be reading buffers in flight, and would lose them.
            with trio.move_on_after(LEAVE_GRACE_S if partition.all_acknowledged else math.inf) as scope:
                await self._changed.wait()
            if scope.cancelled_caught:
                break
        self.is_released = partition.is_released

    async def _keep(self, address: str) -> None:
        """Serves the complete partition until it is cancelled."""
        self.outcome = FINISHED
        self._count_event(EndOfData())
        self._count_event(EndOfPartition())
        if self._plan.type.is_blocking:
            self._ready(address)
        await trio.sleep_forever()

    async def _wait_acknowledged(self, partition: ResultPartition) -> None:
        """Waits for acknowledgements: at least `ack_timeout_s`, and at most twice that after everything was sent."""
        patience_s = self._plan.ack_timeout_s
        while patience_s and not partition.all_acknowledged:
            with trio.move_on_after(patience_s) as scope:
                await self._changed.wait()
            if scope.cancelled_caught and not any(map(_is_behind, partition.subpartitions)):
                return

    def _dealt(self) -> Iterator[_Value]:
        """Yields the values in order, and counts each in the account of its subpartition."""
        accounts = list(self.accounts.values())
        for index, (value, payload) in enumerate(_values(self._plan)):
            accounts[index % len(accounts)].add((payload,))
            yield value

    def _count_event(self, event: Event) -> None:
        for account in self.accounts.values():
            account.add_event(event)

    def _fail(self, error: NetstackError) -> None:
        self.outcome, self.error = ERROR, error


def _values(plan: ServePlan) -> Iterator[tuple[_Value, bytes]]:
    """Yields each record's value and payload. Raises ConfigError if a line is no value of this kind."""
    if plan.input_path is None:
        for index in range(plan.records):
            if plan.kind == "string":
                yield str(index), str(index).encode()
            else:
                payload = index.to_bytes(8, "big")
                yield index if plan.kind == "long" else payload, payload
        return
    with plan.input_path.open("rb") as file:
        for number, line in enumerate(file, 1):
            payload = line.removesuffix(b"\n")
            if plan.kind != "bytes":
                payload = payload.removesuffix(b"\r")
            try:
                if plan.kind == "bytes":
                    yield payload, payload
                elif plan.kind == "string":
                    yield payload.decode(), payload
                else:
                    value = int(payload)
                    yield value, value.to_bytes(8, "big", signed=True)
            except (ValueError, OverflowError) as error:
                raise ConfigError(
                    f"{plan.input_path}, line {number}: {payload[:40]!r} is no {plan.kind} ({error})"
                ) from error


def _is_behind(subpartition: ResultSubpartition) -> bool:
    """Whether a subpartition has buffers that its consumer has not consumed."""
    return bool(subpartition.queued_buffers()) and not subpartition.statistics().is_consumed


@click.command(short_help="Serve a partition to remote consumers.")
@click.option(
    "--subpartitions", type=COUNT, default=1, show_default=True, help="Number of subpartitions, one per consumer."
)
@exchange_flags
@click.option(
    "--listen",
    default="tcp://127.0.0.1:0",
    show_default=True,
    metavar="tcp://ADDR:PORT",
    help="Address to listen on; port 0 chooses a free one.",
)
@click.option(
    "--records",
    type=COUNT,
    show_default=str(DEFAULT_RECORDS),
    help="Number of records to generate: the numbers from 0 on.",
)
@click.option(
    "--input",
    "input_path",
    type=click.Path(exists=True, dir_okay=False, readable=True, path_type=Path),
    metavar="FILE",
    help="Serve the lines of FILE, one record per line.",
)
@click.option(
    "--as",
    "kind",
    type=click.Choice(["long", "string", "bytes"]),
    show_default="long; string with --input",
    help="Type of the records.",
)
@click.option(
    "--buffer-timeout",
    "buffer_timeout_s",
    type=DURATION,
    default="100ms",
    show_default=True,
    help="Longest time a record waits in a part-filled buffer. 0: flush after every record; none: only full buffers are"
    " sent.",
)
@click.option(
    "--ack-timeout",
    "ack_timeout_s",
    type=LENGTH,
    default="1s",
    show_default=True,
    help="How long to wait for consumers to acknowledge all records before the partition ends; 0 does not wait.",
)
@click.option(
    "--type",
    "kind_of_partition",
    type=click.Choice([kind.value for kind in _TYPES]),
    default=ResultPartitionType.PIPELINED_BOUNDED.value,
    show_default=True,
    help="Type of the partition. blocking: stored in files completely before it can be read; hybrid: stored in files,"
    " and readable while it is written.",
)
@click.option(
    "--compression",
    type=click.Choice(SHUFFLE_COMPRESSIONS),
    default="auto",
    show_default=True,
    help="Compression of partitions in files; a buffer is compressed if that makes it smaller. auto: compress while"
    " that takes less time than it saves.",
)
@click.option(
    "--sort-min-subpartitions",
    type=COUNT,
    default=1,
    show_default=True,
    help="Blocking and hybrid partitions with fewer subpartitions use one file per subpartition instead of one file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print two JSON documents, one per line: ready, and the summary.")
def serve(
    listen: str,
    dialect: str,
    partition: str,
    subpartitions: int,
    records: int | None,
    input_path: Path | None,
    kind: str | None,
    buffer_timeout_s: float | None,
    ack_timeout_s: float,
    timeout_s: float | None,
    kind_of_partition: str,
    compression: str,
    sort_min_subpartitions: int,
    as_json: bool,
    **buffers: int,
) -> int:
    """Serve a partition to task managers of Flink 2.3.0 or to `netstack consume` until they have read all of it.

    The exit code is 1 if not all records could be distributed, and 130 or 143 if Ctrl-C or SIGTERM stops it before all
    were. A complete blocking or hybrid partition is served until then: the exit code is 0.
    """
    if records is not None and input_path is not None:
        raise ConfigError("--records and --input exclude each other; give one of them")
    if records is not None and records < 0:
        raise ConfigError(f"--records {records}: give 0 or more")
    if subpartitions < 1:
        raise ConfigError(f"--subpartitions {subpartitions}: give 1 or more")
    plan = ServePlan(
        listen,
        partition_named(partition, dialect),
        subpartitions,
        exchange_config(
            dialect=dialect,
            partition=PartitionPlan(subpartitions, ResultPartitionType(kind_of_partition)),
            shuffle_compression=compression,
            sort_min_subpartitions=sort_min_subpartitions,
            **buffers,
        ),
        DEFAULT_RECORDS if records is None else records,
        input_path,
        kind or ("long" if input_path is None else "string"),
        buffer_timeout_s,
        ack_timeout_s,
        timeout_s,
        ResultPartitionType(kind_of_partition),
    )

    def ready(address: str) -> None:
        if as_json:
            facts = {"port": urlsplit(address).port, "partition_id": plan.partition_id, "address": address}
            print_document({"kind": "ready"} | facts)
        else:
            click.echo(f"{counted(subpartitions, 'subpartition')} of {plan.partition_id} at {address}")

    serving = Serving(plan, ready)
    is_stopped = trio.run(until_stopped, serving.run)
    if as_json:
        print_document(serving.document() | {"stop_requested": is_stopped})
    else:
        print_summary(f"{plan.partition_id}: {serving.outcome}", serving.accounts, to_stderr=False)
    if serving.error is not None:
        click.echo(f"netstack: {serving.error}", err=True)
        return 2 if isinstance(serving.error, ConfigError) else 1
    if is_stopped and not (plan.type.is_released_by_scheduler and serving.outcome == FINISHED):
        keep_results()
        return 0
    return 0 if serving.outcome == FINISHED else 1
