#!/usr/bin/env python3
"""A Flink job whose tasks hand their output to netstack, on one machine, over a link as long and slow as you like.

    python tools/flink-shuffle/flink_shuffle.py run                                      a demo: 4 x 4, exact counts
    python tools/flink-shuffle/flink_shuffle.py run --link 10ms --unaligned --fail       with a failure in between
    python tools/flink-shuffle/flink_shuffle.py run --link 10ms --jar my-job.jar -- ...  your own job

`run` starts a MiniCluster of two task managers. Each has a netstack process beside it (`serve`), which the shuffle
service in `java/` starts: tasks write to it over a Unix socket, and it serves their partitions to Flink's own input
gates. What is in between is in README.md beside this file.

Needs Flink's jars and a JDK: pip install 'apache-flink-libraries==2.3.0' 'prometheus_client>=0.20'.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import threading
import urllib.request
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

import trio

import netstack
from netstack.base.errors import ConfigError, NetstackError
from netstack.base.events import EndOfData
from netstack.base.ids import ResultPartitionType
from netstack.base.scratch import scratch_folder
from netstack.base.transport import ByteStream, transport_for
from netstack.base.units import format_duration
from netstack.cli.values import parse_length
from netstack.exchange.outbound.spanning_write import SpanningWrite
from netstack.exchange.wire.flink_events import decode, to_native
from netstack_bench.engines.flink import jar

HERE = Path(__file__).resolve().parent
WATCH = "NETSTACK_SHUFFLE_WATCH"  # a folder where each netstack process says where its metrics are
MEMORY_BYTES = 128 << 20
TURN_FRAMES = 500

EMIT, BROADCAST, FLUSH, EVENT, FINISH, TIME_OUT, FORGET, RECOVERED = range(8)
READY, TAKEN, OVERTAKEN, PROCESSED, FINISHED, RELEASED = range(1, 7)
FRAME = struct.Struct(">Bii")
ANSWER = struct.Struct(">Bqii")
HELLO = struct.Struct(">ii?")
NUMBER = struct.Struct(">q")


class TaskOutput:
    """One task's partition: frames from the task become records and events, what netstack knows becomes answers.

    A task that leaves before its end has failed; one that leaves later releases what nobody has read.
    """

    def __init__(self, manager: netstack.NetworkEnvironment, stream: trio.SocketStream) -> None:
        self._manager = manager
        self._stream = stream
        self._received = bytearray()
        self._taken = 0
        self._slot = 0
        self._answers: deque[bytes] = deque()
        self._has_answers = trio.Event()
        self._is_finished = False
        self._is_kept = False

    async def run(self) -> None:
        """Until the task leaves."""
        partition = None
        try:
            length, subpartitions, self._is_kept = HELLO.unpack(await self._take(HELLO.size))
            name = (await self._take(length)).decode()
            kind = ResultPartitionType.BLOCKING if self._is_kept else ResultPartitionType.PIPELINED_BOUNDED
            partition = self._manager.create_partition(name, subpartitions=subpartitions, kind=kind)
            self._taken = 0
            partition._engine.on_barrier = lambda subpartition, checkpoint, overtaken: self._answer(
                OVERTAKEN, checkpoint, subpartition, overtaken
            )
            writer = netstack.RecordWriter(
                partition,
                format="bytes",
                buffer_timeout_s=None,  # the task's own flusher says when
                selector=netstack.CustomSelector(lambda record, count: self._slot),
            )
            self._answer(READY)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send_answers)
                await self._write(writer, nursery)
                nursery.cancel_scope.cancel()
        except* (EOFError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        except* NetstackError as group:
            print(f"netstack: {group.exceptions[0]}", file=sys.stderr)
        finally:
            if partition is not None and not partition.is_released:
                if self._is_finished:
                    partition.release()
                else:
                    partition.fail("the task that writes it has left")
            self._stream.socket.close()

    async def _write(self, writer: netstack.RecordWriter, nursery: trio.Nursery) -> None:
        partition = writer._partition
        frames = 0
        while True:
            if len(self._received) < FRAME.size or frames >= TURN_FRAMES:
                frames = 0
                self._answer(TAKEN, self._taken)
                await trio.lowlevel.checkpoint()
            frames += 1
            kind, which, size = FRAME.unpack(await self._take(FRAME.size))
            body = await self._take(size)
            if kind == EMIT:
                self._slot = which
                await writer.emit(body)
            elif kind == BROADCAST:
                for self._slot in range(len(partition.subpartitions)):
                    await writer.emit(body)
            elif kind == FLUSH:
                await writer.flush()
            elif kind == EVENT:
                event = to_native(decode(body))
                await writer.broadcast_event(event, priority=bool(which))
                if isinstance(event, EndOfData) and self._is_kept:
                    self._answer(PROCESSED)  # consumers start when it is finished
                elif isinstance(event, EndOfData):
                    nursery.start_soon(self._tell_processed, writer)
            elif kind == FINISH:
                partition.finish()
                partition.close()
                self._manager.flush_connections()
                if self._is_kept:
                    await writer.wait_consumed()  # until it is stored
                self._is_finished = True
                self._answer(FINISHED)
                if partition.is_released:
                    self._answer(RELEASED)
                else:
                    partition.on_release = lambda: self._answer(RELEASED)
            elif kind == TIME_OUT:
                partition.time_out_barrier(NUMBER.unpack(body)[0])
            elif kind == FORGET:
                partition.forget_barrier(NUMBER.unpack(body)[0])
            elif kind == RECOVERED:
                await write_raw(writer, which, body)

    async def _tell_processed(self, writer: netstack.RecordWriter) -> None:
        """As `wait_consumed`, which wants the end first: a task of Flink ends its partition after this answer."""
        partition = writer._partition
        while not (partition.all_acknowledged or partition.is_released):
            await writer._parking.wait(0.0, writer._look)
        if partition.all_acknowledged:
            self._answer(PROCESSED)

    def _answer(self, kind: int, number: int = 0, subpartition: int = 0, body: bytes = b"") -> None:
        self._answers.append(ANSWER.pack(kind, number, subpartition, len(body)) + body)
        self._has_answers.set()

    async def _send_answers(self) -> None:
        while True:
            await self._has_answers.wait()
            self._has_answers = trio.Event()
            data = b"".join(self._answers)
            self._answers.clear()
            await self._stream.send_all(data)

    async def _take(self, size: int) -> bytes:
        while len(self._received) < size:
            more = await self._stream.receive_some(1 << 18)
            if not more:
                raise EOFError
            self._received += more
        self._taken += size
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken


async def write_raw(writer: netstack.RecordWriter, subpartition: int, data: bytes) -> None:
    """Bytes that were in flight at a checkpoint: framed already, and perhaps in the middle of a record."""

    def copy(start: int, stop: int, out: memoryview) -> None:
        out[: stop - start] = data[start:stop]

    write = SpanningWrite(writer._core.buffers, subpartition, len(data), len(data), copy, None, None)
    await writer._drive(subpartition, write, 0)


async def relay(inner: str, port: int, task_status: trio.TaskStatus[str]) -> None:
    """Listens for plain TCP at the port; joins each connection with one to `inner`, whose line is the impaired one."""
    address = f"tcp://127.0.0.1:{port}"
    listener = await transport_for(address).listen(address)
    task_status.started(listener.address)
    async with trio.open_nursery() as nursery:
        while True:
            nursery.start_soon(join, await listener.accept(), inner)


async def join(near: ByteStream, inner: str) -> None:
    """One connection, until either side ends it."""
    far = await transport_for(inner).connect(inner)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pump, near, far)
            nursery.start_soon(pump, far, near)
    except* (NetstackError, OSError, trio.ClosedResourceError):
        pass
    finally:
        near.close()
        far.close()


async def pump(source: ByteStream, sink: ByteStream) -> None:
    """One direction."""
    window = memoryview(bytearray(1 << 17))
    while True:
        count = source.try_receive_into([window])
        if count is None:
            await source.wait_readable()
            continue
        if count == 0:
            sink.send_eof()
            return
        at = 0
        while at < count:
            sent = sink.try_send([window[at:count]])
            at += sent
            if not sent:
                await sink.wait_writable()


async def serve(socket_path: str, segment_bytes: int, port: int, delay_s: float, rate: str | None) -> None:
    """The netstack process of one task manager; prints the port that consumers dial."""
    folder = Path(socket_path).parent
    config = netstack.NetworkConfig(
        dialect="flink-2.3.0",
        memory_bytes=MEMORY_BYTES,
        segment_size_bytes=segment_bytes,
        shuffle_directory=str(folder),
    )
    is_impaired = bool(delay_s or rate)
    parameters = f"?delay={format_duration(delay_s)}" + (f"&rate={rate}" if rate else "")
    address = f"impaired+tcp://127.0.0.1:0{parameters}" if is_impaired else f"tcp://127.0.0.1:{port}"
    watch = os.environ.get(WATCH)
    async with (
        netstack.open_network(
            address, config, metrics_address="127.0.0.1:0" if watch else None, detailed_metrics=True
        ) as manager,
        trio.open_nursery() as nursery,
    ):
        if watch:
            await trio.Path(watch, str(os.getpid())).write_text(str(manager.metrics_address))
        listening = trio.socket.socket(trio.socket.AF_UNIX)
        await trio.Path(socket_path).unlink(missing_ok=True)  # of a process that was killed
        await listening.bind(socket_path)
        listening.listen()
        reached = await nursery.start(relay, manager.address, port) if is_impaired else manager.address
        print(reached.rsplit(":", 1)[1], flush=True)

        async def accept() -> None:
            while True:
                connection, _ = await listening.accept()
                nursery.start_soon(TaskOutput(manager, trio.SocketStream(connection)).run)

        nursery.start_soon(accept)
        await trio.lowlevel.wait_readable(0)  # the task manager is gone, and may have been killed
        nursery.cancel_scope.cancel()
    shutil.rmtree(folder, ignore_errors=True)


# ------------------------------------------------------------------------------------------------------------- run


def run(arguments: argparse.Namespace) -> int:
    """Starts the cluster with the job, prints what it prints, and who has credit meanwhile."""
    command = [
        sys.executable,
        str(HERE / "flink_shuffle.py"),
        "serve",
        f"--delay={format_duration(arguments.link / 2)}",
    ]
    if arguments.rate:
        command.append(f"--rate={arguments.rate}")
    with scratch_folder(prefix="netstack-shuffle-") as folder:
        java = jar.java_command(HERE / "java", scratch=folder)
        options = {
            "netstack.shuffle.command": "|".join(command),
            "parallelism.default": arguments.parallelism,
            "taskmanager.load-balance.mode": "SLOTS",
            "jobmanager.scheduler": "Default",
            "taskmanager.memory.network.min": "128m",
            "taskmanager.memory.network.max": "128m",
            "execution.checkpointing.interval": f"{arguments.checkpoints * 1000:.0f}ms",
            "execution.checkpointing.dir": f"file://{folder}/checkpoints",
            "execution.checkpointing.unaligned.enabled": str(arguments.unaligned).lower(),
            "execution.checkpointing.aligned-checkpoint-timeout": f"{arguments.aligned_timeout * 1000:.0f}ms",
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "3",
            "restart-strategy.fixed-delay.delay": "200ms",
            **dict(option.split("=", 1) for option in arguments.option),
        }
        if not arguments.checkpoints:
            del options["execution.checkpointing.interval"]
        slots = math.ceil(arguments.parallelism / 2)
        fail_after = arguments.records // 3 if arguments.fail else 0
        job = ["-", "-", *map(str, (arguments.records, arguments.records_per_s, arguments.work_us, fail_after))]
        if arguments.jar:
            job = [arguments.jar, arguments.main or "-", *arguments.arguments]
        properties = [f"-Dflink.{name}={value}" for name, value in options.items()]
        environment = {**os.environ, WATCH: folder}
        process = subprocess.Popen(
            [java[0], *properties, *java[1:], "netstack.shuffle.RunJob", str(slots), *job], env=environment
        )
        over = threading.Event()
        watching = threading.Thread(target=watch, args=(Path(folder), over), daemon=True)
        if arguments.watch:
            watching.start()
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGTERM)
            return process.wait()
        finally:
            over.set()
            if arguments.watch:
                watching.join()


def watch(folder: Path, over: threading.Event) -> None:
    """Prints the credit and the queue of each channel, a line a second."""
    while not over.wait(1.0):
        told = [
            f"{kind} {' '.join(f'{value:g}' for value in values)}"
            for kind, values in credits_of([path.read_text() for path in folder.iterdir() if path.name.isdigit()])
        ]
        if told:
            print("; ".join(told), file=sys.stderr)


def credits_of(addresses: Sequence[str]) -> Iterator[tuple[str, list[float]]]:
    """Credits by channel and buffers queued by partition, of all netstack processes."""
    text = ""
    for address in addresses:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/metrics", timeout=2) as answer:
            text += answer.read().decode()
    for kind, name in (("credits", "netstack_output_channel_credits"), ("queued", "netstack_output_queue_buffers")):
        values = [float(value) for value in re.findall(rf"^{name}\{{.*\}} (\S+)$", text, re.MULTILINE)]
        if values:
            yield kind, values


def _duration(text: str) -> float:
    try:
        return parse_length(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run", help="run a job on a small cluster of this machine")
    one.set_defaults(run=run)
    one.add_argument("--jar", help="your job; a demo if not given")
    one.add_argument("--main", help="its main class, if the jar does not say")
    one.add_argument("--parallelism", type=int, default=4, help="default parallelism (4)")
    one.add_argument("--link", type=_duration, default=0.0, help="round trip between task managers, such as 10ms")
    one.add_argument("--rate", help="of the link, bytes a second, such as 100MiB")
    one.add_argument("--checkpoints", type=_duration, default=0.5, help="interval (500ms); 0: none")
    one.add_argument("--unaligned", action="store_true", help="unaligned checkpoints")
    one.add_argument("--aligned-timeout", type=_duration, default=0.0, help="with --unaligned: aligned until then")
    one.add_argument("--records", type=int, default=64_000, help="of the demo")
    one.add_argument("--records-per-s", type=float, default=16_000, help="of the demo")
    one.add_argument("--work-us", type=int, default=0, help="of the demo: work for each record, which back-pressures")
    one.add_argument("--fail", action="store_true", help="a task of the demo fails once")
    one.add_argument("--watch", action="store_true", help="print every channel's credit and queue, a line a second")
    one.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="any option of Flink's")
    one.add_argument("arguments", nargs="*", help="after --: of your job")
    other = commands.add_parser("serve", help="what the shuffle service starts beside each task manager")
    other.set_defaults(
        run=lambda given: trio.run(serve, given.socket, given.segment_bytes, given.port, given.delay, given.rate)
    )
    other.add_argument("--delay", type=_duration, default=0.0)
    other.add_argument("--rate")
    other.add_argument("socket")
    other.add_argument("segment_bytes", type=int)
    other.add_argument("port", type=int, nargs="?", default=0)
    given = parser.parse_args()
    try:
        return given.run(given) or 0
    except ConfigError as error:
        print(f"flink_shuffle: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
