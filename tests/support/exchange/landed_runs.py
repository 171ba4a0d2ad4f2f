"""A sink's run of landed buffers, taken one by one: for sinks that record or count single buffers."""

from __future__ import annotations

from abc import abstractmethod


class TakesEach:
    """A `BufferSink` for which a run is nothing but its buffers."""

    @abstractmethod
    def on_small_buffer(
        self, channel: int, sequence: int, backlog: int, payload: bytes | memoryview, checksum: int
    ) -> None: ...

    def on_landed(
        self, channel: int, sequence: int, backlogs: list[int], memory: memoryview, checksums: list[int]
    ) -> None:
        each = len(memory) // len(backlogs)
        assert each * len(backlogs) == len(memory) == each * len(checksums) > 0
        for index, (backlog, checksum) in enumerate(zip(backlogs, checksums, strict=True)):
            payload = memory[index * each : (index + 1) * each]
            self.on_small_buffer(channel, (sequence + index) & 0xFFFFFFFF, backlog, payload, checksum)
