"""What `netstack serve` deals out; whole exchanges are in test_exchange and in the replays."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from trio_runs import run_virtual

from netstack.base.config import NetworkConfig
from netstack.cli.serve import ServePlan, Serving

CONFIG = NetworkConfig(segment_size_bytes=256, memory_bytes=256 * 256, dialect="flink-2.3.0")
PARTITION = "d0" * 60


def serving(**more: Any) -> Serving:
    return Serving(ServePlan("memory://serve", PARTITION, 1, CONFIG, **more), lambda address: None)


@pytest.mark.parametrize(
    ("kind", "line", "text"),
    [
        ("long", b"two", "invalid literal"),
        ("long", b"9223372036854775808", "too big"),
        ("string", b"\xff", "can't decode"),
    ],
)
def test_a_line_that_is_no_such_value_is_named(kind: str, line: bytes, text: str, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"1\n" + line + b"\n")
    failed = serving(input_path=lines, kind=kind)
    trio.run(failed.run)
    assert failed.outcome == "error"
    assert f"line 2: {line!r} is no {kind}" in str(failed.error)
    assert text in str(failed.error)
    assert failed.document()["channels"][0]["records"] == 1


@pytest.mark.parametrize(("kind", "expected"), [("bytes", b"a\rlast"), ("string", b"alast")])
def test_lines_may_end_as_on_windows_or_not_at_all(kind: str, expected: bytes, tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"a\r\n\nlast")
    done = serving(input_path=lines, kind=kind)

    async def main() -> None:
        with trio.move_on_after(1):  # nobody comes
            await done.run()

    run_virtual(main)
    (channel,) = done.document()["channels"]
    assert (channel["records"], channel["crc32"]) == (3, f"{zlib.crc32(expected):08x}")
    assert (done.outcome, done.is_released) == ("finished", False)
