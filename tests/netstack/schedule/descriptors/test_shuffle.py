"""Shuffle descriptors: columns in, compressed bytes, the same columns out."""

from __future__ import annotations

import zlib

import msgpack
import numpy as np
import pytest
from hypothesis import given, strategies as st

from netstack.base.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from netstack.base.ids import ChannelDescriptor, ResultPartitionType
from netstack.schedule.descriptors.shuffle import (
    UNKNOWN,
    ShuffleDescriptors,
    TaskManagerLocation,
    announceable,
    compress,
    dataset_part,
    execution_name,
    is_of_job,
    partition_name,
    partition_place,
    resolve,
)

LOCATIONS = tuple(
    TaskManagerLocation(f"tm-{number}", f"tcp://10.0.0.{number}:6121", f"h{number}") for number in range(4)
)


def four(taskmanager: list[int] | None = None) -> ShuffleDescriptors:
    return ShuffleDescriptors.of(
        "job",
        "words",
        LOCATIONS,
        index=range(4),
        partition=[4, 5, 6, 7],
        attempt=[0, 1, 0, 2],
        taskmanager=[3, 1, UNKNOWN, 3] if taskmanager is None else taskmanager,
    )


def test_only_locations_that_occur_are_kept() -> None:
    descriptors = four()
    assert descriptors.locations == (LOCATIONS[1], LOCATIONS[3])
    assert descriptors.taskmanager.tolist() == [1, 0, UNKNOWN, 1]


def test_a_row_is_a_view() -> None:
    descriptors = four()
    second = descriptors.descriptor(1)
    assert (second.partition, second.location) == ("job/words/5.1", LOCATIONS[1])
    assert descriptors.descriptor(2).location is None
    assert descriptors.channel(3, 9) == ChannelDescriptor("tcp://10.0.0.3:6121", "job/words/7.2", 9)
    assert descriptors.channel(2, 9) == ChannelDescriptor("", "job/words/6.0", 9)


def test_bytes_and_back() -> None:
    descriptors = four()
    again = ShuffleDescriptors.decompress(compress(descriptors.serialised()))
    assert (again.dataset, again.locations, len(again)) == ("words", descriptors.locations, 4)
    for column in ("index", "partition", "attempt", "taskmanager"):
        np.testing.assert_array_equal(getattr(again, column), getattr(descriptors, column))


def test_ten_thousand_shrink_by_far_more_than_three_quarters() -> None:
    count, taskmanagers = 10_000, 1000
    rng = np.random.default_rng(7)
    descriptors = ShuffleDescriptors.of(
        "job",
        "words",
        [TaskManagerLocation(f"tm-{n:04}-{n * 7919:08x}", f"tcp://10.0.{n >> 8}.{n & 255}:6121") for n in range(1000)],
        index=np.arange(count),
        partition=np.arange(count),
        attempt=np.zeros(count),
        taskmanager=rng.permutation(count) % taskmanagers,
    )
    plain = descriptors.serialised()
    assert len(plain) >= count * 16
    assert len(compress(plain)) < 0.28 * len(plain)


def test_columns_of_one_length_and_known_taskmanagers() -> None:
    with pytest.raises(ConfigError, match=r"lengths \[1, 2\]"):
        ShuffleDescriptors.of("job", "words", LOCATIONS, index=[0], partition=[0, 1], attempt=[0], taskmanager=[0])
    with pytest.raises(ConfigError, match="TaskManager 4"):
        four([0, 0, 0, 4])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        msgpack.packb(("words", [], 3, b"123")),
        msgpack.packb(("words", [("a",)], 0, b"")),
        four().serialised()[:-1],
        msgpack.packb(("words", [], 1, bytes(20))),
    ],
)
def test_damaged_bytes_are_the_peers_fault(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="MALFORMED_FRAME"):
        ShuffleDescriptors.parse(data)


def test_bytes_that_were_never_compressed() -> None:
    with pytest.raises(RemoteProtocolError, match="shuffle descriptors"):
        ShuffleDescriptors.decompress(b"no zlib")
    with pytest.raises(RemoteProtocolError, match="are cut"):
        ShuffleDescriptors.decompress(compress(four().serialised())[:-5])
    with pytest.raises(RemoteProtocolError, match="no list"):
        ShuffleDescriptors.decompress(zlib.compress(b"\xc1"))


def test_known_needs_data_or_a_pipe_a_place_and_a_living_producer() -> None:
    yes, no = [True], [False]

    def asked(
        result_type: ResultPartitionType, produced: list[bool], registered: list[bool], alive: list[bool]
    ) -> bool:
        return bool(announceable(result_type, np.array(produced), np.array(registered), np.array(alive))[0])

    assert asked(ResultPartitionType.PIPELINED_BOUNDED, no, yes, yes)
    assert not asked(ResultPartitionType.BLOCKING, no, yes, yes)
    assert asked(ResultPartitionType.BLOCKING, yes, yes, yes)
    assert asked(ResultPartitionType.HYBRID_FULL, no, yes, yes)
    assert not asked(ResultPartitionType.HYBRID_FULL, yes, no, yes)
    assert not asked(ResultPartitionType.PIPELINED_BOUNDED, yes, yes, no)


def test_later_lists_override() -> None:
    first = four([0, 0, UNKNOWN, 0])
    more = ShuffleDescriptors.of("job", "words", LOCATIONS, index=[2], partition=[6], attempt=[1], taskmanager=[2])
    places = resolve([first, more], 4)
    assert [descriptors.descriptor(row).partition for descriptors, row in places] == [
        "job/words/4.0",
        "job/words/5.1",
        "job/words/6.1",
        "job/words/7.2",
    ]


def test_lists_that_do_not_fit_the_group() -> None:
    with pytest.raises(LocalProtocolError, match="4 of 5"):
        resolve([four()], 5)
    with pytest.raises(LocalProtocolError, match="partition 3 of a group of 3"):
        resolve([four()], 3)


def test_a_partition_is_named_by_its_attempt() -> None:
    assert partition_name("job", "words", 3, 2) == "job/words/3.2"
    with pytest.raises(ConfigError, match="255"):
        partition_name("j" * 255, "words", 0, 0)
    with pytest.raises(ConfigError, match="UTF-8"):
        partition_name("job", "\ud800", 0, 0)


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=190, max_size=256), unique=True, max_size=4))
def test_datasets_of_any_name_have_distinct_partitions(names: list[str]) -> None:
    """Law: an operator's name may have 256 characters of up to 4 bytes; the longest were refused when deployed."""
    partitions = [partition_name(execution_name("0" * 16, 2**31), f"{name}.0", 99_999, 99_999) for name in names]
    assert len({*partitions}) == len(names)
    for name, partition in zip(names, partitions, strict=True):
        assert partition_place(partition).dataset == dataset_part(f"{name}.0")


def test_a_later_life_of_the_jobmanager_has_other_names_of_the_same_job() -> None:
    names = {life: partition_name(execution_name("job", life), "words", 3, 2) for life in (0, 1, 12)}
    assert names == {0: "job/words/3.2", 1: "job@1/words/3.2", 12: "job@12/words/3.2"}
    assert all(is_of_job(name, "job") and not is_of_job(name, "jo") for name in names.values())


def test_the_name_of_a_partition_tells_what_it_is_of() -> None:
    place = partition_place(partition_name("job", "a/1.2/b\n", 3, 2))
    assert (place.execution, place.dataset, place.partition, place.attempt) == ("job", "a/1.2/b\n", 3, 2)
    for name in ("words", "job/words", "job/words/1", "job/words/a.b"):
        with pytest.raises(LocalProtocolError, match="no partition of a job"):
            partition_place(name)
