"""Key groups agree with Flink's numbers and Java's hashes, and arrays agree with single keys."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from hypothesis.extra import numpy as nps

from netstack.base.errors import ConfigError, RecordError
from netstack.exchange.keygroups import (
    MAX_PARALLELISM_LIMIT,
    check_parallelism,
    default_max_parallelism,
    group_owners,
    hash_array,
    key_group,
    key_group_array,
    murmur,
    murmur_array,
    operator_index,
    owner_array,
    stable_hash,
)

HASH = st.integers(-(2**31), 2**31 - 1)
PARALLELISM = st.tuples(st.integers(1, 700), st.integers(1, 700)).map(sorted) | st.tuples(
    st.integers(1, MAX_PARALLELISM_LIMIT), st.just(MAX_PARALLELISM_LIMIT)
)

# value, murmur, key group of 128, owner among 2, 3, 4 and 7
VECTORS = [
    (0, 593689054, 94, (1, 2, 2, 5)),
    (1, 68075478, 86, (1, 2, 2, 4)),
    (2, 1085422463, 127, (1, 2, 3, 6)),
    (3, 847579505, 113, (1, 2, 3, 6)),
    (42, 1134849565, 29, (0, 0, 0, 1)),
    (100, 616682048, 64, (1, 1, 2, 3)),
    (-1, 1982413648, 80, (1, 1, 2, 4)),
    (2147483647, 1653689534, 62, (0, 1, 1, 3)),
    (-2147483648, 1718298732, 108, (1, 2, 3, 5)),
    ("a", 1455541201, 81, (1, 1, 2, 4)),
    ("b", 516420758, 22, (0, 0, 0, 1)),
]

# What Java 17 prints for hashCode.
JAVA_HASHES = [
    ("", 0),
    ("a", 97),
    ("hello", 99162322),
    ("Hello World", -862545276),
    ("key-0123456789", -1358515661),
    ("\U0001f600", 1772899),
    ("\ud800", 55296),
    (0, 0),
    (-1, -1),
    (2**31 - 1, 2**31 - 1),
    (-(2**31), -(2**31)),
    (2**31, -(2**31)),
    (-(2**31) - 1, -(2**31)),
    (2**32, 1),
    (123456789012345, -2045923535),
    (2**63 - 1, -(2**31)),
    (-(2**63), -(2**31)),
    (0.0, 0),
    (-0.0, -(2**31)),
    (1.0, 1072693248),
    (0.1, -1507852285),
    (-1.5e300, -1740524776),
    (math.nan, 2146959360),
    (b"", 1),
    (b"\x01\x02\x03", 30817),
    (b"\xff\x80\x7f", 24989),
    (True, 1231),
    (False, 1237),
    (None, 0),
]


@pytest.mark.parametrize(("key", "mixed", "group", "owners"), VECTORS)
def test_flinks_vectors(key: object, mixed: int, group: int, owners: tuple[int, ...]) -> None:
    assert murmur(stable_hash(key)) == mixed
    assert key_group(key, 128) == group
    assert tuple(operator_index(group, parallelism, 128) for parallelism in (2, 3, 4, 7)) == owners
    hashes = np.array([stable_hash(key)], np.int32)
    assert murmur_array(hashes).tolist() == [mixed]
    assert key_group_array(hashes, 128).tolist() == [group]
    assert tuple(int(owner_array(hashes, group_owners(par, 128))[0]) for par in (2, 3, 4, 7)) == owners


@pytest.mark.parametrize(("key", "expected"), JAVA_HASHES)
def test_java_hashes(key: object, expected: int) -> None:
    assert stable_hash(key) == expected


def test_tuples_hash_like_flinks() -> None:
    assert stable_hash(()) == 0
    assert stable_hash((5,)) == 5
    assert stable_hash((1, "a")) == 31 * 1 + 97
    assert stable_hash((1, 2, 3)) == (1 * 31 + 2) * 31 + 3
    assert stable_hash(((1, 2), None)) == 31 * 33


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        (np.int64(-5), -5),
        (np.uint8(200), 200),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("hello"), "hello"),
        (np.bytes_(b"\xff"), b"\xff"),
    ],
)
def test_a_numpy_scalar_is_the_value_it_holds(scalar: object, value: object) -> None:
    assert stable_hash(scalar) == stable_hash(value)
    assert stable_hash((scalar,)) == stable_hash((value,))


@pytest.mark.parametrize(
    "key", [2**63, -(2**63) - 1, pytest.param(10**5000, id="huge"), [1], {}, object(), 1j, bytearray(b"x"), (1, [2])]
)
def test_a_key_without_a_stable_hash_is_refused(key: object) -> None:
    with pytest.raises(RecordError, match="key of"):
        stable_hash(key)


@pytest.mark.parametrize(
    ("parallelism", "expected"),
    [(1, 128), (85, 128), (86, 256), (100, 256), (200, 512), (1000, 2048), (30000, 32768), (32768, 32768)],
)
def test_default_max_parallelism(parallelism: int, expected: int) -> None:
    assert default_max_parallelism(parallelism) == expected


@pytest.mark.parametrize(
    ("parallelism", "ranges"),
    [
        (3, [(0, 42), (43, 85), (86, 127)]),
        (4, [(0, 31), (32, 63), (64, 95), (96, 127)]),
        (7, [(0, 18), (19, 36), (37, 54), (55, 73), (74, 91), (92, 109), (110, 127)]),
    ],
)
def test_ranges_of_128(parallelism: int, ranges: list[tuple[int, int]]) -> None:
    owners = group_owners(parallelism, 128).tolist()
    actual = [[group for group in range(128) if owners[group] == index] for index in range(parallelism)]
    assert [(each[0], each[-1]) for each in actual] == ranges


@given(PARALLELISM)
@example([1, 1])
@example([32768, 32768])
def test_ranges_are_disjoint_cover_and_agree(numbers: list[int]) -> None:
    parallelism, max_parallelism = numbers
    owners = group_owners(parallelism, max_parallelism).tolist()
    assert owners == sorted(owners), "ranges, in order"
    sizes = Counter(owners)
    assert set(sizes) == {*range(parallelism)}, "nobody is left out"
    assert max(sizes.values()) - min(sizes.values()) <= 1
    for group in {0, max_parallelism // 3, max_parallelism - 1}:
        assert operator_index(group, parallelism, max_parallelism) == owners[group]


@given(nps.arrays(np.int32, st.integers(0, 50), elements=HASH), PARALLELISM)
@example(np.arange(50_000, dtype=np.int32) * 7919, [7, 130])
def test_arrays_agree_with_single_hashes(hashes: Any, numbers: list[int]) -> None:
    parallelism, max_parallelism = numbers
    before = hashes.copy()
    mixed = [murmur(value) for value in hashes.tolist()]
    groups = [value % max_parallelism for value in mixed]
    assert murmur_array(hashes).tolist() == mixed
    assert key_group_array(hashes, max_parallelism).tolist() == groups
    owners = owner_array(hashes, group_owners(parallelism, max_parallelism))
    assert owners.tolist() == [operator_index(group, parallelism, max_parallelism) for group in groups]
    assert np.array_equal(hashes, before), "the caller's array is left alone"


@given(HASH)
def test_murmur_is_never_negative(value: int) -> None:
    assert 0 <= murmur(value) < 2**31


def test_the_least_number_has_no_positive() -> None:
    # The one hash whose mix is -2**31, found by running murmur backwards.
    x = 0x80000000
    x ^= x >> 16
    x = x * pow(0xC2B2AE35, -1, 2**32) % 2**32
    x ^= x >> 13 ^ x >> 26
    x = x * pow(0x85EBCA6B, -1, 2**32) % 2**32
    x ^= x >> 16
    x = (x ^ 4) - 0xE6546B64
    x = x * pow(5, -1, 2**32) % 2**32
    x = (x >> 13 | x << 19) % 2**32
    x = x * pow(0x1B873593, -1, 2**32) % 2**32
    x = (x >> 15 | x << 17) % 2**32
    x = x * pow(0xCC9E2D51, -1, 2**32) % 2**32
    value = x - 2**32 if x >= 2**31 else x
    assert murmur(value) == 0
    assert murmur_array(np.array([value], np.int32)).tolist() == [0]


KEY_DTYPES = ["i1", "i2", "i4", "i8", "u1", "u2", "u4", ">i4", ">i8", "f2", "f4", "f8", ">f8", "?", "V1", "V8", "S5"]


@pytest.mark.parametrize("dtype", KEY_DTYPES)
@given(data=st.data())
def test_hashes_of_an_array_agree_with_single_keys(dtype: str, data: st.DataObject) -> None:
    kind = np.dtype(dtype)
    raw = data.draw(nps.arrays(np.uint8, (data.draw(st.integers(0, 20)), kind.itemsize)))
    if kind.kind == "b":
        raw &= 1
    array = raw.view(kind)[:, 0]
    keys = [row.tobytes() for row in raw] if kind.kind in "VS" else array.tolist()
    hashes = hash_array(array)
    assert hashes is not None
    assert hashes.dtype == np.int32
    assert hashes.tolist() == [stable_hash(key) for key in keys]
    assert hash_array(raw[:, :3]) is not None
    every_second = hash_array(array[::2])
    assert every_second is not None
    assert every_second.tolist() == hashes[::2].tolist()


@given(nps.arrays(np.int64, st.integers(1, 20), elements=st.integers(-(2**33), 2**33)))
def test_numbers_around_32_bits(keys: Any) -> None:
    hashes = hash_array(keys)
    assert hashes is not None
    assert hashes.tolist() == [stable_hash(key) for key in keys.tolist()]


def test_unsigned_keys_of_64_bits() -> None:
    hashes = hash_array(np.array([0, 2**63 - 1], np.uint64))
    assert hashes is not None
    assert hashes.tolist() == [stable_hash(0), stable_hash(2**63 - 1)]
    with pytest.raises(RecordError, match="9223372036854775808"):
        hash_array(np.array([1, 2**63], np.uint64))


def test_every_nan_hashes_alike() -> None:
    bits = np.array([0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001], np.uint64)
    hashes = hash_array(bits.view(np.float64))
    assert hashes is not None
    assert hashes.tolist() == [2146959360] * 3


@pytest.mark.parametrize(
    "array",
    [
        np.array(["a", "b"]),
        np.array([1, "a"], object),
        np.array([(1, 2)], [("x", "i4"), ("y", "i4")]),
        np.array([1j]),
        np.zeros((2, 2), np.int64),
    ],
)
def test_other_arrays_have_to_be_hashed_one_by_one(array: Any) -> None:
    assert hash_array(array) is None


@pytest.mark.parametrize(("parallelism", "max_parallelism"), [(0, 128), (129, 128), (1, 0), (1, 32769), (-1, 5)])
def test_numbers_the_formulas_do_not_hold_for(parallelism: int, max_parallelism: int) -> None:
    with pytest.raises(ConfigError):
        check_parallelism(parallelism, max_parallelism)
    with pytest.raises(ConfigError):
        group_owners(parallelism, max_parallelism)


def test_owners_are_as_narrow_as_can_be() -> None:
    widths = {parallelism: group_owners(parallelism, 32768).dtype.itemsize for parallelism in (1, 256, 257, 32768)}
    assert widths == {1: 1, 256: 1, 257: 2, 32768: 2}
