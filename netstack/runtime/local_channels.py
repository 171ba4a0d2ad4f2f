"""Channels within one TaskManager: recognises its own addresses and opens local channels."""

from __future__ import annotations

from typing import Final

from ..errors import ChannelFailed
from ..ids import ChannelDescriptor
from ..inbound.gate import SingleInputGate
from ..inbound.local_channel import LocalInputChannel
from ..outbound.views import ViewProvider
from ..transport import url_parts

_ANY: Final = ("0.0.0.0", "::")
_LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


def is_same_address(mine: str, theirs: str) -> bool:
    """Whether dialling `theirs` reaches the TaskManager that listens at `mine`, judged by the text alone."""
    if mine == theirs:
        return True
    here, there = url_parts(mine), url_parts(theirs)
    if here.scheme != there.scheme or here.port is None or here.port != there.port:
        return False
    # We listen at all addresses, so every loopback name with our port reaches us.
    return here.hostname in _ANY and there.hostname in (*_ANY, *_LOOPBACK)


def open_local_channel(gate: SingleInputGate, index: int, descriptor: ChannelDescriptor, views: ViewProvider) -> None:
    """Adds a local channel to a gate.

    Args:
        gate: the reading gate.
        index: of the channel in the gate.
        descriptor: the subpartition to read.
        views: the partitions of the same TaskManager.

    Raises:
        ChannelFailed: the subpartition is released or already consumed. A partition that is not created in time fails
            the channel later.
    """
    channel = LocalInputChannel(
        gate,
        index,
        partition_id=descriptor.partition_id,
        subpartition=descriptor.subpartition,
        subpartitions=descriptor.subpartitions,
    )
    gate.add_channel(channel)
    failed: list[ChannelFailed] = []
    at_once = True

    def on_failed(error: ChannelFailed) -> None:
        if at_once:
            error.partition = descriptor.partition_id
            failed.append(error)
        else:
            channel.fail(error)

    channel.withdraw = views.open_view(
        descriptor.partition_id,
        descriptor.subpartition,
        channel.on_data_available,
        channel.on_view,
        on_failed,
        descriptor.subpartitions,
    )
    at_once = False
    if failed:
        raise failed[0]
