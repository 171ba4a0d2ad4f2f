"""One equality of keys: what placement takes for one key is one entry of a state, also through a checkpoint."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from netstack.cluster.task.keyed_state import MixedKeyedState
from netstack.exchange.keygroups import canonical_key, key_group, operator_index, original_key, stable_hash
from netstack.exchange.outbound.selector import KeyGroupSelector
from netstack.schedule.checkpoint.recovery import TaskPlan, recover
from netstack.schedule.checkpoint.snapshot import TaskSnapshot, decode_snapshot, encode_snapshot

SMALL = st.integers(-2, 2)
SCALARS = st.one_of(
    SMALL,
    st.booleans(),
    st.none(),
    SMALL.map(float),
    st.sampled_from([0.0, -0.0, math.nan, -math.nan, math.inf, struct.unpack("<d", b"\x01" * 6 + b"\xf0\x7f")[0]]),
    st.text("a\0", max_size=1),
    st.binary(max_size=1),
    SMALL.map(np.int64),
    SMALL.map(np.float64),
    SMALL.map(np.float32),
    st.booleans().map(np.bool_),
    st.text("a", max_size=1).map(np.str_),
)
KEYS = st.recursive(SCALARS, lambda keys: st.lists(keys, max_size=2).map(tuple), max_leaves=4)


def python(key: Any) -> Any:
    return key.item() if isinstance(key, np.generic) else key


def is_one_key(first: Any, second: Any) -> bool:
    """As Java has it: `equals`, of the types that these stand for."""
    first, second = python(first), python(second)
    if type(first) is not type(second):
        return False
    if isinstance(first, float):
        return (math.isnan(first) and math.isnan(second)) or struct.pack("d", first) == struct.pack("d", second)
    if isinstance(first, tuple):
        return len(first) == len(second) and all(map(is_one_key, first, second))
    return bool(first == second)


@given(KEYS, KEYS)
def test_two_keys_share_a_value_exactly_where_placement_has_one_key(first: Any, second: Any) -> None:
    state = MixedKeyedState(0)
    state[first] += 1
    state[second] += 1
    if is_one_key(first, second):
        assert stable_hash(first) == stable_hash(second)
        assert [*state.values()] == [2]
    else:
        assert [*state.values()] == [1, 1]
        assert canonical_key(first) != canonical_key(second)


@given(KEYS)
def test_a_form_is_its_own_and_turns_back(key: Any) -> None:
    form = canonical_key(key)
    assert canonical_key(form) is form
    assert hash(form) == hash(canonical_key(key))
    assert is_one_key(original_key(form), original_key(canonical_key(original_key(form))))
    assert stable_hash(original_key(form)) == stable_hash(key)


@given(st.lists(KEYS, max_size=8), st.integers(1, 3), st.integers(1, 3))
def test_a_state_goes_through_a_checkpoint_and_another_parallelism(keys: list[Any], before: int, after: int) -> None:
    parts = {index: MixedKeyedState(0) for index in range(before)}
    for key in keys:
        parts[stable_hash(key) % before][key] += 1
    snapshots = []
    for index, part in parts.items():
        pieces, _ = encode_snapshot(1, TaskSnapshot("count", index, part.copy_for_checkpoint()))
        snapshots.append(decode_snapshot(b"".join(pieces), 1))
    actual = []
    for task in recover(snapshots, [TaskPlan("count", after, keyed_state=True, max_parallelism=16)])["count"]:
        state = MixedKeyedState(0)
        state.restore(task.operator_states[0])
        actual += [(key, state[key]) for key in state]
        assert [*state.items()] == [*zip(state, state.values(), strict=True)] or "nan" in repr(state)
    assert len(actual) == sum(map(len, parts.values()))
    for key in keys:
        (count,) = [count for each, count in actual if is_one_key(each, key)]
        assert count == sum(is_one_key(key, other) for other in keys)


@example([1, 1.0, True, (1,), (1.0,), 0.0, -0.0, 0], 5, 16)
@given(st.lists(KEYS, max_size=40), st.integers(1, 5), st.integers(1, 4))
def test_what_a_writer_remembers_of_keys_is_what_placement_says(keys: list[Any], channels: int, known: int) -> None:
    selector = KeyGroupSelector(max_parallelism=64)
    selector.setup(channels)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("netstack.exchange.outbound.selector.KNOWN_KEYS", known)
        placed = [operator_index(key_group(key, 64), channels, 64) for key in keys]
        assert selector.select_many(keys) == placed
        assert [selector.select(key) for key in keys * 2] == placed * 2
        assert selector.select_many(keys) == placed
    assert len(selector._known) <= known
