"""Nodes of a run without Spark: an `allGather` of our own, all nodes in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import trio

from netstack.base import build
from netstack.spark.barrier import BarrierTask
from netstack_bench.places.conversation import MeasurementFailed
from netstack_bench.places.hosts import coordinator
from netstack_bench.places.spark.node import FAULT, OK, SETUP, TIMEOUT, Node, NodeJob
from netstack_bench.places.spark.spec import SparkSpec

TOKEN = bytes(range(32))


def job_of(**settings: Any) -> NodeJob:
    names = {
        "build",
        "netstack_build",
        "subtasks",
        "relay",
        "needs_distinct_hosts",
        "ports",
        "deadline_s",
        "setup_timeout_s",
    }
    mine = {name: settings.pop(name) for name in names & settings.keys()}
    mine.setdefault("subtasks", ((1, 1), (1, 1)))
    return NodeJob(runs=(SparkSpec(**settings).run_settings(),), token=TOKEN, **mine)


class Gathering:
    """An `allGather` among threads."""

    def __init__(self, nodes: int) -> None:
        self._said: list[str] = [""] * nodes
        self._barrier = threading.Barrier(nodes, timeout=20)

    def of(self, rank: int) -> Callable[[str], Sequence[str]]:
        def all_gather(words: str) -> Sequence[str]:
            self._said[rank] = words
            self._barrier.wait()
            return list(self._said)

        return all_gather


async def run_nodes(job: NodeJob, hosts: Sequence[str] = ("127.0.0.1", "127.0.0.1")) -> list[dict[str, Any]]:
    gathering = Gathering(len(hosts))
    rows: list[dict[str, Any]] = []

    async def one(rank: int, host: str) -> None:
        rows.append(await Node(job, BarrierTask(rank, len(hosts), host, gathering.of(rank))).work())

    async with trio.open_nursery() as nursery:
        for rank, host in enumerate(hosts):
            nursery.start_soon(one, rank, host)
    return sorted(rows, key=lambda row: int(row["rank"]))


@pytest.mark.slow
def test_every_node_returns_its_row_and_the_first_has_the_document() -> None:
    rows = trio.run(run_nodes, job_of(records=2000, channels=2, buffer_timeout_s=0.001))
    assert [row["kind"] for row in rows] == [OK, OK]
    (document,) = rows[0]["documents"]
    assert document["delivered"]
    assert document["records"] == 4000  # of each of two sources
    assert document["engine_kind"] == "spark"
    assert len(document["pairs"]) == 4
    assert rows[1]["documents"] == []


@pytest.mark.slow
def test_some_runs_share_a_job_until_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of(records=2000)
    runs = tuple({**job.runs[0], "channels": channels} for channels in (1, 4, 2))
    whole = trio.run(run_nodes, replace(job, runs=runs))
    assert [row["kind"] for row in whole] == [OK, OK]
    assert [each["records"] for each in whole[0]["documents"]] == [4000] * 3

    measure = coordinator.measure_mesh

    async def but_the_second(spec: Any, mesh: Any) -> Any:
        if spec.channels == 4:
            raise MeasurementFailed("no record moves")
        return await measure(spec, mesh)

    monkeypatch.setattr("netstack_bench.places.spark.node.measure_mesh", but_the_second)
    rows = trio.run(run_nodes, replace(job, runs=runs))
    assert (rows[0]["kind"], rows[0]["error"]) == (FAULT, "MeasurementFailed: no record moves")
    assert len(rows[0]["documents"]) == 1


@pytest.mark.slow
def test_a_node_that_cannot_listen_ends_all_of_them_at_once() -> None:
    rows = trio.run(run_nodes, job_of(records=10), ("127.0.0.1", "192.0.2.1"))
    assert [row["kind"] for row in rows] == [SETUP, SETUP]
    for row in rows:
        assert "192.0.2.1" in row["error"]


def test_two_nodes_on_one_host_are_an_error_where_hosts_are_measured() -> None:
    rows = trio.run(run_nodes, job_of(records=10, needs_distinct_hosts=True))
    assert {row["kind"] for row in rows} == {SETUP}
    assert "--shared-hosts" in rows[0]["error"]


async def test_ports_come_from_the_range_that_was_given() -> None:
    from netstack_transports.tcp import TcpTransport

    taken = await TcpTransport().listen("tcp://127.0.0.1:0")
    port = int(taken.address.rpartition(":")[2])
    try:
        rows = await run_nodes(job_of(records=10, ports=(port, port)))
    finally:
        taken.close()
    assert {row["kind"] for row in rows} == {SETUP}
    assert f"--node-ports {port}-{port}" in rows[0]["error"]


@pytest.mark.slow
def test_a_fault_of_the_run_is_the_leaders_and_its_text_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*args: Any, **kwargs: Any) -> dict[str, Any]:
        raise ValueError("a mistake of ours")

    monkeypatch.setattr("netstack_bench.places.spark.node.measure_mesh", broken)
    rows = trio.run(run_nodes, job_of(records=10))
    assert rows[0]["kind"] == FAULT
    assert "a mistake of ours" in rows[0]["error"]
    assert "ValueError" in rows[0]["traceback"]
    assert rows[1]["kind"] == OK  # it served, and was let go


@pytest.mark.slow
def test_a_run_that_does_not_end_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    async def endless(*args: Any, **kwargs: Any) -> dict[str, Any]:
        await trio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr("netstack_bench.places.spark.node.measure_mesh", endless)
    rows = trio.run(run_nodes, job_of(records=10, deadline_s=0.2, setup_timeout_s=0.3))
    assert rows[0]["kind"] == TIMEOUT
    assert rows[1]["kind"] in (OK, TIMEOUT)


@pytest.mark.slow
def test_nobody_gets_in_without_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = coordinator.measure_mesh

    async def with_a_stranger(spec: Any, mesh: Any, **kwargs: Any) -> dict[str, Any]:
        from netstack.base.errors import AuthenticationFailed
        from netstack.cluster.taskmanager.client import open_client
        from netstack.network.connection.authentication import Secret

        with pytest.raises(AuthenticationFailed):
            async with open_client(mesh.daemons[1].address, secret=Secret(b"x" * 32)):
                raise AssertionError("a stranger came in")
        return await whole(spec, mesh, **kwargs)

    monkeypatch.setattr("netstack_bench.places.spark.node.measure_mesh", with_a_stranger)
    rows = trio.run(run_nodes, job_of(records=100))
    assert [row["kind"] for row in rows] == [OK, OK]


def test_a_peer_that_never_arrives_is_said_in_words() -> None:
    def broken(words: str) -> Sequence[str]:
        raise EOFError

    with pytest.raises(TimeoutError, match="peer did not arrive"):
        trio.run(Node(job_of(records=10), BarrierTask(0, 2, "127.0.0.1", broken)).work)


async def test_a_port_that_is_taken_is_passed_over() -> None:
    from netstack_transports.tcp import TcpTransport

    taken = await TcpTransport().listen("tcp://127.0.0.1:0")
    port = int(taken.address.rpartition(":")[2])
    try:
        rows = await run_nodes(job_of(records=10, ports=(port, port + 20)))
    finally:
        taken.close()
    assert {row["kind"] for row in rows} == {OK}


def test_nodes_with_other_code_than_the_driver_are_refused() -> None:
    rows = trio.run(run_nodes, job_of(records=10, build="0123-4567"))
    assert {row["kind"] for row in rows} == {SETUP}
    assert "the driver 0123-4567" in rows[1]["error"]


def test_nodes_with_another_build_of_the_data_path_than_the_driver_are_refused() -> None:
    rows = trio.run(run_nodes, job_of(records=10, netstack_build="another"))
    assert {row["kind"] for row in rows} == {SETUP}
    assert f"runs the {build.kind} build, the driver the another one" in rows[1]["error"]


@pytest.mark.parametrize(("what", "values"), [("build", ("a", "b")), ("python", ("3.11.7", "3.12.1"))])
def test_nodes_that_differ_are_refused(what: str, values: tuple[str, str]) -> None:
    node = Node(job_of(records=10), BarrierTask(0, 2, "h", lambda words: [words]))
    peers = [
        {"rank": rank, "host": "h", "hostname": f"n{rank}", "build": "x", "python": "3", "error": None, what: value}
        for rank, value in enumerate(values)
    ]
    problem = node._problem(peers)
    assert f"differ in their {what}" in problem
    assert all(value in problem for value in values)
