"""pyzmq, PUSH to PULL: one message a record, or a batch of records, called the way its users call it.

Takes: the same records, pacing and verifier as every engine. Gives: their delivery over ZeroMQ.

Records of 64 KiB and more are sent and received without copying, smaller ones with it: whichever is faster. A batch
(`--emit batch`) is copied when it is sent, because its source uses the memory again, and read where it arrived. An
empty message is the end. ZeroMQ's own threads do the network; its high-water marks are set by bytes, so that large
records do not fill the memory and small ones do not starve.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from netstack.base.host import congestion_control

from ..generator import MissingExtra
from ..pacing import clock_ns
from ..places.local.worker_io import ConsumerIo, Facts, ProducerIo
from ..spec import RunSpec

try:
    import zmq
except ImportError as error:
    raise MissingExtra(f"--peer zmq needs pyzmq ({error}); install it: pip install 'pyzmq>=26'") from error

_NO_COPY_BYTES = 64 * 1024
_QUEUE_BYTES = 64 * 1024 * 1024
_TAKE_RECORDS = 256  # received before they are handed to the verifier together
_TAKE_BYTES = 256 * 1024


def produce(spec: RunSpec, io: ProducerIo) -> Facts:
    """Connects, pushes until the run is over, then an empty message."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as push:
        push.set_hwm(_high_water_records(spec))
        push.linger = -1  # closing waits until everything is sent
        push.connect(io.peer_address())
        io.ready()
        send: Any = push.send
        copy = spec.record_bytes < _NO_COPY_BYTES
        source: Any = io.source
        while (span := io.next_span()) is not None:
            if spec.emit == "batch":
                send(source.array(*span), copy=True)
                continue
            for record in source.records(*span):
                send(record, copy=copy)
        send(b"")
    return Facts(congestion_control=congestion_control() if spec.transport == "tcp" else None)


def consume(spec: RunSpec, io: ConsumerIo) -> Facts:
    """Binds and pulls up to the empty message."""
    with zmq.Context() as context, context.socket(zmq.PULL) as pull:
        pull.set_hwm(_high_water_records(spec))
        if spec.transport == "unix":
            pull.bind(f"ipc://{io.scratch / 'zmq.sock'}")
        else:
            pull.bind("tcp://127.0.0.1:*")
        io.publish(pull.get_string(zmq.LAST_ENDPOINT))
        io.ready()
        if spec.emit == "batch":
            _pull_batches(spec, io, pull)
        elif spec.rate_per_s is not None:
            _pull_one_by_one(io, pull)
        else:
            _pull_together(spec, io, pull)
    return Facts()


def _pull_one_by_one(io: ConsumerIo, pull: Any) -> None:
    """Each record gets an arrival time of its own."""
    feed, receive = io.verifier.feed, pull.recv
    while record := receive():
        feed(0, (record,), clock_ns())


def _pull_batches(spec: RunSpec, io: ConsumerIo, pull: Any) -> None:
    """Each message is an array of whole records."""
    feed = io.verifier.feed_array
    while frame := pull.recv(copy=False).buffer:
        feed(0, np.frombuffer(frame, np.uint8).reshape(-1, spec.record_bytes))


def _pull_together(spec: RunSpec, io: ConsumerIo, pull: Any) -> None:
    take = max(1, min(_TAKE_RECORDS, _TAKE_BYTES // spec.record_bytes))
    feed, receive = io.verifier.feed, pull.recv
    copy = spec.record_bytes < _NO_COPY_BYTES
    records: list[Any] = []
    left = take
    while True:
        record = receive() if copy else receive(copy=False).buffer
        if not record:
            break
        records.append(record)
        left -= 1
        if not left:
            feed(0, records)
            records.clear()
            left = take
    if records:
        feed(0, records)


def _high_water_records(spec: RunSpec) -> int:
    """Messages each end may queue."""
    message_bytes = spec.record_bytes * (spec.effective_batch_records if spec.emit == "batch" else 1)
    return max(16, min(100_000, _QUEUE_BYTES // message_bytes))
