"""What two Flink processes said to each other (tests/data/flink), in frames, and what each side printed at the end."""

from __future__ import annotations

import json
import shlex
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "data" / "flink"
CASES = sorted(path.stem for path in FOLDER.glob("*.json"))
WRONG_ON_PURPOSE = ("raw-bad-magic", "raw-unknown-kind", "raw-ack-for-nobody", "raw-credit-for-nobody")
"""Exchanges whose requests are no frames, or for nobody: they cannot be written again."""


@dataclass(frozen=True, slots=True)
class Vector:
    """One exchange.

    Attributes:
        case: its name.
        settings: of the side that serves and of the one that consumes, as the options they were started with.
        requests: what the consumer sent.
        responses: what the producer sent.
        chunks: both, as they were seen: (whether the consumer sent it, bytes; none at the end of the stream).
        producer: what it printed, line by line.
        consumer: likewise.
    """

    case: str
    settings: dict[str, str]
    requests: bytes
    responses: bytes
    chunks: list[tuple[bool, bytes]]
    producer: list[dict[str, Any]]
    consumer: list[dict[str, Any]]

    @property
    def segment_size(self) -> int:
        """Of both sides."""
        options = shlex.split(self.settings["serve"])
        return int(options[options.index("--segment-size") + 1]) if "--segment-size" in options else 32 * 1024

    @property
    def outcome(self) -> dict[str, Any] | None:
        """The consumer's summary; None where a hand-made client took its place."""
        return self.consumer[-1] if self.consumer else None


def load(case: str) -> Vector:
    """The vector of this name."""
    data = json.loads((FOLDER / f"{case}.json").read_text())
    chunks = [(chunk["dir"] == "c2s", bytes.fromhex(chunk.get("hex", ""))) for chunk in data["chunks"]]
    assert {chunk["conn"] for chunk in data["chunks"]} == {0}
    return Vector(
        case,
        data["settings"],
        b"".join(piece for is_request, piece in chunks if is_request),
        b"".join(piece for is_request, piece in chunks if not is_request),
        chunks,
        data["producer"]["lines"],
        data["consumer"]["lines"],
    )


def frames_in(stream: bytes) -> list[bytes]:
    """Cut by the lengths alone."""
    frames = []
    while stream:
        (length,) = struct.unpack_from(">I", stream)
        assert 9 <= length <= len(stream)
        frames.append(stream[:length])
        stream = stream[length:]
    return frames


def channel_ids(requests: bytes) -> list[bytes]:
    """The ids of the channels that are asked for, in order, each once."""
    return list(dict.fromkeys(frame[77:93] for frame in partition_requests(requests)))


def partition_requests(requests: bytes) -> list[bytes]:
    """The frames that ask for subpartitions and are what they should be."""
    return [frame for frame in frames_in(requests) if frame[4:9] == bytes.fromhex("badc0ffe02")]
