"""Two TaskManagers, each in a thread of its own, on loopback TCP."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, final

import pytest

from netstack import ChannelDescriptor, NetworkConfig, blocking

PATIENCE_S = 120.0
"""No test takes that long: what would hang fails."""


@final
class Pair:
    """A producing and a consuming TaskManager."""

    def __init__(self, config: NetworkConfig | None = None) -> None:
        self.producer = blocking.open_network("tcp://127.0.0.1:0", config)
        self.consumer = blocking.open_network("tcp://127.0.0.1:0", config)
        self._names = iter(range(1 << 30))

    def join(self, subpartitions: int = 1) -> tuple[blocking.ResultPartition, blocking.InputGate]:
        """A new partition, and one gate over all of it."""
        name = f"p{next(self._names)}"
        partition = self.producer.create_partition(name, subpartitions=subpartitions)
        return partition, self.consumer.open_gate(
            [ChannelDescriptor(self.producer.address, name, index) for index in range(subpartitions)],
            timeout_s=PATIENCE_S,
        )

    def join_later(self) -> tuple[blocking.ResultPartition, ChannelDescriptor]:
        """A new partition of one subpartition, and what a gate needs to read it."""
        name = f"p{next(self._names)}"
        return self.producer.create_partition(name, subpartitions=1), ChannelDescriptor(self.producer.address, name)

    def close(self) -> None:
        self.consumer.close()
        self.producer.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.close()


@pytest.fixture(scope="package")
def lasting_pair() -> Iterator[Pair]:
    """For examples by the dozen."""
    made = Pair()
    yield made
    made.close()


@final
class Background:
    """A call in a thread: what it returned or raised."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._result: list[Any] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raises what the call raised, if it has."""
        if self._error is not None:
            raise self._error

    def outcome(self) -> Any:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the call hangs"
        if self._error is not None:
            raise self._error
        return self._result[0]

    def _run(self) -> None:
        try:
            self._result.append(self._call())
        except BaseException as error:
            self._error = error


@pytest.fixture
def background() -> type[Background]:
    return Background
