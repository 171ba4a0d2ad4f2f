"""Checkpoints of a run: what each holds, how long it takes, and what refuses them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, settings, strategies as st
from trio_runs import run_virtual

from netstack import ChannelDescriptor, RecordWriter, open_network
from netstack.base.errors import ConfigError
from netstack_bench import cell_checkpoints
from netstack_bench.cell_checkpoints import Coordinator, take_between_barriers
from netstack_bench.endpoints import PARTITION, config_of
from netstack_bench.engines import peer_spec
from netstack_bench.grid import Grid
from netstack_bench.spec import RunSpec, constants_of

FRAMING_BYTES = {"netstack": 4, "flink": 13}
"""Of each record in a buffer: its length, and behind it Flink's tag and timestamp."""


class Slow:
    """Takes so many records a second of the virtual clock, a few at a time."""

    def __init__(self, rate_per_s: float) -> None:
        self._rate_per_s = rate_per_s
        self._taken = 0

    async def turn(self, records: int) -> None:
        self._taken += records
        if self._taken >= 10:
            await trio.sleep(self._taken / self._rate_per_s)
            self._taken = 0


def spec_of(mode: Any, acts_as: str, **more: Any) -> RunSpec:
    constants: dict[str, Any] = constants_of(acts_as)
    few = {"segment_size_bytes": 4096, "checkpoints": mode, "acts_as": acts_as, **constants}
    return RunSpec(**{**few, **more})


def run(spec: RunSpec, records: int) -> tuple[list[int], dict[str, Any]]:
    """The bytes that each checkpoint missed, and what the coordinator tells of them."""
    framed = spec.record_bytes + FRAMING_BYTES[spec.acts_as]
    written: dict[int, int] = {}
    taken: dict[int, int] = {}
    kept: dict[int, int] = {}
    counts = {"emitted": 0, "fed": 0}

    async def main(folder: Path) -> dict[str, Any]:
        async with (
            open_network("memory://checkpoints-producer", config_of(spec)) as producer,
            open_network("memory://checkpoints-consumer", config_of(spec)) as consumer,
        ):
            partition = producer.create_partition(PARTITION, subpartitions=spec.channels)
            writer = RecordWriter[bytes](partition, buffer_timeout_s=spec.buffer_timeout_s)
            gate = await consumer.open_gate(
                [ChannelDescriptor(producer.address, PARTITION, channel) for channel in range(spec.channels)]
            )
            coordinator = Coordinator(spec, folder, writer, partition, from_ns=0)
            broadcast = writer.broadcast_event

            async def counted(event: Any) -> None:
                await broadcast(event)
                written[event.checkpoint_id] = counts["emitted"]

            writer.broadcast_event = counted  # type: ignore[method-assign,assignment]

            def feed(channel: int, part: list[bytes], now_ns: int) -> None:
                counts["fed"] += len(part)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(take_between_barriers, spec, feed, gate, consumer, folder)
                async with coordinator.running():
                    for number in range(records):
                        try:
                            writer.emit_nowait(bytes(spec.record_bytes))
                        except trio.WouldBlock:
                            await coordinator.emit(bytes(spec.record_bytes))
                        counts["emitted"] += 1
                        if number % 16 == 0:
                            await trio.lowlevel.checkpoint()
                await writer.finish()
            return coordinator.result()

    async def write(path: Path, state: bytes) -> float:
        number = int(path.name.rpartition("-")[2])
        kept[number] = kept.get(number, 0) + len(state)
        return 0.0

    def on_barrier(self: Any, barrier: Any, alignment: Any) -> None:
        taken[barrier.checkpoint_id] = counts["fed"]

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(cell_checkpoints, "Throttle", Slow)
        patch.setattr(cell_checkpoints, "_write", write)
        patch.setattr(cell_checkpoints, "clock_ns", lambda: int(trio.current_time() * 1e9))
        patch.setattr(cell_checkpoints._Answers, "on_barrier", on_barrier)
        result = run_virtual(lambda: main(Path(folder)))
    whole = [number for number in taken if number in written]
    return [(written[number] - taken[number]) * framed - kept.get(number, 0) for number in whole], result


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(["aligned", "unaligned"]),
    st.sampled_from(["netstack", "flink"]),
    st.integers(1, 4),
    st.sampled_from([500, 3000, 9000]),
    st.sampled_from([0.0, 0.01, None]),
)
def test_each_checkpoint_holds_what_was_written_and_not_processed(
    mode: str, acts_as: str, channels: int, record_bytes: int, timeout_s: float | None
) -> None:
    more = {"channels": channels, "record_bytes": record_bytes, "buffer_timeout_s": timeout_s}
    records = 400_000 // record_bytes + 10
    spec = spec_of(mode, acts_as, consume_rate_per_s=records / 2, checkpoint_interval_s=0.25, **more)
    missed, result = run(spec, records)
    assert result["complete"] >= 1
    assert missed == [0] * len(missed)


def test_an_aligned_barrier_waits_for_what_is_queued_and_an_unaligned_one_keeps_it() -> None:
    actual = {
        mode: run(spec_of(mode, "netstack", record_bytes=500, consume_rate_per_s=100, checkpoint_interval_s=1.0), 600)[
            1
        ]
        for mode in ("aligned", "unaligned")
    }
    assert actual["aligned"]["duration_ms"]["p50"] > 500 > 50 > actual["unaligned"]["duration_ms"]["p50"]
    assert actual["aligned"]["channel_state_bytes"]["p50"] == 0
    assert actual["unaligned"]["channel_state_bytes"]["p50"] > 10 * 4096


@pytest.mark.parametrize(
    ("more", "flag"),
    [
        ({"checkpoints": "sometimes"}, "--checkpoints sometimes"),
        ({"checkpoint_interval_s": 0.0}, "--checkpoint-interval"),
        ({"emit": "batch"}, "--emit"),
        ({"connections": 2, "channels": 2}, "--connections"),
        ({"credit": False}, "--credit"),
    ],
)
def test_what_cannot_be_measured_with_checkpoints_is_refused_by_its_flag(more: dict[str, Any], flag: str) -> None:
    with pytest.raises(ConfigError, match=flag):
        RunSpec(**{"checkpoints": "aligned", **more})


@pytest.mark.parametrize("more", [{"checkpoints": "aligned"}, {"memory_bytes": 1 << 20}])
def test_a_peer_without_the_notion_refuses_it(more: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"--checkpoints|--memory"):
        peer_spec("zmq", RunSpec(**more))


def test_memory_and_checkpoints_are_axes_and_without_checkpoints_there_is_one_interval() -> None:
    grid = Grid(
        timeouts_s=(0.1,),
        record_sizes=(8,),
        channels=(1,),
        latency_seconds=0,
        memories_bytes=(1 << 20, 1 << 22),
        checkpoints=("none", "aligned", "unaligned"),
        checkpoint_intervals_s=(0.1, 1.0),
    )
    actual = {(run.spec.memory_bytes, run.spec.checkpoints, run.spec.checkpoint_interval_s) for run in grid.plan()}
    assert len(actual) == len(grid.plan()) == 2 * (1 + 2 * 2)
    assert config_of(RunSpec(memory_bytes=1 << 22)).memory_bytes == 1 << 22
