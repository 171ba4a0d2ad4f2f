"""The bare loop over blocking sockets: what two processes reach without netstack.

Takes: the payload's size and rate. Gives: the figures that netstack's are divided by.

Without a rate each `sendmsg` gathers 16 times [16-byte header, 32 KiB of payload], and the consumer counts the bytes
that `recv_into` writes into a slab of 512 KiB. It makes and verifies no record: the payload is the first 128 KiB of the
run, repeated, which stay in the cache. With a rate each message is a header and a record, verified as for every engine.
"""

from __future__ import annotations

import socket
import struct
from pathlib import Path

from netstack_transports.tcp import set_loopback_congestion

from ..generator import Source
from ..pacing import clock_ns
from ..places.local.worker_io import ConsumerIo, Facts, ProducerIo
from ..spec import RunSpec

_HEADER = struct.Struct(">QQ")
_SEGMENT_BYTES = 32 * 1024
_GATHER = 16
_HOT_BYTES = 128 * 1024  # 512 KiB of different bytes cost a quarter of the throughput
_SLAB_BYTES = 512 * 1024
_MARK_BYTES = 4 * 1024 * 1024  # the consumer looks at the clock this often
_UNVERIFIED = "the bare loop checks only the number of bytes"


def produce(spec: RunSpec, io: ProducerIo) -> Facts:
    """Dials and sends until the run is over; the end of the stream is its end."""
    with _dial(io.peer_address()) as connection:
        control = _congestion_control(connection)
        io.ready()
        if spec.rate_per_s is not None:
            return Facts(wire_bytes=_send_messages(io, connection), congestion_control=control)
        return Facts(wire_bytes=_send_segments(spec, io, connection), verified=False, congestion_control=control)


def consume(spec: RunSpec, io: ConsumerIo) -> Facts:
    """Listens, then receives to the end of the stream."""
    with _listen(spec, io.scratch) as listener:
        io.publish(_address_of(listener))
        connection, _ = listener.accept()
    with connection:
        if spec.transport == "tcp":
            _tune(connection)
        io.ready()
        if spec.rate_per_s is not None:
            return Facts(wire_bytes=_receive_messages(spec, io, connection))
        return Facts(wire_bytes=_count_segments(spec, io, connection), verified=False, warnings=(_UNVERIFIED,))


def _send_segments(spec: RunSpec, io: ProducerIo, connection: socket.socket) -> int:
    """Sends exactly the bytes of all records handed out, in full segments where there are enough of them."""
    assert isinstance(io.source, Source)
    records = io.source.array(0, io.source.records_at_most).tobytes()
    block = memoryview((records * -(-_HOT_BYTES // len(records)))[:_HOT_BYTES])
    header = _HEADER.pack(_SEGMENT_BYTES, 0)
    gathered: list[bytes | memoryview] = []
    for at in range(0, _HOT_BYTES, _SEGMENT_BYTES):
        gathered += (header, block[at : at + _SEGMENT_BYTES])
    gathered *= _GATHER * _SEGMENT_BYTES // _HOT_BYTES
    pending = wire_bytes = 0
    while (span := io.next_span()) is not None:
        pending += span[1] * spec.record_bytes
        while pending >= _GATHER * _SEGMENT_BYTES:
            pending -= _GATHER * _SEGMENT_BYTES
            wire_bytes += _send_all(connection, gathered)
    while pending:
        size = min(pending, _SEGMENT_BYTES)
        pending -= size
        wire_bytes += _send_all(connection, [_HEADER.pack(size, 0), block[:size]])
    return wire_bytes


def _send_all(connection: socket.socket, pieces: list[bytes | memoryview]) -> int:
    """`sendmsg` of everything; a blocking socket takes it in one call unless a signal comes in between."""
    total = sum(map(len, pieces))
    sent = connection.sendmsg(pieces)
    if sent < total:
        connection.sendall(b"".join(pieces)[sent:])
    return total


def _count_segments(spec: RunSpec, io: ConsumerIo, connection: socket.socket) -> int:
    """Counts bytes; the remainder after whole segments and their headers are the smaller segments at the end."""
    slab = bytearray(_SLAB_BYTES)
    receive, arrivals = connection.recv_into, io.verifier.arrivals
    frame_bytes = _HEADER.size + _SEGMENT_BYTES
    total = marked = 0
    while count := receive(slab):
        total += count
        if total - marked >= _MARK_BYTES:
            marked = total
            arrivals.add(total // frame_bytes * _SEGMENT_BYTES // spec.record_bytes - arrivals.records, clock_ns())
    frames, rest = divmod(total, frame_bytes)
    payload_bytes = frames * _SEGMENT_BYTES + max(0, rest - _HEADER.size)
    arrivals.add(payload_bytes // spec.record_bytes - arrivals.records, clock_ns())
    return total


def _send_messages(io: ProducerIo, connection: socket.socket) -> int:
    wire_bytes = 0
    while (span := io.next_span()) is not None:
        for record in io.source.records(*span):
            wire_bytes += _send_all(connection, [_HEADER.pack(len(record), 0), record])
    return wire_bytes


def _receive_messages(spec: RunSpec, io: ConsumerIo, connection: socket.socket) -> int:
    message_bytes = _HEADER.size + spec.record_bytes
    slab = memoryview(bytearray(max(_SLAB_BYTES, 2 * message_bytes)))
    end = wire_bytes = 0
    while count := connection.recv_into(slab[end:]):
        now = clock_ns()
        end += count
        wire_bytes += count
        whole = end // message_bytes * message_bytes
        if whole:
            records = [bytes(slab[at + _HEADER.size : at + message_bytes]) for at in range(0, whole, message_bytes)]
            io.verifier.feed(0, records, now)
            slab[: end - whole] = slab[whole:end]
            end -= whole
    return wire_bytes


def _listen(spec: RunSpec, scratch: Path) -> socket.socket:
    if spec.transport == "unix":
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(scratch / "raw.sock"))
    else:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    return listener


def _address_of(listener: socket.socket) -> str:
    name = listener.getsockname()
    return name if isinstance(name, str) else f"{name[0]}:{name[1]}"


def _dial(address: str) -> socket.socket:
    if address.startswith("/"):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(address)
        return connection
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)))
    _tune(connection)
    return connection


def _tune(connection: socket.socket) -> None:
    """Sets the options that netstack's own transport sets on a connection within one host."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    set_loopback_congestion(connection)


def _congestion_control(connection: socket.socket) -> str | None:
    if connection.family != socket.AF_INET or not hasattr(socket, "TCP_CONGESTION"):
        return None
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).split(b"\0")[0].decode()
