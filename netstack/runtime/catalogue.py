"""The catalogue of metrics: each once, with its definition and where it stands in `statistics()`.

Takes: nothing. Gives: `CATALOGUE` to `metrics` (which reads the values) and to METRICS.md.

Names follow Prometheus: the unit is in the name, and what only ever grows ends in `_total`. A gate that is opened, or a
partition that is created, under a name used before starts over at 0, which Prometheus takes for a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final, Literal

from .statistics import NetworkStatistics


@dataclass(frozen=True, slots=True)
class Scope:
    """What there is one value of a metric for.

    Attributes:
        labels: what tells the values apart; none for a TaskManager.
        path: where such an item stands in the statistics, for people.
        items: every item, with the values of its labels.
    """

    labels: tuple[str, ...]
    path: str
    items: Callable[[Any], Iterable[tuple[tuple[str, ...], object]]]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: as exported.
        scope: what there is a value for.
        source: the attribute of the scope's items that holds it; where that is None there is no value.
        definition: what it means: its help text.
        is_detailed: whether it is exported only when asked for, because there are many or they are seldom needed.
    """

    name: str
    scope: Scope
    source: str
    definition: str
    is_detailed: bool = False
    read: Callable[[Any], float | None] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Prepares the look-up."""
        object.__setattr__(self, "read", attrgetter(self.source))

    @property
    def kind(self) -> Literal["counter", "gauge"]:
        """A counter only grows; a gauge goes up and down."""
        return "counter" if self.name.endswith("_total") else "gauge"

    @property
    def unit(self) -> str:
        """Of its values: how its name ends."""
        ending = self.name.removesuffix("_total")
        return "ms per second" if ending.endswith("_ms_per_second") else ending.rpartition("_")[2]


def _sending(statistics: NetworkStatistics) -> Iterator[tuple[tuple[str, ...], object]]:
    # Several consumers may wait for the same subpartition until it exists; then all but one of them are refused.
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
    Metric(
        "netstack_memory_available_segments", _TASK_MANAGER, "pool.free_segments", "Network buffers that nobody holds."
    ),
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
        "Size of the network buffers that nobody holds.",
    ),
    Metric(
        "netstack_memory_used_bytes",
        _TASK_MANAGER,
        "pool.lent_bytes",
        "Size of the network buffers that somebody holds.",
    ),
    Metric(
        "netstack_memory_requested_percent",
        _TASK_MANAGER,
        "pool.requested_percent",
        "What all partitions, gates, channels and connections would like to hold (the maximum of each pool, twice what"
        " was promised to one without, and what is outside of pools), of all network buffers. From 100 on the log says"
        " so: it works, with reduced throughput.",
    ),
    Metric("netstack_connections", _TASK_MANAGER, "connections", "Open connections, accepted and dialled."),
    Metric("netstack_prompt_connections", _TASK_MANAGER, "prompt_connections", "Of these those of prompt edges."),
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
        "Records written; a broadcast record counts once, a columnar batch too.",
    ),
    Metric(
        "netstack_output_buffers_total", _PARTITION, "buffers", "Data buffers finished; a broadcast buffer counts once."
    ),
    Metric(
        "netstack_output_bytes_total",
        _PARTITION,
        "bytes",
        "Bytes in the data buffers finished, length prefixes included; bytes / buffers tells how full they leave.",
    ),
    Metric("netstack_output_events_total", _PARTITION, "events", "Events broadcast."),
    Metric(
        "netstack_output_full_flushes_total",
        _PARTITION,
        "flushes_full",
        "Data buffers that left because they were full.",
    ),
    Metric(
        "netstack_output_timeout_flushes_total",
        _PARTITION,
        "flushes_timeout",
        "Flushes because the buffer timeout had passed.",
    ),
    Metric(
        "netstack_output_event_flushes_total",
        _PARTITION,
        "flushes_event",
        "Data buffers that left because an event came.",
    ),
    Metric(
        "netstack_output_queue_buffers",
        _PARTITION,
        "queued_buffers",
        "Data buffers (the one being written too) and events in the queues of all subpartitions; what is broadcast"
        " counts in each.",
    ),
    Metric(
        "netstack_output_queue_bytes",
        _PARTITION,
        "queued_bytes",
        "Bytes written to the queues of all subpartitions and not taken from them.",
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
        "Time in which the writer waits for output before a record: it has taken no buffer, at most filled an open one",
    ),
    *_waits(
        "netstack_output_hard_backpressured",
        _PARTITION,
        "hard_backpressured",
        "Time in which the writer waits inside a record, which has taken a buffer and needs more",
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
        "Data buffers that the remote consumer of a subpartition may be sent before it grants more.",
        is_detailed=True,
    ),
    Metric("netstack_input_records_total", _GATE, "records", "Records decoded by the reader."),
    Metric(
        "netstack_input_local_buffers_total",
        _GATE,
        "local_buffers",
        "Data buffers the reader polled from channels to the same TaskManager.",
    ),
    Metric(
        "netstack_input_remote_buffers_total",
        _GATE,
        "remote_buffers",
        "Data buffers the reader polled from channels over connections.",
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
        "Data buffers and events the reader could poll right now, over all channels: what a remote"
        " channel has received, what the queue behind a local one lets go.",
    ),
    Metric("netstack_input_queue_bytes", _GATE, "queued_bytes", "Bytes in what the reader could poll right now."),
    Metric(
        "netstack_input_sender_backlog_buffers",
        _GATE,
        "sender_backlog",
        "What waits at the producers: data buffers, as those of remote channels told last; of local channels what their"
        " queue does not let go yet.",
    ),
    Metric(
        "netstack_input_sender_expected_buffers",
        _GATE,
        "sender_expected",
        "Data buffers that producers which were held up for want of credit expect to send soon, whether they wait or"
        " not: buffers stay reserved for them. Flink has no such hope.",
    ),
    Metric(
        "netstack_input_in_use_buffers",
        _GATE,
        "buffers_in_use",
        "Filled and not polled, here or at a producer: input_queue_buffers + input_sender_backlog_buffers.",
    ),
    Metric(
        "netstack_input_pool_usage_ratio",
        _GATE,
        "in_pool_usage",
        "(Used floating + used exclusive buffers) / (size of the floating pool + all exclusive buffers); used is what"
        " holds data, queued or with the reader. Remote channels only: local ones have no buffers of their own.",
    ),
    Metric(
        "netstack_input_floating_usage_ratio",
        _GATE,
        "floating_usage",
        "(Floating buffers taken - those that are free at channels) / size of the pool; above 1 while the pool"
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
        "Announcements received from producers that had data and no credit.",
    ),
    *_waits(
        "netstack_input_idle",
        _GATE,
        "idle",
        "Time in which the reader waits because the gate, and every other of a union it belongs to, is empty",
    ),
    Metric(
        "netstack_input_debloated_buffer_bytes",
        _GATE,
        "debloated_buffer_bytes",
        "What the producers of the gate were last told to fill buffers to; only with debloating.",
    ),
    Metric(
        "netstack_input_time_to_consume_seconds",
        _GATE,
        "estimated_time_to_consume_s",
        "How long what was under way to the gate takes to consume, as last computed; only with debloating.",
    ),
    Metric(
        "netstack_input_queue_shortest_buffers",
        _GATE,
        "shortest_queue_buffers",
        "What could be polled from the channel with the least.",
        is_detailed=True,
    ),
    Metric(
        "netstack_input_queue_longest_buffers",
        _GATE,
        "longest_queue_buffers",
        "What could be polled from the channel with the most.",
        is_detailed=True,
    ),
    Metric(
        "netstack_input_queue_average_buffers",
        _GATE,
        "average_queue_buffers",
        "What could be polled from a channel, on average.",
        is_detailed=True,
    ),
    Metric(
        "netstack_input_channel_free_exclusive_buffers",
        _CHANNEL,
        "free_exclusive",
        "Exclusive buffers of a channel that are empty.",
        is_detailed=True,
    ),
    Metric(
        "netstack_input_channel_free_floating_buffers",
        _CHANNEL,
        "free_floating",
        "Floating buffers a channel has reserved that are empty.",
        is_detailed=True,
    ),
    Metric(
        "netstack_input_channel_unannounced_credits",
        _CHANNEL,
        "unannounced_credit",
        "Empty buffers of a channel that its producer does not know of yet.",
        is_detailed=True,
    ),
    Metric(
        "netstack_slot_blocked_seconds",
        _SLOT,
        "blocked_s",
        "For how long user code has kept the event loop of a slot from turning, from 2 s on; 0 while it turns. Told by"
        " the TaskManager's own process, since the slot cannot answer then.",
        is_detailed=True,
    ),
)
