"""`netstack tune` beside a job that runs: it names what holds the job back, and carries out what it proposed."""

from __future__ import annotations

import jobworld
import pytest
import trio

from netstack.cli.tune import tune_lines, tuned
from netstack.cluster.jobmanager.local import open_local_cluster

pytestmark = pytest.mark.slow


@pytest.mark.long
def test_a_job_that_its_sink_holds_back_goes_on_with_more_of_them() -> None:
    async def main() -> None:
        async with open_local_cluster(taskmanagers=1, slots=3) as cluster:
            job_id = await cluster.client.submit(jobworld.held_back_by_its_sink())
            actual = await tuned(cluster.client, job_id, 2.0, True)
            assert actual["before"]["bottleneck"]["reason"] == "busy"
            assert "count is busy" in actual["before"]["bottleneck"]["text"]
            wider = next(each for each in actual["proposals"] if each["setting"] == "parallelism of count")
            assert (wider["before"], wider["after"]) == (1, 3), "as many as there are slots"
            assert actual["after"]["records_per_s"] > actual["before"]["records_per_s"] > 0
            after = await cluster.client.job(actual["new_job_id"])
            assert [each["parallelism"] for each in after["vertices"]] == [1, 3]
            assert after["restored_from"] is not None
            assert (await cluster.client.job(job_id))["state"] == "finished"
            assert f"restarted as {actual['new_job_id']}" in "\n".join(tune_lines(actual))
            await cluster.client.cancel(actual["new_job_id"])

    trio.run(main)
