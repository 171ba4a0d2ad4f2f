"""What one build of the data path does on given seeds of the soak, told in a line a seed; in a process of its own.

    python build_witness.py FIRST COUNT

A line has a digest of every buffer and event in the order in which the consumers took them, the bytes on the wire, and
a number that the seed's generator gives at the end: it is the same only if every decision on the way was.
"""

from __future__ import annotations

import hashlib
import sys

from test_soak import Soak

from netstack.base import build
from netstack.exchange.buffer.buffer import Buffer
from netstack.exchange.inbound.gate import SingleInputGate


def witness(seed: int) -> str:
    soak = Soak(seed)
    link = soak.link
    history = hashlib.sha256()
    take, number = link.take, 0

    def noted(gate: SingleInputGate) -> Buffer | None:
        nonlocal number
        buffer = take(gate)
        if buffer is not None:
            number += 1
            seen = buffer.channel_index, buffer.sequence, int(buffer.data_type), buffer.length, buffer.more_available
            history.update(repr(seen).encode() + bytes(buffer.contiguous()))
        return buffer

    link.take = noted  # type: ignore[method-assign]
    soak.run()
    wire = link.bytes_to_consumer
    return f"{seed}: {number} taken, {wire} bytes, {history.hexdigest()[:16]}, {soak.rng.getrandbits(32):08x}"


if __name__ == "__main__":
    first, count = map(int, sys.argv[1:])
    sys.stdout.write(f"{build.kind}\n")
    for seed in range(first, first + count):
        sys.stdout.write(f"{witness(seed)}\n")
