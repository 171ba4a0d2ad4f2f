from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import trio

from netstack.base.errors import LocalProtocolError, RequestRefused
from netstack.cluster.task.invokable import InvokableTask
from netstack.cluster.taskmanager.config import TaskManagerConfig
from netstack.cluster.taskmanager.runner import open_taskmanager
from netstack.cluster.taskmanager.service import TaskManager
from netstack_bench.arrow_input import (
    keep,  # that of the invokables
    write_packed,
)
from netstack_bench.places.conversation import MeasurementFailed, OnProgress, RunState
from netstack_bench.places.hosts import invokables
from netstack_bench.places.hosts.coordinator import MeshDeadlines, measure_mesh, open_mesh
from netstack_bench.places.hosts.result import document_of
from netstack_bench.places.hosts.spec import MeshSpec
from netstack_bench.rows import table_rows

FAST = MeshDeadlines(setup_s=10, stalled_s=5, overall_s=10)


class Hosts:
    """Daemons of one process."""

    def __init__(self, daemons: list[TaskManager]) -> None:
        self.daemons = daemons
        self.addresses = [daemon.address.partition("://")[2] for daemon in daemons]

    def spec(self, counts: Sequence[str] = (), **settings: Any) -> MeshSpec:
        ends = [f"={count}" for count in counts] or [""] * len(self.addresses)
        hosts = tuple(address + end for address, end in zip(self.addresses, ends, strict=True))
        return MeshSpec(hosts=hosts, **settings)

    async def run(self, counts: Sequence[str] = (), **settings: Any) -> dict[str, Any]:
        return await self.measure(self.spec(counts, **settings))

    async def measure(
        self, spec: MeshSpec, on_progress: OnProgress | None = None, deadlines: MeshDeadlines = FAST
    ) -> dict[str, Any]:
        async with open_mesh(spec) as mesh:
            return document_of(await measure_mesh(spec, mesh, on_progress, deadlines=deadlines), "hosts")

    async def check_released(self) -> None:
        """Nothing of any run is left, as soon as the daemons have noticed that it is over."""
        with trio.fail_after(120):
            while not all(daemon.is_idle for daemon in self.daemons):  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert all(daemon.memory.free_memory_bytes == daemon.memory.memory_bytes for daemon in self.daemons)


@contextlib.asynccontextmanager
async def hosts_open(count: int) -> Any:
    async with contextlib.AsyncExitStack() as stack:
        config = TaskManagerConfig(listen="tcp://127.0.0.1:0", slots=4, allow=("tests.",))
        daemons = [await stack.enter_async_context(open_taskmanager(config)) for _ in range(count)]
        yield Hosts(daemons)


def on_hosts(count: int, work: Callable[[Hosts], Awaitable[None]]) -> None:
    async def main() -> None:
        async with hosts_open(count) as hosts:
            await work(hosts)

    trio.run(main)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("settings", "keyed"),
    [
        ({"records": 3000}, True),
        ({"records": 3000, "channels": 3}, False),
        ({"records": 60, "rate_per_s": 1000.0, "channels": 2, "buffer_timeout_s": 0.001}, True),
        ({"records": 1500, "relay": True, "channels": 2}, True),
        ({"records": 5000, "emit": "arrow", "batch_records": 64}, False),
    ],
)
def test_the_users_rows_arrive_whole_from_every_source_at_every_sink(
    settings: dict[str, Any], keyed: bool, tmp_path: Path
) -> None:
    table = pa.table({"id": range(170), "user": [f"user {at % 40}" for at in range(170)]})
    arrow = 64 if settings.get("emit") == "arrow" else None
    packed = write_packed(
        table_rows(table, "t", key_column="user" if keyed else None, arrow_batch_records=arrow), tmp_path
    )
    keep(packed.name, tmp_path / packed.name)

    async def measure(hosts: Hosts) -> None:
        spec = hosts.spec(["2", "2"], input_path="t", rows_file=packed.name, **settings)
        document = await hosts.measure(spec)
        assert document["delivered"], document["warnings"]
        assert document["records"] == 4 * settings["records"]
        assert document["latency_samples"]
        if arrow is None:
            mean = packed.payload_bytes / packed.rows
            assert abs(document["payload_bytes"] / document["records"] - mean) < 1
        await hosts.check_released()

    on_hosts(2, measure)


@pytest.mark.whole
@pytest.mark.parametrize(
    "settings",
    [
        {"records": 3000},
        {"records": 3000, "channels": 3, "buffer_timeout_s": 0.0},
        {"records": 50_000, "emit": "batch", "batch_records": 700, "channels": 2},
        {"records": 5000, "emit": "arrow", "batch_records": 64},
        {"records": 60, "rate_per_s": 1000.0, "buffer_timeout_s": 0.001},
        {"records": 600, "consume_rate_per_s": 20_000.0},
        {"records": 3000, "credit": False},
        {"records": 3000, "relay": True, "channels": 2},
        {"records": 3000, "relay": True, "emit": "batch", "batch_records": 100},
        {"records": 2000, "relay": True, "emit": "arrow", "batch_records": 64},
    ],
    ids=str,
)
def test_every_record_of_every_source_arrives_once(settings: dict[str, Any]) -> None:
    if settings.get("emit") == "arrow":
        pytest.importorskip("pyarrow")

    async def work(hosts: Hosts) -> None:
        document = await hosts.run(**settings)
        assert document["delivered"], document["warnings"]
        assert document["records"] == 2 * settings["records"] == sum(row["records"] for row in document["pairs"])
        assert len(document["pairs"]) == 4
        assert document["settings"]["hosts"] == hosts.addresses
        await hosts.check_released()

    on_hosts(2, work)


def test_three_hosts_of_different_parallelism() -> None:
    async def work(hosts: Hosts) -> None:
        document = await hosts.run(["2/1", "1/0", "0/2"], records=2400, channels=2)
        assert document["delivered"], document["warnings"]
        rows = document["hosts"]
        assert [(row["sources"], row["sinks"]) for row in rows] == [(2, 1), (1, 0), (0, 2)]
        assert [row["records"] for row in rows] == [2400, 0, 4800]
        assert [row["backpressured_ms_per_s"] is None for row in rows] == [False, False, True]
        assert [row["idle_ms_per_s"] is None for row in rows] == [False, True, False]
        pairs = {(row["source_host"], row["sink_host"]): row for row in document["pairs"]}
        a, b, c = hosts.addresses
        counts = {key: row["records"] for key, row in pairs.items()}
        assert counts == {(a, a): 1600, (a, c): 3200, (b, a): 800, (b, c): 1600}
        assert [row["is_local"] for row in document["pairs"]].count(True) == 1
        assert document["matrix"][0] == {"address": a, "sources": [0, 1], "relays": [], "sinks": [0]}

    on_hosts(3, work)


def test_latency_is_one_way_with_its_uncertainty_or_a_round_trip() -> None:
    async def work(hosts: Hosts) -> None:
        settings = {"records": 100, "rate_per_s": 2000.0, "buffer_timeout_s": 0.0, "warmup_s": 0.0}
        one_way = await hosts.run(**settings)
        assert one_way["latency_kind"] == "open-loop"
        assert one_way["latency_samples"] == 100, "of channels between hosts"
        assert one_way["latency_us"]["p50"] > 0
        assert one_way["round_trip_latency_us"]["p50"] is None
        unsure = {row["is_local"]: row["latency_uncertainty_us"] for row in one_way["pairs"]}
        assert unsure[True] == 0.0
        assert unsure[False] > 0.0
        back = await hosts.run(relay=True, **settings)
        assert back["latency_us"]["p50"] is None
        assert back["round_trip_latency_us"]["p50"] > 0
        assert all(row["round_trip_latency_us"]["max"] > 0 for row in back["pairs"])

    on_hosts(2, work)


@pytest.mark.slow
def test_a_timed_run_has_a_window_a_timeline_and_progress() -> None:
    async def work(hosts: Hosts) -> None:
        received: list[RunState] = []
        spec = hosts.spec(seconds=0.7, emit="batch", warmup_s=0.1)
        document = await hosts.measure(spec, received.append)
        assert document["delivered"], document["warnings"]
        assert not [text for text in document["warnings"] if "share" not in text and "busy" not in text]
        assert document["seconds"] > 0
        together = document["records_per_s"] + document["local"]["records_per_s"]
        assert together == pytest.approx(sum(row["records_per_s"] for row in document["pairs"]))
        assert document["records_per_s"] == pytest.approx(sum(row["records_per_s"] for row in document["hosts"]))
        assert document["latency_kind"] == "sampled under load"
        assert all(row["latency_us"]["p50"] is not None for row in document["pairs"]), "each pair was sampled"
        assert {sample["task"] for sample in document["timeline"]} == {"source-0", "source-1", "sink-0", "sink-1"}
        assert all(sample["t_s"] > 0 for sample in document["timeline"])
        phases = [each.phase for each in received]
        assert phases == sorted(phases, key=["starting", "running", "draining"].index)
        assert {"starting", "running", "draining"} == set(phases)
        assert received[-1].records == document["records"]

    on_hosts(2, work)


async def failing(task: InvokableTask) -> None:
    task.send({"event": "ready"})
    await task.receive()
    raise ValueError("no more paper")


@pytest.mark.parametrize("name", ["source", "sink", "relay"])
def test_a_task_that_fails_is_named_with_its_cause(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(hosts: Hosts) -> None:
        monkeypatch.setattr(invokables, name, failing)
        with pytest.raises(MeasurementFailed) as caught:
            await hosts.run(seconds=5, relay=name == "relay")
        assert f"{name}-" in str(caught.value)
        assert "ValueError: no more paper" in str(caught.value)
        assert "over 2 hosts failed" in str(caught.value)
        await hosts.check_released()
        monkeypatch.undo()
        assert (await hosts.run(records=100))["delivered"], "the next run works"

    on_hosts(2, work)


def test_a_daemon_without_room_refuses_and_costs_the_others_nothing() -> None:
    async def work(hosts: Hosts) -> None:
        with pytest.raises(RequestRefused, match="slots"):
            await hosts.run(["1", "9"], records=1, connections=9)
        assert (await hosts.run(["4", "4"], records=10))["delivered"]
        await hosts.check_released()

    on_hosts(2, work)


@pytest.mark.slow
def test_records_that_do_not_move_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async def asleep(task: InvokableTask) -> None:
        await task.open_gate()
        task.send({"event": "ready"})
        await trio.sleep_forever()

    async def work(hosts: Hosts) -> None:
        monkeypatch.setattr(invokables, "sink", asleep)
        with pytest.raises(MeasurementFailed, match=r"no record .* 0.5 s: .*source-0 .* 0 records"):
            await hosts.measure(hosts.spec(seconds=0.1), deadlines=replace(FAST, stalled_s=0.5))
        await hosts.check_released()

    on_hosts(2, work)


@pytest.mark.slow
def test_a_task_that_never_gets_ready_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def asleep(task: InvokableTask) -> None:
        await trio.sleep_forever()

    async def work(hosts: Hosts) -> None:
        monkeypatch.setattr(invokables, "sink", asleep)
        limits = MeshDeadlines(setup_s=0.3)
        with pytest.raises(MeasurementFailed, match=r"waiting for .*sink-0 on .*, sink-1 on"):
            await hosts.measure(hosts.spec(records=1), deadlines=limits)
        await hosts.check_released()

    on_hosts(2, work)


@pytest.mark.slow
async def test_a_daemon_that_vanishes_is_named() -> None:
    config = TaskManagerConfig(listen="tcp://127.0.0.1:0", slots=4, allow=("tests.",))
    places: list[str] = []
    async with hosts_open(2) as hosts, trio.open_nursery() as nursery:
        doomed = trio.CancelScope()
        listening = trio.Event()

        async def daemon() -> None:
            with doomed:
                async with open_taskmanager(config) as made:
                    places.append(made.address.partition("://")[2])
                    listening.set()
                    await trio.sleep_forever()

        nursery.start_soon(daemon)
        await listening.wait()
        hosts.addresses.append(places[0])

        def kill_it(progress: RunState) -> None:
            if progress.records:
                doomed.cancel()

        with pytest.raises(MeasurementFailed, match=f"measuring over 3 hosts failed: TaskManager '{places[0]}'"):
            await hosts.measure(hosts.spec(seconds=5), kill_it)
        hosts.addresses.pop()
        await hosts.check_released()
        assert (await hosts.run(records=100))["delivered"], "the others serve the next run"
        nursery.cancel_scope.cancel()


@pytest.mark.slow
def test_cancelling_releases_everything() -> None:
    async def work(hosts: Hosts) -> None:
        with trio.CancelScope() as scope:
            await hosts.measure(hosts.spec(seconds=5), lambda received: received.records and scope.cancel())
        assert scope.cancelled_caught
        await hosts.check_released()
        assert (await hosts.run(records=100))["delivered"]

    on_hosts(2, work)


@pytest.mark.slow
def test_interrupting_releases_everything() -> None:
    async def work(hosts: Hosts) -> None:
        def interrupt(received: RunState) -> None:
            if received.records:
                raise KeyboardInterrupt

        with pytest.raises(BaseExceptionGroup) as caught:
            await hosts.measure(hosts.spec(seconds=5), interrupt)
        assert caught.value.subgroup(KeyboardInterrupt) is not None
        await hosts.check_released()

    on_hosts(2, work)


def test_a_delivery_that_is_not_whole_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forgetful(task: InvokableTask) -> dict[str, Any]:
        result = await honest(task)
        if task.subtask == 1:
            result["deliveries"][0]["records"] -= 1
            result["pairs"][0]["records"] -= 1
        return result

    honest = invokables.sink

    async def work(hosts: Hosts) -> None:
        monkeypatch.setattr(invokables, "sink", forgetful)
        document = await hosts.run(records=1000)
        assert document["delivered"] is False
        assert "delivery: source-0 sent 1000 records, 999 arrived" in document["warnings"]

    on_hosts(2, work)


def test_as_many_daemons_as_hosts() -> None:
    async def work(hosts: Hosts) -> None:
        with pytest.raises(LocalProtocolError, match="1 daemons for 2 hosts"):
            async with open_mesh(MeshSpec(hosts=tuple(hosts.addresses[:1]))) as mesh:
                await measure_mesh(hosts.spec(records=1), mesh)

    on_hosts(2, work)
