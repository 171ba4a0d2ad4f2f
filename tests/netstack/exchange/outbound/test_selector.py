"""Selectors choose what they promise, and choose for an array exactly as for its records one by one."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as nps

from netstack.base.errors import ConfigError, LocalProtocolError, RecordError
from netstack.exchange.keygroups import default_max_parallelism, key_group, operator_index
from netstack.exchange.outbound.selector import (
    BroadcastSelector,
    ChannelSelector,
    CustomSelector,
    ForwardSelector,
    GlobalSelector,
    KeyGroupSelector,
    RebalanceSelector,
    RescaleSelector,
    RoundRobinSelector,
    ShuffleSelector,
    records_of,
)

CHANNELS = st.integers(1, 9) | st.sampled_from([256, 257, 1000])


def of_random_bytes(dtype: str) -> st.SearchStrategy[Any]:
    width = np.dtype(dtype).itemsize
    return nps.arrays(np.uint8, st.tuples(st.integers(0, 30), st.just(width))).map(lambda raw: raw.view(dtype)[:, 0])


ARRAYS: st.SearchStrategy[Any] = (
    st.sampled_from(["i8", "f8", "V8", "S3", "i4,f4"]).flatmap(of_random_bytes)
    | nps.arrays("U2", st.integers(0, 30))
    | nps.arrays(np.uint8, st.tuples(st.integers(0, 30), st.just(5)))
)


def last_digit(key: Any, channels: int) -> int:
    return len(repr(key)) % channels


MAKERS: dict[str, Callable[[], ChannelSelector]] = {
    "forward": ForwardSelector,
    "global": GlobalSelector,
    "rescale": RescaleSelector,
    "rebalance": lambda: RebalanceSelector(random.Random(7)),
    "shuffle": lambda: ShuffleSelector(random.Random(7)),
    "key group": KeyGroupSelector,
    "key group of a key": lambda: KeyGroupSelector(key=repr),
    "custom": lambda: CustomSelector(last_digit),
    "custom with a key": lambda: CustomSelector(last_digit, key=lambda record: str(record)[:3]),
}


def one_by_one(selector: ChannelSelector, array: Any) -> list[int]:
    return [selector.select(record) for record in records_of(array)]


def as_list(chosen: Any, count: int) -> list[int]:
    return [chosen] * count if isinstance(chosen, int) else chosen.tolist()


@pytest.mark.parametrize("name", MAKERS)
@given(channels=CHANNELS, arrays=st.lists(ARRAYS, min_size=1, max_size=3))
def test_an_array_is_distributed_like_its_records(name: str, channels: int, arrays: list[Any]) -> None:
    single, batched = MAKERS[name](), MAKERS[name]()
    single.setup(channels)
    batched.setup(channels)
    for array in arrays:  # the state left by one array counts for the next
        expected = one_by_one(single, array)
        chosen = batched.select_batch(array)
        assert as_list(chosen, len(array)) == expected
        assert all(0 <= channel < channels for channel in expected)
        if isinstance(chosen, np.ndarray):
            assert chosen.dtype == np.min_scalar_type(channels - 1), "the narrowest type sorts fastest"
    assert not single.is_broadcast


@pytest.mark.parametrize("maker", [ForwardSelector, GlobalSelector])
def test_first(maker: type[ChannelSelector]) -> None:
    selector = maker()
    selector.setup(5)
    assert [selector.select(at) for at in range(7)] == [0] * 7
    assert selector.select_batch(np.arange(7)) == 0


def test_rescale_goes_round_from_0() -> None:
    selector = RescaleSelector()
    selector.setup(3)
    assert [selector.select(None) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_rebalance_goes_round_from_a_random_start() -> None:
    starts = Counter[int]()
    for seed in range(200):
        selector = RebalanceSelector(random.Random(seed))
        selector.setup(4)
        actual = [selector.select(None) for _ in range(9)]
        assert all((after - before) % 4 == 1 for before, after in itertools.pairwise(actual))
        starts[actual[0]] += 1
    assert set(starts) == {0, 1, 2, 3}
    assert min(starts.values()) > 25, "each start about 50 times"


def test_rebalance_without_a_generator_starts_at_0() -> None:
    selector = RebalanceSelector()
    selector.setup(2)
    assert [selector.select(None) for _ in range(3)] == [0, 1, 0]


@given(CHANNELS, st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=6))
def test_round_robin_strides_are_the_indices(channels: int, steps: list[tuple[bool, int]]) -> None:
    strided, indexed = RescaleSelector(), RescaleSelector()
    strided.setup(channels)
    indexed.setup(channels)
    assert strided.is_round_robin
    assert isinstance(strided, RoundRobinSelector)
    for single, count in steps:
        if single:
            assert strided.select(None) == indexed.select(None)
        array = np.arange(count)
        indices = indexed.next_indices(count)
        start = strided.advance(count)
        for channel in range(min(channels, 12)):
            assert array[(channel - start) % channels :: channels].tolist() == array[indices == channel].tolist()


@pytest.mark.parametrize("maker", [ForwardSelector, KeyGroupSelector, BroadcastSelector])
def test_only_round_robin_advances(maker: type[ChannelSelector]) -> None:
    assert not maker.is_round_robin
    with pytest.raises(LocalProtocolError, match="is_round_robin"):
        maker().advance(3)


@given(st.integers(1, 5), st.integers(0, 2**32))
def test_shuffle_takes_the_same_draws_either_way(channels: int, seed: int) -> None:
    single, batched = ShuffleSelector(random.Random(seed)), ShuffleSelector(random.Random(seed))
    single.setup(channels)
    batched.setup(channels)
    for count in (3, 0, 17, 1):
        assert as_list(batched.select_batch(np.arange(count)), count) == [single.select(at) for at in range(count)]


def test_shuffle_is_even() -> None:
    selector = ShuffleSelector(random.Random(1))
    selector.setup(5)
    counts = np.bincount(np.asarray(selector.select_batch(np.arange(50_000))))
    assert counts.size == 5
    assert abs(counts - 10_000).max() < 500, counts  # five standard deviations are 450


def test_broadcast_has_no_single_channel() -> None:
    selector = BroadcastSelector()
    selector.setup(3)
    assert selector.is_broadcast
    with pytest.raises(LocalProtocolError, match="is_broadcast"):
        selector.select(b"x")
    with pytest.raises(LocalProtocolError, match="is_broadcast"):
        selector.select_batch(np.arange(3))


@given(st.lists(st.text() | st.integers(-(2**63), 2**63 - 1) | st.tuples(st.text())), st.integers(1, 300))
def test_key_groups_are_flinks(keys: list[Any], channels: int) -> None:
    selector = KeyGroupSelector(key=lambda record: record["k"])
    selector.setup(channels)
    groups = default_max_parallelism(channels)
    assert selector.max_parallelism == groups
    for key in keys:
        assert selector.select({"k": key}) == operator_index(key_group(key, groups), channels, groups)


def test_keys_of_a_batch() -> None:
    array = np.zeros(1000, [("user", "<i8"), ("value", "<f8")])
    array["user"] = np.arange(1000) * 2**30 - 2**36
    selector = KeyGroupSelector(key=lambda record: record[0], key_batch=lambda rows: rows["user"])
    selector.setup(11)
    chosen = as_list(selector.select_batch(array), 1000)
    assert chosen == one_by_one(selector, array)
    assert set(chosen) == set(range(11))


def test_keys_of_a_batch_that_have_no_array_hash() -> None:
    selector = KeyGroupSelector(key=str, key_batch=lambda numbers: numbers.astype(str))
    selector.setup(4)
    array = np.arange(50)
    assert as_list(selector.select_batch(array), 50) == one_by_one(selector, array)


def test_max_parallelism_moves_groups() -> None:
    small, large = KeyGroupSelector(max_parallelism=4), KeyGroupSelector(max_parallelism=4096)
    for selector in (small, large):
        selector.setup(4)
    keys = range(100)
    assert [small.select(key) for key in keys] != [large.select(key) for key in keys]
    with pytest.raises(ConfigError, match="5 subpartitions cannot share 4 key groups"):
        small.setup(5)


@pytest.mark.parametrize("max_parallelism", [0, -1, 32769])
def test_max_parallelism_out_of_range(max_parallelism: int) -> None:
    with pytest.raises(ConfigError, match="max_parallelism"):
        KeyGroupSelector(max_parallelism=max_parallelism)


def test_key_batch_needs_key() -> None:
    with pytest.raises(ConfigError, match="without key"):
        KeyGroupSelector(key_batch=lambda array: array)


def test_key_batch_of_another_length() -> None:
    selector = KeyGroupSelector(key=int, key_batch=lambda array: array[1:])
    selector.setup(2)
    with pytest.raises(ConfigError, match="4 keys for 5 records"):
        selector.select_batch(np.arange(5))


def test_custom_batch() -> None:
    selector = CustomSelector(lambda key, n: key % n, partition_batch=lambda keys, n: keys % n)
    selector.setup(3)
    array = np.arange(20)
    assert as_list(selector.select_batch(array), 20) == one_by_one(selector, array)
    constant = CustomSelector(lambda key, n: n - 1, partition_batch=lambda keys, n: n - 1)
    constant.setup(3)
    assert constant.select_batch(array) == constant.select(5) == 2


@pytest.mark.parametrize("channel", [-1, 3, 10**6])
def test_custom_out_of_range(channel: int) -> None:
    selector = CustomSelector(lambda key, n: channel)
    selector.setup(3)
    with pytest.raises(ConfigError, match=f"chose subpartition {channel}; there are 0 to 2"):
        selector.select(b"x")
    with pytest.raises(ConfigError, match=f"chose subpartition {channel}"):
        selector.select_batch(np.arange(2))
    batched = CustomSelector(lambda key, n: 0, partition_batch=lambda keys, n: np.array([0, channel]))
    batched.setup(3)
    with pytest.raises(ConfigError, match=f"chose subpartition {channel}"):
        batched.select_batch(np.arange(2))


@pytest.mark.parametrize("kind", [np.int64, np.uint8, bool])
def test_custom_answers_of_other_integer_classes(kind: type) -> None:
    selector = CustomSelector(lambda key, n: kind(1))
    selector.setup(3)
    assert type(selector.select(b"x")) is int, "compiled code takes no other class"
    assert selector.select(b"x") == 1


@pytest.mark.parametrize("answer", [None, "1", 1.0])
def test_custom_answers_that_are_no_integers_name_the_function(answer: Any) -> None:
    def by_name(record: Any, channels: int) -> Any:
        return answer

    selector = CustomSelector(by_name)
    selector.setup(3)
    with pytest.raises(ConfigError, match=r"by_name returned .*; return the number .* 0 to 2"):
        selector.select(b"x")


@pytest.mark.parametrize("answer", [np.zeros(3, int), np.zeros(2), "x", np.zeros((2, 1), int)])
def test_custom_batch_of_another_shape(answer: Any) -> None:
    selector = CustomSelector(lambda key, n: 0, partition_batch=lambda keys, n: answer)
    selector.setup(3)
    with pytest.raises(ConfigError, match="return one whole number, or one for each"):
        selector.select_batch(np.arange(2))


@pytest.mark.parametrize("name", MAKERS)
def test_no_channels(name: str) -> None:
    with pytest.raises(ConfigError, match="0 subpartitions"):
        MAKERS[name]().setup(0)


def test_records_of() -> None:
    assert records_of(np.array([1, 2])) == [1, 2]
    assert records_of(np.array([b"a\x00", b"bc"], "S2")) == [b"a\x00", b"bc"]
    assert records_of(np.array([b"a\x00", b"bc"], "V2")) == [b"a\x00", b"bc"]
    assert records_of(np.array([[1, 2], [3, 0]], np.uint8)) == [b"\x01\x02", b"\x03\x00"]
    assert records_of(np.zeros((4, 6), np.uint8)[:, ::2]) == [bytes(3)] * 4
    assert records_of(np.array([(1, 0.5)], [("x", "i4"), ("y", "f8")])) == [(1, 0.5)]
    assert records_of(np.empty(0, "V4")) == []


def says_int(record: Any) -> int:
    return record


def test_a_key_of_another_type_than_was_said_is_refused() -> None:
    selector = KeyGroupSelector(says_int, max_parallelism=128, key_type=int)
    selector.setup(4)
    other = KeyGroupSelector(says_int, max_parallelism=128)
    other.setup(4)
    assert selector.select(5) == selector.select(np.int64(5)) == other.select(5)
    assert np.array_equal(selector.select_batch(np.arange(9)), other.select_batch(np.arange(9)))
    for key in (True, 1.0, "1"):
        with pytest.raises(RecordError, match=rf"says_int .* returned {key!r} of"):
            selector.select(key)
    with pytest.raises(RecordError, match=r"keys of type int, but returned 0\.5"):
        selector.select_batch(np.array([0.5, 1]))
