"""`import netstack`: everything in `__all__` is there when asked for, and nothing before."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import netstack

LAZY = ["netstack", "netstack.spark", "netstack_bench.places.spark"]


@pytest.mark.parametrize("name", LAZY)
def test_type_checkers_and_the_program_read_the_same_list(name: str) -> None:
    package = importlib.import_module(name)
    stub = Path(str(package.__file__)).with_suffix(".pyi").read_text()
    public = {each.name for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom) for each in node.names}
    assert {*package.__all__} == public - {"build", "__version__"}
    for each in package.__all__:
        assert re.search(rf"\b{each} as {each}\b", stub), "type checkers take only these as public"


def test_star_imports_what_is_public() -> None:
    names: dict[str, object] = {}
    exec("from netstack import *", names)
    assert {*netstack.__all__} <= names.keys()


def test_everything_is_there() -> None:
    for name in netstack.__all__:
        exported = getattr(netstack, name)
        assert name in ("ChannelDescriptor", "Event") or exported.__module__.startswith("netstack.")  # a union has none
    assert set(netstack.__all__) <= set(dir(netstack))
    assert netstack.base.errors.ConfigError is netstack.ConfigError, "modules are there too"


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'netstack' has no attribute 'nothing'"):
        _ = netstack.nothing


@pytest.mark.slow
def test_the_data_path_loads_no_jobs_and_no_scheduler() -> None:
    program = """
import sys, netstack
loaded = {name for name in sys.modules if name.startswith("netstack.")}
assert loaded == {"netstack.base"} | {
    f"netstack.base.{each}" for each in ("build", "compiled", "lazy_names", "old_paths", "renamed", "version")
}, loaded
assert not {"trio", "numpy"} & set(sys.modules)
netstack.open_network, netstack.RecordWriter, netstack.RecordReader
rooms = ("netstack.schedule", "netstack.cluster")
heavy = {name for name in sys.modules if name.startswith(rooms)}
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["netstack", "netstack.blocking", "netstack.aio"])
def test_the_old_name_of_open_network_works_and_says_so(name: str) -> None:
    module = importlib.import_module(name)
    with pytest.warns(DeprecationWarning, match="open_task_manager was renamed to open_network") as caught:
        assert module.open_task_manager is module.open_network
    assert caught[0].filename == __file__
