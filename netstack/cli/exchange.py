"""Shared parts of `netstack consume` and `netstack serve`: flags, partition ids, and the account of each channel.

Takes: command-line arguments; payloads and events. Gives: a `NetworkConfig`; a summary as text or JSON.

An account counts payloads without framing, so that the accounts of both ends can be compared: a long counts as 8 bytes
big-endian, a string as its UTF-8, bytes as they are.
"""

from __future__ import annotations

import signal
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar, final

import click
import trio
from rich.console import Console
from rich.table import Table

from ..base.config import FLINK_DIALECT, NATIVE_DIALECT, NetworkConfig
from ..base.errors import ConfigError
from ..base.events import Event
from ..exchange.buffer.requirements import GatePlan, PartitionPlan, required_buffers
from ..exchange.record.framing import MAX_RECORD_BYTES
from ..exchange.wire.flink_events import flink_name
from ..exchange.wire.flink_layout import partition_bytes
from .network_flags import buffer_flags
from .stopping import note_signal
from .values import LENGTH

FINISHED: Final = "finished"
CLOSED_EARLY: Final = "closed-early"
ERROR: Final = "error"
"""Outcomes."""

SPARE_SEGMENTS: Final = 64
"""Segments for connections, beyond those that the gate or partition may use."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


@final
class ChannelAccount:
    """The records, bytes and events of one channel.

    Attributes:
        records: number of values; watermarks and other stream elements do not count.
        payload_bytes: size of the values without framing.
        events: names of Flink's event classes, in order.
        buffer_bytes: size of the data buffers, including framing.
        watermark: the last watermark among the records, in milliseconds.
    """

    def __init__(self) -> None:
        self.records = 0
        self.payload_bytes = 0
        self.events: list[str] = []
        self.buffers = 0
        self.buffer_bytes = 0
        self.watermark: int | None = None
        self._crc32 = 0

    @property
    def crc32(self) -> str:
        """The CRC-32 of all payloads in order, as 8 hex digits."""
        return f"{self._crc32:08x}"

    def add(self, payloads: Sequence[bytes]) -> None:
        """Counts the payloads of the next records."""
        joined = b"".join(payloads)
        self.records += len(payloads)
        self.payload_bytes += len(joined)
        self._crc32 = zlib.crc32(joined, self._crc32)

    def add_event(self, event: Event) -> None:
        """Counts an event."""
        self.events.append(flink_name(event))

    def document(self) -> dict[str, Any]:
        """The account for JSON output; the keys are a contract."""
        return {
            "records": self.records,
            "payload_bytes": self.payload_bytes,
            "crc32": self.crc32,
            "events": self.events,
        }


def partition_named(text: str, dialect: str) -> str:
    """The id of a partition in the library's notation.

    Raises:
        ConfigError: the dialect is Flink's and the text is not 120 hex digits.
    """
    if dialect != FLINK_DIALECT:
        return text
    name = text.strip().lower()
    partition_bytes(name)
    return name


def exchange_flags(command: _Command) -> _Command:
    """Adds the flags for the partition, the dialect and the buffers, named as the parameters of `exchange_config`."""
    for option in (
        click.option(
            "--partition", required=True, metavar="HEX120", help="Id of the partition; Flink's ids have 120 hex digits."
        ),
        click.option(
            "--dialect",
            type=click.Choice([FLINK_DIALECT, NATIVE_DIALECT]),
            default=FLINK_DIALECT,
            show_default=True,
            help="Network protocol of the other end.",
        ),
        click.option(
            "--timeout", "timeout_s", type=LENGTH, show_default="no limit", help="Fail if not finished by then."
        ),
    ):
        command = option(command)
    return buffer_flags()(command)


def exchange_config(
    *,
    dialect: str,
    segment_size_bytes: int,
    exclusive_buffers: int,
    floating_buffers: int,
    gate: int = 0,
    partition: PartitionPlan | None = None,
    **more: Any,
) -> NetworkConfig:
    """Settings with as much memory as the input gate, or the partition, can ever use.

    Raises:
        ConfigError: a setting has an invalid value.
    """
    settings: dict[str, Any] = {
        "dialect": dialect,
        "segment_size_bytes": segment_size_bytes,
        "exclusive_buffers_per_channel": exclusive_buffers,
        "floating_buffers_per_gate": floating_buffers,
        "max_record_bytes": MAX_RECORD_BYTES,  # the user of this exchange chose its peer
        **more,
    }
    checked = NetworkConfig(**settings, memory_bytes=SPARE_SEGMENTS * segment_size_bytes)
    needed = required_buffers(
        gates={"gate": GatePlan(gate)} if gate else {},
        partitions={} if partition is None else {"partition": partition},
        connections=1,
        config=checked,
    )
    return NetworkConfig(
        **settings, memory_bytes=((needed.maximum or needed.required) + SPARE_SEGMENTS) * segment_size_bytes
    )


async def until_stopped(main: Callable[[], Awaitable[None]]) -> bool:
    """Runs `main`, and cancels it on SIGINT or SIGTERM. Returns whether a signal arrived.

    Raises:
        BaseException: the exception of `main`, not wrapped in a group.
    """
    failed: list[Exception] = []
    stopped = False
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:

            async def watch(signals: AsyncIterator[int]) -> None:
                nonlocal stopped
                async for number in signals:
                    note_signal(number)
                    stopped = True
                    nursery.cancel_scope.cancel()

            async def run() -> None:
                try:
                    await main()
                except (ConfigError, OSError) as error:
                    failed.append(error)
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch, signals)
            nursery.start_soon(run)
    if failed:
        raise failed[0]
    return stopped


def print_summary(title: str, accounts: Mapping[int, ChannelAccount], *, to_stderr: bool) -> None:
    """Prints a table with a row for each subpartition."""
    table = Table(title=title, title_justify="left")
    table.add_column("subpartition", justify="right")
    for name in ("records", "payload bytes"):
        table.add_column(name, justify="right")
    table.add_column("CRC-32")
    table.add_column("events")
    for subpartition, account in accounts.items():
        table.add_row(
            str(subpartition),
            f"{account.records:,}",
            f"{account.payload_bytes:,}",
            account.crc32,
            ", ".join(account.events),
        )
    Console(stderr=to_stderr, soft_wrap=True).print(table)
