"""`netstack-bench simulate`: a few seeds, and what a simulation must do: play again, find, shrink, leave nothing."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from bench.cli import main
from bench.simulate import cluster
from bench.simulate.cluster import simulate
from bench.simulate.network import DELAY_S, SCHEME, THIS_HOST, Network, Process
from bench.simulate.operators import Source
from bench.simulate.players import play
from bench.simulate.scenario import KILL, STREAMING, Fault, Scenario, random_scenario, smaller
from bench.simulate.shrink import shrink
from netstack.errors import ConnectionLost
from netstack.transport import ByteStream, provided, transport_for

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
    assert any("goes on after" in event for event in outcome.events)
    assert not any(" restart: " in event or " failure: " in event for event in outcome.events), outcome.events


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


def test_what_is_wrong_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    def restore(self: Source, states: list[int]) -> None:
        self._next = max(0, states[0] - 1)

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
    monkeypatch.setattr(cluster, "LONGEST_S", 20.0)
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
    assert any("cannot be taken up again now" in event for event in outcome.events)
    assert any("is taken up again" in event for event in outcome.events)


def test_every_smaller_scenario_is_another_and_can_be_written_down() -> None:
    for seed in range(20):
        scenario = random_scenario(seed)
        found = [*smaller(scenario)]
        assert scenario not in found
        assert all(Scenario.from_dict(json.loads(json.dumps(each.as_dict()))) == each for each in found)


# ---------------------------------------------------------------------------------------------------------- the network


def virtually(main: Callable[[], Awaitable[None]]) -> None:
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


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


async def like_a_network() -> None:
    network = Network(random.Random(1))
    with provided(SCHEME, network):
        near, far, _, other = await pair(network)
        assert near.try_send([b"a", b"b"]) == 2
        assert received(far) is None
        began_s = trio.current_time()
        await far.wait_readable()
        assert trio.current_time() - began_s == pytest.approx(DELAY_S)
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


async def killed_in_the_middle() -> None:
    network = Network(random.Random(1))
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
    assert "it is no scenario" in capsys.readouterr().err
    assert main(["simulate", "--seeds", "0"]) == 2
