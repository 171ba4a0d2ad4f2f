"""Arrow Flight: `do_put` of columnar batches, the server in the consumer process.

Takes: the same values, pacing and verifier as every engine. Gives: their delivery over gRPC.
"""

from __future__ import annotations

import threading
from typing import Any

from netstack.base.host import congestion_control

from ..generator import MissingExtra
from ..places.local.worker_io import ConsumerIo, Facts, ProducerIo
from ..spec import RunSpec

try:
    import pyarrow.flight as flight
except ImportError as error:
    raise MissingExtra(f"--peer flight needs pyarrow ({error}); install it: pip install 'pyarrow>=16'") from error


def produce(spec: RunSpec, io: ProducerIo) -> Facts:
    """Puts batches until the run is over."""
    with flight.connect(io.peer_address()) as client:
        descriptor = flight.FlightDescriptor.for_path("records")
        writer, _ = client.do_put(descriptor, io.source.arrow_schema)
        with writer:
            io.ready()
            while (span := io.next_span()) is not None:
                for batch in io.source.arrow(*span):
                    writer.write_batch(batch)
    return Facts(congestion_control=congestion_control() if spec.transport == "tcp" else None)


def consume(spec: RunSpec, io: ConsumerIo) -> Facts:
    """Serves one `do_put`."""
    scheme = f"grpc+unix://{io.scratch / 'flight.sock'}" if spec.transport == "unix" else "grpc://127.0.0.1:0"
    with _Server(scheme, io) as server:
        io.publish(scheme if spec.transport == "unix" else f"grpc://127.0.0.1:{server.port}")
        io.ready()
        server.done.wait()
    return Facts()


class _Server(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no annotations
    """Feeds the verifier from whichever thread gRPC serves the call on."""

    def __init__(self, location: str, io: ConsumerIo) -> None:
        super().__init__(location)
        self._io = io
        self.done = threading.Event()

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Receives all batches of the run."""
        feed = self._io.verifier.feed_arrow
        try:
            for chunk in reader:
                feed(0, chunk.data)
        finally:
            self.done.set()
