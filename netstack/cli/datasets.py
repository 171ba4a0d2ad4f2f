"""The command `netstack datasets`: lists or releases the datasets that jobs kept.

Takes: names of datasets to release. Gives: a table, or one JSON document.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click
from rich.table import Table

from ..base.units import format_duration, format_size
from ..cluster.jobmanager.client import Document, JobClient
from .job_output import print_all
from .jobmanager_flags import call, jobmanager_flags, json_flag
from .json_document import print_document


@click.command(short_help="List or release the datasets that jobs kept.")
@click.option("--release", multiple=True, metavar="NAME", help="Release this dataset; repeatable.")
@jobmanager_flags
@json_flag
def datasets(release: tuple[str, ...], jobmanager: str, secret_file: Path | None, as_json: bool) -> int:
    """List the datasets that jobs kept with `stream.persist(NAME)`, or release some of them.

    A later job reads a dataset with `job.dataset(NAME)`. The TaskManagers that wrote a dataset keep it. While one of
    them is missing, the dataset cannot be read.
    """

    async def request(client: JobClient) -> Document:
        for name in release:
            await client.release_dataset(name)
        return {"datasets": await client.datasets()}

    document = call(jobmanager, secret_file, request)
    if as_json:
        print_document(document)
    else:
        print_all([_table(document["datasets"])])
    return 0


def _table(datasets: Iterable[Document]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("dataset", "bytes", "partitions", "job", "age", ""):
        table.add_column(name, justify="right" if name in ("bytes", "partitions") else "left")
    for each in datasets:
        missing = len(each["missing"])
        table.add_row(
            each["dataset_id"],
            format_size(each["bytes"]),
            str(each["partitions"]),
            f"{each['job_name']} {each['job_id']}",
            format_duration(float(round(each["age_s"]))),
            f"[red]{missing} of its TaskManagers missing[/]" if missing else "",
        )
    return table
