"""What a `Publisher` has to be read: the question of a reader, the answer, and the asking of many at once.

Takes: a consumer's name, and before which epoch it has processed everything. Gives: `StreamState`.

A question is a request for a partition that does not exist; the publisher makes it then, with the answer in it:

    events?spark?17?1f3a9c   the consumer "spark" has processed all epochs of "events" before 17; what is there to read?

So one round trip acknowledges and looks, and whoever comes back after any failure says the same again.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, final

import trio

from .. import blocking
from ..errors import ConfigError, ConnectionLost, NetstackError
from ..ids import ChannelDescriptor
from ..runtime.record_reader import RecordReader
from ..wakeup import Signal
from .consumer import StreamLocation
from .stream_request import Question

DEFAULT_CONSUMER: Final = "spark"
LOOK_S: Final = 0.05
_ANSWER_S: Final = 2.0
_AGAIN_S: Final = 0.2
_CONSUMER: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def check_consumer(name: str) -> str:
    """The name of a consumer, as it is.

    Raises:
        ConfigError: it cannot be one.
    """
    if not _CONSUMER.fullmatch(name):
        raise ConfigError(f"consumer {name!r}: give 1 to 64 letters, digits, or any of _.-")
    return name


@final
@dataclass(frozen=True, slots=True)
class StreamState:
    """What a publisher answers.

    Attributes:
        first: the oldest epoch that is kept, or the next one if none is.
        next: the epoch behind the newest that can be read.
        written: the epoch that is being written; those between `next` and this one wait for a checkpoint.
        rows: of each epoch from `first` to `next`.
        bytes: likewise, on the publisher's disk.
        refusal: why the consumer cannot read here; empty if it can.
    """

    first: int
    next: int
    written: int
    rows: Sequence[int] = ()
    bytes: Sequence[int] = ()
    refusal: str = ""

    def to_text(self) -> str:
        """As it travels."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> StreamState:
        """The inverse of `to_text`.

        Raises:
            ValueError, TypeError: it is something else.
        """
        return cls(**json.loads(text))


@final
class StreamLook:
    """Asks all publishers of a stream at once; blocking, used by one thread.

    Args:
        stream: its name.
        consumer: who reads.
        locations: the publishers, which share the first one's secret and segment size.
    """

    def __init__(self, stream: str, consumer: str, locations: Sequence[StreamLocation]) -> None:
        self._stream = stream
        self._consumer = consumer
        self._locations = {each.address: each for each in locations}
        self._network: blocking.NetworkEnvironment | None = None
        self._asking: set[str] = set()
        self._answered = Signal()
        self.states: Mapping[str, StreamState] = {}
        """The newest answers, by address; a publisher that cannot be reached has none."""
        self._errors: dict[str, Exception] = {}

    def look(self, processed: Mapping[str, int], *, wait_s: float = LOOK_S) -> Mapping[str, StreamState]:
        """The newest answers. Those that come later are in the next look.

        Args:
            processed: by address, what the consumer has processed: all before this epoch.
            wait_s: how long to wait at most, whatever the number of publishers.

        Raises:
            ConfigError: a publisher does not know the consumer.
        """
        if self._network is None:
            self._network = next(iter(self._locations.values())).open()
        ask = functools.partial(self._ask_all, self._network.portal, processed, wait_s)
        self._network.portal.call(ask, timeout_s=None, what="asking publishers")
        for state in self.states.values():
            if state.refusal:
                raise ConfigError(state.refusal)
        return self.states

    def wait_for_all(self) -> Mapping[str, StreamState]:
        """The answers of all publishers; waits `retry_s` for those that cannot be reached.

        Raises:
            ConnectionLost: one has not answered.
            ConfigError: one does not know the consumer.
        """
        until_s = time.monotonic() + max(each.retry_s for each in self._locations.values())
        while True:
            states = self.look({}, wait_s=_ANSWER_S)
            missing = [address for address in self._locations if address not in states]
            if not missing:
                return states
            if time.monotonic() > until_s:
                raise ConnectionLost(
                    f"the publisher of stream {self._stream!r} at {missing[0]} has not answered:"
                    f" {self._errors.get(missing[0]) or 'no Publisher of this name is there'}"
                )
            time.sleep(_AGAIN_S)

    def close(self) -> None:
        """Ends its connections. Idempotent."""
        if self._network is not None:
            self._network.close()
            self._network = None
            self._asking.clear()

    async def _ask_all(self, portal: Any, processed: Mapping[str, int], wait_s: float) -> None:
        for address in self._locations:
            if address not in self._asking:
                self._asking.add(address)
                question = Question(self._stream, self._consumer, processed.get(address, 0))
                portal.start_task(functools.partial(self._ask, portal.inside, address, question))
        with trio.move_on_after(wait_s):
            while self._asking:
                await self._answered.wait()

    async def _ask(self, network: Any, address: str, question: Question) -> None:
        """Asks one, in the network's thread."""
        try:
            with trio.fail_after(_ANSWER_S):
                gate = await network.open_gate((ChannelDescriptor(address, question.partition(), 0),))
                reader: RecordReader[str] = RecordReader(gate, format="str")
                try:
                    answer = [text async for text in reader]
                finally:
                    reader.close()
            state = StreamState.from_text("".join(answer))
        except (NetstackError, OSError, ValueError, TypeError, trio.TooSlowError) as error:
            self._errors[address] = error
            self._store(address, None)
        else:
            self._store(address, state)
        finally:
            self._asking.discard(address)
            self._answered.wake()

    def _store(self, address: str, state: StreamState | None) -> None:
        others = {each: known for each, known in self.states.items() if each != address}
        self.states = others if state is None else {**others, address: state}
