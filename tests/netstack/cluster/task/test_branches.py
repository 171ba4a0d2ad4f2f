"""One output with several readers: what each gets, and what is copied."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from netstack.cluster.task.chain import joined
from netstack.cluster.task.fused import Target


class Pair(NamedTuple):
    first: list[int]
    second: int


@dataclass
class Event:
    tags: list[int]


class Reader:
    """Keeps the records that it gets."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self.target = Target(self.records.append, self.records.extend)


def readers(count: int) -> list[Reader]:
    return [Reader() for _ in range(count)]


def test_one_reader_gets_the_record_itself() -> None:
    (reader,) = readers(1)
    record = [1]
    for target in (joined([reader.target], []), joined([], [reader.target])):
        target.push(record)
    assert all(each is record for each in reader.records)
    joined([], []).push(record)


def test_operators_get_copies_of_what_can_be_changed() -> None:
    edge, one, two, three = readers(4)
    target = joined([edge.target], [one.target, two.target, three.target])
    changed: list[Any] = [
        {"a": [1, {2}]},
        Counter("ab"),
        bytearray(b"x"),
        (1, [2]),
        Pair([1], 2),
        Event([1]),
        np.arange(3),
        {"lock": iter([])},
    ]
    shared: list[Any] = ["text", object(), [{(each for each in ())}]]  # nobody can copy a generator in a set
    records = [*changed, *shared]
    for record in records:
        target.push(record)
    target.push_batch(records)
    for reader in (edge, one, two, three):
        assert [*map(repr, reader.records)] == [*map(repr, [*records, *records])]
    for index, record in enumerate([*records, *records]):
        is_shared = any(record is each for each in shared)
        assert (one.records[index] is record) == is_shared
        assert (one.records[index] is two.records[index]) == is_shared
        assert three.records[index] is record
    assert one.records[0]["a"][1] is not records[0]["a"][1]


def test_no_operator_gets_the_array_that_an_edge_has_staged() -> None:
    edge, one, two = readers(3)
    array = np.arange(3)
    kept: list[Any] = []
    stages = Target(kept.append, kept.append)
    joined([stages], [one.target]).push_batch(array)
    assert kept[0] is array

    changes = Target(edge.records.append, lambda records: np.add(records, 1, out=records))
    joined([stages], [changes, two.target, changes]).push_batch(array)
    assert array.tolist() == [0, 1, 2]
    assert two.records == [0, 1, 2]


def test_a_record_nested_too_deep_is_shared() -> None:
    one, two = readers(2)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    joined([], [one.target, two.target]).push(deep)
    assert one.records[0] is deep
    while deep:  # freed step by step
        deep = deep.pop()
