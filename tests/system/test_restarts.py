"""The recipe of `how-to/embed.md` "Nothing is lost when either end restarts", with kills on both sides."""

from __future__ import annotations

import json
import random
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "tools/docs/pages/how-to/embed.md"
ORDERS = list(range(1000))
PATIENCE_S = 120.0


def recipe(style: str) -> str:
    """The program of the page, as it is or as the page says that it may be changed."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (program,) = (block for block in blocks if "def produce(address" in block)
    own = "from netstack import RecordReader, RecordWriter, open_network"
    assert own in program
    if style == "trio":
        return program
    program = program.replace(own, own.replace("netstack", f"netstack.{style}"))
    if style == "aio":
        for old, new in (("import trio", "import asyncio"), ("trio.sleep", "asyncio.sleep")):
            program = program.replace(old, new)
        return program.replace("trio.run(main)", "asyncio.run(main())")
    for old, new in (("import trio", "import time"), ("trio.sleep", "time.sleep"), ("trio.run(main)", "main()")):
        program = program.replace(old, new)
    return re.sub(r"\b(async|await) ", "", program)


class Ends:
    """Both programs, which are killed and started again."""

    def __init__(self, folder: Path, style: str) -> None:
        self.folder = folder
        (folder / "recipe.py").write_text(recipe(style))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        self.running = {role: self.start(role) for role in ("produce", "consume")}

    def start(self, role: str) -> subprocess.Popen[bytes]:
        program, file = self.folder / "recipe.py", self.folder / f"{role}.json"
        with (self.folder / f"{role}.log").open("ab") as log:
            return subprocess.Popen([sys.executable, program, role, self.address, file], stderr=log)

    def kill(self, role: str) -> None:
        self.running[role].kill()
        self.running[role].wait()

    def restart(self, role: str) -> None:
        self.kill(role)
        self.running[role] = self.start(role)

    def saved(self) -> tuple[int, list[int]]:
        file = self.folder / "consume.json"
        number, orders = json.loads(file.read_text()) if file.exists() else (0, [])
        return number, orders

    def wait_for(self, batches: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.saved()[0] < batches:
            assert time.monotonic() < deadline, (self.folder / "produce.log").read_text()[-2000:]
            time.sleep(0.005)


@pytest.mark.whole
@pytest.mark.parametrize("style", ["trio", "blocking", "aio"])
def test_law_every_order_counts_once_whoever_is_killed(tmp_path: Path, style: str) -> None:
    chance = random.Random(style)
    ends = Ends(tmp_path, style)
    try:
        for batches in (5, 30, 55, 80):
            ends.wait_for(batches)
            for role in chance.sample(["produce", "consume"], chance.choice([1, 1, 2])):
                ends.restart(role)
        assert ends.running["produce"].wait(PATIENCE_S) == 0, (tmp_path / "produce.log").read_text()[-2000:]
        assert ends.saved() == (100, ORDERS)
    finally:
        for role in ends.running:
            ends.kill(role)
