"""`netstack-bench simulate`: a few seeds, and what a simulation must do: play again, find, shrink, leave nothing."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given, strategies as st
from tool_modules import load_tool

from netstack.base.errors import ConnectionLost
from netstack.base.transport import ByteStream, provided, transport_for
from netstack.cluster.control.codec import Message
from netstack.cluster.control.reports import TaskFinished
from netstack.cluster.jobmanager.job_master.job_master import JobMaster
from netstack.cluster.task.recovery import RestoredCheckpoint, RestoredTask
from netstack.testing.simulate import client as user, faults
from netstack.testing.simulate.campaign import play
from netstack.testing.simulate.cluster import Outcome, simulate
from netstack.testing.simulate.determinism import TICK_S, JumpingClock, determined
from netstack.testing.simulate.hosts import Host
from netstack.testing.simulate.network import DELAY_S, SCHEME, THIS_HOST, Network, Process
from netstack.testing.simulate.operators import Source
from netstack.testing.simulate.scenario import (
    ADAPTIVE,
    BLOCKING,
    CANCEL,
    CHECKED,
    HYBRID,
    KILL,
    LIE,
    RESCALE,
    SAVEPOINT,
    SELECTIVE,
    STAGES,
    STREAMING,
    Act,
    Fault,
    Scenario,
    random_scenario,
    smaller,
)
from netstack.testing.simulate.situations import SITUATIONS, missing
from netstack.testing.simulate.worker import shrink
from netstack_bench import simulate as command
from netstack_bench.cli import main
from netstack_bench.simulate import Campaign

PLAYED: dict[str, Any] = {"line": "", "failure": "", "clock_s": 1.0, "deaths": 0, "faults": 0, "situations": {}}

CAMPAIGN = 400
"""So many seeds are to find each of the planted bugs: of 120 small ones three and one have found two of them."""

SMALL = Scenario(
    seed=1,
    taskmanagers=2,
    slots=1,
    movement=STREAMING,
    mode="unaligned",
    interval_s=0.3,
    stages=("map",),
    parallelism=(2, 1, 2, 1),
    records=60,
    keys=7,
    pace_s=0.2,
    batch=3,
    segment_bytes=1024,
    own_network=False,
    debloats=False,
    restart="fixed_delay",
    faults=(
        Fault(at_s=0.4, kind="slow host", host="tm-1", for_s=0.2, amount=3.0),
        Fault(at_s=2.5, kind=KILL, host="tm-0", for_s=0.5),
        Fault(at_s=2.8, kind="cut", host="jobmanager", other="tm-1"),
    ),
)


@pytest.mark.parametrize("seed", [2, 3, 6])
def test_nothing_is_lost_repeated_or_left_whatever_a_seed_thinks_of(seed: int) -> None:
    outcome = simulate(random_scenario(seed))
    assert not outcome.failure, "\n".join((*outcome.events, outcome.detail, outcome.line))


@pytest.mark.parametrize("mode", ["aligned", "unaligned"])
def test_links_that_are_cut_ten_times_cost_no_restart_where_connections_go_on(mode: str) -> None:
    cuts = tuple(Fault(at_s=0.8 + 0.15 * turn, kind="cut", host="tm-0", other="tm-1") for turn in range(10))
    outcome = simulate(replace(SMALL, mode=mode, faults=cuts, resume_grace_s=2.0))
    assert not outcome.failure, "\n".join((*outcome.events, outcome.detail, outcome.line))
    assert any("was resumed after" in event for event in outcome.events)
    assert not any(" restart: " in event or " failure: " in event for event in outcome.events), outcome.events


def test_a_job_that_a_failure_keeps_from_stopping_with_its_savepoint_says_so() -> None:
    """Its sinks fail when they commit: the job restarts, and one that starts from the savepoint would repeat."""
    stops = tuple(Act(at_s=at_s, kind=RESCALE, widths=(2, 2, 2, 2)) for at_s in (0.15, 0.6))
    outcome = simulate(replace(SMALL, interval_s=3.0, faults=(), acts=stops, bad_commits=1))
    assert not outcome.failure, outcome.line
    assert any(re.search("refused: job .* is starting", event) for event in outcome.events), outcome.events
    assert any("did not stop with its savepoint" in event for event in outcome.events), outcome.events


@pytest.mark.long
@pytest.mark.parametrize("first", range(1000, 1200, 50))
def test_nothing_is_lost_repeated_or_left_in_many_seeds(first: int) -> None:
    failed = [each for each in play(({"seed": seed} for seed in range(first, first + 50)), 1) if each["failure"]]
    assert not failed, "\n".join((*failed[0]["events"], *(each["line"] for each in failed)))


def test_a_seed_is_the_same_scenario_and_the_same_run_in_every_process() -> None:
    asked: list[dict[str, Any]] = [{"scenario": SMALL.as_dict()}, {"scenario": SMALL.as_dict()}]
    one, other = play(asked, 2)
    assert one["line"] == other["line"]
    assert (one["deaths"], one["failure"]) == (1, "")
    assert Scenario.from_dict(json.loads(json.dumps(SMALL.as_dict()))) == SMALL
    assert random_scenario(7) == random_scenario(7) != random_scenario(8)


def test_a_job_with_its_own_network_stores_partitions_in_the_folder_of_its_taskmanager() -> None:
    """They were in the system's temporary folder, which events showed, with the number of the process."""
    full = Fault(at_s=0.1, kind="disk full", host="tm-0", for_s=1.0)
    job = replace(SMALL, movement=BLOCKING, own_network=True, records=800, batch=40, pace_s=0.05, faults=(full,))
    outcome = simulate(job)
    assert not outcome.failure, "\n".join((*outcome.events, outcome.line))
    assert any(re.search(r"ShuffleStorageError: /shuffle/netstack-shuffle-\w+/", each) for each in outcome.events)


def test_what_is_wrong_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    def restore(self: Source, states: list[list[list[int]]]) -> None:
        self._next = {split: max(0, number - 1) for state in states for split, number in state}

    monkeypatch.setattr(Source, "restore", restore)  # a source that goes back one record too far
    outcome = simulate(SMALL)
    assert "keys are wrong" in outcome.failure
    assert any("FAULT" in event for event in outcome.events)
    small, played = shrink(outcome, simulate, attempts=3)
    assert small.failure
    assert 0 < played <= 3
    assert len(small.scenario.faults) < len(SMALL.faults)


def test_a_job_that_never_ends_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(self: Source) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(Source, "read", read)
    monkeypatch.setattr(user, "LONGEST_S", 20.0)
    outcome = simulate(replace(SMALL, faults=(), interval_s=100.0))
    assert "has not ended" in outcome.failure


def test_a_job_waits_for_a_full_disk_when_its_jobmanager_comes_back() -> None:
    """It was ended as a failure, although its checkpoints were sound and there was room a moment later."""
    faults = (
        Fault(at_s=2.5, kind="disk full", host="jobmanager", for_s=6.0),
        Fault(at_s=2.6, kind=KILL, host="jobmanager", for_s=0.3),
    )
    outcome = simulate(replace(SMALL, faults=faults))
    assert not outcome.failure, "\n".join((*outcome.events, outcome.line))
    assert any("cannot be taken up" in event for event in outcome.events)
    assert any("taken up again" in event for event in outcome.events)


def test_a_job_that_is_canceled_while_it_waits_for_a_full_disk_never_runs_again() -> None:
    """There was room for it to be taken up before there was for its end: it ran, and committed, beside the next job."""
    faults = (
        Fault(at_s=0.72, kind="disk full", host="jobmanager", for_s=3.515),
        Fault(at_s=1.18, kind="stop", host="jobmanager", for_s=1.46),
    )
    scenario = replace(SMALL, slots=2, parallelism=(1, 1, 1, 1), faults=faults, acts=(Act(at_s=0.925, kind=CANCEL),))
    outcome = simulate(scenario)
    assert not outcome.failure, "\n".join((*outcome.events, outcome.line))
    assert any("canceled before it" in event for event in outcome.events)
    assert not any(event.endswith(") taken up again") for event in outcome.events), "\n".join(outcome.events)


def test_a_job_restarts_only_when_its_checkpoint_is_stored() -> None:
    """Tasks restarted without a checkpoint that was being stored; later both commits of a record were made."""
    kills = tuple(Fault(at_s=at_s, kind=KILL, host="tm-0", for_s=0.1) for at_s in (1.8, 7.5, 13.3))
    slow = Fault(at_s=0.45, kind="disk slow", host="jobmanager", for_s=8.0, amount=3.0)
    job = replace(SMALL, taskmanagers=1, movement=CHECKED, mode="aligned", stages=(), parallelism=(1, 1, 1))
    outcome = simulate(replace(job, records=20, pace_s=0.075, batch=1, faults=(slow, *kills)))
    assert not outcome.failure, "\n".join((*outcome.events, outcome.line))
    assert any(event.endswith("checkpoint 1 is complete") for event in outcome.events)


# ------------------------------------------------------------------------------------------------------- what users do

CALM = replace(SMALL, faults=(), taskmanagers=3, parallelism=(2, 2, 2, 2))


def played(scenario: Scenario, *situations: str) -> Outcome:
    """One that has to come out well, and to these situations."""
    outcome = simulate(scenario)
    assert not outcome.failure, "\n".join((*outcome.events, outcome.detail, outcome.line))
    assert not [each for each in situations if not outcome.situations.get(each)], outcome.situations
    return outcome


@pytest.mark.whole
@pytest.mark.parametrize("movement", [STREAMING, BLOCKING, HYBRID, SELECTIVE, ADAPTIVE])
@pytest.mark.parametrize("stage", sorted({*STAGES}))
def test_every_stage_is_exact_in_every_movement(movement: str, stage: str) -> None:
    situations = ("mistakes of users",) if stage == "mistake" else ()
    played(replace(CALM, movement=movement, stages=(stage,), records=40, batch=8, pace_s=0.0), *situations)


@pytest.mark.parametrize(
    ("act", "situation"),
    [
        (Act(at_s=2.0, kind=SAVEPOINT), "savepoints"),
        (
            Act(at_s=2.0, kind=RESCALE, widths=(1, 3, 3, 1)),
            "jobs that go on from a savepoint with another parallelism",
        ),
        (Act(at_s=2.0, kind=CANCEL), "cancelled jobs that begin again from a checkpoint"),
    ],
    ids=lambda each: each.kind if isinstance(each, Act) else "",
)
def test_what_a_user_does_to_a_job_leaves_its_result_exact(act: Act, situation: str) -> None:
    played(replace(CALM, acts=(act, replace(act, at_s=3.0))), situation)


def test_records_in_flight_are_read_as_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart gave lists to operators that take arrays, and records counted twice."""
    in_flight: list[int] = []
    of = RestoredCheckpoint.of

    def noted(self: RestoredCheckpoint, *arguments: Any) -> RestoredTask:
        restored = of(self, *arguments)
        in_flight.append(sum(map(len, restored.records)))
        return restored

    monkeypatch.setattr(RestoredCheckpoint, "of", noted)
    faults = [Fault(at_s=0.1, kind="slow host", host=f"tm-{n}", for_s=9.0, amount=30.0) for n in range(3)]
    faults += [Fault(at_s=1.2 + n, kind=KILL, host=f"tm-{n}", for_s=0.2) for n in range(3)]  # one is idle
    job = replace(CALM, slots=1, stages=("arrays",), records=400, batch=40, pace_s=0.0, segment_bytes=256)
    played(replace(job, faults=tuple(faults)), "operators that take arrays")
    assert any(in_flight)


def test_two_jobs_run_beside_each_other() -> None:
    played(replace(CALM, has_second=True), "second jobs")


def test_a_commit_that_fails_is_made_again() -> None:
    played(replace(CALM, bad_commits=2), "commits that fail", "commits behind the end of the input")


def test_a_slow_task_gets_a_second_attempt() -> None:
    slow = Fault(at_s=0.1, kind="slow host", host="tm-1", for_s=9.0, amount=30.0)
    scenario = replace(CALM, movement=BLOCKING, speculates=True, parallelism=(3, 2, 2, 2), faults=(slow,))
    played(scenario, "second attempts of slow tasks", "tasks that are sent to no slow host")


def test_nothing_comes_of_the_lies_of_a_taskmanager() -> None:
    lies = tuple(Fault(at_s=1.5 + 0.25 * turn, kind=LIE, host=f"tm-{turn % 2}") for turn in range(8))
    outcome = played(replace(SMALL, faults=(SMALL.faults[1], *lies)), "lies", "reports of attempts that are over")
    assert outcome.situations["TaskManagers that are shut out for a lie"]


def test_an_adaptive_task_that_does_not_say_what_it_wrote_ends_its_teller_and_not_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job broke in the JobManager."""

    def own(master: JobMaster, taskmanager: str, _: random.Random) -> Iterator[Message]:
        for number, slot in master.tasks.places.items():
            attempt = (*master.scheduler.topology.place_of(number), master.scheduler.attempt(number))
            if slot.location.taskmanager == taskmanager:
                yield TaskFinished(master.job_id, attempt, (), {}, None)

    monkeypatch.setattr(faults, "lies", own)
    lie = Fault(at_s=1.0, kind=LIE, host="tm-0")
    outcome = played(replace(CALM, movement=ADAPTIVE, taskmanagers=1, slots=2, pace_s=1.0, faults=(lie,)), "lies")
    assert outcome.situations["TaskManagers that are shut out for a lie"]


@pytest.mark.whole
def test_a_link_is_cut_while_bytes_are_under_way() -> None:
    cuts = tuple(
        Fault(at_s=0.5 * turn, kind="cut", host="tm-0", other="tm-1", for_s=1.0, amount=10.0) for turn in range(8)
    )
    situation = "connections that go on and send bytes again"
    played(replace(CALM, is_placed=True, records=400, resume_grace_s=4.0, faults=cuts), situation)


def test_a_producer_does_not_end_because_its_slow_consumer_lost_the_connection() -> None:
    """The consumer had records in hand, and was told to take a checkpoint without them: its producers had ended."""
    slow = [Fault(at_s=0.1, kind="slow host", host=f"tm-{number}", for_s=60.0, amount=30.0) for number in range(2)]
    cut = Fault(at_s=0.8, kind="cut", host="tm-0", other="tm-1", for_s=0.001, amount=1.0)
    job = replace(CALM, mode="aligned", taskmanagers=2, parallelism=(1, 1, 1, 1), pace_s=0.0, is_placed=True)
    played(replace(job, bad_commits=1, segment_bytes=4096, faults=(*slow, cut)), "commits that fail")


@pytest.mark.long
@pytest.mark.parametrize(
    "name",
    [
        "kept: a buffer is dropped when a channel is read again",
        "sessions: a resumed connection skips what fits one write",
        "failover: the report of an attempt that is over is taken",
    ],
)
def test_a_campaign_finds_a_planted_bug(name: str, tmp_path: Path) -> None:
    """No test of a module is needed: the world of the simulation comes to where each of them matters."""
    mutants = load_tool("mutants")
    (mutant,) = (each for each in mutants.read_mutants(mutants.ROOT / "tests" / "mutants") if each.name == name)
    shutil.copytree(mutants.ROOT / "netstack", tmp_path / "netstack", ignore=mutants.LEFT_OUT)
    planted = tmp_path / mutant.file
    planted.write_text(mutant.planted(planted.read_text()))
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "NETSTACK_PURE": "1"}
    words = ["simulate", "--from", "7000000", "--seeds", str(CAMPAIGN), "--shrink", "0", "--json"]
    command = [sys.executable, "-P", "-m", "netstack_bench", *words]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert json.loads(done.stdout)["failed"]


def test_a_campaign_that_misses_a_situation_says_which(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "LEAST_SEEDS", 2)
    assert main(["simulate", "--seeds", "2", "--processes", "1"]) == 1
    assert "never reached: " in capsys.readouterr().out
    assert missing(dict.fromkeys(SITUATIONS, 1)) == []


@given(st.permutations(range(40, 60)), st.integers(0, 20))
def test_a_campaign_knows_from_which_seed_it_can_go_on(order: list[int], played: int) -> None:
    campaign = Campaign(40)
    for seed in order[:played]:
        campaign.add({**PLAYED, "seed": seed})
    left = set(range(40, 60)) - set(order[:played])
    assert campaign.next_seed == min(left, default=60)
    assert campaign.document([])["simulations"] == campaign.played == played


def test_a_campaign_in_which_everything_fails_stays_small() -> None:
    campaign = Campaign(0)
    whole = {"failure": "no", "line": "seed 0: no", "scenario": {}, "events": ["a line"] * 100, "detail": "a traceback"}
    for seed in range(1_000):
        campaign.add({**PLAYED, **whole, "seed": seed})
    failed = campaign.document([])["failed"]
    assert len(failed) == 1_000
    assert sum("events" in each for each in failed) == 100


def test_nothing_runs_in_a_thread() -> None:
    with determined(1), pytest.raises(AssertionError, match="would run in a thread"):
        trio.run(trio.to_thread.run_sync, print)


@pytest.mark.whole
def test_the_clock_jumps_to_deadlines_and_stops_what_has_no_end() -> None:
    why: list[str] = []

    async def main() -> float:
        with trio.CancelScope() as scope:
            why.append("")
            clock._give_up = lambda text: (why.append(text), scope.cancel())[0]
            await trio.sleep(3600.0)
            while True:
                await trio.lowlevel.checkpoint()
        return trio.current_time()

    clock = JumpingClock(why.append)
    assert trio.run(main, clock=clock) == 3600.0
    assert "no end" in why[-1]


def test_a_sleep_that_was_cancelled_moves_no_clock() -> None:
    async def main() -> tuple[float, float]:
        with trio.move_on_after(1.0):
            await clock.sleep(5.0)
        cancelled_s = trio.current_time()
        await clock.sleep(0.0)
        await clock.sleep(2.0)
        return cancelled_s, trio.current_time()

    clock = JumpingClock(pytest.fail)
    assert trio.run(main, clock=clock) == (1.0, 3.0)


def test_a_host_that_is_being_stopped_takes_no_requests() -> None:
    virtually(stopped_slowly)


async def stopped_slowly(network: Network) -> None:
    @asynccontextmanager
    async def service() -> AsyncIterator[str]:
        try:
            yield "service"
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1.0)

    host = Host("one", network, service, lambda text: None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.live)
        await trio.sleep(1.0)
        assert host.is_up
        host.stop(for_s=2.0)
        await trio.sleep(0.5)
        assert (host.service, host.is_up) == ("service", False)
        await trio.sleep(2.0)
        assert host.is_up
        nursery.cancel_scope.cancel()


def test_most_scenarios_are_small_and_some_are_big() -> None:
    actual = [random_scenario(seed) for seed in range(2_000)]
    big = [each for each in actual if each.records > 200 and each.taskmanagers > 1]
    assert 20 < len(big) < 300
    assert sum(max(each.parallelism) <= 2 and each.taskmanagers <= 3 for each in actual) > 1_400
    assert {each.taskmanagers for each in actual} == {1, 2, 3, 4}


def test_every_smaller_scenario_is_another_and_can_be_written_down() -> None:
    for seed in range(20):
        scenario = random_scenario(seed)
        actual = [*smaller(scenario)]
        assert scenario not in actual
        assert all(Scenario.from_dict(json.loads(json.dumps(each.as_dict()))) == each for each in actual)


# ---------------------------------------------------------------------------------------------------------- the network


def virtually(main: Callable[[Network], Awaitable[None]]) -> None:
    clock = JumpingClock(pytest.fail)
    trio.run(main, Network(random.Random(1), clock.call_at), clock=clock)


async def pair(network: Network) -> tuple[ByteStream, ByteStream, Process, Process]:
    one, other = Process("one"), Process("other")
    address = f"{SCHEME}://other:1"
    THIS_HOST.set(other)
    listener = await transport_for(address).listen(address)
    THIS_HOST.set(one)
    near = await transport_for(address).connect(address)
    return near, await listener.accept(), one, other


def received(stream: ByteStream) -> bytes | None:
    window = memoryview(bytearray(100))
    count = stream.try_receive_into([window])
    return None if count is None else bytes(window[:count])


def test_the_simulated_network_is_a_network() -> None:
    virtually(like_a_network)


async def like_a_network(network: Network) -> None:
    with provided(SCHEME, network):
        near, far, _, other = await pair(network)
        assert near.try_send([b"a", b"b"]) == 2
        assert received(far) is None
        began_s = trio.current_time()
        await far.wait_readable()
        assert trio.current_time() - began_s == pytest.approx(DELAY_S, abs=TICK_S)
        assert received(far) == b"ab"
        network.stall("one", "other")  # half of the link
        near.try_send([b"c"])
        far.try_send([b"d"])
        await trio.sleep(5.0)
        assert (received(far), received(near)) == (None, b"d")
        network.heal("one", "other")
        assert received(far) == b"c"
        network.died(other, silently=True)  # nobody is told
        assert near.try_send([b"e"]) == 1
        await trio.sleep(5.0)
        assert received(near) is None
        with pytest.raises(ConnectionLost):
            await transport_for(SCHEME + "://").connect(f"{SCHEME}://other:1")


def test_a_killed_process_resets_its_connections() -> None:
    virtually(killed_in_the_middle)


async def killed_in_the_middle(network: Network) -> None:
    with provided(SCHEME, network):
        near, far, _, other = await pair(network)
        far.try_send([b"lost"])
        network.died(other, silently=False)
        await near.wait_readable()
        assert received(near) == b""
        with pytest.raises(ConnectionLost):
            near.try_send([b"f"])
        near.close()
        far.close()
        assert not network.streams


# ---------------------------------------------------------------------------------------------------------- the command


def test_the_command_plays_seeds_and_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "one.json"
    file.write_text(json.dumps(replace(SMALL, seed=3, faults=()).as_dict()))
    assert main(["simulate", "--scenario", os.fspath(file)]) == 0
    assert "seed 3 [" in capsys.readouterr().out
    file.write_text("[]")
    assert main(["simulate", "--scenario", os.fspath(file)]) == 2
    assert "not a scenario" in capsys.readouterr().err
    assert main(["simulate", "--seeds", "0"]) == 2
