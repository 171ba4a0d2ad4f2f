"""Names of partitions, and where a channel reads."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, strategies as st

from netstack.base.errors import ConfigError
from netstack.base.ids import MAX_PARTITION_ID_BYTES, ChannelDescriptor, ResultPartitionType, partition_id


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
def test_a_name_is_what_fits_one_length_byte(name: str) -> None:
    if 1 <= len(name.encode()) <= MAX_PARTITION_ID_BYTES:
        assert partition_id(name) == name
    else:
        with pytest.raises(ConfigError, match="give it 1 to 255"):
            partition_id(name)


def test_length_counts_bytes_not_characters() -> None:
    assert partition_id("é" * 127)
    with pytest.raises(ConfigError, match="256 bytes in UTF-8"):
        partition_id("é" * 128)


def test_a_name_can_be_encoded() -> None:
    with pytest.raises(ConfigError, match="lone surrogate"):
        partition_id("p\ud800")


def test_which_type_is_bounded() -> None:
    assert ResultPartitionType.PIPELINED_BOUNDED.is_bounded
    assert not ResultPartitionType.PIPELINED.is_bounded


def test_a_descriptor_is_a_value() -> None:
    first = ChannelDescriptor("tcp://a:1", "p", 2)
    assert first == ChannelDescriptor("tcp://a:1", "p", 2) != ChannelDescriptor("tcp://a:1", "p")
    assert len({first, ChannelDescriptor("tcp://a:1", "p", 2)}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.subpartition = 1  # type: ignore[misc]
