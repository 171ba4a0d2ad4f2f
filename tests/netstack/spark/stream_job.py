"""A job that feeds Spark: `stream_job:numbers`, numbers in order over a channel into a stream of epochs."""

from __future__ import annotations

from netstack import CheckpointSettings, RestartSettings, StreamEnvironment, StreamSettings


def numbers(address: str, folder: str, count: int, per_s: float = 500.0) -> StreamEnvironment:
    settings = StreamSettings(
        checkpoints=CheckpointSettings(interval_s=0.3), restart=RestartSettings(kind="fixed_delay", delay_s=0.1)
    )
    job = StreamEnvironment("numbers for spark", parallelism=1, max_parallelism=128, settings=settings)
    source = job.source("jobworld:Numbers", name="numbers", parameters={"count": count, "per_s": per_s})
    rows = source.key_by("jobworld:key_of").process("stream_job:pass_on", name="pass on").slot_sharing_group("behind")
    parameters = {"address": address, "stream": "numbers", "folder": folder, "columns": {"id": "int64"}}
    rows.sink("netstack.spark.publish_rows:PublishRows", name="to spark", **parameters, max_epochs=4)
    return job


def pass_on(number: int, out: object) -> None:
    out.collect(number)  # type: ignore[attr-defined]
