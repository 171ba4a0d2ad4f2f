"""What `netstack consume` and `netstack serve` share: the partition's name, the account of each channel, flags.

Takes: words of the command line; payloads and events. Gives: a `NetworkConfig`; a summary, for people or as JSON.

An account counts payloads without any framing, so that both ends of an exchange, whoever they are, can be compared: a
long is 8 bytes big-endian, bytes are as they are, a string is its UTF-8.
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

from ..buffer.requirements import GatePlan, PartitionPlan, required_buffers
from ..config import FLINK_DIALECT, NATIVE_DIALECT, NetworkConfig
from ..errors import ConfigError
from ..events import Event
from ..record.framing import MAX_RECORD_BYTES
from ..wire.flink_events import flink_name
from ..wire.flink_layout import partition_bytes
from .network_flags import buffer_flags
from .values import LENGTH

FINISHED: Final = "finished"
CLOSED_EARLY: Final = "closed-early"
ERROR: Final = "error"
"""Outcomes."""

SPARE_SEGMENTS: Final = 64
"""Beyond what a gate or a partition is promised: connections that come and go."""

_Command = TypeVar("_Command", bound=Callable[..., Any])


@final
class ChannelAccount:
    """What went through one channel.

    Attributes:
        records: values; watermarks and the like are none.
        payload_bytes: of them, without framing.
        events: names of Flink's classes, in order.
        buffers: data buffers.
        buffer_bytes: in them, framing included.
        watermark: the last one among the records, in milliseconds.
    """

    def __init__(self) -> None:
        """Nothing went through it yet."""
        self.records = 0
        self.payload_bytes = 0
        self.events: list[str] = []
        self.buffers = 0
        self.buffer_bytes = 0
        self.watermark: int | None = None
        self._crc32 = 0

    @property
    def crc32(self) -> str:
        """Of all payloads in order, as 8 hex digits."""
        return f"{self._crc32:08x}"

    def add(self, payloads: Sequence[bytes]) -> None:
        """Payloads of records that follow the earlier ones."""
        joined = b"".join(payloads)
        self.records += len(payloads)
        self.payload_bytes += len(joined)
        self._crc32 = zlib.crc32(joined, self._crc32)

    def add_event(self, event: Event) -> None:
        """An event, in its place."""
        self.events.append(flink_name(event))

    def document(self) -> dict[str, Any]:
        """For JSON; the keys are a contract."""
        return {
            "records": self.records,
            "payload_bytes": self.payload_bytes,
            "crc32": self.crc32,
            "events": self.events,
        }


def partition_named(text: str, dialect: str) -> str:
    """The id of a partition as the library knows it.

    Raises:
        ConfigError: Flink's dialect, and not 120 hex digits in whatever case.
    """
    if dialect != FLINK_DIALECT:
        return text
    name = text.strip().lower()
    partition_bytes(name)
    return name


def exchange_flags(command: _Command) -> _Command:
    """How the connection speaks, and its buffers; named as `exchange_config` takes them."""
    for option in (
        click.option("--partition", required=True, metavar="HEX120", help="Its id; Flink's has 120 hex digits."),
        click.option(
            "--dialect",
            type=click.Choice([FLINK_DIALECT, NATIVE_DIALECT]),
            default=FLINK_DIALECT,
            show_default=True,
            help="What the other end speaks.",
        ),
        click.option("--timeout", "timeout_s", type=LENGTH, help="Give up after this long; never if not given."),
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
    """Settings with as much memory as an input gate, or a partition, of so many channels may ever take.

    Raises:
        ConfigError: a setting that cannot work.
    """
    settings: dict[str, Any] = {
        "dialect": dialect,
        "segment_size_bytes": segment_size_bytes,
        "exclusive_buffers_per_channel": exclusive_buffers,
        "floating_buffers_per_gate": floating_buffers,
        "max_record_bytes": MAX_RECORD_BYTES,  # a single exchange, of whoever asked for it
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
    """Runs `main`, which SIGINT and SIGTERM cancel. Returns whether one of them came.

    Raises:
        BaseException: what `main` raises, as it is.
    """
    failed: list[Exception] = []
    stopped = False
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:

            async def watch(signals: AsyncIterator[int]) -> None:
                nonlocal stopped
                async for _ in signals:
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
    """A table for people: a row for each subpartition."""
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
