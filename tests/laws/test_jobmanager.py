"""Whatever dies, whenever, the JobManager included: no attempt runs twice, no slot is used twice, every job ends."""

from __future__ import annotations

import random
from pathlib import Path

import trio
import trio.testing
from laws.played_taskmanagers import Cluster, Weather, World
from trio_runs import run_virtual

from netstack.schedule.graph.job_file import write_job
from netstack.schedule.graph.settings import RestartSettings
from netstack.schedule.graph.stream_builder import DataStream, StreamEnvironment
from netstack.schedule.graph.stream_graph import GlobalExchangeMode, Partitioner, StreamSettings
from netstack.schedule.slots.slots import LoadBalanceMode

EVERYDAY_SEEDS = 12
LONGEST_S = 20_000.0


def random_job(chance: random.Random, name: str) -> StreamEnvironment:
    """A few sources and operators; each operator reads one or two of those before it."""
    is_batch = chance.random() < 0.4
    settings = StreamSettings(
        is_batch=is_batch,
        exchange_mode=GlobalExchangeMode.ALL_EDGES_BLOCKING if is_batch else GlobalExchangeMode.ALL_EDGES_PIPELINED,
        restart=chance.choice(
            (
                RestartSettings(kind="fixed_delay", delay_s=0.3),
                RestartSettings(kind="exponential", delay_s=0.1, max_delay_s=3.0),
            )
        ),
    )
    job = StreamEnvironment(name, settings=settings)
    streams: list[DataStream] = []
    for number in range(chance.randint(1, 5)):
        parallelism = chance.randint(1, 5)
        if not streams or chance.random() < 0.25:
            streams.append(job.source("a:b", name=f"o{number}").set_parallelism(parallelism))
            continue
        actual = chance.choice(streams).partition_by(
            chance.choice((Partitioner.REBALANCE, Partitioner.RESCALE, Partitioner.BROADCAST))
        )
        made = actual.map("a:b", name=f"o{number}").set_parallelism(parallelism)
        streams.append(made.slot_sharing_group(chance.choice(("default", "default", "other"))))
    return job


def random_weather(chance: random.Random) -> Weather:
    return Weather(
        task_fails=chance.choice((0.0, 0.05, 0.2)),
        taskmanager_dies_every_s=chance.choice((0.0, 2.0, 10.0)),
        jobmanager_dies_every_s=chance.choice((0.0, 5.0, 20.0)),
        is_silent=chance.choice((0.0, 0.5)),
        clears_s=chance.choice((5.0, 40.0)),
    )


async def play(seed: int, folder: Path) -> World:
    chance = random.Random(seed)
    world = World(chance, random_weather(chance), folder)
    slots = chance.randint(1, 3)
    cluster = Cluster(world, slots, -(-24 // slots), {"load_balance": chance.choice([*LoadBalanceMode])})
    jobs = [random_job(chance, f"job-{number}") for number in range(chance.randint(1, 3))]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cluster.play)
        submitted = []
        for job in jobs:
            while cluster.manager is None:
                await cluster.changed.wait()
            submitted.append(await cluster.manager.dispatcher.submit(write_job(job.stream_graph())))
            await trio.sleep(chance.uniform(0.0, 2.0))
        with trio.move_on_after(LONGEST_S) as limit:
            for job_id in submitted:
                while True:
                    while cluster.manager is None:
                        await cluster.changed.wait()
                    record = cluster.manager.dispatcher.records[job_id]
                    if record.end is not None:
                        break
                    with trio.move_on_after(1.0):
                        await record.ended.wait()
                assert record.end["state"] == "finished", record.end
        assert not limit.cancelled_caught, [
            (record.name, record.master and [each.text for each in record.master.log.all()][-5:])
            for record in (cluster.manager.dispatcher.records.values() if cluster.manager else ())
        ]
        await trio.sleep(60.0)
        assert cluster.manager is not None
        assert cluster.manager.slots.free == cluster.manager.slots.total
        assert not [tasks for tm in cluster.alive if (tasks := tm.tasks)]
        assert not cluster.manager.blobs.keys(submitted[0])
        nursery.cancel_scope.cancel()
    return world


def test_every_job_ends_and_nothing_runs_twice(seed: int, tmp_path: Path) -> None:
    run_virtual(play, seed, tmp_path)
