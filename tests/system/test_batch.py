"""Batch jobs on real processes: stage after stage, as wide as what was written asks for; the lost alone runs again."""

from __future__ import annotations

import math
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import batch_jobs
import pytest
import trio
from kept_files import kept_files
from process_tree import slots_of
from trio.testing import trio_test

from netstack.base.config import MIB, NetworkConfig
from netstack.base.errors import JobFailed, NetstackError
from netstack.cluster.jobmanager.config import JobManagerConfig
from netstack.cluster.jobmanager.local import LocalCluster, open_local_cluster
from netstack.examples import batch_word_count
from netstack.schedule.graph.settings import AdaptiveSettings, SpeculationSettings
from netstack.schedule.graph.stream_builder import StreamEnvironment
from netstack.schedule.graph.stream_graph import GlobalExchangeMode

pytestmark = pytest.mark.slow
PATIENCE_S = 180.0


async def run(cluster: LocalCluster, job: StreamEnvironment) -> tuple[Any, dict[str, Any]]:
    """The results of its sinks, and its vertices by name."""
    job_id = await cluster.client.submit(job.stream_graph())
    result = await cluster.wait(job_id)
    document = await cluster.client.job(job_id)
    return result.results, {vertex["name"]: vertex for vertex in document["vertices"]}


def text_of(path: Path, words: int) -> Counter[str]:
    text = [f"word{number * number % 997}" for number in range(words)]
    path.write_text("\n".join(" ".join(text[start : start + 9]) for start in range(0, words, 9)))
    return Counter(text)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():  # noqa: ASYNC110 - it is asked for over a connection
        await trio.sleep(0.05)


@pytest.mark.whole
@trio_test
async def test_parallelism_follows_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is ten times as large is counted by more; what each reads, and why, is told."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    volume, decided = 20_000, []
    with trio.fail_after(PATIENCE_S):
        async with open_local_cluster(taskmanagers=2, slots=1) as cluster:
            for words in (5_000, 50_000):
                counts = text_of(tmp_path / "text", words)
                results, vertices = await run(cluster, batch_word_count(str(tmp_path / "text"), volume=volume))
                actual = results["top"][0]
                assert actual["words"] == words
                assert all(counts[word] == count for word, count in actual["top"])
                count = vertices["count"]
                why = count["decided"]
                (given,) = why["inputs"]
                # The framed bytes of each word: a msgpack string behind its length.
                assert given["bytes"] == sum((4 + 1 + len(word)) * times for word, times in counts.items())
                assert f"ceil({given['bytes']} / {volume}) = {math.ceil(given['bytes'] / volume)}" in why["steps"][1]
                assert sum(why["bytes_per_subtask"]) == given["bytes"]
                assert len(why["bytes_per_subtask"]) == count["parallelism"] == len(count["subtasks"])
                assert max(why["bytes_per_subtask"]) <= volume
                (first, *_), *_, (*_, last) = given["reads"]
                assert (first["subpartitions"][0], last["subpartitions"][1]) == (0, 127)
                decided.append(count["parallelism"])
            assert decided[0] >= 3
            assert decided[1] > 5 * decided[0]
            assert not kept_files(tmp_path, "*.data"), "the results of a job that has ended"


@pytest.mark.whole
@trio_test
async def test_what_a_job_leaves_open_the_jobmanager_has_settings_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    config = JobManagerConfig(adaptive=AdaptiveSettings(data_volume_per_task_bytes=1, max_parallelism=3))
    with trio.fail_after(PATIENCE_S):
        async with open_local_cluster(taskmanagers=1, slots=1, jobmanager=config) as cluster:
            results, vertices = await run(cluster, batch_jobs.told())
            assert results["result"] == {0: batch_jobs.expected()}
            assert [vertex["parallelism"] for vertex in vertices.values()] == [3, 3, 1]


@pytest.mark.whole
@trio_test
async def test_skewed_keys_are_shared_out_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    ratios = {}
    with trio.fail_after(PATIENCE_S):
        async with open_local_cluster(taskmanagers=1, slots=2) as cluster:
            for is_rounded in (True, False):
                _, vertices = await run(cluster, batch_jobs.skewed_sums(is_rounded=is_rounded))
                read = vertices["sums"]["decided"]["bytes_per_subtask"]
                assert len(read) == (8 if is_rounded else 9)
                ratios[is_rounded] = max(read) / min(read)
    assert ratios[False] < 2
    assert ratios[True] > 5


@pytest.mark.whole
@trio_test
async def test_a_job_of_any_width_runs_on_one_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocking: stage after stage; hybrid: nobody needs the next stage to go on."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with trio.fail_after(PATIENCE_S):
        async with open_local_cluster(taskmanagers=1, slots=1) as cluster:
            for mode in (
                GlobalExchangeMode.ALL_EDGES_BLOCKING,
                GlobalExchangeMode.ALL_EDGES_HYBRID_FULL,
                GlobalExchangeMode.ALL_EDGES_HYBRID_SELECTIVE,
            ):
                results, vertices = await run(cluster, batch_jobs.sums(parallelism=7, mode=mode))
                assert results["result"] == {0: batch_jobs.expected()}
                assert [vertex["parallelism"] for vertex in vertices.values()] == [7, 7, 1]


@pytest.mark.whole
@pytest.mark.parametrize("mode", ["hybrid_full", "hybrid_selective"])
@trio_test
async def test_hybrid_readers_start_beside_their_producers_where_there_are_slots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """With four slots the producers go on only because a reader has got something; with two it waits, and is told."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    exchange = GlobalExchangeMode(f"all_edges_{mode}")
    gate = tmp_path / "gate"
    with trio.fail_after(PATIENCE_S):
        async with open_local_cluster(taskmanagers=2, slots=2) as cluster:
            results, _ = await run(cluster, batch_jobs.halves(exchange, str(gate), seen=str(gate)))
            assert sum(results["counts"].values()) == 160_000
            gate.unlink()
        async with open_local_cluster(taskmanagers=2, slots=1) as cluster:
            job_id = await cluster.client.submit(
                batch_jobs.halves(exchange, str(gate), seen=str(tmp_path / "seen")).stream_graph()
            )

            async def is_half_running() -> bool:
                actual = await cluster.client.job(job_id)
                states = [[subtask["state"] for subtask in vertex["subtasks"]] for vertex in actual["vertices"]]
                reported = [entry["text"] for entry in actual["log"] if entry["what"] == "slots"]
                return states == [["running"] * 2, ["scheduled"] * 2] and "missing slots: 2" in reported[-1]

            await until(is_half_running)
            assert not (tmp_path / "seen").exists()
            gate.touch()
            result = await cluster.wait(job_id)
            assert sum(result.results["counts"].values()) == 160_000


@trio_test
async def test_inputs_are_read_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second source ends only after its reader has had a record of the first one."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with trio.fail_after(PATIENCE_S):
        async with open_local_cluster(taskmanagers=1, slots=3) as cluster:
            results, _ = await run(cluster, batch_jobs.either(str(tmp_path / "gate")))
            assert results["both"] == {0: 80_010}


@pytest.mark.whole
@trio_test
async def test_the_scheduling_types_before_regions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with what it can be had with; what cannot work is refused at submit."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    pipelined, blocking = GlobalExchangeMode.ALL_EDGES_PIPELINED, GlobalExchangeMode.ALL_EDGES_BLOCKING
    hybrid = GlobalExchangeMode.ALL_EDGES_HYBRID_FULL
    pairs = [
        ("all_at_once", pipelined, "any"),
        ("all_at_once", hybrid, "any"),
        ("next_stage_on_first_output", pipelined, "all"),
        ("next_stage_on_complete_output", blocking, "all"),
        ("next_stage_on_complete_output", hybrid, "any"),
    ]
    with trio.fail_after(PATIENCE_S):
        async with open_local_cluster(taskmanagers=2, slots=4) as cluster:
            for scheduling, mode, constraint in pairs:
                job = batch_jobs.sums(2, mode=mode, scheduling=scheduling, constraint=constraint)
                results, _ = await run(cluster, job)
                assert results["result"] == {0: batch_jobs.expected()}
            for scheduling, mode in (("all_at_once", blocking), ("next_stage_on_complete_output", pipelined)):
                with pytest.raises(NetstackError, match=f"scheduling={scheduling}"):
                    await run(cluster, batch_jobs.sums(2, mode=mode, scheduling=scheduling))


@pytest.mark.whole
@trio_test
async def test_the_disk_is_given_back_after_a_cancel_and_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a canceled job had written goes at once; what a killed TaskManager had, when it is started again."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    gate = tmp_path / "gate"
    with trio.fail_after(PATIENCE_S):
        async with open_local_cluster(taskmanagers=2, slots=1) as cluster:
            client = cluster.client

            async def begin() -> str:
                """A job of two stages, of which the first is on disk and the second waits."""
                job_id = await client.submit(batch_jobs.sums(parallelism=2, gate=str(gate)).stream_graph())

                async def is_running() -> bool:
                    return bool((await client.job(job_id))["vertices"][1]["subtasks"][0]["state"] == "running")

                await until(is_running)
                return job_id

            async def is_clean() -> bool:
                return not kept_files(tmp_path)

            job_id = await begin()
            assert kept_files(tmp_path, "*.data")
            assert await client.cancel(job_id) == "canceled"
            assert await is_clean(), "when a job has ended, nothing of it is left"
            job_id = await begin()
            os.kill((await client.taskmanagers())[0]["pid"], signal.SIGKILL)
            gate.touch()
            result = await cluster.wait(job_id)
            assert result.results["result"] == {0: batch_jobs.expected()}
            await until(is_clean)


@pytest.mark.whole
@pytest.mark.parametrize(
    ("mode", "network"),
    [
        ("blocking", None),
        ("hybrid_full", None),
        ("blocking", NetworkConfig(memory_bytes=4 * MIB, segment_size_bytes=4096)),  # of the job's own
    ],
)
@trio_test
async def test_a_killed_slot_costs_no_result_that_it_had_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, network: NetworkConfig | None
) -> None:
    """Both producers have finished and both consumers run in the same slots, when these are killed."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    gate = tmp_path / "gate"
    with trio.fail_after(PATIENCE_S):
        async with open_local_cluster(taskmanagers=1, slots=2) as cluster:
            client = cluster.client
            exchange = GlobalExchangeMode(f"all_edges_{mode}")
            job = batch_jobs.sums(parallelism=2, mode=exchange, gate=str(gate), network=network)
            job_id = await client.submit(job.stream_graph())

            async def subtasks(vertex: str) -> list[Any]:
                return next(
                    each["subtasks"] for each in (await client.job(job_id))["vertices"] if each["name"] == vertex
                )

            async def has_read() -> bool:
                actual = await subtasks("sums")
                return [each["state"] for each in actual] == ["running", "running"] and not any(
                    each["state"] != "finished" for each in await subtasks("numbers")
                )

            async def is_restarted() -> bool:
                return [each["attempt"] for each in await subtasks("sums")] == [1, 1]

            await until(has_read)
            for pid in slots_of((await client.taskmanagers())[0]["pid"]):
                os.kill(pid, signal.SIGKILL)
            await until(is_restarted)
            gate.touch()
            result = await cluster.wait(job_id)
            assert result.results["result"] == {0: batch_jobs.expected()}
            assert [each["attempt"] for each in await subtasks("numbers")] == [0, 0], "what they wrote is still there"
            assert not kept_files(tmp_path)
        assert not kept_files(tmp_path, "lock")


@pytest.mark.whole
@trio_test
async def test_what_a_killed_slot_had_not_finished_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While its TaskManager stays, and serves what an earlier job left in the same folder."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with trio.fail_after(PATIENCE_S):
        async with open_local_cluster(taskmanagers=1, slots=1) as cluster:
            await run(cluster, batch_jobs.keeps("numbers"))
            kept = kept_files(tmp_path)
            job_id = await cluster.client.submit(batch_jobs.never_sealed().stream_graph())
            while len(kept_files(tmp_path)) == len(kept):  # noqa: ASYNC110 - another process writes them
                await trio.sleep(0.02)
            for pid in slots_of((await cluster.client.taskmanagers())[0]["pid"]):
                os.kill(pid, signal.SIGKILL)
            with pytest.raises(JobFailed, match="SIGKILL"):
                await cluster.wait(job_id)
            while set(kept_files(tmp_path)) != set(kept):  # noqa: ASYNC110
                await trio.sleep(0.02)


@pytest.mark.whole
@trio_test
async def test_a_slow_host_gets_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of three is stuck: its task runs again elsewhere, and nobody waits for it, nor keeps what it wrote."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    speculation = SpeculationSettings(check_interval_s=0.1, baseline_lower_bound_s=0.2, baseline_ratio=0.5)
    with trio.fail_after(PATIENCE_S):
        async with open_local_cluster(taskmanagers=3, slots=1, slots_in="loop") as cluster:
            job = batch_jobs.slow_sums(str(tmp_path / "slow"), speculation)
            job_id = await cluster.client.submit(job.stream_graph())
            result = await cluster.wait(job_id)
            actual = await cluster.client.job(job_id)
            assert result.results["result"] == {0: batch_jobs.expected()}
            sums = next(vertex for vertex in actual["vertices"] if vertex["name"] == "sums")["subtasks"]
            pids = {each["name"]: each["pid"] for each in await cluster.client.taskmanagers()}
            slow = (tmp_path / "slow").read_text()
            assert len([each for each in sums if each["attempt"]]) == 1
            assert all(str(pids[each["taskmanager"]]) != slow for each in sums)
            assert actual["restarts"] == 0
            assert (actual["speculation"]["won"], actual["speculation"]["failed"]) == (1, 0)
            assert [pids[name] for name in actual["speculation"]["blocked"]] == [int(slow)]
            assert {entry["what"] for entry in actual["log"]} >= {"speculation", "blocklist"}
            assert not kept_files(tmp_path, "*.data"), "of the one that lost, too"


@pytest.mark.whole
@trio_test
async def test_a_lost_host_costs_only_its_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both producers have finished and both consumers run, each kind on either host, when one is killed."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    gate = tmp_path / "gate"
    with trio.fail_after(PATIENCE_S):
        async with open_local_cluster(taskmanagers=2, slots=1) as cluster:
            client = cluster.client
            job_id = await client.submit(batch_jobs.sums(parallelism=2, gate=str(gate)).stream_graph())

            async def vertices() -> dict[str, Any]:
                return {vertex["name"]: vertex for vertex in (await client.job(job_id))["vertices"]}

            async def are_running() -> bool:
                return [each["state"] for each in (await vertices())["sums"]["subtasks"]] == ["running", "running"]

            async def is_restarted() -> bool:
                return any(each["attempt"] for each in (await vertices())["sums"]["subtasks"])

            await until(are_running)
            producers = (await vertices())["numbers"]["subtasks"]
            assert [each["state"] for each in producers] == ["finished", "finished"]
            lost = producers[0]["taskmanager"]
            (pid,) = [each["pid"] for each in (await client.taskmanagers()) if each["name"] == lost]
            mine = [each["taskmanager"] == lost for each in producers]
            os.kill(pid, signal.SIGKILL)
            await until(is_restarted)
            gate.touch()
            result = await cluster.wait(job_id)
            actual = await vertices()
    assert result.results["result"] == {0: batch_jobs.expected()}
    assert [bool(each["attempt"]) for each in actual["numbers"]["subtasks"]] == mine
    assert not actual["result"]["subtasks"][0]["attempt"]
