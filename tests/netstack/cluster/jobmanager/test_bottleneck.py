"""Which vertex holds a job back, and what is proposed against it: on documents as snapshots have them."""

from __future__ import annotations

from typing import Any

import pytest

from netstack.base.config import NetworkConfig
from netstack.cluster.jobmanager.views.cluster_snapshots import CHANNEL_COLUMNS
from netstack.cluster.jobmanager.views.tuning import bottleneck_of, changed, measured, proposals

Shares = tuple[int, int, int]  # busy, idle, back-pressured
DEFINITION: dict[str, Any] = {
    "checkpoints": {"interval_s": 1.0},
    "operators": [{"name": "numbers"}, {"name": "count"}, {"name": "out", "parallelism": 1}],
}


def vertex(name: str, *shares: Shares, records: int = 0) -> dict[str, Any]:
    subtasks = [
        {"subtask": number, "state": "running", "busy": busy, "idle": idle, "backpressured": waiting}
        for number, (busy, idle, waiting) in enumerate(shares)
    ]
    numbers = {"records_in": records, "records_out": records, "parallelism": len(shares), "max_parallelism": 128}
    return {"name": name, "operators": [name], "subtasks": subtasks, **numbers}


def channel(**values: int) -> list[Any]:
    return [values.get(name, 0) for name in CHANNEL_COLUMNS]


def job(*vertices: dict[str, Any], channels: list[list[Any]] | None = None) -> dict[str, Any]:
    """Vertices one behind the other; `channels` are those of the first edge."""
    edges: list[dict[str, Any]] = [
        {"producer": number, "consumer": number + 1, "channels": []} for number in range(len(vertices) - 1)
    ]
    if channels:
        edges[0]["channels"] = channels
    return {"vertices": list(vertices), "edges": edges}


SOURCE = (20, 0, 980)
STARVED = channel(credit=0, backlog=5)
READY = channel(credit=3, backlog=5)


@pytest.mark.parametrize(
    ("document", "number", "subtask", "reason"),
    [
        (job(vertex("numbers", SOURCE), vertex("count", (990, 10, 0)), vertex("out", (5, 995, 0))), 1, None, "busy"),
        (job(vertex("a", SOURCE), vertex("b", (10, 0, 990)), vertex("c", (900, 100, 0))), 2, None, "busy"),
        (job(vertex("a", SOURCE), vertex("b", (100, 900, 0), (990, 10, 0), (120, 880, 0))), 1, 1, "skew"),
        (job(vertex("a", SOURCE), vertex("b", (100, 900, 0)), channels=[STARVED, STARVED, READY]), 1, None, "credit"),
        (job(vertex("a", SOURCE), vertex("b", (100, 900, 0)), channels=[READY, READY]), 1, None, "connection"),
        (job(vertex("a", (950, 50, 0)), vertex("b", (200, 800, 0))), 0, None, "source"),
        (job(vertex("a", (300, 650, 50)), vertex("b", (950, 50, 0))), 1, None, "busy"),
        (job(vertex("a", (30, 970, 0)), vertex("b", (50, 950, 0))), None, None, "none"),
    ],
)
def test_the_bottleneck_is_the_first_one_behind_those_who_wait(
    document: dict[str, Any], number: int | None, subtask: int | None, reason: str
) -> None:
    actual = bottleneck_of(document, CHANNEL_COLUMNS)
    assert actual is not None
    assert (actual["vertex"], actual["subtask"], actual["reason"]) == (number, subtask, reason)
    assert number is None or document["vertices"][number]["name"] in actual["text"]


def test_nothing_is_said_before_tasks_have_told_anything() -> None:
    silent = vertex("a", (0, 0, 0))
    silent["subtasks"] = [{"subtask": 0, "state": "deploying"}]
    assert bottleneck_of(job(silent), CHANNEL_COLUMNS) is None


def held_back(records: int) -> dict[str, Any]:
    """A source that could give twice as much, and two subtasks that could take 1.25 times as much."""
    source = vertex("numbers", (400, 100, 500), records=records)
    return job(source, vertex("count", (800, 200, 0), (800, 200, 0), records=records), vertex("out", (50, 950, 0)))


def test_the_parallelism_is_what_the_sources_would_fill() -> None:
    looks = [(float(second), held_back(1_000 * second)) for second in range(6)]
    assert measured(looks, CHANNEL_COLUMNS).records_per_s == 1_000
    (actual,) = proposals(looks, DEFINITION, CHANNEL_COLUMNS, NetworkConfig(), 8)
    assert (actual.before, actual.after) == (2, 4)  # 2 x 0.8 busy x 2 times as much, at 0.8 busy each
    after = changed(DEFINITION, [actual])
    assert [each.get("parallelism") for each in after["operators"]] == [None, 4, 1]
    assert "parallelism" not in DEFINITION["operators"][1], "the definition itself stays as it is"
    (less,) = proposals(looks, DEFINITION, CHANNEL_COLUMNS, NetworkConfig(), 3)
    assert less.after == 3
    assert "only 3 slots" in less.why
    assert not proposals(looks, DEFINITION, CHANNEL_COLUMNS, NetworkConfig(), 2)


def test_channels_without_credit_get_more_buffers() -> None:
    looks = [(float(at), job(vertex("a", SOURCE), vertex("b", (100, 900, 0)), channels=[STARVED])) for at in range(3)]
    actual = proposals(
        looks, {"operators": [], "network": {"floating_buffers_per_gate": 16}}, CHANNEL_COLUMNS, NetworkConfig(), 8
    )
    assert {each.path[1]: (each.before, each.after) for each in actual if each.path[0] == "network"} == {
        "exclusive_buffers_per_channel": (2, 4),
        "floating_buffers_per_gate": (16, 64),
    }
    assert changed({"operators": []}, actual)["network"]["floating_buffers_per_gate"] == 64


def test_a_quiet_job_sends_earlier_and_a_busy_one_stays() -> None:
    quiet = [(float(at), job(vertex("a", (30, 970, 0)), vertex("b", (50, 950, 0)))) for at in range(3)]
    (actual,) = proposals(quiet, {"operators": []}, CHANNEL_COLUMNS, NetworkConfig(), 8)
    assert (actual.path, actual.before, actual.after) == (("buffer_timeout_s",), 0.1, 0.001)
    assert not proposals(quiet, {"operators": [], "buffer_timeout_s": 0.0}, CHANNEL_COLUMNS, NetworkConfig(), 8)
    busy = [(float(at), job(vertex("a", (950, 50, 0)), vertex("b", (50, 950, 0)))) for at in range(3)]
    assert not proposals(busy, {"operators": []}, CHANNEL_COLUMNS, NetworkConfig(), 8)


def test_seconds_of_data_in_front_of_barriers_ask_for_debloating() -> None:
    def look(read: int) -> dict[str, Any]:
        waiting = channel(credit=0, backlog=6, queued=10, buffers=read)
        return job(vertex("a", SOURCE), vertex("b", (990, 10, 0)), channels=[waiting])

    looks = [(0.0, look(100)), (2.0, look(108))]  # 4 buffers a second, 16 in front
    actual = proposals(looks, DEFINITION, CHANNEL_COLUMNS, NetworkConfig(), 1)
    assert [(each.path, each.after) for each in actual] == [(("network", "debloat_target_s"), 1.0)]
    assert not proposals([(0.0, look(100)), (2.0, look(200))], DEFINITION, CHANNEL_COLUMNS, NetworkConfig(), 1)
