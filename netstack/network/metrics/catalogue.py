"""The catalogue of metrics: the definition of each, and its place in `statistics()`.

Takes: nothing. Gives: `CATALOGUE` to `samples` (which reads the values) and to METRICS.md.

Names follow Prometheus: the name includes the unit, and counters end in `_total`. When a gate or partition is created
under a name used before, its counters restart at 0, which Prometheus handles as a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, Literal

from ..connection.statistics import NetworkStatistics


@dataclass(frozen=True, slots=True)
class Scope:
    """The kind of item that a metric has one value for.

    Attributes:
        labels: the label names that identify an item; none for the TaskManager.
        path: the place of such an item in the statistics, for documentation.
        items: returns all items, each with its label values.
    """

    labels: tuple[str, ...]
    path: str
    items: Callable[[Any], Iterable[tuple[tuple[str, ...], object]]]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: as exported.
        scope: the kind of item it has a value for.
        source: the attribute of an item that holds the value; if it is None, no value is exported.
        definition: its help text.
        is_detailed: whether it is exported only on request, because it has many values or is rarely needed.
    """

    name: str
    scope: Scope
    source: str
    definition: str
    is_detailed: bool = False
    read: Callable[[Any], float | None] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "read", attrgetter(self.source))

    @property
    def kind(self) -> Literal["counter", "gauge"]:
        """A counter only grows; a gauge goes up and down."""
        return "counter" if self.name.endswith("_total") else "gauge"

    @property
    def unit(self) -> str:
        """The unit of its values, from its name."""
        ending = self.name.removesuffix("_total")
        return "ms per second" if ending.endswith("_ms_per_second") else ending.rpartition("_")[2]


def _sending(statistics: NetworkStatistics) -> Iterator[tuple[tuple[str, ...], object]]:
    # Several consumers may wait for a subpartition that does not exist yet; later all but one of them are refused.
    channels = {
        (channel.partition_id, str(channel.subpartition)): channel
        for connection in statistics.accepted
        for channel in connection.channels
    }
    return iter(channels.items())


_TASK_MANAGER: Final = Scope((), "", lambda statistics: [((), statistics)])
_PARTITION: Final = Scope(
    ("partition",), "partitions[i]", lambda statistics: [((part.partition_id,), part) for part in statistics.partitions]
)
_GATE: Final = Scope(("gate",), "gates[i]", lambda statistics: [((gate.name,), gate) for gate in statistics.gates])
_CHANNEL: Final = Scope(
    ("gate", "channel"),
    "gates[i].channels[j]",
    lambda statistics: [
        ((gate.name, str(channel.channel_index)), channel) for gate in statistics.gates for channel in gate.channels
    ],
)
_SLOT: Final = Scope(
    ("slot",), "slots[i]", lambda statistics: [((str(slot.number),), slot) for slot in statistics.slots]
)
_SENDING: Final = Scope(("partition", "subpartition"), "accepted[i].channels[j]", _sending)


def _waits(prefix: str, scope: Scope, source: str, definition: str) -> tuple[Metric, ...]:
    return (
        Metric(
            f"{prefix}_ms_per_second",
            scope,
            f"{source}.ms_per_s",
            f"{definition}: of each second of the last minute (55 to 60 s).",
        ),
        Metric(f"{prefix}_seconds_total", scope, f"{source}.total_s", f"{definition}: in all."),
        Metric(
            f"{prefix}_longest_seconds", scope, f"{source}.longest_s", f"{definition}: the longest single wait so far."
        ),
    )


CATALOGUE: Final[tuple[Metric, ...]] = (
    Metric(
        "netstack_memory_total_segments",
        _TASK_MANAGER,
        "pool.total_segments",
        "Network buffers of the TaskManager: memory_bytes / segment_size_bytes.",
    ),
    Metric("netstack_memory_available_segments", _TASK_MANAGER, "pool.free_segments", "Free network buffers."),
    Metric(
        "netstack_memory_used_segments",
        _TASK_MANAGER,
        "pool.lent_segments",
        "Network buffers held by partitions, gates, channels and connections, filled or not.",
    ),
    Metric("netstack_memory_total_bytes", _TASK_MANAGER, "pool.total_bytes", "Size of all network buffers."),
    Metric(
        "netstack_memory_available_bytes",
        _TASK_MANAGER,
        "pool.free_bytes",
        "Size of the free network buffers.",
    ),
    Metric(
        "netstack_memory_used_bytes",
        _TASK_MANAGER,
        "pool.lent_bytes",
        "Size of the network buffers held by partitions, gates, channels and connections.",
    ),
    Metric(
        "netstack_memory_requested_percent",
        _TASK_MANAGER,
        "pool.requested_percent",
        "Network buffers that all partitions, gates, channels and connections would use at most (the maximum of each"
        " pool, or twice its guaranteed size if it has no maximum, plus buffers outside pools), in percent of all"
        " network buffers. From 100 on a warning is logged: everything works, with reduced throughput.",
    ),
    Metric("netstack_connections", _TASK_MANAGER, "connections", "Open connections, accepted and dialled."),
    Metric(
        "netstack_prompt_connections",
        _TASK_MANAGER,
        "prompt_connections",
        "Open connections reserved for prompt channels.",
    ),
    Metric(
        "netstack_sent_bytes_total",
        _TASK_MANAGER,
        "bytes_sent",
        "Bytes written to connections, headers and control frames included.",
    ),
    Metric(
        "netstack_received_bytes_total",
        _TASK_MANAGER,
        "bytes_received",
        "Bytes read from connections, headers and control frames included.",
    ),
    Metric(
        "netstack_output_records_total",
        _PARTITION,
        "records",
        "Records written; a broadcast record and a columnar batch count once.",
    ),
    Metric(
        "netstack_output_buffers_total", _PARTITION, "buffers", "Data buffers finished; a broadcast buffer counts once."
    ),
    Metric(
        "netstack_output_bytes_total",
        _PARTITION,
        "bytes",
        "Bytes in the finished data buffers, including length prefixes; bytes / buffers is their average fill.",
    ),
    Metric("netstack_output_events_total", _PARTITION, "events", "Events broadcast."),
    Metric(
        "netstack_output_full_flushes_total",
        _PARTITION,
        "flushes_full",
        "Data buffers sent because they were full.",
    ),
    Metric(
        "netstack_output_timeout_flushes_total",
        _PARTITION,
        "flushes_timeout",
        "Flushes caused by the buffer timeout.",
    ),
    Metric(
        "netstack_output_event_flushes_total",
        _PARTITION,
        "flushes_event",
        "Data buffers sent partly filled because an event followed.",
    ),
    Metric(
        "netstack_output_queue_buffers",
        _PARTITION,
        "queued_buffers",
        "Data buffers (including open ones) and events in the queues of all subpartitions; a broadcast buffer counts in"
        " each queue.",
    ),
    Metric(
        "netstack_output_queue_bytes",
        _PARTITION,
        "queued_bytes",
        "Bytes in the queues of all subpartitions.",
    ),
    Metric(
        "netstack_output_pool_usage_ratio",
        _PARTITION,
        "out_pool_usage",
        "Used buffers of the partition's pool / its size; above 1 with overdraft, or while the pool shrinks.",
    ),
    *_waits(
        "netstack_output_soft_backpressured",
        _PARTITION,
        "soft_backpressured",
        "Time in which the writer waits for a buffer before it begins a record",
    ),
    *_waits(
        "netstack_output_hard_backpressured",
        _PARTITION,
        "hard_backpressured",
        "Time in which the writer waits for another buffer inside a record",
    ),
    Metric(
        "netstack_output_backpressured_ms_per_second",
        _PARTITION,
        "backpressured_ms_per_s",
        "Soft and hard back-pressure together, of each second of the last minute (55 to 60 s).",
    ),
    Metric(
        "netstack_output_queue_shortest_buffers",
        _PARTITION,
        "shortest_queue_buffers",
        "Elements in the shortest queue of a subpartition.",
        is_detailed=True,
    ),
    Metric(
        "netstack_output_queue_longest_buffers",
        _PARTITION,
        "longest_queue_buffers",
        "Elements in the longest queue of a subpartition.",
        is_detailed=True,
    ),
    Metric(
        "netstack_output_queue_average_buffers",
        _PARTITION,
        "average_queue_buffers",
        "Elements in a queue of a subpartition, on average.",
        is_detailed=True,
    ),
    Metric(
        "netstack_output_channel_credits",
        _SENDING,
        "credit",
        "Data buffers that may be sent to the remote consumer of a subpartition before it grants more credit.",
        is_detailed=True,
    ),
    Metric("netstack_input_records_total", _GATE, "records", "Records decoded by the reader."),
    Metric(
        "netstack_input_local_buffers_total",
        _GATE,
        "local_buffers",
        "Data buffers polled from local channels.",
    ),
    Metric(
        "netstack_input_remote_buffers_total",
        _GATE,
        "remote_buffers",
        "Data buffers polled from remote channels.",
    ),
    Metric(
        "netstack_input_local_bytes_total",
        _GATE,
        "local_bytes",
        "Bytes in the data buffers polled from local channels, length prefixes included.",
    ),
    Metric(
        "netstack_input_remote_bytes_total",
        _GATE,
        "remote_bytes",
        "Bytes in the data buffers polled from remote channels, length prefixes included.",
    ),
    Metric(
        "netstack_input_queue_buffers",
        _GATE,
        "queued_buffers",
        "Data buffers and events ready to be polled, over all channels: received by remote channels, or released by the"
        " queues that local channels read.",
    ),
    Metric("netstack_input_queue_bytes", _GATE, "queued_bytes", "Bytes in the buffers ready to be polled."),
    Metric(
        "netstack_input_sender_backlog_buffers",
        _GATE,
        "sender_backlog",
        "Data buffers queued at the producers: the backlog that remote producers announced last, and what the queues of"
        " local channels do not release yet.",
    ),
    Metric(
        "netstack_input_sender_expected_buffers",
        _GATE,
        "sender_expected",
        "Data buffers that producers which lacked credit expect to send soon: buffers stay reserved for them. Flink has"
        " no such forecast.",
    ),
    Metric(
        "netstack_input_in_use_buffers",
        _GATE,
        "buffers_in_use",
        "Filled buffers that were not polled yet, here or at a producer: input_queue_buffers +"
        " input_sender_backlog_buffers.",
    ),
    Metric(
        "netstack_input_pool_usage_ratio",
        _GATE,
        "in_pool_usage",
        "(Used floating + used exclusive buffers) / (size of the floating pool + all exclusive buffers); a used buffer"
        " holds data, in a queue or at the reader. Remote channels only: local channels own no buffers.",
    ),
    Metric(
        "netstack_input_floating_usage_ratio",
        _GATE,
        "floating_usage",
        "(Floating buffers taken - free floating buffers of channels) / size of the pool; above 1 while the pool"
        " shrinks.",
    ),
    Metric(
        "netstack_input_exclusive_usage_ratio",
        _GATE,
        "exclusive_usage",
        "(Exclusive buffers - free exclusive buffers) / exclusive buffers, over the open remote channels.",
    ),
    Metric("netstack_input_announcements_total", _GATE, "announcements", "Credit announcements sent to producers."),
    Metric(
        "netstack_input_backlog_announcements_total",
        _GATE,
        "backlog_announcements",
        "Backlog announcements received from producers that had data and no credit.",
    ),
    *_waits(
        "netstack_input_idle",
        _GATE,
        "idle",
        "Time in which the reader waits because the gate, and every other gate of its union, is empty",
    ),
    Metric(
        "netstack_input_debloated_buffer_bytes",
        _GATE,
        "debloated_buffer_bytes",
        "Buffer size that was last announced to the producers of the gate; only with debloating.",
    ),
    Metric(
        "netstack_input_time_to_consume_seconds",
        _GATE,
        "estimated_time_to_consume_s",
        "Estimated time to consume the data in flight to the gate; only with debloating.",
    ),
    Metric(
        "netstack_input_queue_shortest_buffers",
        _GATE,
        "shortest_queue_buffers",
        "Buffers and events ready at the channel with the fewest.",
        is_detailed=True,
    ),
    Metric(
        "netstack_input_queue_longest_buffers",
        _GATE,
        "longest_queue_buffers",
        "Buffers and events ready at the channel with the most.",
        is_detailed=True,
    ),
    Metric(
        "netstack_input_queue_average_buffers",
        _GATE,
        "average_queue_buffers",
        "Buffers and events ready at a channel, on average.",
        is_detailed=True,
    ),
    Metric(
        "netstack_input_channel_free_exclusive_buffers",
        _CHANNEL,
        "free_exclusive",
        "Empty exclusive buffers of a channel.",
        is_detailed=True,
    ),
    Metric(
        "netstack_input_channel_free_floating_buffers",
        _CHANNEL,
        "free_floating",
        "Empty floating buffers that a channel has reserved.",
        is_detailed=True,
    ),
    Metric(
        "netstack_input_channel_unannounced_credits",
        _CHANNEL,
        "unannounced_credit",
        "Empty buffers of a channel that were not announced to its producer yet.",
        is_detailed=True,
    ),
    Metric(
        "netstack_slot_blocked_seconds",
        _SLOT,
        "blocked_s",
        "How long user code has blocked the event loop of a slot, from 2 s on; 0 otherwise. Measured by the"
        " TaskManager's main process, because the slot cannot answer meanwhile.",
        is_detailed=True,
    ),
)
