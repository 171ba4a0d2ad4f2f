"""The soak with tasks: two TaskManagers in virtual time, 200 channels in about 20 gates on one connection.

Readers and writers sleep, stall, are cancelled at any wait and go on; regions of them are cancelled and restarted;
consumers leave for good, producers fail, the connection is slow or stalls. Some seeds have no exclusive buffers, some
no credit. Time only passes while everybody waits, so whoever is not woken waits for ever, which takes no time at all.

At random moments at which everybody waits: segments and credit are conserved, and nobody waits who has something to do.
At the end: every channel that nobody cancelled has delivered every record once, in order; every segment is home.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import trio
import trio.testing
from hypothesis.internal.entropy import deterministic_PRNG
from laws.soak_tasks import Consumer, Producer, Region
from trio_runs import run_virtual

from netstack.base.config import NetworkConfig
from netstack.exchange.buffer.requirements import LANDING_SEGMENTS, GatePlan, PartitionPlan, required_buffers
from netstack.exchange.outbound.partition import ResultPartition
from netstack.exchange.outbound.sender import ChannelSender
from netstack.exchange.wire.codec_native import NativeCodec
from netstack.network.connection.pump import Pump
from netstack.network.environment import NetworkEnvironment, open_network
from netstack.testing.ledger import Ledger
from netstack.testing.scripted import Pipe
from netstack_transports import memory
from netstack_transports.impaired import impairment
from netstack_transports.memory import MemoryStream

EVERYDAY_SEEDS = 8
CHANNELS = 200
SEGMENT = 256
PAUSES_S = [0.0, 0.0, 0.0, 0.001, 0.1, 3.0, 500.0]
PATIENCE_S = 1e6
"""Virtual time, of course: what takes longer hangs."""
runs = itertools.count()


class Soak:
    """One seed."""

    producing: NetworkEnvironment
    consuming: NetworkEnvironment
    others: trio.Nursery

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(seed)
        self.names = itertools.count()
        self.partitions: list[ResultPartition] = []
        self.opening = 0
        self.looks = 0
        self.regions: list[Region] = []
        left = CHANNELS
        while left:
            producers, consumers = rng.randint(4, 16), rng.randint(1, 8)
            if producers * consumers > left:
                producers, consumers = left, 1
            self.regions.append(Region(self, producers, consumers))
            left -= producers * consumers
        config = NetworkConfig(
            segment_size_bytes=SEGMENT,
            exclusive_buffers_per_channel=rng.choice([0, 1, 2]),
            floating_buffers_per_gate=rng.choice([1, 4, 30]),
            credit_based=rng.random() < 0.8,
            max_buffers_per_channel=rng.choice([None, None, 2, 10]),
            max_overdraft_buffers_per_partition=rng.choice([0, 5]),
            checksum=rng.random() < 0.2,
            heartbeat_interval_s=None,
            partition_request_timeout_s=PATIENCE_S,
            buffers_request_timeout_s=PATIENCE_S,
        )
        shapes = [region.shape for region in self.regions]
        gates = {f"{i} {j}": GatePlan(shape[0]) for i, shape in enumerate(shapes) for j in range(shape[1])}
        partitions = {f"{i} {j}": PartitionPlan(shape[1]) for i, shape in enumerate(shapes) for j in range(shape[0])}
        here = required_buffers(partitions=partitions, config=config).required
        # When all gates are closed, the next one dials anew while the last connection still says goodbye.
        there = required_buffers(gates=gates, connections=2, config=config).required
        self.configs = [
            replace(config, memory_bytes=(required + rng.choice([0, 0, 0, 300])) * SEGMENT)
            for required in (here, there)
        ]
        self.pipe_bytes = rng.choice([1000, 10_000, 256 * 1024])
        self.is_impaired = rng.random() < 0.4

    async def run(self) -> None:
        number = next(runs)
        url = f"memory://p{number}"
        if self.is_impaired:
            url = f"impaired+{url}?delay={self.rng.choice([0, 1, 50])}ms&name=soak{number}"
        with trio.fail_after(PATIENCE_S):
            async with (
                open_network(url, self.configs[0]) as self.producing,
                open_network(f"memory://c{number}", self.configs[1]) as self.consuming,
                trio.open_nursery() as self.others,
            ):
                self.producing.ticks = self.producing.now
                self.others.start_soon(self.look)
                if self.is_impaired:
                    self.others.start_soon(self.disturb, f"soak{number}")
                async with trio.open_nursery() as nursery:
                    for region in self.regions:
                        nursery.start_soon(region.run)
                await trio.sleep(1000)  # goodbyes may have a long way
                self.others.cancel_scope.cancel()
                for manager in (self.producing, self.consuming):
                    statistics = manager.statistics()
                    assert statistics.pool.lent_segments == 0
                    assert (statistics.connections, statistics.gates, statistics.partitions) == (0, (), ())
        for manager in (self.producing, self.consuming):
            pool = manager.statistics().pool
            assert pool.free_segments == pool.total_segments
        assert self.looks > 0

    async def pause(self) -> None:
        await trio.sleep(self.rng.choice(PAUSES_S))

    @contextmanager
    def impatience(self, actor: Producer | Consumer | None = None) -> Iterator[trio.CancelScope]:
        """Cancels what is done inside, now and then: when its time is up, or at any checkpoint."""
        with trio.CancelScope() as scope:
            match self.rng.randrange(6):
                case 0:
                    scope.deadline = trio.current_time() + 10 ** self.rng.uniform(-3, 3)
                case 1:
                    self.others.start_soon(self.cancel_at, scope, self.rng.randrange(20))
            if actor is None:
                yield scope
                return
            actor.is_calling = True
            try:
                yield scope
            finally:
                actor.is_calling = False

    async def cancel_at(self, scope: trio.CancelScope, checkpoints: int) -> None:
        for _ in range(checkpoints):
            await trio.lowlevel.checkpoint()
        scope.cancel()

    async def disturb(self, name: str) -> None:
        """The connection gets longer, shorter, and stalls."""
        lab = impairment(name)
        while True:
            await trio.sleep(10 ** self.rng.uniform(-4, 3) * (1 + trio.current_time() / 1e4))
            if self.rng.random() < 0.5:
                lab.delay_s = self.rng.choice([0.0, 0.001, 0.2])
            else:
                lab.stall()
                with trio.CancelScope(shield=True):
                    await trio.sleep(self.rng.expovariate(1))
                lab.heal()

    async def look(self) -> None:
        """At moments at which everybody waits."""
        while True:
            await trio.sleep(10 ** self.rng.uniform(-4, 3) * (1 + trio.current_time() / 1e4))
            await trio.testing.wait_all_tasks_blocked()
            if not self.opening:
                self.looks += 1
                self.check()

    def check(self) -> None:
        for region in self.regions:
            for actor in (*region.producers, *region.consumers):
                actor.check_wait()
        for pump in (*self.producing._endpoint.pumps(), *self.consuming._endpoint.pumps()):
            check_pump(pump)
        senders = tuple(self.producing._endpoint._accepted.values())
        if len(senders) == 1 == len(self.consuming._endpoint.pumps()):  # a second one may be on its way out, or in
            self.check_ledger(senders[0])

    def check_ledger(self, sender: ChannelSender) -> None:
        codec = NativeCodec()
        ledger = Ledger(
            producer_pool=self.producing._pool,
            consumer_pool=self.consuming._pool,
            to_consumer=Pipe(codec, 0),  # nothing is under way now
            to_producer=Pipe(codec, 0),
            sender=sender,
            is_connected=lambda: not self.is_impaired,
        )
        ledger.landing = LANDING_SEGMENTS
        self.partitions = [one for one in self.partitions if not one.is_released or one.pool.statistics().requested]
        for partition in self.partitions:
            ledger.add_partition(partition)
        for gate in self.consuming._gates:
            ledger.add_gate(gate, [channel for channel in gate.channels if not channel.is_released])
        if self.configs[1].credit_based:
            ledger.check()
            ledger.audit()
        else:
            ledger.check_sums()


def check_pump(pump: Pump) -> None:
    """Everybody waits: whether this connection does so beside bytes, or beside room for what it has to write."""
    stream = pump.stream
    if isinstance(stream, MemoryStream):
        assert not pump._is_full or stream._out.size >= memory.CAPACITY_BYTES, "a pump waits beside room"
        assert pump._is_paused or not stream._in.size, "a pump waits beside bytes"
    assert pump._is_full or not pump.is_dirty, "there is something to write, and the pump sleeps"


@pytest.mark.whole
def test_200_channels_of_two_task_managers(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    soak = Soak(seed)
    monkeypatch.setattr(memory, "CAPACITY_BYTES", soak.pipe_bytes)
    with deterministic_PRNG(seed):
        run_virtual(soak.run)
