from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from netstack_bench import pacing
from netstack_bench.generator import Source
from netstack_bench.places.local import worker_io
from netstack_bench.places.local.worker_io import ConsumerIo, Link, ProducerIo, SampledVerifier, verifier_of
from netstack_bench.rows import RowSource, RowVerifier
from netstack_bench.spec import RunSpec
from netstack_bench.verifier import Order, RecordVerifier, Verifier


class Runner:
    """The other end of a link."""

    def __init__(self) -> None:
        self.gone = threading.Event()
        read_fd, self.to_worker = os.pipe()
        self.from_worker, write_fd = os.pipe()
        self.fds = [read_fd, self.from_worker, write_fd]
        self.link = Link(read_fd, write_fd, self.gone.set)
        self.lines = os.fdopen(os.dup(self.from_worker), "rb")

    def say(self, event: str, **fields: Any) -> None:
        os.write(self.to_worker, json.dumps({"event": event, **fields}).encode() + b"\n")

    def hear(self, event: str) -> dict[str, Any]:
        """The next message of this kind."""
        while True:
            message: dict[str, Any] = json.loads(self.lines.readline())
            if message["event"] == event:
                return message

    def close(self) -> None:
        os.close(self.to_worker)
        assert self.gone.wait(120)
        self.lines.close()
        for fd in self.fds:
            os.close(fd)


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Iterator[Runner]:
    monkeypatch.setattr(worker_io, "HEARTBEAT_S", 0.01)
    made = Runner()
    yield made
    made.close()


def test_messages_both_ways(runner: Runner, tmp_path: Path) -> None:
    io = ConsumerIo(RunSpec(), runner.link, tmp_path)
    io.publish("tcp://here:1")
    assert runner.hear("address")["address"] == "tcp://here:1"
    runner.say("address", address="tcp://there:2")
    assert io.peer_address() == "tcp://there:2"
    runner.say("go", start_ns=123)
    io.ready()
    assert runner.hear("ready")
    assert io.start_ns == 123
    assert io.cpu_s() >= 0


def test_a_message_may_come_in_pieces(runner: Runner) -> None:
    for byte in b'{"event": "go", "start_ns": 5}\n':
        os.write(runner.to_worker, bytes((byte,)))
    assert runner.link.wait("go")["start_ns"] == 5


def test_heartbeats_tell_how_far_it_is(runner: Runner, tmp_path: Path) -> None:
    assert runner.hear("progress")["records"] == 0
    io = ConsumerIo(RunSpec(), runner.link, tmp_path)
    io.verifier.feed(0, Source(8, 4).records(0, 4))
    while runner.hear("progress")["records"] != 4:
        pass
    io.watch(lambda: 77)
    while runner.hear("progress")["records"] != 77:
        pass


def test_spans_cover_every_record_once(runner: Runner, tmp_path: Path) -> None:
    io = ProducerIo(RunSpec(records=40_000), runner.link, tmp_path)
    runner.say("go", start_ns=0)
    io.ready()
    spans = list(iter(io.next_span, None))
    assert spans == [(0, 16_384), (16_384, 16_384), (32_768, 7_232)]
    assert io.sent_records == 40_000
    assert io.sampler.samples()[0][0] == 0


def test_the_same_under_trio(runner: Runner, tmp_path: Path) -> None:
    io = ProducerIo(RunSpec(records=3, rate_per_s=1000), runner.link, tmp_path)

    async def main() -> list[tuple[int, int]]:
        runner.say("address", address="x")
        assert await io.peer_address_async() == "x"
        runner.say("go", start_ns=0)
        await io.ready_async()
        actual = []
        while (span := await io.next_span_async()) is not None:
            actual.append(span)
        return actual

    assert trio.run(main) == [(0, 3)]
    assert len(io.sampler.samples()[0]) == 0, "at a rate, due times tell the latency"


def test_a_record_is_made_before_it_is_due(runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    now_ns = itertools.count(0, 100_000)
    monkeypatch.setattr(pacing, "clock_ns", lambda: next(now_ns))
    monkeypatch.setattr(pacing, "SPIN_NS", 1_000_000_000)
    monkeypatch.setattr(Source, "prepare", lambda self, index: made.append(index))
    io = ProducerIo(RunSpec(records=4, rate_per_s=50), runner.link, tmp_path)
    runner.say("go", start_ns=0)
    io.ready()
    assert list(iter(io.next_span, None)) == [(0, 1), (1, 1), (2, 1), (3, 1)]
    assert made == [1, 2, 3], "the first is due at once, the others 20 ms apart"


def test_rows_of_a_file_come_once_unless_a_length_is_given(runner: Runner, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("k\n1\n2\n3\n")
    for records, total in ((None, 3), (7, 7)):
        io = ProducerIo(RunSpec(input_path=str(path), records=records), runner.link, tmp_path)
        assert isinstance(io.source, RowSource)
        runner.say("go", start_ns=0)
        io.ready()
        assert [span[1] for span in iter(io.next_span, None)] == [total]


@pytest.mark.parametrize(("emit", "sampled"), [("record", 1), ("batch", 3)])
def test_only_records_that_leave_together_are_sampled_together(
    runner: Runner, tmp_path: Path, emit: Any, sampled: int
) -> None:
    io = ProducerIo(RunSpec(emit=emit, records=3), runner.link, tmp_path)
    runner.say("go", start_ns=5)
    io.ready()
    assert io.next_span() == (0, 3)
    assert len(io.samples()[0]) == sampled


def test_paced_rows_are_sampled_by_their_due_time(runner: Runner, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("k\n1\n2\n3\n")
    io = ProducerIo(RunSpec(input_path=str(path), records=3, rate_per_s=100), runner.link, tmp_path)
    runner.say("go", start_ns=5)
    io.ready()
    assert io.next_span() == (0, 3)
    assert io.sampler.samples()[1].tolist() == [5, 10_000_005, 20_000_005]


@pytest.mark.parametrize(
    ("settings", "order"),
    [({}, Order.ROUND_ROBIN), ({"emit": "batch"}, Order.ROUND_ROBIN), ({"emit": "arrow"}, Order.BLOCKS)],
)
def test_the_verifier_knows_how_records_are_spread(
    runner: Runner, tmp_path: Path, settings: dict[str, Any], order: Order
) -> None:
    io = ConsumerIo(RunSpec(channels=2, **settings), runner.link, tmp_path)
    whole = Source(8, 10)
    blocks = [(0, 0, 5), (1, 5, 5)]
    for channel, first, count in blocks:
        io.verifier.feed(channel, whole.records(first, count))
    io.verifier.finish()
    assert (io.verifier.problems(whole.expected(10)) == []) is (order is Order.BLOCKS)


def test_records_rows_and_samples_have_verifiers_of_their_own() -> None:
    settings: dict[type[Verifier], dict[str, Any]] = {
        RecordVerifier: {},
        RowVerifier: {"input_path": "x.csv"},
        SampledVerifier: {"verify": "sample"},
    }
    for kind, each in settings.items():
        assert type(verifier_of(RunSpec(**each), 2)) is kind


def test_the_warm_up_of_a_paced_run_counts_for_no_latency(runner: Runner, tmp_path: Path) -> None:
    io = ConsumerIo(RunSpec(records=30, rate_per_s=1000), runner.link, tmp_path)
    runner.say("go", start_ns=1_000_000)
    io.ready()
    io.verifier.feed(0, Source(8, 30).records(0, 30), 100_000_000)
    io.verifier.finish()
    assert io.verifier.latency.count == 20
