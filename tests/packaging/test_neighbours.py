"""A program that has folders of its own called `transports` and `bench` is not in netstack's way, nor it in theirs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from tool_modules import load_tool

from netstack.base.own_packages import OWN_PACKAGES

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
        [python, *words], cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.slow
def test_a_program_beside_its_own_transports_and_bench(neighbours: Path) -> None:
    done = run_in(neighbours, "embed.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["word", "theirs", "theirs"]


@pytest.mark.whole
def test_a_run_beside_a_folder_of_the_same_names(neighbours: Path) -> None:
    command = Path(sys.executable).with_name("netstack-bench")
    done = run_in(neighbours, str(command), "run", "--records", "1000", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["delivered"]


@pytest.mark.long
def test_the_wheel_of_a_release_brings_all_and_works_beside_such_folders(neighbours: Path, tmp_path: Path) -> None:
    for module in ("hatchling", "auditwheel"):
        pytest.importorskip(module, reason="comes with make wheels")
    tool = load_tool("make_wheels")
    can_compile = load_tool("compile_core").compiler_problem() is None
    place = tmp_path / "wheel"
    place.mkdir()
    archive = tool.build_archive(place)
    wheel = tool.build_wheel(archive, place, sys.executable if can_compile else None)
    assert ("-manylinux" in wheel.name) == can_compile
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {*OWN_PACKAGES}
    ours = load_tool("import_packages")
    tracked = subprocess.run(
        ["git", "ls-files", *map(str, ours.PACKAGES)], cwd=ours.ROOT, capture_output=True, text=True, check=True
    )
    moved = {str(package): package.name for package in ours.PACKAGES}
    wanted = {
        f"{name}{file.removeprefix(folder)}"
        for file in tracked.stdout.splitlines()
        for folder, name in moved.items()
        if file.startswith(f"{folder}/")
    }
    assert len(wanted) > 600
    assert wanted <= {*names}, "the source archive or the wheel leaves files out"
    share = {
        name.partition("/share/netstack/")[2].partition("/")[0]
        for name in names
        if re.search("/share/netstack/.", name)
    }
    assert share == {"examples", "flink-shuffle", "hosts.py", "monitoring", "taskmanager.service"}
    # What it depends on is this environment's; the venv's own packages come first, so netstack is the wheel's.
    venv.create(place / "venv", with_pip=False)
    (site,) = place.glob("venv/lib/python*/site-packages")
    (site / "depends.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = str(place / "venv/bin/python")
    subprocess.run([*tool.PIP, "--python", python, "install", "--no-deps", str(wheel)], check=True, timeout=120)
    done = run_in(neighbours, "embed.py", python=python)
    assert done.stdout.split() == ["word", "theirs", "theirs"], done.stderr
    where = run_in(neighbours, "-c", "import netstack; print(netstack.build.kind, netstack.__file__)", python=python)
    kind, _, file = where.stdout.strip().partition(" ")
    assert Path(file).parent == site / "netstack"
    assert kind == ("compiled" if can_compile and not os.environ.get("NETSTACK_PURE") else "python")
    done = run_in(
        neighbours, str(place / "venv/bin/netstack-bench"), "run", "--records", "1000", "--json", python=python
    )
    assert json.loads(done.stdout)["delivered"], done.stderr
