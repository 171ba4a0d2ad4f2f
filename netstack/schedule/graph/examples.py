"""Two example jobs: `netstack plan netstack.schedule.graph.examples:word_count`. A plan needs no operator code."""

from __future__ import annotations

from .stream_builder import StreamEnvironment
from .stream_graph import GlobalExchangeMode, StreamSettings


def word_count() -> StreamEnvironment:
    """Reads lines, splits them in four subtasks, counts words by key, prints them in one."""
    job = StreamEnvironment("word count", parallelism=4)
    lines = job.source("words:read_lines", name="lines").set_parallelism(1)
    counts = lines.flat_map("words:split", name="split").key_by("words:word").process("words:Count", name="count")
    counts.filter("words:is_frequent", name="frequent").rebalance().sink("words:show", name="show").set_parallelism(1)
    return job


def nightly_join() -> StreamEnvironment:
    """A batch job: cleans orders and customers, joins them by customer and writes twice; regions run in turn."""
    settings = StreamSettings(is_batch=True, exchange_mode=GlobalExchangeMode.FORWARD_EDGES_PIPELINED)
    job = StreamEnvironment("nightly join", parallelism=6, settings=settings)
    orders = job.source("shop:read_orders", name="orders").filter("shop:is_paid", name="paid")
    customers = job.source("shop:read_customers", name="customers").set_parallelism(2)
    joined = orders.key_by("shop:customer").connect(
        customers.map("shop:clean", name="clean").set_parallelism(2).key_by("shop:customer"), "shop:Join", name="join"
    )
    joined.forward().sink("shop:archive", name="archive").start_new_chain()
    joined.key_by("shop:region").process("shop:Sum", name="sums").set_parallelism(3).sink(
        "shop:report", name="report"
    ).set_parallelism(3)
    return job
