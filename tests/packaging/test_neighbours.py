"""netstack's parts are found beside it, whatever else is called `transports` and `bench`."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

from netstack import parts

ROOT = Path(__file__).parents[2]
EMBED = """
import trio, netstack

async def produce(manager):
    partition = manager.create_partition("words", subpartitions=1)
    writer = netstack.RecordWriter(partition, format="str", buffer_timeout_s=0)
    await writer.emit("word")
    await writer.finish()

async def main():
    url = "impaired+tcp://127.0.0.1:0?delay=1ms"
    async with netstack.open_network(url) as producer:
        async with netstack.open_network(url) as consumer, trio.open_nursery() as nursery:
            nursery.start_soon(produce, producer)
            gate = await consumer.open_gate([netstack.ChannelDescriptor(producer.address, "words")])
            async for word in netstack.RecordReader(gate, format="str"):
                print(word)

trio.run(main)
import transports, bench
print(transports.whose, bench.whose)
"""


@pytest.fixture
def neighbours(tmp_path: Path) -> Path:
    """A project with both folders, which has itself in the path, as many do."""
    for name in ("transports", "bench"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("whose = 'theirs'\n")
    (tmp_path / "embed.py").write_text(EMBED)
    return tmp_path


def run_in(folder: Path, *words: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [python, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=100, check=False
    )


@pytest.mark.slow
def test_a_program_beside_its_own_transports_and_bench(neighbours: Path) -> None:
    done = run_in(neighbours, "embed.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["word", "theirs", "theirs"]


@pytest.mark.slow
def test_a_run_beside_a_folder_of_the_same_names(neighbours: Path) -> None:
    command = Path(sys.executable).with_name("netstack-bench")
    done = run_in(neighbours, str(command), "run", "--records", "1000", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["delivered"]


@pytest.mark.long
def test_the_wheel_brings_all_and_works_beside_such_folders(neighbours: Path, tmp_path_factory: Any) -> None:
    place = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(place), str(ROOT)], check=True, timeout=200)
    (wheel,) = place.glob("netstack-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"netstack", "transports", "bench"}
    for tool in ("hosts.py", "taskmanager.service", "Containerfile"):
        assert any(name.endswith(f".data/data/share/netstack/{tool}") for name in names), names
    # What it depends on is this environment's; the venv's own packages come first, so netstack is the wheel's.
    venv.create(place / "venv", with_pip=False)
    (site,) = place.glob("venv/lib/python*/site-packages")
    (site / "depends.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = str(place / "venv/bin/python")
    subprocess.run([*pip, "--python", python, "install", "--no-deps", str(wheel)], check=True, timeout=100)
    done = run_in(neighbours, "embed.py", python=python)
    assert done.stdout.split() == ["word", "theirs", "theirs"], done.stderr
    where = run_in(neighbours, "-c", "import netstack; print(netstack.__file__)", python=python)
    assert Path(where.stdout.strip()).parent == site / "netstack"
    done = run_in(
        neighbours, str(place / "venv/bin/netstack-bench"), "run", "--records", "1000", "--json", python=python
    )
    assert json.loads(done.stdout)["delivered"], done.stderr


def test_ours_has_its_short_name_where_nothing_else_has_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert parts.import_part("transports.impaired") is importlib.import_module("transports.impaired")
    stranger = importlib.util.module_from_spec(importlib.machinery.ModuleSpec("transports", None))
    monkeypatch.setitem(sys.modules, "transports", stranger)
    found = parts.import_part("transports.impaired")
    assert found.__name__ == "netstack.transports.impaired"
    assert found.__file__ == str(Path(parts.__file__).parents[1] / "transports/impaired.py")


@pytest.mark.parametrize("name", ["transports.missing", "bench.missing"])
def test_what_is_not_there_is_said(name: str) -> None:
    with pytest.raises(ImportError):
        parts.import_part(name)
