"""The report's facts about Spark: master, executors, hosts, and overheads that the figures exclude.

Takes: rows of runs. Gives: texts for the subtitle, the notes and the section of hosts, and a card of facts; nothing
if no run was made on Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from netstack.base.units import counted, format_duration, three_digits

from ..charts.page import facts
from ..figure import Figure
from ..store import Row


def on_spark(rows: Sequence[Row]) -> bool:
    """Whether every run was made on Spark."""
    return bool(rows) and all(row.get("engine_kind") == "spark" for row in rows)


def where_on_spark(rows: Sequence[Row]) -> str:
    """Such as `on Spark 4.3.0 at local[2]: 2 executors on one host`; empty where not every run was."""
    if not on_spark(rows):
        return ""
    master, version = _values(rows, "spark_master"), _values(rows, "spark_version")
    places = executors(rows)
    return f"on Spark{f' {version}' if version else ''}{f' at {master}' if master else ''}" + (
        f": {places}" if places else ""
    )


def executors(rows: Sequence[Row]) -> str:
    """Such as `2 executors on one host`; empty where no run has their number."""
    many, hosts = max(((_count(row, "spark_executors"), _count(row, "spark_hosts")) for row in rows), default=(0, 0))
    if not many or not hosts:
        return ""
    return f"{counted(many, 'executor')} on {f'{hosts} hosts' if hosts > 1 else 'one host'}"


def spark_remarks(rows: Sequence[Row]) -> list[str]:
    """Spark's overheads that the figures exclude."""
    scheduling = Figure.of(row.get("spark_scheduling_s") for row in rows)
    if scheduling is None:
        return []
    session = Figure.of(row.get("spark_session_s") for row in rows)
    opened = f"Opening the session took {_seconds(session.median)}, and for" if session else "For"
    return [
        f"{opened} each run Spark took {_seconds(scheduling.median)} to start its tasks, to exchange their addresses"
        " and to return their results. The figures exclude both: they count between the tasks' own start signal and"
        " their end."
    ]


def spark_facts(rows: Sequence[Row]) -> str:
    """A card: master, versions, executors, machines."""
    if not any(row.get("engine_kind") == "spark" for row in rows):
        return ""
    entries = {
        "master": _values(rows, "spark_master"),
        "version": _values(rows, "spark_version"),
        "Java": _values(rows, "spark_java"),
        "executors": executors(rows),
        "machines": "; ".join(dict.fromkeys(str(each) for row in rows for each in row.get("spark_machines") or ())),
    }
    return facts("Spark", ((name, text) for name, text in entries.items() if text))


def _values(rows: Sequence[Row], name: str) -> str:
    return ", ".join(sorted({str(row[name]) for row in rows if row.get(name)}))


def _count(row: Row, name: str) -> int:
    value: Any = row.get(name)
    return int(value) if isinstance(value, (int, float)) else 0


def _seconds(value: float) -> str:
    return format_duration(value, space=" ") if value < 1 else f"{three_digits(value)} s"
