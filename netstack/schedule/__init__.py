"""From a job graph to a plan, and from events to instructions: pure functions and state machines, no I/O, no clock.

Here is what writes and plans a job. Who runs one takes `Scheduler` from `scheduler`, how it is set from
`scheduler_settings`, its input from `events`, its output from `instructions`, when it restarts from
`failover.restart`.
"""

from .graph.chaining import Chaining, ChainingExplanation
from .graph.job_generator import generate_job
from .graph.job_graph import UNDECIDED, JobGraph, ResourceProfile
from .graph.stream_builder import DataStream, OperatorStream, StreamEnvironment
from .graph.stream_graph import (
    ChainingStrategy,
    ExchangeMode,
    GlobalExchangeMode,
    Partitioner,
    StreamGraph,
    StreamSettings,
)
from .plan.plan import Plan, make_plan
from .plan.text import plan_text
from .slots.slots import LoadBalanceMode

__all__ = [
    "UNDECIDED",
    "Chaining",
    "ChainingExplanation",
    "ChainingStrategy",
    "DataStream",
    "ExchangeMode",
    "GlobalExchangeMode",
    "JobGraph",
    "LoadBalanceMode",
    "OperatorStream",
    "Partitioner",
    "Plan",
    "ResourceProfile",
    "StreamEnvironment",
    "StreamGraph",
    "StreamSettings",
    "generate_job",
    "make_plan",
    "plan_text",
]
