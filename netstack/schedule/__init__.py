"""The scheduler of one job: graphs, plans, and a state machine from events to instructions. No I/O, no clock.

This package exports what writes and plans a job. A program that runs a job takes `Scheduler` from `scheduler`, its
settings from `scheduler_settings`, its input from `events`, its output from `instructions`, restart strategies from
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
from .plan.plan import Plan, SlotsIn, make_plan
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
    "SlotsIn",
    "StreamEnvironment",
    "StreamGraph",
    "StreamSettings",
    "generate_job",
    "make_plan",
    "plan_text",
]
