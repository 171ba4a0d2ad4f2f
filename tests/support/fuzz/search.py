"""Searches for inputs that break a target: changes inputs of the corpus, and keeps those that reach new lines.

    python tests/support/fuzz/search.py --seconds 60 [TARGET ...]     adds new inputs to the corpus and prints failures

Takes: targets, a corpus, a seed. Gives: the first input that fails, made small. Where it goes is told by Python's own
line tracing, so the pure build is searched (NETSTACK_PURE=1 is set): no compiler, no library.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

CORPUS = Path(__file__).parents[2] / "fuzz/corpus"
MOST_BYTES = 4096
INTERESTING = (0, 1, 2, 3, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
PIECES = (
    b"\xdd\xff\xff\xff\xff",
    b"\xdf\x7f\xff\xff\xff",
    b"\xc4\xff",
    b"\x91" * 40,
    b"[" * 60,
    b"1e999",
    b"\xc0",
    b"null",
)


def corpus_of(name: str) -> dict[str, bytes]:
    """What is kept for a target, by file name, in order."""
    return {path.name: path.read_bytes() for path in sorted((CORPUS / name).iterdir())}


def changed(chance: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """One input made of another, by a few changes."""
    actual = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        at = chance.randrange(len(actual) + 1)
        match chance.randrange(9):
            case 0 if actual:
                actual[at % len(actual)] ^= 1 << chance.randrange(8)
            case 1 if actual:
                actual[at % len(actual)] = chance.randrange(256)
            case 2:
                del actual[at : at + chance.choice((1, 2, 4, 16, 100))]
            case 3:
                piece = actual[at : at + chance.choice((1, 4, 16, 64))]
                actual[at:at] = piece * chance.choice((1, 2, 30))
            case 4:
                width, order = chance.choice((("B", ">"), ("H", ">"), ("I", ">"), ("I", "<"), ("Q", ">")))
                value = chance.choice(INTERESTING) & ((1 << 8 * struct.calcsize(width)) - 1)
                number = struct.pack(order + width, value)
                actual[at : at + len(number)] = number
            case 5:
                actual[at:at] = chance.randbytes(chance.choice((1, 2, 8, 30)))
            case 6:
                actual[at:at] = chance.choice(PIECES)
            case 7 if others:
                other = chance.choice(others)
                start = chance.randrange(len(other) + 1)
                actual[at : at + chance.choice((0, 8, 64, 4096))] = other[start : start + chance.choice((4, 32, 4096))]
            case _:
                del actual[at:]
    return bytes(actual[:MOST_BYTES])


def inputs(chance: random.Random, corpus: list[bytes]) -> Iterator[bytes]:
    """Changed inputs without end; `corpus` may grow meanwhile."""
    while True:
        yield changed(chance, chance.choice(corpus), corpus)


def failure_of(name: str, data: bytes) -> BaseException | None:
    """What a target does with an input that it must not do; None if all is well."""
    from fuzz.targets import run

    try:
        run(name, data)
    except (Exception, RecursionError) as error:
        return error
    return None


def smallest(name: str, data: bytes) -> bytes:
    """A smaller input that fails in the same way."""
    kind = type(failure_of(name, data))
    size = max(1, len(data) // 2)
    while size:
        start = 0
        while start < len(data):
            shorter = data[:start] + data[start + size :]
            if type(failure_of(name, shorter)) is kind:
                data = shorter
            else:
                start += size
        size //= 2
    return data


# --------------------------------------------------------------------------------------------------- guided by coverage


class Traced:
    """Which steps from line to line in netstack were ever made."""

    def __init__(self) -> None:
        self.seen: set[tuple[CodeType, int, int]] = set()
        self.is_new = False
        self._last = 0

    def __enter__(self) -> Traced:
        self.is_new = False
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _call(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        if "netstack" not in frame.f_code.co_filename:
            return None
        self._last = 0
        return self._line

    def _line(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            step = (frame.f_code, self._last, frame.f_lineno)
            self._last = frame.f_lineno
            if step not in self.seen:
                self.seen.add(step)
                self.is_new = True
        return self._line


def search(name: str, seconds: float, chance: random.Random) -> tuple[int, int, list[bytes]]:
    """Returns how many inputs were tried, how many were new, and those that failed, made small."""
    traced = Traced()
    corpus = [*corpus_of(name).values()] or [b""]
    for data in corpus:
        with traced:
            failure_of(name, data)
    tried = kept = 0
    failed: dict[type, bytes] = {}
    end_s = time.monotonic() + seconds
    for data in inputs(chance, corpus):
        if time.monotonic() > end_s:
            break
        tried += 1
        with traced:
            error = failure_of(name, data)
        if error is not None and type(error) not in failed:
            failed[type(error)] = smallest(name, data)
            print(f"{name}: {type(error).__name__}: {error}: {failed[type(error)]!r}", flush=True)
        elif traced.is_new and error is None:
            kept += 1
            corpus.append(data)
            keep(name, data)
    return tried, kept, [*failed.values()]


def keep(name: str, data: bytes) -> Path:
    """Into the corpus."""
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(data).hexdigest()[:16]
    path.write_bytes(data)
    return path


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each target")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    arguments = parser.parse_args()
    from fuzz.targets import TARGETS

    failures = 0
    for name in arguments.targets or TARGETS:
        tried, kept, failed = search(name, arguments.seconds, random.Random(arguments.seed))
        for data in failed:
            print(f"kept as {keep(name, data)}")
        failures += len(failed)
        print(f"{name}: seed {arguments.seed}, {tried} inputs, {kept} new, {len(failed)} failed", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    os.environ.setdefault("NETSTACK_PURE", "1")
    sys.path[0:1] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[3])]
    sys.exit(main())
