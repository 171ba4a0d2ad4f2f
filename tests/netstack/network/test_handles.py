"""Handles: arguments that are none, and unions."""

from __future__ import annotations

from typing import Any

import pytest

from netstack import (
    ArrayReader,
    ChannelDescriptor,
    LocalProtocolError,
    RecordReader,
    RecordWriter,
    UnionInputGate,
    aio,
    blocking,
    open_network,
)
from netstack.base.errors import ConfigError


async def test_handles_of_another_module_are_refused() -> None:
    async with open_network("memory://handles") as network:
        partition: Any = network.create_partition("p", subpartitions=1)
        gate: Any = await network.open_gate([ChannelDescriptor(network.address, "p")])
        for make in (lambda: blocking.RecordReader(gate), lambda: aio.RecordReader(gate)):
            with pytest.raises(ConfigError, match=r"InputGate is not a netstack.network.blocking.*: give"):
                make()
        for write in (lambda: blocking.RecordWriter(partition), lambda: aio.RecordWriter(partition)):
            with pytest.raises(ConfigError, match="create_partition"):
                write()
        for wrong in (
            lambda: RecordReader(partition),
            lambda: ArrayReader(partition, "<i8"),
            lambda: RecordWriter(gate),
        ):
            with pytest.raises(ConfigError, match=r"is not a netstack\.network"):
                wrong()


async def test_only_gates_form_a_union() -> None:
    async with open_network("memory://handles") as network:
        network.create_partition("p", subpartitions=4)
        gates = [await network.open_gate([ChannelDescriptor(network.address, "p", index)]) for index in range(4)]
        union = UnionInputGate(gates[:2])
        with pytest.raises(LocalProtocolError, match="cannot be part of another one"):
            UnionInputGate([gates[2], union])
        nothing: Any = None
        with pytest.raises(ConfigError, match="NoneType is not"):
            UnionInputGate([gates[2], nothing])
        with pytest.raises(LocalProtocolError, match="'p' has a reader already"):
            UnionInputGate([gates[2], gates[0]])
        incomplete = UnionInputGate(gates[2:3], missing=1)  # the failed unions have not taken it
        RecordReader(gates[3])
        with pytest.raises(LocalProtocolError, match="has a reader already"):
            incomplete.add(gates[3])
        assert incomplete.channel_count == 1
