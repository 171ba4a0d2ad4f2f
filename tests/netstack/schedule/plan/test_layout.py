"""Where boxes, lines and texts of a drawn job graph go."""

from __future__ import annotations

import pytest
from job_shapes import job_graph, job_of, nightly_join

from netstack.schedule.graph.examples import word_count
from netstack.schedule.graph.job_graph import JobGraph
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.plan.picture import BOX_WIDTH, lay_out

F = "jobs:function"


def shop() -> JobGraph:
    """Twelve vertices: unions, a two-input operator, a diamond, side outputs, an edge that passes a layer."""
    job = StreamEnvironment("shop", parallelism=4)
    clicks = job.source(F, name="clicks").set_parallelism(2)
    orders, returns = job.source(F, name="orders"), job.source(F, name="returns").set_parallelism(3)
    rates = job.source(F, name="rates").set_parallelism(1)
    parsed = clicks.rescale().map(F, name="parse")
    money = orders.union(returns.rebalance()).connect(rates.broadcast(), F, name="convert")
    joined = money.key_by(F).connect(parsed.key_by(F), F, name="join")
    left = joined.key_by(F).process(F, name="sums").set_parallelism(2)
    right = joined.rebalance().map(F, name="score")
    both = left.key_by(F).union(right.key_by(F), clicks.key_by(F)).process(F, name="merge")
    both.side_output("late").rebalance().sink(F, name="archive").set_parallelism(1)
    parsed.side_output("bad").union(money.side_output("bad").rebalance()).sink(F, name="letters").start_new_chain()
    joined.shuffle().sink(F, name="sample").set_parallelism(1)
    return job_graph(job.stream_graph())


JOBS = {
    "shop": shop(),
    "words": job_graph(word_count().stream_graph()),
    "nightly": job_graph(nightly_join().stream_graph()),
    "fan-in": job_of("; ".join([f"s{n}(1)" for n in range(8)] + [f"s{n} -all,pipelined-> k(2)" for n in range(8)])),
    "mesh": job_of(
        "a(1); b(1); c(1); a -all,pipelined-> d(1); b -all,pipelined-> d; c -all,pipelined-> d;"
        "a -all,pipelined-> e(1); b -all,pipelined-> e; c -all,pipelined-> e;"
        "a -all,pipelined-> f(1); b -all,pipelined-> f"
    ),
}


@pytest.mark.parametrize("name", JOBS)
def test_texts_do_not_cover_each_other_nor_boxes(name: str) -> None:
    job = JOBS[name]
    layout = lay_out(job, [80.0] * len(job.vertices))
    for index, (x, y) in enumerate(layout.labels):
        for other_x, other_y in layout.labels[:index]:
            assert abs(x - other_x) >= 150 or abs(y - other_y) >= 30
        for box in layout.boxes:
            beside = x + 75 <= box.x or x - 75 >= box.x + BOX_WIDTH
            assert beside or y + 15 <= box.y or y - 12 >= box.y + box.height


@pytest.mark.parametrize("name", JOBS)
def test_lines_run_down_from_producer_to_consumer(name: str) -> None:
    job = JOBS[name]
    layout = lay_out(job, [80.0] * len(job.vertices))
    assert len(layout.lines) == len(layout.labels) == len(job.edges)
    for edge, points in zip(job.edges, layout.lines, strict=True):
        source, target = layout.boxes[job.datasets[edge.dataset].producer], layout.boxes[edge.consumer]
        heights = [y for _, y in points]
        assert heights == sorted(heights)
        assert points[0] == (source.x + BOX_WIDTH / 2, source.y + source.height)
        assert target.x < points[-1][0] < target.x + BOX_WIDTH
        assert points[-1][1] == target.y
