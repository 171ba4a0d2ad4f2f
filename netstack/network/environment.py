"""A NetworkEnvironment: the network of one process: buffers, a listener, connections, partitions and gates.

Takes: an address and a `NetworkConfig`. Gives: partitions to write to, gates to read from.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final, final

import trio

from ..base.config import NATIVE_DIALECT, NetworkConfig
from ..base.errors import ConfigError, LocalProtocolError, NetstackError
from ..base.ids import ChannelDescriptor, ResultPartitionType, partition_id
from ..base.text.safe_text import type_text
from ..base.timing.deadlines import Deadlines
from ..base.transport import Listener, transport_for
from ..exchange.buffer.pools import NetworkBufferPool
from ..exchange.buffer.requirements import partition_buffers
from ..exchange.buffer.statistics import NetworkBufferPoolStatistics
from ..exchange.inbound.gate import SingleInputGate
from ..exchange.outbound import partition as outbound
from ..exchange.stored.files import SealedFiles
from .connection.admission import Admission
from .connection.authentication import Secret
from .connection.endpoint import NetworkEndpoint
from .connection.fair_share import fair_share
from .connection.handshake import Handshake
from .connection.statistics import NetworkStatistics, OpenConnection
from .gate_opening import GateOpener, MemoryWatch
from .handles import InputGate, ResultPartition
from .kept_partitions import KeptPartitions, KeptTogether
from .partitions import PartitionRegistry
from .waiting.loop_lock import LoopLock
from .waiting.parking import ThreadParking

if TYPE_CHECKING:
    from .metrics.prometheus import MetricsServer

LOGGER: Final = logging.getLogger("netstack")

GOODBYE_GRACE_S: Final = 1.0
"""How long a closing TaskManager waits for its peers' goodbyes: a busy peer answers within milliseconds, a dead one
never.
"""


@final
class NetworkEnvironment:
    """The network of one process, created by `open_network`; it is a partition's `PartitionHost`."""

    def __init__(
        self,
        config: NetworkConfig,
        listener: Listener,
        nursery: trio.Nursery,
        handshake: Handshake,
        together: KeptTogether | None,
    ) -> None:
        """Called by `network_environment_on`, which documents the arguments."""
        self.config = config
        self.address = listener.address
        """The URL consumers dial."""
        self._addresses = {self.address}
        self.metrics_address: str | None = None
        """`host:port` at which Prometheus finds the metrics; None if they are not served."""
        self._deadlines = Deadlines()
        self.call_at = self._deadlines.call_at
        self.loop_lock = LoopLock(trio.lowlevel.current_clock().current_time)
        self.now = self.loop_lock.now
        self.ticks = fair_share().clock
        self._pool = NetworkBufferPool(config.total_segments, config.segment_size_bytes)
        self._registry = PartitionRegistry(
            timeout_s=config.partition_request_timeout_s, now=self.now, call_at=self.call_at
        )
        self._admission = handshake.admission
        self._endpoint = NetworkEndpoint(config, self._pool, self._registry, nursery, handshake, self.loop_lock)
        self.flush_connections = self._endpoint.flush_connections
        self.unsent = self._endpoint.unsent
        self.settle = self._endpoint.settle
        self.hold = self._endpoint.hold
        self.flush_held = self._endpoint.flush_held
        self._memory_watch = MemoryWatch()
        self.kept = KeptPartitions(config, self._pool, nursery, self.loop_lock, together)
        """Shared by its partitions in files."""
        parts = config, self._addresses, self._pool, self._registry, self._endpoint, self._memory_watch
        self._opener = GateOpener(*parts, now=self.now, call_at=self.call_at)
        self._gates = self._opener.gates
        self._closed = False
        nursery.start_soon(self._deadlines.run)
        nursery.start_soon(self._endpoint.serve, listener)

    def create_partition(
        self,
        name: str,
        *,
        subpartitions: int,
        kind: ResultPartitionType = ResultPartitionType.PIPELINED_BOUNDED,
    ) -> ResultPartition:
        """Creates the output of one task, ready to be written and consumed.

        Args:
            name: its id, unique in this TaskManager; consumers use it in their `ChannelDescriptor`s.
            subpartitions: the number of subpartitions, one for each consumer.
            kind: PIPELINED_BOUNDED holds at most subpartitions x exclusive + floating buffers; PIPELINED is limited
                only by memory. BLOCKING and BLOCKING_PERSISTENT are stored in files and can be read after the writer
                has finished, any number of times, until `release_partition`. HYBRID_FULL is stored too and can be read
                at any time; HYBRID_SELECTIVE can be read once, at any time.

        Raises:
            InsufficientBuffers: its guaranteed buffers (subpartitions + 1) are not available.
            LocalProtocolError: the name is in use, or the TaskManager is closed.
            ConfigError: the name or a number is not valid.
        """
        self._check_open()
        checked = partition_id(name)
        try:
            subpartitions = operator.index(subpartitions)  # accepts numpy's ints too; compiled code takes Python's only
        except TypeError as error:
            raise ConfigError(f"partition {name!r}: subpartitions={subpartitions!r} is not an integer") from error
        if subpartitions < 1:
            raise ConfigError(f"partition {name!r}: subpartitions={subpartitions}; the minimum is 1")
        if not isinstance(kind, ResultPartitionType):
            raise ConfigError(f"partition {name!r}: kind={kind!r}; give a ResultPartitionType")
        if kind is ResultPartitionType.PIPELINED_APPROXIMATE:
            raise ConfigError(f"partition {name!r}: {kind.name} is not supported; give PIPELINED or PIPELINED_BOUNDED")
        if self._registry.find(name) is not None:
            raise LocalProtocolError(f"partition {name!r} already exists in this TaskManager; choose another name")
        if kind.is_released_by_scheduler:
            kept = self.kept.factory.create(
                checked,
                kind,
                subpartitions,
                on_released=self._registry.remove,
                on_readable=self._registry.on_readable,
                host=self,
            )
            self._registry.add(kept)
            self._memory_watch.check(self._pool.statistics())
            return ResultPartition(kept)
        config = self.config
        required, maximum = partition_buffers(kind, subpartitions, config)
        pool = self._pool.create_pool(
            required,
            maximum,
            subpartitions=subpartitions,
            max_buffers_per_channel=config.max_buffers_per_channel,
            max_overdraft=config.max_overdraft_buffers_per_partition,
            purpose=f"partition {name!r} with {subpartitions} subpartitions",
        )
        partition = outbound.ResultPartition(
            checked,
            kind,
            subpartitions,
            pool,
            on_released=self._registry.remove,
            host=self,
            config=config,
        )
        partition.listen = self._endpoint.listen
        self._registry.add(partition)
        self._memory_watch.check(self._pool.statistics())
        return ResultPartition(partition)

    def take_over(self, name: str, sealed: SealedFiles) -> None:
        """Serves a partition that another process has written and sealed, until `release_partition`.

        Args:
            name: its id; if this process already has such a partition, nothing happens.
            sealed: its files, in the folder that both processes use. If they are missing, consumers get
                `PartitionNotFound`.
        """
        self._check_open()
        if self._registry.find(name) is not None:
            return

        def failed(error: NetstackError) -> None:
            LOGGER.warning("partition %s of another process cannot be served: %s", name, error)

        partition = self.kept.factory.take_over(
            name,
            sealed,
            on_released=self._registry.remove,
            on_readable=self._registry.on_readable,
            on_failed=failed,
            host=self,
        )
        self._registry.add(partition)

    async def open_gate(self, descriptors: Sequence[ChannelDescriptor]) -> InputGate:
        """Opens one input gate over any number of local and remote channels.

        Args:
            descriptors: one for each channel; the position is the channel's index. Each remote channel gets its
                exclusive buffers now.

        Raises:
            ConnectionLost: a producer cannot be reached.
            AuthenticationFailed: a producer does not prove the secret, or rejects our proof.
            RemoteProtocolError: the process at an address is not netstack, or has another protocol version or segment
                size.
            InsufficientBuffers: the buffers of the gate are not available.
            ConfigError: there is no descriptor, one has an impossible value, or an address is not a valid URL.
            ChannelFailed: the partition of a local channel is released or already consumed.

        A remote partition that is not created within `partition_request_timeout_s` fails its channel later, at the
        reader.
        Cancellation: nothing stays open; subpartitions that were already requested count as consumed.
        """
        self._check_open()
        return InputGate(await self._opener.open(descriptors))

    def park_reader(self, gate: InputGate, *, most_sockets: int) -> ThreadParking:
        """Returns how a thread that reads a gate waits: at its sockets if possible, otherwise until the loop wakes it.

        It can wait at the sockets if there are at most `most_sockets`, all connections are plain sockets that no other
        gate reads, credit is used (so unread data may wait), and connections are not resumable. Another gate that
        starts to read one of these connections gives it back to the loop.
        """
        engine = gate._engine
        producers = self._gates.get(engine) if isinstance(engine, SingleInputGate) else None
        pumps = () if producers is None or not producers.only_sockets else producers.pumps
        if len(pumps) > most_sockets or not self.config.credit_based or self.config.resume_grace_s:
            pumps = ()
        if any(pump.readers > 1 or not pump.is_plain for pump in pumps):
            pumps = ()
        for pump in pumps:
            pump.leave_to_thread(True)
        return ThreadParking(self.loop_lock, lambda: pumps)

    def park_writer(self, partition: ResultPartition) -> ThreadParking:
        """Returns how a thread that writes a partition waits: at its consumers' sockets; without sockets for files."""
        return ThreadParking(
            self.loop_lock, lambda: self._endpoint.consumers if partition._engine.store is None else ()
        )

    @property
    def is_closed(self) -> bool:
        """Whether it is closed or closing."""
        return self._closed

    def add_address(self, address: str) -> None:
        """Adds another URL of this environment: channels to it are local."""
        self._addresses.add(address)

    def answer_requests(self, prefix: str, make: Callable[[str], None]) -> None:
        """Creates partitions on request: `make` is called with the name of each missing partition `PREFIX?...`.

        Args:
            prefix: the name before the question mark; a second call with the same prefix replaces the first.
            make: may start a task that creates the partition; must not raise.
        """
        self._registry.answer(prefix, make)

    def release_partition(self, name: str) -> None:
        """Drops a partition and all its data; unknown names are ignored."""
        partition = self._registry.find(name)
        if partition is not None:
            partition.release()

    def statistics(self) -> NetworkStatistics:
        """A snapshot; O(partitions + channels + queued buffers): about 3 ms for 1,000 channels."""
        accepted, dialled = self._endpoint.statistics()
        sent, received = self._endpoint.total_bytes()
        return NetworkStatistics(
            pool=self._pool.statistics(),
            partitions=tuple(partition.statistics() for partition in self._registry.all()),
            accepted=accepted,
            dialled=dialled,
            gates=tuple(gate.statistics() for gate in self._gates),
            bytes_sent=sent,
            bytes_received=received,
            admission=None if self._admission is None else self._admission.statistics(),
        )

    def pool_statistics(self) -> NetworkBufferPoolStatistics:
        """A snapshot of the network buffers; O(1)."""
        return self._pool.statistics()

    def connections(self) -> tuple[OpenConnection, ...]:
        """All connections, in either direction; O(connections)."""
        return self._endpoint.connections()

    @property
    def used_memory_bytes(self) -> int:
        """Size of the network buffers in use."""
        return (self.config.total_segments - self._pool.free_segments) * self.config.segment_size_bytes

    def tcp_facts(self) -> dict[str, str | int]:
        """Facts about the first connection from the kernel (congestion control, buffer sizes), for reports."""
        for pump in self._endpoint.pumps():
            return pump.stream.tcp_facts()
        return {}

    async def shut_down(self, *, graceful: bool) -> None:
        """Closes gates, partitions and connections, in that order. Called by `open_network`."""
        if self._closed:
            return
        self._closed = True
        for gate in list(self._gates):
            gate.abandon()
        for partition in self._registry.all():
            partition.release()
        if graceful:
            await self._endpoint.close(GOODBYE_GRACE_S)
        else:
            self._endpoint.abort()
        self._pool.destroy()

    def _check_open(self) -> None:
        if self._closed:
            raise LocalProtocolError("the TaskManager is closed; open a new one")


@asynccontextmanager
async def open_network(
    address: str,
    config: NetworkConfig | None = None,
    *,
    secret: Secret | None = None,
    metrics_address: str | None = None,
    detailed_metrics: bool = False,
) -> AsyncIterator[NetworkEnvironment]:
    """Opens a TaskManager's network: `async with open_network("tcp://0.0.0.0:6121") as network: ...`.

    Args:
        address: where consumers reach this TaskManager; port 0 chooses a free port (see `NetworkEnvironment.address`).
        config: memory, buffers, timeouts.
        secret: both ends of every connection must prove that they know it before anything else is read. Without a
            secret, everybody who reaches the address can read the data produced here; at an address that other hosts
            reach, the network must then keep strangers out.
        metrics_address: `host:port` at which Prometheus can read `/metrics`; port 0 chooses a free port (see
            `NetworkEnvironment.metrics_address`). None serves no metrics and does not need prometheus_client. With a
            secret, and at an address that other hosts reach, a scraper must send `Secret.metrics_token` as its bearer
            token. `tls+tcp://host:port` uses TLS and requires a client certificate of the same authority.
        detailed_metrics: also serve the shortest, longest and average queues, and the credit of every channel.

    Raises:
        OSError: an address cannot be bound; the text names it.
        ConfigError: the URL or a setting is not valid, or prometheus_client is not installed.
        LocalProtocolError: it is called outside trio; the text says what to use instead.

    Cancellation: everything is closed; peers see a broken connection. Leaving the block normally closes gates, releases
    partitions and says goodbye to peers. Data that was not consumed is lost: await `RecordWriter.wait_consumed` first.
    """
    if not trio.lowlevel.in_trio_run():
        raise LocalProtocolError(
            "open_network was called outside trio: call it inside trio.run(main), or use netstack.aio under asyncio, or"
            " netstack.blocking in a program without an event loop"
        )
    settings = NetworkConfig() if config is None else config
    if not isinstance(settings, NetworkConfig):
        raise ConfigError(f"config is {type_text(settings)}; give a NetworkConfig")
    if secret is not None and settings.dialect != NATIVE_DIALECT:
        raise ConfigError(f"dialect={settings.dialect!r} with a secret: its peers cannot prove one; omit the secret")
    admission = None if secret is None else Admission(secret, timeout_s=settings.handshake_timeout_s)
    listener = await transport_for(address).listen(address)
    metrics: MetricsServer | None = None
    try:
        if metrics_address is not None:
            from .metrics.prometheus import bind_metrics  # imports prometheus_client

            metrics = await bind_metrics(metrics_address, detailed=detailed_metrics, secret=secret)
        async with network_environment_on(
            listener, settings, Handshake(secret=secret, admission=admission), metrics=metrics
        ) as manager:
            yield manager
    finally:
        listener.close()
        if metrics is not None:
            metrics.close()


@asynccontextmanager
async def network_environment_on(
    listener: Listener,
    config: NetworkConfig,
    handshake: Handshake,
    *,
    metrics: MetricsServer | None = None,
    together: KeptTogether | None = None,
) -> AsyncIterator[NetworkEnvironment]:
    """Opens a NetworkEnvironment on a listener; `open_network` creates its own listener.

    Args:
        listener: provides the streams of consumers; closed at the end.
        config: memory, buffers, timeouts.
        handshake: what precedes the protocol on streams that are dialled, and on those of the listener.
        metrics: served meanwhile.
        together: the folder shared with other processes for partitions in files; None means a folder of its own.

    Cancellation and the end of the block: as in `open_network`. Its files are removed in any case.
    """
    failed: BaseException | None = None
    async with AsyncExitStack() as at_the_end, trio.open_nursery() as nursery:
        manager = NetworkEnvironment(config, listener, nursery, handshake, together)
        at_the_end.push_async_callback(manager.kept.close)  # after the last thread has stopped using its files
        if metrics is not None:
            manager.metrics_address = metrics.address
            nursery.start_soon(metrics.serve, manager.statistics)
        clean = False
        try:
            yield manager
            clean = True
        except trio.Cancelled:
            raise
        except BaseException as error:  # the caller's error is raised unchanged, not inside this nursery's group
            failed = error
        finally:
            listener.close()
            with trio.CancelScope(shield=True):
                await manager.shut_down(graceful=clean)
            nursery.cancel_scope.cancel()
    if failed is not None:
        raise failed
