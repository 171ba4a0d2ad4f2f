"""Wide jobs in real processes: thousands of tasks start, and nobody loses a heartbeat over it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from netstack import StreamEnvironment
from netstack.jobmanager.local import open_local_cluster
from netstack.schedule.slots.slots import LoadBalanceMode

pytestmark = pytest.mark.long

PARALLELISM = 5_000
TASKMANAGERS = 4


@pytest.fixture(autouse=True)
def jobworld_is_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


def test_ten_thousand_tasks_run_on_four_taskmanagers() -> None:
    job = StreamEnvironment("wide", parallelism=PARALLELISM, max_parallelism=PARALLELISM)
    numbers = job.source("jobworld:Numbers", name="source", parameters={"count": 10**9, "per_s": 0.05})
    numbers.forward().sink("jobworld:Count", name="count").start_new_chain()

    async def main() -> dict[str, Any]:
        slots = -(-PARALLELISM // TASKMANAGERS)
        async with open_local_cluster(
            taskmanagers=TASKMANAGERS, slots=slots, memory_bytes=1 << 30, load_balance=LoadBalanceMode.SLOTS
        ) as cluster:
            job_id = await cluster.client.submit(job)
            with trio.fail_after(240):
                while (found := await cluster.client.job(job_id))["tasks"] != {"running": 2 * PARALLELISM}:
                    assert found["state"] == "running", found["reason"]
                    await trio.sleep(0.5)
            await cluster.client.cancel(job_id)
            return found

    found = trio.run(main)
    assert found["restarts"] == 0
    assert not [entry["text"] for entry in found["log"] if entry["what"] == "taskmanager"]
    homes = [task["taskmanager"] for vertex in found["vertices"] for task in vertex["subtasks"]]
    assert {homes.count(name) for name in set(homes)} == {2 * PARALLELISM // TASKMANAGERS}
