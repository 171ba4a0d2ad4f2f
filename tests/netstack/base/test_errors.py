"""Errors: one root, typed by fault, with a message that names code and channel."""

from __future__ import annotations

import inspect

import pytest

from netstack.base import errors
from netstack.base.errors import (
    ChannelFailed,
    ConfigError,
    ErrorCode,
    NetstackError,
    PartitionDamaged,
    PartitionNotFound,
    ProducerFailed,
    RecordError,
    RemoteProtocolError,
    channel_error,
)


def test_everything_has_one_root() -> None:
    classes = [actual for _, actual in inspect.getmembers(errors, inspect.isclass) if issubclass(actual, Exception)]
    assert len(classes) > 10
    assert all(issubclass(actual, NetstackError) for actual in classes)


@pytest.mark.parametrize("actual", [ConfigError, RecordError])
def test_wrong_values_are_value_errors_too(actual: type[Exception]) -> None:
    assert issubclass(actual, ValueError)


def test_a_protocol_error_carries_its_code() -> None:
    error = RemoteProtocolError(ErrorCode.FRAME_TOO_LARGE, "9 bytes")
    assert (error.code, error.text, str(error)) == (ErrorCode.FRAME_TOO_LARGE, "9 bytes", "FRAME_TOO_LARGE: 9 bytes")


@pytest.mark.parametrize(
    ("channel", "text"), [("", "SEQUENCE_GAP: 3 after 1"), ("channel 7", "channel 7: SEQUENCE_GAP: 3 after 1")]
)
def test_a_channel_error_names_its_channel(channel: str, text: str) -> None:
    error = ChannelFailed(ErrorCode.SEQUENCE_GAP, "3 after 1", channel=channel)
    assert str(error) == text
    assert error.channel == channel


@pytest.mark.parametrize("code", ErrorCode)
def test_the_most_specific_class(code: ErrorCode) -> None:
    expected = {
        ErrorCode.PARTITION_NOT_FOUND: PartitionNotFound,
        ErrorCode.SUBPARTITION_OUT_OF_RANGE: PartitionNotFound,
        ErrorCode.PARTITION_DAMAGED: PartitionDamaged,
        ErrorCode.PRODUCER_FAILED: ProducerFailed,
    }.get(code, ChannelFailed)
    error = channel_error(code, "why", channel="c")
    assert type(error) is expected
    assert (error.code, error.text, error.channel) == (code, "why", "c")
