"""Reads partitions and published epochs, each through a connection of its own. Blocking.

`read_subpartition` reads a partition once and raises what breaks it. `read_epoch` reads one epoch of a `Publisher`; it
reconnects and continues where the connection broke. `StreamPoller` polls all publishers of a stream at once.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import trio

from .. import blocking
from ..base.config import NATIVE_DIALECT, NetworkConfig
from ..base.errors import ChannelFailed, ConfigError, ConnectionLost, NetstackError
from ..base.ids import ChannelDescriptor
from ..base.timing.wakeup import Signal
from ..exchange.record.flink import value_format_named
from ..exchange.record.formats import RecordFormat, format_named
from ..network.connection.authentication import Secret
from ..network.reader import RecordReader
from .epoch_protocol import EpochRequest, Poll, StreamState

_RETRY_DELAY_S: Final = 0.2
_LISTEN: Final = "tcp://127.0.0.1:0"  # nothing connects to a consumer
_FLINK: Final = "flink-"
_POLL_S: Final = 0.05
_ANSWER_S: Final = 2.0


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLocation:
    """The address of one end of a stream, and the settings of connections to it.

    Attributes:
        address: the URL of the producing TaskManager, or of the Subscriber.
        segment_size_bytes: the size of a network buffer; equal at both ends.
        secret_file: the file with the shared secret; None for no secret.
        retry_s: how long a lost connection is retried.
    """

    address: str
    format: str = "arrow"
    dialect: str = NATIVE_DIALECT
    segment_size_bytes: int = 32 * 1024
    secret_file: str | None = None
    retry_s: float = 60.0

    def secret(self) -> Secret | None:
        """The shared secret. Raises ConfigError if the file cannot be read."""
        return None if self.secret_file is None else Secret.from_file(Path(self.secret_file))

    def open(self) -> blocking.NetworkEnvironment:
        """Opens a network environment that can read from there."""
        config = NetworkConfig(dialect=self.dialect, segment_size_bytes=self.segment_size_bytes)
        return blocking.open_network(_LISTEN, config, secret=self.secret())

    def record_format(self) -> RecordFormat:
        """Returns a new format object."""
        name = self.format
        return value_format_named(name.removeprefix(_FLINK)) if name.startswith(_FLINK) else format_named(name)


def read_subpartition(endpoint: StreamLocation, partition: str, subpartition: int) -> Iterator[Any]:
    """Reads every record of a subpartition, in order.

    Raises:
        ConnectionLost, ChannelFailed, ...: whatever the input gate raises.
    """
    with endpoint.open() as network:
        yield from _records(network, endpoint, ChannelDescriptor(endpoint.address, partition, subpartition))


def read_epoch(endpoint: StreamLocation, stream: str, epoch: int, subpartition: int) -> Iterator[Any]:
    """Reads every record of an epoch that a `Publisher` offers, in order.

    After a lost connection it reads the epoch again and skips the records that it has already yielded.

    Raises:
        ConnectionLost, ChannelFailed, ...: whatever the input gate raises, after `retry_s` without a new record.
    """
    yielded = 0
    last_record_s = time.monotonic()
    with endpoint.open() as network:
        while True:
            request = ChannelDescriptor(endpoint.address, EpochRequest(stream, epoch, subpartition).partition(), 0)
            try:
                with contextlib.closing(_records(network, endpoint, request)) as records:
                    for position, record in enumerate(records):
                        if position >= yielded:
                            last_record_s = time.monotonic()
                            yielded += 1
                            yield record
                return
            except (ConnectionLost, ChannelFailed, OSError):
                if time.monotonic() - last_record_s > endpoint.retry_s:
                    raise
                time.sleep(_RETRY_DELAY_S)


def _records(
    network: blocking.NetworkEnvironment, endpoint: StreamLocation, channel: ChannelDescriptor
) -> Generator[Any, None, None]:
    reader = blocking.RecordReader(network.open_gate([channel]), format=endpoint.record_format())
    try:
        while (records := reader.next_records()) is not None:
            yield from records
    finally:
        reader.close()


@final
class StreamPoller:
    """Polls all publishers of a stream at once. Blocking; used by one thread.

    Args:
        consumer: the reader's name.
        locations: the publishers; the connections use the secret and the segment size of the first.
    """

    def __init__(self, stream: str, consumer: str, locations: Sequence[StreamLocation]) -> None:
        self._stream = stream
        self._consumer = consumer
        self._locations = {each.address: each for each in locations}
        self._network: blocking.NetworkEnvironment | None = None
        self._pending: set[str] = set()
        self._answered = Signal()
        self.states: Mapping[str, StreamState] = {}
        """The newest answers, by address; a publisher that cannot be reached has none."""
        self._errors: dict[str, Exception] = {}

    def poll(self, processed: Mapping[str, int], *, wait_s: float = _POLL_S) -> Mapping[str, StreamState]:
        """Returns the newest answers. A later answer is in the result of the next poll.

        Args:
            processed: by address, the epoch before which the consumer has processed everything.
            wait_s: the longest wait, however many publishers there are.

        Raises:
            ConfigError: a publisher has no such consumer.
        """
        if self._network is None:
            self._network = next(iter(self._locations.values())).open()
        request = functools.partial(self._request_all, self._network.portal, processed, wait_s)
        self._network.portal.call(request, timeout_s=None, what="polling publishers")
        for state in self.states.values():
            if state.refusal:
                raise ConfigError(state.refusal)
        return self.states

    def wait_for_all(self) -> Mapping[str, StreamState]:
        """Returns the answers of all publishers; waits up to `retry_s` for those that cannot be reached.

        Raises:
            ConnectionLost: a publisher has not answered.
            ConfigError: a publisher has no such consumer.
        """
        until_s = time.monotonic() + max(each.retry_s for each in self._locations.values())
        while True:
            states = self.poll({}, wait_s=_ANSWER_S)
            missing = [address for address in self._locations if address not in states]
            if not missing:
                return states
            if time.monotonic() > until_s:
                raise ConnectionLost(
                    f"the publisher of stream {self._stream!r} at {missing[0]} has not answered:"
                    f" {str(self._errors.get(missing[0], '')) or 'no Publisher of this name is there'}"
                )
            time.sleep(_RETRY_DELAY_S)

    def close(self) -> None:
        """Closes the connections. Idempotent."""
        if self._network is not None:
            self._network.close()
            self._network = None
            self._pending.clear()

    async def _request_all(self, portal: Any, processed: Mapping[str, int], wait_s: float) -> None:
        for address in self._locations:
            if address not in self._pending:
                self._pending.add(address)
                poll = Poll(self._stream, self._consumer, processed.get(address, 0))
                portal.start_task(functools.partial(self._request, portal.inside, address, poll))
        with trio.move_on_after(wait_s):
            while self._pending:
                await self._answered.wait()

    async def _request(self, network: Any, address: str, poll: Poll) -> None:
        """Polls one publisher, in the network's thread."""
        answer: dict[str, StreamState] = {}
        try:
            with trio.fail_after(_ANSWER_S):
                gate = await network.open_gate((ChannelDescriptor(address, poll.partition(), 0),))
                reader: RecordReader[str] = RecordReader(gate, format="str")
                try:
                    text = "".join([part async for part in reader])
                finally:
                    reader.close()
            answer[address] = StreamState.from_text(text)
        except (NetstackError, OSError, ValueError, TypeError, trio.TooSlowError) as error:
            self._errors[address] = error
        finally:
            self._pending.discard(address)
            self._answered.wake()
        self.states = {**{each: state for each, state in self.states.items() if each != address}, **answer}
