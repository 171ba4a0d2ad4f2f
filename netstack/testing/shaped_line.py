"""A shaped line between two network devices: rate, delay, a queue of a size, losses and jitter.

    python -m netstack.testing.shaped_line near0 far0 --round-trip 40ms --link-rate 100Mbit

Takes: two names of devices, which it creates as TAP devices in its own network namespace; a `Shape`. Gives: frames that
are written to one device arrive at the other as a line of this shape would deliver them, until it is ended. It prints
`ready` when both devices exist. `tools/hosts.py` gives one of the devices to a host.

Takes root. It replaces `netem`, which many kernels lack; the model is the same everywhere.

Rules:
- A direction is a queue in front of a transmitter, and a cable behind it (`ShapedDirection`, without I/O). A frame
  takes the time of all of its bytes on an Ethernet, 38 more than its packet has. One that finds the queue full is lost.
- The kernel hands over bursts of up to `BURST_S` of the line as one piece (segmentation offload), which arrive together
  with their last byte. A burst is queued, or lost, as a whole; each of its frames may be the one that `loss` hits.
- Frames are never reordered: with jitter one arrives no earlier than those before it.
- The process runs with a real-time priority, if it may: a line has no scheduler. It wakes as much earlier as it woke
  late before, `MOST_LEAD_S` at most, and polls the clock for the rest.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import math
import os
import random
import select
import signal
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from ..base.units import format_duration, format_link_rate, format_size, parse_duration, parse_link_rate, parse_size

FRAME_BYTES: Final = 24
"""What each Ethernet frame takes on the line beside its header and packet: preamble, checksum, gap."""

MAX_FRAME_BYTES: Final = 1514 + FRAME_BYTES
STREAM_SHARE: Final = 1448 / MAX_FRAME_BYTES
"""The part of a line's bytes that is a TCP stream's: frames are full, and have timestamps."""

MOST_LEAD_S: Final = 0.0002
"""How much earlier than a frame is due the process wakes, at most."""

_LEAST_FRAME: Final = 60
BURST_S: Final = 0.0005
LEAST_QUEUE_BYTES: Final = 128 * 1024
_MOST_BURST: Final = 65_536
_PACKET_BYTES: Final = 1500
_READ_BYTES: Final = 70_000
_READS_A_TURN: Final = 32

_TUNSETIFF: Final = 0x400454CA
_TUNSETOFFLOAD: Final = 0x400454D0
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_OFFLOADS: Final = 0x01 | 0x02 | 0x04  # checksums, TSO over IPv4 and IPv6
_VIRTIO: Final = struct.Struct("<BBHHHH")  # flags, gso_type, hdr_len, gso_size, csum_start, csum_offset


@dataclass(frozen=True, slots=True)
class Shape:
    """What a line does to its frames, the same in both directions.

    Attributes:
        round_trip_s: both directions together.
        rate_bytes_per_s: of frames on the line; None means no limit.
        queue_bytes: bytes that wait for the transmitter of a direction, at most; None means rate x round trip, and at
            least `LEAST_QUEUE_BYTES`.
        loss: the part of all frames that is lost, 0 to 1.
        jitter_s: the most that is added to the delay of a frame, evenly distributed.
    """

    round_trip_s: float = 0.0
    rate_bytes_per_s: int | None = None
    queue_bytes: int | None = None
    loss: float = 0.0
    jitter_s: float = 0.0

    @property
    def queue(self) -> float:
        """Bytes that may wait for the transmitter of a direction."""
        if self.queue_bytes is not None:
            return self.queue_bytes
        return (
            math.inf
            if self.rate_bytes_per_s is None
            else max(LEAST_QUEUE_BYTES, int(self.rate_bytes_per_s * self.round_trip_s))
        )

    def words(self) -> list[str]:
        """The flags that give this shape."""
        words = ["--round-trip", format_duration(self.round_trip_s), "--loss", str(self.loss)]
        words += ["--jitter", format_duration(self.jitter_s)]
        if self.rate_bytes_per_s is not None:
            words += ["--link-rate", format_link_rate(self.rate_bytes_per_s)]
        if self.queue_bytes is not None:
            words += ["--queue", format_size(self.queue_bytes)]
        return words


@final
class ShapedDirection:
    """One direction: says when a frame, or a burst of them, arrives. Times are seconds of any monotonic clock."""

    __slots__ = (
        "_arrives_at",
        "_delay_s",
        "_free_at",
        "_luck",
        "_queue",
        "_rate",
        "_shape",
        "lost_bytes",
        "sent_bytes",
    )

    def __init__(self, shape: Shape, seed: int) -> None:
        """Creates an idle direction; `seed` decides losses and jitter."""
        self._shape = shape
        self._delay_s = shape.round_trip_s / 2
        self._rate = shape.rate_bytes_per_s
        self._queue = shape.queue
        self._luck = random.Random(seed)
        self._free_at = -math.inf
        self._arrives_at = -math.inf
        self.sent_bytes = self.lost_bytes = 0

    def enter(self, now: float, size_bytes: int, frames: int = 1) -> float | None:
        """Returns when what enters the queue at `now` arrives; None if it is lost.

        Args:
            now: never earlier than that of the last call.
            size_bytes: on the line, of all frames.
            frames: how many there are.
        """
        shape = self._shape
        starts_at = max(now, self._free_at)
        if self._rate is not None:
            if (starts_at - now) * self._rate + size_bytes > self._queue:
                self.lost_bytes += size_bytes
                return None
            self._free_at = starts_at = starts_at + size_bytes / self._rate
        if shape.loss and self._luck.random() > (1 - shape.loss) ** frames:
            self.lost_bytes += size_bytes
            return None
        self.sent_bytes += size_bytes
        jitter = shape.jitter_s * self._luck.random() if shape.jitter_s else 0.0
        self._arrives_at = max(self._arrives_at, starts_at + self._delay_s + jitter)
        return self._arrives_at


def bytes_on_line(piece: bytes) -> tuple[int, int]:
    """Returns the bytes that a piece takes on the line, and its frames; it starts with a virtio-net header."""
    _, kind, _, segment, checksum_at, _ = _VIRTIO.unpack_from(piece)
    length = len(piece) - _VIRTIO.size
    if not kind:
        return max(length, _LEAST_FRAME) + FRAME_BYTES, 1
    header = checksum_at + (piece[_VIRTIO.size + checksum_at + 12] >> 4) * 4  # TCP begins where its checksum does
    frames = max(1, -(-(length - header) // segment))
    return length - header + frames * (header + FRAME_BYTES), frames


def burst_bytes(shape: Shape) -> int:
    """The most bytes that the kernel may hand over as one piece."""
    if shape.rate_bytes_per_s is None:
        return _MOST_BURST
    return min(_MOST_BURST, max(_PACKET_BYTES, int(shape.rate_bytes_per_s * BURST_S)))


def open_device(name: str) -> int:
    """Creates a TAP device in this network namespace, and returns its descriptor; the device vanishes with it.

    Raises:
        OSError: there is no /dev/net/tun, or this process may not.
    """
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR))
        fcntl.ioctl(device, _TUNSETOFFLOAD, _OFFLOADS)
    except BaseException:
        os.close(device)
        raise
    return device


def forward(near: int, far: int, shape: Shape) -> None:
    """Carries frames between two devices until a signal's exception ends it."""
    way_in = {near: far, far: near}
    lines = {near: ShapedDirection(shape, 1), far: ShapedDirection(shape, 2)}
    flying: dict[int, deque[tuple[float, bytes]]] = {near: deque(), far: deque()}
    now_s = time.monotonic
    lead_s = 0.0  # how late waits end, on average
    while True:
        due_at = min((queue[0][0] for queue in flying.values() if queue), default=math.inf)
        timeout = None if due_at == math.inf else max(0.0, due_at - lead_s - now_s())
        readable, _, _ = select.select((near, far), (), (), timeout)
        if timeout and not readable:
            late_s = min(now_s() - (due_at - lead_s), MOST_LEAD_S)
            lead_s += (late_s - lead_s) / 8
            while now_s() < due_at:
                pass
        for device in readable:
            line, queue = lines[device], flying[device]
            for _ in range(_READS_A_TURN):
                try:
                    piece = os.read(device, _READ_BYTES)
                except BlockingIOError:
                    break
                except OSError:  # its namespace was removed
                    return
                arrives_at = line.enter(now_s(), *bytes_on_line(piece))
                if arrives_at is not None:
                    queue.append((arrives_at, piece))
        for device, queue in flying.items():
            while queue and queue[0][0] <= now_s():
                with contextlib.suppress(BlockingIOError, OSError):  # a device that is down takes nothing
                    os.write(way_in[device], queue.popleft()[1])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    asked = _arguments(arguments)
    shape = shape_of(asked)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        near, far = (open_device(name) for name in asked.devices)
        for name in asked.devices:
            size = str(burst_bytes(shape))
            subprocess.run(["ip", "link", "set", "dev", name, "gso_max_size", size], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"a shaped line cannot be made here: {error}\n")
        return 1
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    with contextlib.suppress(KeyboardInterrupt):
        forward(near, far, shape)
    return 0


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of a shape."""
    parser.add_argument("--round-trip", default="0", metavar="DURATION", help="of the line, both ways together")
    parser.add_argument("--link-rate", metavar="RATE", help="of the line in each direction, such as 100Mbit")
    parser.add_argument(
        "--queue", metavar="SIZE", help="of each direction; by default rate x round trip, 128 KiB or more"
    )
    parser.add_argument("--loss", type=float, default=0.0, metavar="PART", help="of all frames, such as 0.001")
    parser.add_argument("--jitter", default="0", metavar="DURATION", help="added to the delay of a frame, at most")


def shape_of(asked: argparse.Namespace) -> Shape:
    """The shape that these flags give.

    Raises:
        ValueError: a flag has no valid value.
    """
    if not 0 <= asked.loss < 1:
        raise ValueError(f"--loss {asked.loss}: give a part of 1, such as 0.001")
    return Shape(
        round_trip_s=parse_duration(asked.round_trip) or 0.0,
        rate_bytes_per_s=None if asked.link_rate is None else parse_link_rate(asked.link_rate),
        queue_bytes=None if asked.queue is None else parse_size(asked.queue),
        loss=asked.loss,
        jitter_s=parse_duration(asked.jitter) or 0.0,
    )


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("devices", nargs=2, metavar="DEVICE", help="names of the devices that it creates")
    add_flags(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
