"""The measured job: rows of 100 bytes with random keys, sent to the subtask of their range of keys.

Its sinks return the number of rows of each range of keys, and a sum that does not depend on their order.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from netstack.base.config import MIB, NetworkConfig
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.graph.stream_graph import GlobalExchangeMode, Partitioner, StreamSettings

ROW_BYTES: Final = 100
BATCH_ROWS: Final = 10_000
_SEED: Final = 1
MEMORY_BYTES: Final = 48 * MIB
"""Network buffers on each TaskManager: 2 for each channel and 8 for each gate, of 32 KiB, and stored data."""
MODES: Final = {
    "pipelined": GlobalExchangeMode.ALL_EDGES_PIPELINED,
    "hybrid-full": GlobalExchangeMode.ALL_EDGES_HYBRID_FULL,
    "hybrid-selective": GlobalExchangeMode.ALL_EDGES_HYBRID_SELECTIVE,
    "blocking": GlobalExchangeMode.ALL_EDGES_BLOCKING,
}

Rows = npt.NDArray[np.uint8]


def shuffle_job(
    mode: str,
    *,
    batches: int,
    producers: int,
    consumers: int,
    compression: str = "auto",
    waits_for_slots: bool = False,
) -> StreamEnvironment:
    """Builds the job; each producer makes so many batches of `BATCH_ROWS`, each consumer receives a range of keys.

    With `waits_for_slots` no slot has subtasks of both stages, so that the second may have to wait for the first; in
    the mode blocking it waits in any case. Otherwise slots are shared, so that each TaskManager has its part of both
    stages: without sharing, the first slots go to the first stage, and the slots of a TaskManager follow each other.
    """
    shares = mode != "blocking" and not waits_for_slots
    network = NetworkConfig(memory_bytes=MEMORY_BYTES, shuffle_compression=compression)
    settings = StreamSettings(is_batch=True, exchange_mode=MODES[mode], shares_slots_by_default=shares, network=network)
    job = StreamEnvironment("shuffle", settings=settings)
    made = job.source(MakeRows, name="rows", parameters={"batches": batches}).set_parallelism(producers)
    ranged = made.partition_by(Partitioner.CUSTOM, f"{__name__}:by_range").with_format("bytes")
    ranged.sink(SumRows, name="sums").set_parallelism(consumers)
    return job


class MakeRows:
    """A source of rows: half of each is a random key and noise, half of it dots, so it compresses as text does."""

    def __init__(self, batches: int) -> None:
        self._left = batches
        self._random: np.random.Generator | None = None

    def open(self, context: Any) -> None:
        """Each subtask has rows of its own."""
        self._random = np.random.default_rng([_SEED, context.subtask])

    def read(self) -> Rows | None:
        """The next batch; None at the end."""
        if not self._left or self._random is None:
            return None
        self._left -= 1
        rows = np.full((BATCH_ROWS, ROW_BYTES), ord("."), np.uint8)
        noise = self._random.integers(0, 1 << 64, BATCH_ROWS * ROW_BYTES // 16 + 1, np.uint64)  # eight bytes a draw
        rows[:, : ROW_BYTES // 2] = noise.view(np.uint8)[: rows.size // 2].reshape(BATCH_ROWS, -1)
        return rows

    def snapshot(self) -> int:
        """The number of batches that remain."""
        return self._left


class _ByRange:
    """The subtask with a row's range of keys: by the first two bytes."""

    def __call__(self, row: bytes, channels: int) -> int:
        return (row[0] << 8 | row[1]) * channels >> 16

    def partition_batch(self, rows: Rows, channels: int) -> npt.NDArray[np.uint32]:
        """Of many rows."""
        first = rows[:, 0].astype(np.uint32) * np.uint32(256) + rows[:, 1]
        chosen: npt.NDArray[np.uint32] = (first * np.uint32(channels)) // np.uint32(65_536)
        return chosen


by_range = _ByRange()


class SumRows:
    """Counts rows and sums them up."""

    takes_arrays = True

    def __init__(self) -> None:
        self._rows = 0
        self._words = np.zeros(ROW_BYTES // 4, np.uint32)
        self._smallest, self._largest = 255, 0

    def process_batch(self, records: Any) -> None:
        """Adds rows."""
        data = b"".join(records) if isinstance(records, list) else np.ascontiguousarray(records).reshape(-1).data
        rows = np.frombuffer(data, np.uint8).reshape(-1, ROW_BYTES)
        self._rows += len(rows)
        self._words += _word_sums(np.frombuffer(data, "<u4").reshape(len(rows), -1))
        self._smallest = min(self._smallest, int(rows[:, 0].min()))
        self._largest = max(self._largest, int(rows[:, 0].max()))

    def finish(self, out: Any) -> dict[str, int]:
        """The totals; each 32-bit word of a row has a weight of its own in the sum, so that exchanged words show."""
        total = int((self._words * _WEIGHTS).sum()) & ((1 << 63) - 1)
        return {"rows": self._rows, "sum": total, "first_key": self._smallest, "last_key": self._largest}


def _word_sums(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Of each column of 32-bit words, modulo 2**32; 32 rows side by side, because wide additions are fast ones."""
    count, width = words.shape
    whole = count - count % 32
    wide = words[:whole].reshape(-1, 32 * width).sum(0, dtype=np.uint32).reshape(32, width)
    sums: npt.NDArray[np.uint32] = wide.sum(0, dtype=np.uint32) + words[whole:].sum(0, dtype=np.uint32)
    return sums


_WEIGHTS: Final = np.arange(1, ROW_BYTES // 4 + 1, dtype=np.uint64) * np.uint64(0x9E3779B1)


def expected(*, batches: int, producers: int, consumers: int) -> list[dict[str, int]]:
    """Computes the results of the sinks, without a network."""

    class _Context:
        subtask = 0

    sums = [SumRows() for _ in range(consumers)]
    for subtask in range(producers):
        source, context = MakeRows(batches), _Context()
        context.subtask = subtask
        source.open(context)
        while (rows := source.read()) is not None:
            chosen = by_range.partition_batch(rows, consumers)
            for consumer in range(consumers):
                sums[consumer].process_batch(rows[chosen == consumer])
    return [each.finish(None) for each in sums]
