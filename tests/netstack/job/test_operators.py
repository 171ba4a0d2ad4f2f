"""Operators with or without `async`, and what is missing."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import trio

from netstack.errors import ConfigError
from netstack.job.operators import BoundOperator, TaskContext, make_operator


class Plain:
    def __init__(self, start: int = 0) -> None:
        self.calls = [start]

    def process(self, record: Any, out: Any) -> None:
        self.calls.append(record)

    def snapshot(self) -> list[int]:
        return [*self.calls]

    async def close(self) -> str:
        await trio.lowlevel.checkpoint()
        return "closed"


class Batched:
    async def process_batch(self, records: list[Any], out: Any) -> None:
        """Nothing."""


class Reader:
    def read(self) -> None:
        """At its end."""

    def snapshot(self, unsent: int) -> int:
        return unsent


def test_methods_are_found_and_missing_ones_do_nothing() -> None:
    async def main() -> None:
        plain = Plain(5)
        bound = BoundOperator(plain, is_source=False, name="t")
        assert not bound.is_batched
        assert not bound.is_async
        bound.process(7, None)
        assert await bound.call("snapshot") == [5, 7]
        assert await bound.call("close") == "closed"
        assert await bound.call("finish", None) is None

    trio.run(main)
    batched = BoundOperator(Batched(), is_source=False, name="t")
    assert batched.is_batched
    assert batched.is_async
    assert not BoundOperator(Reader(), is_source=True, name="t").is_async


@pytest.mark.parametrize(
    ("operator", "is_source", "text"),
    [
        (Plain(), True, "task 't': Plain has no method read"),
        (Reader(), False, "task 't': Reader has no method process"),
        (type("NoPosition", (), {"read": lambda self: None})(), True, "NoPosition has no method snapshot"),
    ],
)
def test_what_must_be_there_is_asked_for(operator: Any, is_source: bool, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        BoundOperator(operator, is_source=is_source, name="t")


def test_operators_are_made_with_their_arguments() -> None:
    made = make_operator(functools.partial(Plain), {"start": 3}, is_source=False, task="t")
    made.process(4, None)
    with pytest.raises(ConfigError, match=r"task 't': .* cannot be called with \{'stop': 3\}: got an unexpected"):
        make_operator(Plain, {"stop": 3}, is_source=False, task="t")
    with pytest.raises(ConfigError, match="missing a required argument"):
        make_operator(lambda count: Plain(count), {}, is_source=False, task="t")
    with pytest.raises(ConfigError, match="dict has no method process"):
        make_operator(dict, {}, is_source=False, task="t")


def test_a_context_has_a_short_name() -> None:
    assert str(TaskContext("count", 3, 4, 128, 1)) == "count-3"
