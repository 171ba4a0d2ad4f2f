"""Import paths that releases before this one documented."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings

import pytest

from netstack.base.old_paths import new_path

OLD = {
    "netstack.errors": "netstack.base.errors",
    "netstack.limited_log": "netstack.base.text.limited_log",
    "netstack.wire.frames": "netstack.exchange.wire.frames",
    "netstack.record.flink_rows": "netstack.exchange.record.flink_rows",
    "netstack.shuffle": "netstack.exchange.stored",
    "netstack.checkpoint.storage": "netstack.schedule.checkpoint.storage",
    "netstack.runtime.metrics": "netstack.network.metrics.samples",
    "netstack.runtime.handles": "netstack.network.handles",
    "netstack.task.input": "netstack.cluster.task.input",
    "netstack.jobmanager.client": "netstack.cluster.jobmanager.client",
    "netstack.transports.tcp": "netstack_transports.tcp",
    "netstack.bench.store": "netstack_bench.store",
    "netstack.bench.mesh.invokables": "netstack_bench.places.hosts.invokables",
    "netstack.bench.spark": "netstack_bench.places.spark",
    "netstack.bench.spark.tables": "netstack_bench.places.spark.tables",
}


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has imported no old path yet."""
    for name in [*sys.modules]:
        if new_path(name) is not None:
            monkeypatch.delitem(sys.modules, name)


@pytest.mark.parametrize(("old", "new"), OLD.items())
def test_an_old_path_leads_to_the_module_and_warns_where_it_is_used(old: str, new: str) -> None:
    module = importlib.import_module(new)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(compile(f"import {old}", "user.py", "exec"), {})
    assert sys.modules[old] is module
    assert module.__name__ == new
    last = caught[-1]
    assert str(last.message).startswith(f"{old} has moved to {new};")
    assert {each.filename for each in caught} == {"user.py"}
    assert {each.category for each in caught} == {DeprecationWarning}


@pytest.mark.parametrize("name", ["netstack.nothing", "netstack.bench.nothing", "netstack.wire.frames_of_nobody"])
def test_what_never_existed_is_not_found(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(ModuleNotFoundError, match=rf"No module named '{name}'"):
            importlib.import_module(name)


@pytest.mark.slow
def test_the_old_way_to_run_the_benchmark() -> None:
    command = [sys.executable, "-m", "netstack.bench", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("netstack-bench, version")


@pytest.mark.slow
def test_nothing_of_ours_uses_an_old_path() -> None:
    program = """
import sys, warnings
warnings.filterwarnings("error", ".*has moved to.*", DeprecationWarning)
import netstack, netstack.cli, netstack.spark, netstack_bench.cli, netstack_transports.tcp
[getattr(netstack, name) for name in netstack.__all__]
from netstack.base.old_paths import new_path
print([name for name in sys.modules if new_path(name)])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
