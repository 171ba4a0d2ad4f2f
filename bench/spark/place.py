"""A sweep's stay on Spark: a session, an engine, the tables at the end.

Takes: settings of the session, the results folder. Gives: what makes a run, until the block ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from ..store import Store
from ..sweep import Progress, RunOnce
from .engine import SparkEngine
from .session import open_session
from .settings import SparkSettings
from .sweep import Recorder, write_tables


@contextmanager
def spark_place(
    settings: Mapping[str, Any], store: Store, progress: Progress, console: Console, warehouse: Path
) -> Iterator[tuple[RunOnce, Progress]]:
    """Opens a session; at the end of the block, however it ends, the rows of nodes become tables.

    Args:
        settings: of `SparkSettings`.
        store: the results folder.
        progress: hears of every run.
        console: told where the tables are.
        warehouse: folder of the tables.

    Raises:
        NetstackError: the session cannot be opened.
    """
    where = SparkSettings(**settings)
    with open_session(where) as spark:
        recorder = Recorder(store.folder, progress)
        yield SparkEngine(spark, where, on_nodes=recorder.add).run_once, recorder
        if recorder.rows():
            _, folder = write_tables(spark, recorder, warehouse)
            console.print(f"tables of this and other sweeps: {escape(str(folder))}", soft_wrap=True)
