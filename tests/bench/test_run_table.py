from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from netstack_bench.compare import median_result
from netstack_bench.labels import bottleneck
from netstack_bench.run_table import describe_spec, peer_rows, print_run
from netstack_bench.spec import RunSpec

FakeResult = Callable[..., dict[str, Any]]


def printed(result: dict[str, Any], spec: RunSpec | None = None) -> list[str]:
    text = io.StringIO()
    print_run(result, spec or RunSpec(), Console(file=text, width=120))
    return [" ".join(line.split()) for line in text.getvalue().splitlines()]


def waited(soft: float, hard: float, idle: float) -> dict[str, Any]:
    return {"backpressured_ms_per_s": {"soft": soft, "hard": hard}, "idle_ms_per_s": idle}


def test_who_waits_why_buffers_left_and_what_was_announced(fake_result: FakeResult) -> None:
    lines = printed({**fake_result(RunSpec(seconds=1)), **waited(7.25, 978, 5.83)})
    assert "back-pressured soft, ms/s 7.25" in lines
    assert "back-pressured hard, ms/s 978" in lines
    assert "consumer idle, ms/s 5.83" in lines
    assert any(re.fullmatch(r"full / timeout / event / at once 1,\d\d\d / 2 / 1 / \d,\d\d\d", line) for line in lines)
    assert "buffers sent 5,088" in lines
    assert not any("overdraft" in line for line in lines)
    assert "announced credit / backlog 17 / 3" in lines
    assert "pool usage out / in 75% / 50%" in lines
    assert lines[-1] == "bottleneck: the consumer; the producer waits for it"


def test_more_than_a_whole_pool_is_explained(fake_result: FakeResult) -> None:
    result = fake_result(RunSpec(seconds=1))
    result["metrics"]["producer"]["netstack_output_pool_usage_ratio"] = 1.36
    lines = printed(result)
    assert "pool usage out / in 136% / 50%" in lines
    assert any(line.startswith("pool usage above 100%: overdraft buffers") for line in lines)


def test_repeats_are_told_with_their_range_and_peers_by_pairs(fake_result: FakeResult) -> None:
    drifts = (1.0, 0.5, 2.0, 1.4)  # of the machine: both of a pair have it
    ours = [
        {**fake_result(RunSpec(), salt=n, noise=0.01), "records_per_s": 2e6 * d * (1 + n / 100)}
        for n, d in enumerate(drifts)
    ]
    theirs = [{**fake_result(RunSpec(), salt=n, noise=0.01), "records_per_s": 1e6 * d} for n, d in enumerate(drifts)]
    result = {**median_result(ours), "peer": {**median_result(theirs), "name": "zmq"}}
    lines = printed(result)
    assert re.fullmatch(r"medians of 4 runs, records/s \d M \(\S+ [kM] to \d M\)", lines[1]), "half of it is noise"
    assert any(re.fullmatch(r"records/s against zmq: 2\.03 x \(1\.9\d x to 2\.\d+ x\)", line) for line in lines), lines
    few = printed(median_result(ours[:2]))
    assert re.fullmatch(r"medians of 2 runs \(1\.01 M to 2 M records/s\)", few[1])


def test_a_peer_without_metrics_has_dashes(fake_result: FakeResult) -> None:
    ours = fake_result(RunSpec())
    nothing = {"backpressured_ms_per_s": {"soft": None, "hard": None}, "idle_ms_per_s": None}
    bare = {**fake_result(RunSpec()), **nothing, "metrics": {"producer": None, "consumer": None}}
    lines = printed({**ours, "peer": {**bare, "engine": "raw"}})
    assert "announced credit / backlog 17 / 3 \u2013" in lines
    assert "pool usage out / in 75% / 50% \u2013" in lines
    assert peer_rows({"peer": bare}).keys() == {"netstack"}
    assert not any("announced" in line for line in printed(bare)), "a row that nobody has is left out"


def test_results_older_than_the_metrics_are_printed_too(fake_result: FakeResult) -> None:
    old = fake_result(RunSpec())
    for name in ("metrics", "backpressured_ms_per_s", "idle_ms_per_s", "debloated_buffer_bytes"):
        del old[name]
    assert printed(old)[-1] == "delivered yes"


@pytest.mark.parametrize(
    ("waits", "spec", "reported"),
    [
        (waited(10, 900, 20), RunSpec(), "the consumer; the producer waits for it"),
        (waited(0, 5, 600), RunSpec(), "the producer; the consumer waits for it"),
        (
            waited(0, 990, 940),
            RunSpec(round_trip_s=0.01),
            "the link, or too few buffers for its round trip; both sides wait",
        ),
        (waited(0, 30, 40), RunSpec(), "none, both sides are busy"),
        (waited(0, 0, 970), RunSpec(rate_per_s=1000.0), "none, the requested rate is kept"),
        (waited(600, 300, 0), RunSpec(rate_per_s=1000.0), "the consumer"),
    ],
)
def test_who_is_the_bottleneck(waits: dict[str, Any], spec: RunSpec, reported: str) -> None:
    assert bottleneck(waits, spec).startswith(f"bottleneck: {reported}")


def test_a_side_that_was_not_measured_tells_no_bottleneck() -> None:
    assert bottleneck({}, RunSpec()) == ""
    assert bottleneck(waited(1, 2, 3) | {"idle_ms_per_s": None}, RunSpec()) == ""
    assert bottleneck({"backpressured_ms_per_s": {"soft": None, "hard": None}, "idle_ms_per_s": 1.0}, RunSpec()) == ""


def test_a_spec_tells_what_is_unusual() -> None:
    assert describe_spec(RunSpec()).endswith("2 + 8 buffers of 32 KiB, tcp")
    spec = RunSpec(
        round_trip_s=0.01, link_bytes_per_s=100 << 20, credit=False, debloat_s=1.0, consume_rate_per_s=20_000.0
    )
    assert describe_spec(spec).endswith(
        "tcp, round trip 10 ms, link 100 MiB/s, without credit, debloating to 1 s, consumer takes 20,000 records/s"
    )
