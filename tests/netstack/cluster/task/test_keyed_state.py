"""State by key: a dict for keys that Python tells apart, a mapping with an equality of its own for all others."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple, cast

import numpy as np
import pytest

from netstack.base.errors import ConfigError, RecordError, StateMismatch
from netstack.cluster.task import keyed_state
from netstack.cluster.task.context import OperatorContext
from netstack.cluster.task.gates import key_type_of
from netstack.cluster.task.keyed_state import KeyedState, MixedKeyedState, plain_copy

EQUAL_IN_PYTHON: list[Any] = [1, 1.0, True, 0.0, -0.0, math.nan, 0, False]


class Pair(NamedTuple):
    left: Any
    right: Any


def test_keys_that_python_takes_for_one_are_several() -> None:
    state = MixedKeyedState(0)
    for _ in range(20):
        for key in EQUAL_IN_PYTHON:
            state[key] += 1
            state[key, "x"] += 1
    assert len(state) == 2 * len(EQUAL_IN_PYTHON)
    assert set(state.values()) == {20}
    assert [repr(key) for key in state][::2] == [repr(key) for key in EQUAL_IN_PYTHON]
    assert [repr(key) for key, _ in state.items()][1::2] == [repr((key, "x")) for key in EQUAL_IN_PYTHON]
    assert repr(state).startswith("MixedKeyedState([(1, 20), ((1, 'x'), 20), (1.0, 20)")


def test_it_has_the_methods_of_a_dict() -> None:
    state = MixedKeyedState(list)
    state[1].append("int")
    assert 1.0 not in state
    assert state.get(True) is None
    assert state.get(1) == ["int"]
    assert state.setdefault(1.0, ["float"]) == ["float"]
    assert state.setdefault(1, ["other"]) == ["int"]
    assert len(state) == 2
    assert state.pop(True, "nobody") == "nobody"
    with pytest.raises(KeyError):
        state.pop(True)
    assert state.pop(1.0) == ["float"]
    state[-0.0] = ["zero"]
    with pytest.raises(KeyError):
        del state[0.0]
    del state[-0.0]
    assert dict(state) == {1: ["int"]}
    state.clear()
    assert not state


def test_numpy_and_derived_types_count_as_what_they_hold() -> None:
    for state in (KeyedState(0), MixedKeyedState(0)):
        for key in (np.int64(5), 5, np.str_("a"), "a", Pair("a", 1), ("a", 1), (np.str_("a"), np.int8(1))):
            state[key] += 1
        assert {type(key): value for key, value in state.items()} == {int: 2, str: 2, tuple: 3}


@pytest.mark.parametrize("use", [lambda s: s[[1]], lambda s: s.get({1}), lambda s: s.pop(({},)), lambda s: {} in s])
def test_a_key_that_placement_refuses_is_refused(use: Callable[[MixedKeyedState], Any]) -> None:
    with pytest.raises(RecordError, match="has no stable hash"):
        use(MixedKeyedState(0))


def test_checkpoints_keep_a_dict_where_they_can() -> None:
    state = MixedKeyedState(list)
    for key in (1, "a", b"b", None, ("a", (1,))):
        state[key].append(1)
    kept = state.copy_for_checkpoint()
    assert kept == {1: [1], "a": [1], b"b": [1], None: [1], ("a", (1,)): [1]}
    state[("a", (1.0,))].append(2)
    assert plain_copy({"result": state}) == {"result": [*([key, [1]] for key in kept), [("a", (1.0,)), [2]]]}
    state[1].append(3)
    assert kept[1] == [1]  # type: ignore[index]


def keyed(*key_types: type) -> OperatorContext:
    return OperatorContext("count", "task", 0, 1, 128, 0, is_keyed=True, key_types=key_types)


def test_keys_of_known_types_have_a_dict() -> None:
    context = keyed(int, str)
    state = context.keyed_state("sums", 0)
    assert isinstance(state, KeyedState)
    state[1] += 1
    with pytest.raises(ConfigError, match=r"'sums' .* key 2\.5, .* int or str"):
        state[2.5] += 1
    assert isinstance(keyed().keyed_state("sums", 0), MixedKeyedState)
    restored = keyed(int)
    restored.restore_keyed({"sums": {1: 1}, "unasked": {1.5: 1}}, {"sums": "int", "unasked": "list"})
    assert restored.keyed_state("sums", 0) == {1: 1}
    assert restored.keyed_snapshot() == {"sums": {1: 1}, "unasked": {1.5: 1}}
    assert restored.keyed_begins() == {"sums": "int", "unasked": "list"}


def test_a_restored_state_is_what_it_was() -> None:
    restored = keyed(int)
    restored.restore_keyed({"sums": {1: 1}, "pairs": {("a", 1): 1}, "calls": {1: 1}}, {"sums": "int", "calls": "int"})
    with pytest.raises(StateMismatch, match=r"'sums' .* type list, .* int in the checkpoint"):
        restored.keyed_state("sums", list)
    with pytest.raises(StateMismatch, match=r"'pairs' .* type tuple .* says int"):
        restored.keyed_state("pairs", 0)
    assert restored.keyed_state("calls", lambda: 0) == {1: 1}  # who would call it to know?


@pytest.mark.parametrize(
    ("before", "default", "differs"),
    [
        ("int", 0.0, False),
        ("bool", 0, False),
        ("NoneType", 0, False),
        ("int", None, False),
        ("", 0, False),
        ("float", 0, True),
        ("int", False, True),
        ("list", dict, True),
        ("str", b"", True),
    ],
)
def test_which_types_of_values_may_follow_which(before: str, default: Any, differs: bool) -> None:
    restored = keyed(int)
    restored.restore_keyed({"sums": {1: 1}}, {"sums": before})
    with pytest.raises(StateMismatch) if differs else nullcontext():
        restored.keyed_state("sums", default)


def says_int(record: Any) -> int:
    return int(record)


def says_tuple(record: Any) -> tuple[int, str]:
    return record


def says_nothing(record):  # type: ignore[no-untyped-def]
    return record


def says_what_is_not_there(record: Any) -> Missing:  # type: ignore[name-defined]  # noqa: F821
    return record


@pytest.mark.parametrize(
    ("function", "format", "expected"),
    [
        (None, "int64", int),
        (None, "str", str),
        (None, "bytes", bytes),
        (None, "float64", None),
        (None, "msgpack", None),
        (str, "msgpack", str),
        (float, "msgpack", None),
        (says_int, "msgpack", int),
        (says_tuple, "msgpack", None),
        (says_nothing, "int64", None),
        (says_what_is_not_there, "int64", None),
        (len, "str", None),
    ],
)
def test_the_type_of_an_edge_s_keys(function: Any, format: str, expected: type | None) -> None:
    assert key_type_of(function, format) is expected


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are evaluated when they are read from 3.14 on")
def test_annotations_that_cannot_be_read_leave_the_type_of_keys_unknown() -> None:
    names: dict[str, Any] = {}
    exec(compile("def key(event: OnlyForTypeCheckers) -> int: return 0", "m", "exec", dont_inherit=True), names)
    assert key_type_of(names["key"], "msgpack") is None


def test_kept_results_may_be_shared_out_by_size() -> None:
    """An adaptive job gives a subtask as many key groups as there are bytes: asking for such a key failed the job."""
    for by_index in (True, False):
        contexts = [
            OperatorContext("count", "task", subtask, 2, 128, 0, is_keyed=True, by_index=by_index) for subtask in (0, 1)
        ]
        refused = 0
        for context in contexts:
            try:
                context.keyed_state("sums", 0)["key"] += 1
            except ConfigError:
                refused += 1
        assert refused == by_index


@pytest.mark.parametrize("key_types", [(), (str,)], ids=["mixed", "dict"])
def test_an_assigned_key_of_another_subtask_is_refused_by_the_checkpoint(key_types: tuple[type, ...]) -> None:
    """Each subtask had a value for it then, and no checkpoint of the job could be restored."""
    refused = []
    for subtask in (0, 1):
        context = OperatorContext("count", "task", subtask, 2, 128, 0, is_keyed=True, key_types=key_types)
        state = context.keyed_state("sums", 0)
        context.keyed_snapshot()
        state["all"] = 1
        try:
            context.keyed_snapshot()
        except ConfigError as error:
            refused.append(str(error))
    (text,) = refused
    assert re.search("keyed state 'sums' was accessed with key 'all', whose records go to subtask", text)


def test_a_checkpoint_checks_each_key_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    state = KeyedState(0, asked.append)
    state.restore({1: 1, 2: 2})
    state[3] = state[4] = 1
    state.check_new()
    state[3] = 2
    state.check_new()
    assert asked == [4, 3]
    del state[4]  # the last one known
    monkeypatch.setattr(keyed_state, "NEWEST", 2)
    state.check_new()
    assert asked == [4, 3, 3, 2]


def test_the_name_of_a_state_is_a_text() -> None:
    with pytest.raises(ConfigError, match="'count': a keyed state is named 5;"):
        keyed().keyed_state(cast(Any, 5))
