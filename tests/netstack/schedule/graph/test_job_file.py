"""Jobs as JSON files: what they mean, and what is said of those that mean nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from job_shapes import job_graph

from netstack.base.errors import ConfigError
from netstack.schedule.graph.job_file import check, job_file_schema, read_job
from netstack.schedule.graph.job_graph import ResourceProfile
from netstack.schedule.graph.stream_graph import (
    UNSET,
    ChainingStrategy,
    ExchangeMode,
    GlobalExchangeMode,
    Partitioner,
    StreamGraph,
)

CLICKS = Path(__file__).parents[4] / "tools" / "examples" / "job.json"


def read(*operators: dict[str, Any], **job: Any) -> StreamGraph:
    return read_job(json.dumps({"operators": operators, **job}))


def test_the_example() -> None:
    job = job_graph(read_job(CLICKS.read_text("utf-8")))
    assert [vertex.name for vertex in job.vertices] == [
        "clicks",
        "orders",
        "parse -> clean",
        "match -> store",
        "alert",
    ]
    assert [group.name for group in job.slot_sharing_groups] == ["default", "orders"]
    assert [(edge.consumer, edge.input_number, edge.partitioner) for edge in job.edges] == [
        (2, 1, "rescale"),
        (3, 1, "hash"),
        (3, 2, "hash"),
        (4, 1, "rebalance"),
    ]


def test_everything_that_can_be_said() -> None:
    graph = read(
        {"name": "late", "inputs": [{"from": "b", "mode": "batch", "dataset_id": "kept", "side_output": "late"}]},
        {"name": "a", "is_legacy_source": True, "profile": {"cpu_cores": 0.5, "memory_bytes": 7}},
        {
            "name": "b",
            "function": "jobs:b",
            "parallelism": 2,
            "max_parallelism": 64,
            "slot_sharing_group": "apart",
            "co_location_group": "pair",
            "chaining": "head",
            "is_yielding": True,
            "emits_at_end_only": True,
            "buffer_timeout_s": None,
            "parameters": {"limit": 3},
            "inputs": ["a", {"from": "a", "partitioner": "broadcast", "input": 2}],
        },
        name="all",
        max_parallelism=32,
        buffer_timeout_s=1.5,
        is_batch=False,
        is_chaining_enabled=False,
        chains_different_max_parallelism=False,
        shares_slots_by_default=False,
        exchange_mode="forward_edges_pipelined",
        slot_sharing_groups={"apart": {"cpu_cores": 1, "memory_bytes": 2}},
    )
    a, b, late = graph.nodes
    assert (a.name, b.name, late.name) == ("a", "b", "late")
    assert (a.is_legacy_source, a.profile, a.buffer_timeout_s, a.max_parallelism) == (
        True,
        ResourceProfile("concrete", 0.5, 7),
        UNSET,
        32,
    )
    assert graph.buffer_timeout_s == 1.5
    assert (b.function, b.parallelism, b.max_parallelism, b.slot_sharing_group, b.co_location_group) == (
        "jobs:b",
        2,
        64,
        "apart",
        "pair",
    )
    assert b.strategy is ChainingStrategy.HEAD
    assert (b.is_yielding, b.emits_at_end_only, b.buffer_timeout_s, b.parameters) == (True, True, None, {"limit": 3})
    assert graph.edges[1].partitioner is Partitioner.BROADCAST
    assert [edge.input_number for edge in graph.edges] == [1, 2, 1]
    assert (graph.edges[2].mode, graph.edges[2].dataset_id, graph.edges[2].side_output) == (
        ExchangeMode.BATCH,
        "kept",
        "late",
    )
    assert graph.settings.global_mode is GlobalExchangeMode.FORWARD_EDGES_PIPELINED
    assert not graph.settings.is_chaining_enabled
    assert not graph.settings.chains_different_max_parallelism
    assert not graph.settings.is_default_group_shared
    assert graph.group_profiles == {"apart": ResourceProfile("concrete", 1, 2)}


def test_a_union_and_a_node_without_an_operator() -> None:
    graph = read({"name": "a"}, {"name": "b", "has_operator": False}, {"name": "c", "inputs": ["a", "b"]})
    assert [edge.input_number for edge in graph.edges] == [1, 1]
    assert not graph.nodes[1].has_operator


@pytest.mark.parametrize(
    ("operators", "text"),
    [
        ([], r"operators is \[\]; give at least 1 of them"),
        ([{}], r"operators\[0\] has no 'name'; add it"),
        ([{"name": ""}], r"operators\[0\]\.name is ''; give a text that is not empty"),
        ([{"name": "a", "paralelism": 2}], r"operators\[0\]\.paralelism: .* did you mean 'parallelism'"),
        ([{"name": "a", "zzz": 2}], r"operators\[0\]\.zzz: there is no such property; known are name, function"),
        ([{"name": "a", "parallelism": 0}], r"operators\[0\]\.parallelism is 0; give at least 1"),
        ([{"name": "a", "parallelism": True}], r"parallelism is True; give a whole number"),
        ([{"name": "a", "parallelism": 1.5}], r"parallelism is 1\.5; give a whole number"),
        ([{"name": "a", "chaining": "often"}], "chaining is 'often'; give one of always, never, head"),
        ([{"name": "a", "inputs": [3]}], r"inputs\[0\] is 3; give a string or an object"),
        ([{"name": "a", "function": "x"}], "'x' is not a valid name"),
        ([{"name": "a"}, {"name": "a"}], r"operators\[1\]: the name 'a' is taken"),
        ([{"name": "a"}, {"name": "b", "inputs": ["c"]}], r"operators\[1\] \(b\) reads 'c', which does not exist"),
        ([{"name": "s"}, {"name": "a", "inputs": ["b", "s"]}, {"name": "b", "inputs": ["a"]}], "a, b are in a cycle"),
        (
            [{"name": "s"}, {"name": "a", "inputs": [{"from": "s", "input": 2}]}],
            r"inputs \[2\]; number them from 1",
        ),
        ([{"name": "s"}, {"name": "a", "inputs": [{"from": "s", "function": "a:b"}]}], "but no partitioner"),
    ],
)
def test_what_is_no_job(operators: list[dict[str, Any]], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        read(*operators)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "this is not JSON"),
        ("[]", r"the document is \[\]; give an object"),
        ("[" * 100_000, "not a job file|not JSON"),
        ('{"name": "a", "name": "b"}', "property 'name' occurs twice"),
        ('{"buffer_timeout_s": NaN}', "NaN is not a number; give a finite one"),
    ],
)
def test_what_is_no_document(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_job(text)


def test_long_values_are_cut() -> None:
    with pytest.raises(ConfigError, match=r"is 'x{50,60}\.\.\.; give"):
        read({"name": "a", "parallelism": "x" * 1000})


def test_a_schema_cannot_ask_for_what_is_not_checked() -> None:
    with pytest.raises(ValueError, match="unknown keywords: maximum"):
        check({"maximum": 3}, 2)


def test_enumerations_of_the_schema_are_those_of_the_code() -> None:
    schema = job_file_schema()["properties"]
    operator = schema["operators"]["items"]["properties"]
    given = operator["inputs"]["items"]["properties"]
    assert schema["exchange_mode"]["enum"] == [mode.value for mode in GlobalExchangeMode]
    assert operator["chaining"]["enum"] == [strategy.value for strategy in ChainingStrategy]
    assert given["mode"]["enum"] == [mode.value for mode in ExchangeMode]
    assert set(given["partitioner"]["enum"]) == {kind.value for kind in Partitioner}
