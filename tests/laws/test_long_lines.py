"""Law of spare buffers: an idle network fills a line of any length and rate, and lends no more than that takes.

The receiving half is the real one (gate, channel, pools, credit, spare buffers). The line and its greedy producer are
simulated under a virtual clock: a transmitter that sends buffer after buffer, and half a round trip in each direction.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings, strategies as st

from netstack.base.config import NetworkConfig
from netstack.base.ids import ChannelDescriptor
from netstack.exchange.buffer.pools import NetworkBufferPool
from netstack.exchange.credit.boost import EXPECTED_BUFFERS
from netstack.exchange.credit.receiving import BufferManager
from netstack.exchange.credit.spare import FAST, FAST_S, FEWEST, REVIEW_BUFFERS, ROUND_TRIPS
from netstack.exchange.inbound.channel import RemoteInputChannel
from netstack.exchange.inbound.gate import SingleInputGate

SIZE = 64
CONFIG = NetworkConfig()
EXCLUSIVE, FLOATING = CONFIG.exclusive_buffers_per_channel, CONFIG.floating_buffers_per_gate
SPARE = CONFIG.spare_floating_buffers_per_gate
MEMORY = 2048
SLOWEST, FASTEST = 10e6 / 8 / 32768, 1e9 / 8 / 32768  # buffers a second of 10 Mbit/s and of 1 Gbit/s


class SimulatedLine:
    """A gate of one channel behind a line; also the channel's link to its connection."""

    def __init__(self, rate: float, round_trip_s: float, *, spare: int = SPARE, consume_s: float = 0.0) -> None:
        self.now = 0.0
        self.rate = rate
        self.one_way_s = round_trip_s / 2
        self.consume_s = consume_s  # what the reader takes for a buffer
        self.network = NetworkBufferPool(MEMORY, SIZE)
        pool = self.network.create_pool(1, FLOATING)
        self.gate = SingleInputGate(pool, read_connections=lambda: None, on_closed=lambda: None, now=lambda: self.now)
        self.gate.allow_spare(spare, lambda: round_trip_s)
        self.channel = RemoteInputChannel(
            self.gate,
            0,
            ChannelDescriptor("tcp://far:1", "p"),
            exclusive=self.network.take_unpooled(EXCLUSIVE),
            pool=pool,
            network=self.network,
        )
        self.gate.add_channel(self.channel)
        self.channel.attach(self, 0)  # type: ignore[arg-type]  # only what is called here
        self.landing = self.network.take_unpooled(1)[0]
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.credit = EXCLUSIVE
        self.free_at = 0.0
        self.sent = self.read = 0
        self.reads_until = 0.0
        self.is_idle = False
        self.arrived: list[float] = []
        self.deferred: BufferManager | None = None
        self.at(self.one_way_s, self.send)
        self.at(2 * self.one_way_s, lambda: self.channel.manager.on_expected(EXPECTED_BUFFERS))  # it ran out of credit
        self.wait()

    # The line.

    def at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.events, (when, next(self.order), what))

    def run(self, until: float) -> None:
        while self.events and self.events[0][0] <= until:
            self.now, _, what = heapq.heappop(self.events)
            what()

    def send(self) -> None:
        """The producer has always data: it sends what credit allows."""
        while self.credit:
            self.credit -= 1
            self.free_at = max(self.now, self.free_at) + 1 / self.rate
            self.at(self.free_at + self.one_way_s, self.arrive)

    def arrive(self) -> None:
        self.landing = self.channel.on_buffer(self.sent, 0, self.landing, SIZE)
        self.sent += 1
        self.arrived.append(self.now)
        if self.now >= self.reads_until:
            self.take()

    # The reader.

    def wait(self) -> None:
        self.is_idle = True
        self.gate.idle.begin(self.now)

    def take(self) -> None:
        if self.is_idle:
            self.is_idle = False
            self.gate.idle.end(self.now)
        buffer = self.gate.poll()
        if buffer is None:
            if self.deferred is not None and self.deferred.is_short_of_credit:
                self.deferred.credit.is_scheduled = True
                self.schedule_announcement(self.deferred)
            self.wait()
            return
        self.read += 1
        buffer.recycle()
        self.reads_until = self.now + self.consume_s
        if self.consume_s:
            self.at(self.reads_until, self.take)
        else:
            self.take()

    # The link of the channel.

    def schedule_announcement(self, manager: BufferManager) -> None:
        count = manager.credit.take()

        def arrive() -> None:
            self.credit += count
            self.send()

        self.at(self.now + self.one_way_s, arrive)

    def announce_now(self) -> None: ...

    def defer_announcement(self, manager: BufferManager) -> None:
        self.deferred = manager

    def remove(self, channel: RemoteInputChannel) -> None: ...

    def acknowledge(self, number: int) -> None: ...

    # What is seen.

    @property
    def maximum(self) -> int:
        assert self.gate.pool is not None
        assert self.gate.pool.maximum is not None
        return self.gate.pool.maximum

    def close(self) -> None:
        self.gate.abandon()
        self.network.recycle_unpooled([self.landing])
        assert self.network.free_segments == MEMORY


@settings(max_examples=60)
@given(rate=st.floats(SLOWEST, FASTEST), round_trip_s=st.floats(0.0002, 0.1))
@example(rate=100e6 / 8 / 32768, round_trip_s=0.04)
@example(rate=FASTEST, round_trip_s=0.02)
def test_a_line_is_full_and_its_window_no_longer_than_four_round_trips(rate: float, round_trip_s: float) -> None:
    line = SimulatedLine(rate, round_trip_s)
    line.run(20 * REVIEW_BUFFERS / rate + 40 * round_trip_s)
    late = line.arrived[len(line.arrived) // 2 :]
    reached = (len(late) - 1) / (late[-1] - late[0])
    possible = min(rate, (FLOATING + SPARE) / 1.5 / round_trip_s)
    assert reached >= 0.9 * possible, (reached / rate, line.maximum)
    # What arrived at once after a wait counts as faster than the line, but not for long.
    near = min(FAST, 1.5 * FAST_S * rate + 1)
    assert line.maximum <= FLOATING + max(FEWEST, near, 1.5 * ROUND_TRIPS * rate * round_trip_s + 1)
    line.close()


@given(rate=st.floats(SLOWEST, FASTEST), round_trip_s=st.floats(0.0002, 0.1))
def test_a_reader_that_holds_the_line_up_keeps_the_usual_buffers(rate: float, round_trip_s: float) -> None:
    line = SimulatedLine(rate, round_trip_s, consume_s=1.5 / rate + round_trip_s)
    line.run(12 * REVIEW_BUFFERS * line.consume_s)
    assert line.read > 10 * REVIEW_BUFFERS
    assert line.maximum == FLOATING
    line.close()


@pytest.mark.parametrize("spare", [1, FEWEST, 60])
def test_no_more_is_borrowed_than_the_setting_allows(spare: int) -> None:
    line = SimulatedLine(FASTEST, 0.1, spare=spare)
    line.run(10.0)
    assert line.maximum == FLOATING + spare
    line.close()
