"""Processes that come and go: their messages and deaths are told in order, and none is left behind."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from netstack.bench.children import DIED, Children

pytestmark = pytest.mark.slow

CHILD = """
import json, os, sys
name = sys.argv[1]
def say(**fields):
    print(json.dumps(fields), flush=True)
say(event="hello", name=name, pid=os.getpid())
for line in sys.stdin:
    asked = json.loads(line)
    if asked["event"] == "leave":
        print("last words", file=sys.stderr, flush=True)
        say(event="leaving")
        sys.exit(asked["code"])
    say(event="heard", text=asked["text"])
"""


@pytest.fixture
def children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Children]:
    (tmp_path / "child_under_test.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    pids = []
    with Children("child_under_test") as children:
        yield children
        pids = [children.pid(name) for name in children.names]
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def next_of(children: Children) -> tuple[str, dict[str, Any]]:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        message = children.receive(0.1)
        if message is not None:
            return message
    raise AssertionError("nothing was said for 10 s")


def test_messages_go_both_ways_and_the_end_is_told(children: Children) -> None:
    children.start("a", "alpha")
    name, message = next_of(children)
    assert (name, message["event"], message["name"]) == ("a", "hello", "alpha")
    assert message["pid"] == children.pid("a")
    children.send("a", "tell", text="x")
    assert next_of(children) == ("a", {"event": "heard", "text": "x"})
    assert children.receive(0) is None
    children.send("a", "leave", code=3)
    assert next_of(children) == ("a", {"event": "leaving"})
    assert next_of(children) == ("a", {"event": DIED, "how": "exited with code 3\n    last words"})
    assert children.names == []
    children.send("a", "tell", text="nobody hears")
    children.start("a", "again")
    assert next_of(children)[1]["name"] == "again"


def test_a_kill_is_told_after_everything_else(children: Children) -> None:
    children.start("a", "alpha")
    children.start("b", "beta")
    assert {next_of(children)[0], next_of(children)[0]} == {"a", "b"}
    children.send("b", "tell", text="before")
    assert next_of(children) == ("b", {"event": "heard", "text": "before"})
    children.kill("b")
    assert next_of(children) == ("b", {"event": DIED, "how": "was ended by signal 9"})
    assert children.names == ["a"]


def test_nothing_is_left_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "child_under_test.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    pids: list[int] = []

    def interrupted() -> None:
        with Children("child_under_test") as children:
            children.start("a", "alpha")
            pids.append(children.pid("a"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
