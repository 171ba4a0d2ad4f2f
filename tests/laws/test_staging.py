"""Staging: nobody can tell whether a writer keeps records in one place before it shares them out."""

from __future__ import annotations

from typing import Any

import numpy as np
from exchange.writer_stage import Refused, Stage
from hypothesis import given, settings, strategies as st

from netstack.base.events import UserEvent
from netstack.exchange.outbound.selector import CustomSelector, RebalanceSelector
from netstack.exchange.outbound.staging import FROM_CHANNELS

CHANNELS = FROM_CHANNELS


class _Turns:
    """Round robin that does not say so: its writer stages nothing."""

    def __init__(self) -> None:
        self._next = -1

    def __call__(self, key: object, channels: int) -> int:
        self._next = (self._next + 1) % channels
        return self._next


def _stage(staged: bool, segment_bytes: int, buffers: int, timeout_s: float | None) -> Stage:
    return Stage(
        subpartitions=CHANNELS,
        selector=RebalanceSelector() if staged else CustomSelector(_Turns()),
        timeout_s=timeout_s,
        buffers=(CHANNELS + 1, buffers),
        segments=buffers + 2,
        segment_bytes=segment_bytes,
    )


_steps = st.one_of(
    st.tuples(st.just("emit"), st.integers(1, 6 * CHANNELS), st.sampled_from((0, 1, 4, 8, 40))),
    st.tuples(st.just("emit"), st.integers(CHANNELS, 20 * CHANNELS), st.just(8)),
    st.tuples(st.just("emit"), st.integers(CHANNELS, 20 * CHANNELS), st.just(8)),
    st.tuples(st.just("read"), st.integers(0, CHANNELS - 1), st.integers(1, CHANNELS)),
    st.tuples(st.just("take"), st.integers(0, CHANNELS - 1), st.just(0)),
    st.tuples(st.just("pass"), st.sampled_from((1, 9, 11)), st.just(0)),
    st.tuples(st.just("flush"), st.just(0), st.just(0)),
    st.tuples(st.just("event"), st.just(0), st.just(0)),
    st.tuples(st.just("look"), st.just(0), st.just(0)),
    st.tuples(st.just("batch"), st.integers(1, 40), st.just(0)),
)


def _run(stage: Stage, steps: list[tuple[str, int, int]]) -> list[Any]:
    """What a reader, and whoever asks for statistics, gets to see of it."""
    seen: list[Any] = []
    number = 0
    refused: bytes | None = None
    for what, one, two in steps:
        if what == "emit":
            for _ in range(one):
                record = (
                    ((number * 2654435761 % (1 << 64)).to_bytes(8, "big") * 5)[:two] if refused is None else refused
                )
                try:
                    stage.writer.emit_nowait(record)
                except Refused:
                    refused = record
                    seen.append(f"record {number} is refused")
                    break
                refused = None
                number += 1
        elif what == "read":
            for index in range(one, one + two):
                seen.append(stage.read(index % CHANNELS))
        elif what == "take":  # whether or not it was announced
            buffer = stage.partition.subpartitions[one].poll()
            if buffer is not None:
                seen.append((bytes(buffer.contiguous()), buffer.sequence, buffer.backlog, buffer.more_available))
                buffer.recycle()
        elif what == "pass":
            stage.host.advance(one / 100)
        elif what == "flush":
            stage.writer.flush()
        elif what == "event":
            stage.writer.broadcast_event(UserEvent("e", b""))
        elif what == "look":
            seen.append(stage.partition.statistics())
        else:
            rows = np.arange(8 * one, dtype=np.uint8).reshape(one, 8)
            for slot, payload in zip(stage.writer.batches.slots_of_batch(rows, one), rows, strict=True):
                if not stage.writer.try_write(slot, payload.tobytes()):
                    seen.append(f"row for {slot} is refused")
                    break
        seen.append(list(stage.told))
    stage.writer.flush()
    seen.append([stage.read(index) for index in range(CHANNELS)])
    seen.append(stage.partition.statistics())
    return seen


@settings(max_examples=4 * settings.default.max_examples)
@given(
    steps=st.lists(_steps, min_size=5, max_size=25),
    segment_bytes=st.sampled_from((48, 200, 1000)),
    buffers=st.sampled_from((CHANNELS + 1, 2 * CHANNELS, 4 * CHANNELS)),
    timeout_s=st.sampled_from((None, 10.0)),  # later than the steps take: rounds of flushes are told apart
)
def test_a_writer_that_stages_is_seen_to_do_what_one_does_that_does_not(
    steps: list[tuple[str, int, int]], segment_bytes: int, buffers: int, timeout_s: float | None
) -> None:
    displayed = [_run(_stage(staged, segment_bytes, buffers, timeout_s), steps) for staged in (True, False)]
    assert displayed[0] == displayed[1]


def test_records_are_staged_once_every_subpartition_has_a_buffer() -> None:
    stage = _stage(True, 1000, 2 * CHANNELS, None)
    for number in range(5 * CHANNELS):
        stage.emit(number.to_bytes(8, "big"))
    unwritten = stage.writer.buffers.builders[0].position
    assert unwritten < 5 * 12  # what is staged is in no buffer yet
    assert stage.partition.statistics().records == 5 * CHANNELS
    assert stage.writer.buffers.builders[0].position == 5 * 12
