"""Results of `isolate` to be shown."""

from typing import Any

from netstack_bench.isolate.command import document
from netstack_bench.isolate.spec import BIN_TICKS, TICK_NS, IsolateSpec
from netstack_bench.places.local.runner import Summaries

SPEC = IsolateSpec(seconds=1.0, rate_per_s=1000.0)
Mode = dict[str, Any]


def summaries(spec: IsolateSpec = SPEC, *, sibling: float = 1.0, late_ns: int = 0, **changed: Any) -> Summaries:
    """What the workers would tell: B.3 gets `sibling` of its rate while B.4 stalls, and then takes a burst."""
    per_tick = int((spec.rate_per_s or 1000.0) * TICK_NS / 1e9)
    thirds = spec.phase_ticks
    stalled = [per_tick] * thirds + [0] * thirds + [5 * per_tick] * BIN_TICKS + [per_tick] * (thirds - BIN_TICKS)
    held = [per_tick] * thirds + [int(sibling * per_tick)] * thirds + [per_tick] * thirds
    # A.2 waits from the middle of its stall on.
    waited = [max(0.0, min(tick, 2 * thirds) - 1.5 * thirds) * TICK_NS / 1e9 for tick in spec.edges()]
    consumer = {
        "connections": 1,
        "edges_ns": [tick * TICK_NS for tick in spec.edges()],
        "records": {"B.3": sum(held), "B.4": sum(stalled)},
        "ticks": {"B.3": held, "B.4": stalled},
        "problems": {"B.3": [], "B.4": []},
        **changed,
    }
    producer = {
        "connections": 1,
        "edges_ns": [tick * TICK_NS + late_ns for tick in spec.edges()],
        "backpressured_s": {"B.3": [0.0] * len(waited), "B.4": waited},
    }
    return Summaries(producer, consumer, ("producer: a remark",))


def mode(spec: IsolateSpec = SPEC, **changed: Any) -> Mode:
    return document(spec, summaries(spec, **changed))
