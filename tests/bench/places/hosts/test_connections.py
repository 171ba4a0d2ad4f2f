"""Connections between the hosts of a run: TaskManagers of two processes, whose slots are processes as by default."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from netstack_bench.cli import main
from netstack_bench.places.hosts.taskmanagers import TaskManagers, local_taskmanagers

pytestmark = pytest.mark.slow


@pytest.fixture(name="taskmanagers", scope="module")
def _taskmanagers() -> Iterator[TaskManagers]:
    with local_taskmanagers(2, slots=2, slots_in="processes") as actual:
        yield actual


@pytest.mark.whole
@pytest.mark.parametrize(("flags", "connections"), [((), 1), (("--connections", "2"), 4)])
def test_all_channels_of_two_hosts_are_on_one_connection_a_direction_until_a_flag_raises_it(
    taskmanagers: TaskManagers, flags: tuple[str, ...], connections: int, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", "--hosts", ",".join(taskmanagers.hosts(4)), "--records", "4000", "--channels", "16", *flags]
    assert main([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["delivered"]
    assert [host["connections"] for host in document["hosts"]] == [connections, connections]
    assert document["connections"] == 2 * connections
    assert main(arguments) == 0
    message = f"channels between hosts were on {2 * connections} connections, both directions together"
    assert message in capsys.readouterr().out


@pytest.mark.whole
def test_a_slot_that_is_too_small_for_all_subtasks_of_a_host_names_both_flags(
    taskmanagers: TaskManagers, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = ",".join(taskmanagers.hosts(4))
    assert main(["run", "--hosts", hosts, "--records", "1", "--channels", "1024"]) == 1
    message = " ".join(capsys.readouterr().err.split())
    assert "InsufficientBuffers" in message
    assert "share the memory of 1 slot: --connections raises that, the TaskManager's --memory is" in message
