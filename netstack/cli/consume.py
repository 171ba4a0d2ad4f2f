"""The command `netstack consume`: reads subpartitions of a remote producer, such as a Flink task manager.

Takes: an address, a partition, subpartitions. Gives: the records as lines, or a summary of them.

Rules: records that were read are counted even if the exchange fails later. A record may be a value, or a stream element
that contains one. The two cannot be confused in the formats long, string and bytes, except for byte arrays with
timestamps after the year 2280.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import click
import trio

from ..base.config import NetworkConfig
from ..base.errors import ChannelFailed, ConfigError, NetstackError, RecordError
from ..base.events import DataType, UserEvent, decode_event
from ..base.ids import ChannelDescriptor
from ..base.timing.wakeup import Signal
from ..exchange.record.deserializer import RecordDeserializer
from ..exchange.record.flink import StreamElementFormat, StreamRecord, Watermark, value_format_named
from ..exchange.record.flink_rows import FlinkRows, row_payloads
from ..exchange.record.flink_types import schema_of
from ..exchange.record.formats import BytesFormat
from ..exchange.record.spill import SpillDirectory
from ..network.deserializers import new_deserializer
from ..network.environment import NetworkEnvironment, open_network
from ..network.waiting.gate_waiter import TURN_BUFFERS, Engine
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
from .stopping import keep_results, stopped_by
from .values import COUNT, Parsed

RAW: Final = "raw"
ROWS: Final = "rows"
MAX_SUBPARTITIONS: Final = 65_536

_ANNOUNCEMENT: Final = UserEvent("EventAnnouncement")  # counted as an event, as Flink's consumer does


def _subpartitions(text: str) -> range:
    first, dash, last = text.partition("-")
    try:
        numbers = range(int(first), int(last if dash else first) + 1)
    except ValueError:
        raise ConfigError(f"{text!r} is no range; give a number, or FIRST-LAST such as 0-3") from None
    if numbers.start < 0 or not 1 <= len(numbers) <= MAX_SUBPARTITIONS:
        raise ConfigError(f"{text!r}: give 1 to {MAX_SUBPARTITIONS} subpartitions, the lower number first")
    return numbers


@final
class RecordPayloads:
    """Decodes records into values and counts their payloads.

    Args:
        kind: long, string, bytes, raw (the record's bytes unchanged) or rows (rows of Flink SQL).
        columns: the columns of rows, as `schema_of` takes them. Each row becomes a dictionary; its key "op" holds the
            row kind.

    Raises:
        ConfigError: an unknown kind, or invalid columns.
    """

    def __init__(self, kind: str, columns: str = "") -> None:
        self.kind = kind
        self._rows = FlinkRows(schema_of(columns), kind="op") if kind == ROWS else None
        self._values = None if kind in (RAW, ROWS) else value_format_named(kind)
        self._elements = None if self._values is None else StreamElementFormat(self._values)

    def take(self, records: Sequence[bytes], account: ChannelAccount) -> list[Any]:
        """Decodes records and adds them to an account. Returns their values.

        Raises:
            RecordError: a record is neither a value of this kind nor a stream element with one.
        """
        if self._rows is not None:
            self._rows.watermark = account.watermark  # one reader serves all channels
            batch = self._rows.batch(records)
            try:
                entries: list[Any] = batch.to_pylist()
            except ValueError as error:  # TIMESTAMP(9) exceeds the precision of Python's datetime
                raise ConfigError(
                    f"{error}; install it, or read the rows with netstack.exchange.record.flink_rows"
                ) from error
            account.watermark = self._rows.watermark
            account.add(row_payloads(records))
            return entries
        if self._values is None:
            account.add(records)
            return list(records)
        values = [value for record in records for value in self._values_of(record, account)]
        account.add([self._payload(value) for value in values])
        return values

    def _values_of(self, record: bytes, account: ChannelAccount) -> tuple[Any, ...]:
        assert self._values is not None
        assert self._elements is not None
        try:
            return (self._values.decode(memoryview(record)),)
        except RecordError as as_value:
            try:
                element = self._elements.decode(memoryview(record))
            except RecordError as as_element:
                raise RecordError(f"{as_value}; nor is it a stream element ({as_element}); try --as raw") from as_value
        if isinstance(element, Watermark):
            account.watermark = element.timestamp
        return (element.value,) if isinstance(element, StreamRecord) else ()

    def _payload(self, value: Any) -> bytes:
        if self.kind == "long":
            return int(value).to_bytes(8, "big", signed=True)
        if self.kind == "string":
            return (value or "").encode("utf-8", "surrogatepass")
        return bytes(value)


@dataclass(frozen=True, slots=True)
class ConsumePlan:
    """The arguments of one run of `netstack consume`.

    Attributes:
        partition_id: id of the partition, in the library's notation.
        kind: kind of the records, see `RecordPayloads`.
        columns: columns of rows, see `RecordPayloads`.
        limit: number of records after which to stop; None reads all.
        timeout_s: time after which the run fails; None waits forever.
    """

    address: str
    partition_id: str
    subpartitions: range
    config: NetworkConfig
    kind: str = RAW
    limit: int | None = None
    timeout_s: float | None = None
    columns: str = ""


@final
class Consumption:
    """One run of `netstack consume`.

    Attributes:
        outcome: finished, closed-early (the limit was reached, or the run was cancelled) or error.
    """

    def __init__(self, plan: ConsumePlan, show: Callable[[list[Any]], None] | None = None) -> None:
        self.accounts = {subpartition: ChannelAccount() for subpartition in plan.subpartitions}
        self.outcome = CLOSED_EARLY
        self.error: NetstackError | None = None
        self._plan = plan
        self._show = show
        self._payloads = RecordPayloads(plan.kind, plan.columns)
        self._records = 0

    async def run(self) -> None:
        """Reads until all channels have ended, the limit is reached, or the exchange fails.

        Raises:
            ConfigError: the address is invalid.

        Cancellation: closes the connection; the accounts keep what was read.
        """
        plan = self._plan
        timeout_s = math.inf if plan.timeout_s is None else plan.timeout_s
        with trio.move_on_after(timeout_s) as scope:
            async with open_network(f"memory://consume-{id(self)}", plan.config) as manager:
                try:
                    await self._exchange(manager)
                except ConfigError:
                    raise
                except NetstackError as error:
                    self.outcome, self.error = ERROR, error
        if scope.cancelled_caught:
            self.outcome, self.error = ERROR, NetstackError(f"not finished within {timeout_s:g} s (--timeout)")

    def document(self) -> dict[str, Any]:
        """The summary; its keys are a contract."""
        document: dict[str, Any] = {"kind": "consumed", "outcome": self.outcome}
        if self.error is not None:
            document["error"] = str(self.error)
            document["error_class"] = type(self.error).__name__
            document["error_scope"] = "channel" if isinstance(self.error, ChannelFailed) else "connection"
        document["channels"] = [
            account.document()
            | {
                "subpartition": subpartition,
                "buffers": account.buffers,
                "buffer_bytes": account.buffer_bytes,
                "watermark": account.watermark,
            }
            for subpartition, account in self.accounts.items()
        ]
        return document

    async def _exchange(self, manager: NetworkEnvironment) -> None:
        plan = self._plan
        gate = await manager.open_gate(
            [ChannelDescriptor(plan.address, plan.partition_id, index) for index in plan.subpartitions]
        )
        try:
            self.outcome = FINISHED if await self._read(gate._engine) else CLOSED_EARLY
            gate.close()
        finally:
            gate.abandon()

    async def _read(self, gate: Engine) -> bool:
        """Returns whether every channel has ended."""
        plan = self._plan
        signal = Signal()
        gate.on_available = signal.wake
        spill = SpillDirectory(None)
        deserializers = [new_deserializer(BytesFormat(), spill, plan.config) for _ in plan.subpartitions]
        accounts = list(self.accounts.values())
        turn = 0
        while plan.limit is None or self._records < plan.limit:
            buffer = gate.poll()
            if buffer is None:
                if gate.is_finished:
                    self._check_whole(deserializers)
                    return True
                gate.read_connections()
                if not gate.is_available:
                    await signal.wait()
                continue
            turn += 1
            if turn % TURN_BUFFERS == 0:
                await trio.lowlevel.checkpoint()
            channel = buffer.channel_index
            account = accounts[channel]
            data_type = buffer.data_type
            try:
                memory = buffer.contiguous()
                if data_type is DataType.DATA:
                    account.buffers += 1
                    account.buffer_bytes += len(memory)
                    self._take(deserializers[channel].feed(memory), account)
                else:
                    account.add_event(_ANNOUNCEMENT if data_type is DataType.ANNOUNCEMENT else decode_event(memory))
            finally:
                buffer.recycle()
            if data_type is DataType.END_OF_DATA:
                gate.acknowledge_end_of_data(channel)
            elif data_type.blocks_upstream:
                gate.resume(channel)
        return False

    def _take(self, records: list[bytes], account: ChannelAccount) -> None:
        limit = self._plan.limit
        if limit is not None:
            records = records[: limit - self._records]
        before = account.records
        values = self._payloads.take(records, account)
        self._records += account.records - before
        if self._show is not None and values:
            self._show(values)

    def _check_whole(self, deserializers: Sequence[RecordDeserializer]) -> None:
        for subpartition, deserializer in zip(self._plan.subpartitions, deserializers, strict=True):
            left = len(deserializer.unconsumed())
            if left:
                raise RecordError(f"subpartition {subpartition} ended in the middle of a record, {left} bytes into it")


@click.command(short_help="Read a partition of a remote producer.")
@click.argument("address", metavar="tcp://HOST:PORT")
@click.option(
    "--subpartitions",
    type=Parsed("range", _subpartitions),
    default="0",
    show_default=True,
    metavar="FIRST[-LAST]",
    help="Subpartitions to read.",
)
@exchange_flags
@click.option(
    "--as",
    "kind",
    type=click.Choice(["long", "string", "bytes", ROWS, RAW]),
    default="long",
    show_default=True,
    help="Type of the records. They are printed one per line: bytes and raw in hex, rows of Flink SQL as JSON.",
)
@click.option("--columns", metavar="TEXT", help='Columns of --as rows, such as "id BIGINT NOT NULL, name STRING".')
@click.option("--limit", type=COUNT, show_default="no limit", help="Stop after this many records.")
@click.option(
    "--retries",
    type=COUNT,
    default=1,
    show_default=True,
    help="How often to request a partition again that the producer does not have yet.",
)
@click.option("--json", "as_json", is_flag=True, help="Print only the summary, as one JSON document.")
def consume(
    address: str,
    dialect: str,
    partition: str,
    subpartitions: range,
    kind: str,
    columns: str | None,
    limit: int | None,
    retries: int,
    timeout_s: float | None,
    as_json: bool,
    **buffers: int,
) -> int:
    """Read subpartitions of a Flink 2.3.0 task manager or of `netstack serve`, and print the records.

    A summary goes to standard error: the number of records, bytes and CRC-32 of the payloads, and the events of each
    subpartition. The exit code is 1 if the exchange fails, and 130 or 143 if Ctrl-C or SIGTERM stops it.
    """
    if (kind == ROWS) != (columns is not None):
        raise ConfigError("--as rows and --columns require each other: give both, or neither")
    plan = ConsumePlan(
        address,
        partition_named(partition, dialect),
        subpartitions,
        exchange_config(
            dialect=dialect, gate=len(subpartitions), partition=None, partition_request_retries=retries, **buffers
        ),
        kind,
        limit,
        timeout_s,
        columns or "",
    )
    consumption = Consumption(plan, None if as_json else _print_values)
    is_stopped = trio.run(until_stopped, consumption.run)
    if consumption.error is not None:
        click.echo(f"netstack: {consumption.error}", err=True)
    elif is_stopped:
        keep_results()
        click.echo(f"netstack: stopped by {stopped_by()}", err=True)
    if as_json:
        print_document(consumption.document())
    else:
        print_summary(f"{address}: {consumption.outcome}", consumption.accounts, to_stderr=True)
    return 0 if consumption.error is None else 1


def _print_values(values: list[Any]) -> None:
    click.echo("\n".join(map(_line_of, values)))


def _line_of(value: Any) -> str:
    """Formats a value as one line; times and decimals as Python prints them."""
    if isinstance(value, dict):
        return json.dumps(value, default=_line_of)
    return value.hex() if isinstance(value, bytes) else str(value)
