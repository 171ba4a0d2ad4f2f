"""The settings of `channels`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from netstack.base.config import NetworkConfig
from netstack.base.errors import ConfigError

from ..spec import Settings, network_of

MOST_CHANNELS: Final = NetworkConfig().max_channels_per_connection


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelsSpec(Settings):
    """Settings of one measurement. Buffers are few and small, because only channels are measured."""

    channels: int = 10_000
    idle_seconds: float = 2.0
    exclusive_buffers: int = 1
    floating_buffers: int = 8
    segment_size_bytes: int = 4096

    def __post_init__(self) -> None:
        if not 1 <= self.channels <= MOST_CHANNELS:
            raise ConfigError(f"--channels {self.channels}: give 1 to {MOST_CHANNELS}, the limit of one connection")
        if not self.idle_seconds > 0:
            raise ConfigError(f"--idle-seconds {self.idle_seconds:g}: give more than 0")

    def network(self) -> NetworkConfig:
        """The settings of either TaskManager, with memory for every channel and the default heartbeat."""
        segments = self.channels * (self.exclusive_buffers + 1) + self.floating_buffers
        return network_of(self, segments)
