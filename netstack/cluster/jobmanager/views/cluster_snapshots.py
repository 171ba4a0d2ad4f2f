"""Snapshots of a cluster, down to each channel, for the web page, recordings and `netstack top`.

Takes: the jobs and TaskManagers of a JobManager, and channel details that TaskManagers send on request. Gives:
snapshots as plain data.

Rules: TaskManagers are polled once a second, and only while a client reads snapshots. A TaskManager with expensive
answers is polled less often, so that they use at most a fiftieth of its time. Taking a snapshot never waits; missing
data is left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, final

import trio

from ....base.text.json_text import shortened
from ....base.text.safe_text import safe_repr
from ...control.codec import Plain
from ...control.messages import AskDetails
from ..job_master.job_master import JobMaster
from ..job_record import JobRecord
from ..job_services import JobManagerParts
from ..resource_manager.taskmanagers import ConnectedTaskManager
from .bounds import RESULT_CHARACTERS, Entries, fair_part, fit_job, packed_bytes
from .documents import chaining_of, edges_of, job_document, position_of, taskmanager_document
from .tuning import bottleneck_of

TASKMANAGER_KEYS: Final = ("memory_bytes", "free_memory_bytes", "network")
"""Top-level keys of the document besides `jobs` and `took_s`."""

INPUT_COLUMNS: Final = (
    "channel",
    "producer",
    "attempt",
    "subpartition",
    "is_local",
    "peer",
    "queued_buffers",
    "queued_bytes",
    "exclusive",
    "free_exclusive",
    "free_floating",
    "unannounced_credit",
    "sender_backlog",
    "buffers",
    "is_finished",
)
"""Columns of an input channel (`ChannelStatistics`). `producer` and `attempt` identify the writing task; `peer` is the
dialled address, empty for a local channel."""

OUTPUT_COLUMNS: Final = ("subpartition", "queued_buffers", "backlog_buffers", "credit", "is_blocked", "buffers_sent")
"""Columns of a subpartition (`SubpartitionStatistics`)."""

_CELLS: Final = (int, bool, str, type(None))

TEXT_CHARACTERS: Final = 1024
"""Maximum length of a text of the details, such as the address of a peer."""

_NUMBER: Final = (int, float)
_OF_A_TASK: Final = {
    "attempt": (list,),
    "records_in": (int,),
    "records_out": (int,),
    "busy_s": _NUMBER,
    "idle_s": _NUMBER,
    "backpressured_s": _NUMBER,
    "barriers": (dict, type(None)),
    "inputs": (list,),
    "outputs": (list,),
}
_OF_AN_INPUT: Final = {"channels": (int,), "floating": (dict, type(None)), "rows": (list,)}
_OF_AN_OUTPUT: Final = {"pool": (dict, type(None)), "rows": (list,)}


def check_details(document: Plain) -> None:
    """Checks that every part which a snapshot reads has exactly its type.

    Raises:
        ValueError: a part is missing or malformed; the text names it.
    """
    _check("details", document, {"took_s": _NUMBER, "jobs": (dict,), "network": (dict, type(None))})
    for name in TASKMANAGER_KEYS:
        if name not in document:
            raise ValueError(f"the details have no {name}")
        _check_values(name, document[name])
    for job in document["jobs"].values():
        _check("a job", job, {"tasks": (list,), "network": (dict, type(None))})
        _check_values("the network of a job", job["network"])
        for task in job["tasks"]:
            _check("a task", task, _OF_A_TASK)
            if [*map(type, task["attempt"])] != [int, int, int]:
                raise ValueError("an attempt is three ints: vertex, subtask, attempt")
            _check_values("barriers", task["barriers"])
            for each in task["inputs"]:
                _check("an input", each, _OF_AN_INPUT)
                _check_values("floating", each["floating"])
                _check_rows("inputs", each["rows"], INPUT_COLUMNS)
                if any(type(row[5]) is not str for row in each["rows"]):
                    raise ValueError("the peer of a channel is not a text")
            for each in task["outputs"]:
                _check("an output", each, _OF_AN_OUTPUT)
                _check_values("pool", each["pool"])
                _check_rows("outputs", each["rows"], OUTPUT_COLUMNS)


def _check(what: str, document: object, kinds: Mapping[str, tuple[type, ...]]) -> None:
    if type(document) is not dict:
        raise ValueError(f"{what} is not a table")
    for name, allowed in kinds.items():
        value = document.get(name, _MISSING)
        if type(value) not in allowed:
            raise ValueError(f"{name} of {what} is {'missing' if value is _MISSING else type(value).__name__}")
        if type(value) in _NUMBER and not 0 <= value < math.inf:
            raise ValueError(f"{name} of {what} is {value}, which is not an amount")


_MISSING: Final = object()


def _check_rows(ends: str, rows: Iterable[object], columns: Sequence[str]) -> None:
    for row in rows:
        if type(row) is not list or len(row) != len(columns) or any(type(cell) not in _CELLS for cell in row):
            raise ValueError(f"rows of {ends} have other columns than {columns}")
        for cell in row:
            if type(cell) is str:
                _check_text(ends, cell)


def _check_values(what: str, document: object) -> None:
    """Checks that all texts of plain data are short lines, and all numbers finite."""
    values = [document]
    while values:
        value = values.pop()
        if type(value) is dict:
            values += (*value, *value.values())
        elif type(value) is list:
            values += value
        elif type(value) is str:
            _check_text(what, value)
        elif type(value) is float and not math.isfinite(value):
            raise ValueError(f"{what} has the number {value}")
        elif type(value) is bytes:
            raise ValueError(f"{what} has bytes")


def _check_text(what: str, text: str) -> None:
    if len(text) > TEXT_CHARACTERS or not text.isprintable():
        raise ValueError(
            f"{what} has a text of {len(text)} characters ({safe_repr(text, 40)}); it must be one printable line of at"
            f" most {TEXT_CHARACTERS}"
        )


Document = dict[str, Any]

PERIOD_S: Final = 1.0
"""Minimum interval of requests to a TaskManager."""

DETAILS_PART: Final = 0.02
"""Maximum share of a TaskManager's time for answers."""

LOOKED_S: Final = 5.0
"""How long polling continues after a snapshot was requested."""

MAX_GONE: Final = 20
"""Maximum number of lost TaskManagers in a snapshot."""

SILENT_S: Final = 3.0
"""A TaskManager that was silent for this long is shown as silent; heartbeats are more frequent."""

MAX_PARTS: Final = 16_000
"""Maximum number of subtasks, edges and vertices in a snapshot of all jobs: about 15 us each."""

_VERTEX_PARTS: Final = 8
"""A vertex counts as so many subtasks."""

MAX_SNAPSHOT_BYTES: Final = 16 << 20
"""Maximum size of all jobs of a snapshot; larger jobs are shown with less detail (`bounds`)."""

MAX_JOB_BYTES: Final = 1 << 20
MIN_JOB_BYTES: Final = 1 << 16
"""Maximum size of one job of a snapshot: of jobs alone, and where there are many large ones."""

MAX_NETWORK_BYTES: Final = 1 << 18
"""Maximum size of what a TaskManager says about its network."""

CHANNEL_COLUMNS: Final = (
    "producer",
    "consumer",
    "subpartition",
    "is_local",
    "connection",
    "credit",
    "backlog",
    "sending",
    "is_blocked",
    "queued",
    "queued_bytes",
    "exclusive",
    "free_exclusive",
    "free_floating",
    "unannounced_credit",
    "sender_backlog",
    "buffers",
    "is_finished",
)
"""Columns of a channel in a snapshot: its two subtasks and connection; at the producer credit, backlog, queue length
and whether it is blocked behind a barrier; the rest at the consumer, as in `ChannelStatistics`. Values that the
producer did not report are None."""

_Task = tuple[str, int, int, int]
"""Id of a job and one of its attempts."""


@dataclass(slots=True)
class _Details:
    """The last details of a TaskManager; `spent`: times of its tasks since their start, `rates`: recent shares."""

    document: Document
    at_s: float
    asked_at_s: float
    spent: dict[_Task, tuple[float, float, float]]
    rates: dict[_Task, tuple[int, int, int]]


@final
class ClusterSnapshots:
    """Takes snapshots of a cluster; `run` polls TaskManagers while `request_updates` is called repeatedly."""

    def __init__(self, parts: JobManagerParts, records: Mapping[str, JobRecord]) -> None:
        """Takes the JobManager's parts, and the records of all of its jobs by id."""
        self._parts = parts
        self._records = records
        self._tokens = itertools.count()
        self._looked_s = -LOOKED_S
        self._wanted = trio.Event()
        self._details: dict[str, _Details] = {}
        self._asked: dict[str, float] = {}
        self._lost: dict[str, Document] = {}
        self._sizes: dict[str, int] = {}  # of whole documents of jobs, when they were drawn last

    def request_updates(self) -> None:
        """Keeps polling active for the next `LOOKED_S` seconds."""
        self._looked_s = trio.current_time()
        self._wanted.set()

    async def run(self) -> None:
        """Polls TaskManagers while updates are requested. Cancellation: ends the polling."""
        while True:
            if trio.current_time() - self._looked_s >= LOOKED_S:
                self._details.clear()
                self._asked.clear()
                self._wanted = trio.Event()
                await self._wanted.wait()
            for taskmanager in self._parts.taskmanagers.all():
                self._ask(taskmanager.location.name)
            await trio.sleep(PERIOD_S / 4)

    def _ask(self, name: str) -> None:
        now_s = trio.current_time()
        report, asked_s = self._details.get(name), self._asked.get(name)
        if asked_s is not None and (report is None or report.asked_at_s < asked_s):
            return  # it has not answered yet
        if report is not None:
            period_s = max(PERIOD_S, float(report.document["took_s"]) / DETAILS_PART)
            if now_s < report.asked_at_s + period_s:
                return
        self._asked[name] = now_s
        self._parts.taskmanagers.send(name, AskDetails(next(self._tokens)))

    def on_details(self, name: str, document: Document) -> None:
        """Handles the details of a TaskManager, unless it was not asked. Raises ValueError if they are malformed."""
        now_s = trio.current_time()
        if name not in self._asked:
            return
        check_details(document)
        before = self._details.get(name)
        report = self._details[name] = _Details(document, now_s, self._asked.get(name, now_s), {}, {})
        for job_id, job in document["jobs"].items():
            for task in job["tasks"]:
                key = (job_id, *task["attempt"])
                spent = report.spent[key] = task["busy_s"], task["idle_s"], task["backpressured_s"]
                then = (0.0, 0.0, 0.0) if before is None else before.spent.get(key, (0.0, 0.0, 0.0))
                rates = _rates(spent, then)
                if rates is None and before is not None:
                    rates = before.rates.get(key)
                if rates is not None:
                    report.rates[key] = rates

    def lost(self, name: str, reason: str) -> None:
        """Keeps a lost TaskManager in snapshots; call it before the TaskManager is removed."""
        for each in self._parts.taskmanagers.all():
            if each.location.name == name:
                document = taskmanager_document(each, self._parts)
                self._lost[name] = {**document, "jobs": {}, "free_slots": 0, "gone": reason}
        while len(self._lost) > MAX_GONE:
            del self._lost[next(iter(self._lost))]
        self._details.pop(name, None)
        self._asked.pop(name, None)

    def snapshot(self) -> Document:
        """Takes a snapshot.

        Returns:
            `taskmanagers` (`documents.taskmanager_document` with `gone`: why it was lost, or empty; `silent_s`;
            `network` and memory once known), `jobs` (`documents.job_document` with `edges` and their channels,
            `chaining`, time shares of each subtask, and `bottleneck`), `channel_columns`, `load_balance`. Of large jobs
            not all details (`bounds.fit_job`).
        """
        return {name: [create() for _, create in entries] for name, entries in self.entries().items()} | self.facts()

    def entries(self) -> dict[str, Entries]:
        """Returns the TaskManagers and jobs of a snapshot as entries of pages."""
        here: Entries = [
            ((each.registered_at, each.location.name), partial(self._connected, each))
            for each in self._parts.taskmanagers.all()
        ]
        lost: Entries = [((each["registered_at"], each["name"]), partial(dict, each)) for each in self._lost.values()]
        most_parts = fair_part(map(_parts_of, self._records.values()), MAX_PARTS)
        most_bytes = self._fair_bytes(most_parts)
        return {
            "taskmanagers": [*here, *lost],
            "jobs": [
                (position_of(each), partial(self._drawn, each, most_parts, most_bytes))
                for each in self._records.values()
            ],
        }

    def facts(self) -> Document:
        """Returns what a snapshot contains besides `entries`."""
        return {"channel_columns": list(CHANNEL_COLUMNS), "load_balance": self._parts.config.load_balance.value}

    def _connected(self, taskmanager: ConnectedTaskManager) -> Document:
        document = taskmanager_document(taskmanager, self._parts)
        heard_s = self._parts.taskmanagers.heard_s(document["name"])
        silent_s = 0.0 if heard_s is None or math.isinf(heard_s) else trio.current_time() - heard_s
        report = self._details.get(document["name"])
        if report is not None:
            document |= {key: report.document[key] for key in TASKMANAGER_KEYS}
            if packed_bytes(report.document["network"] or {}) > MAX_NETWORK_BYTES:
                document["network"] = None
        return document | {"gone": "", "silent_s": round(silent_s) if silent_s > SILENT_S else 0}

    def _fair_bytes(self, most_parts: int) -> int:
        """Returns the size to which larger jobs are brought, from the sizes that all jobs had last."""
        self._sizes = {job_id: size for job_id, size in self._sizes.items() if job_id in self._records}
        for job_id, record in self._records.items():
            if job_id not in self._sizes:
                self._drawn(record, most_parts, MAX_JOB_BYTES)
        return max(MIN_JOB_BYTES, min(MAX_JOB_BYTES, fair_part(self._sizes.values(), MAX_SNAPSHOT_BYTES)))

    def drawn(self, record: JobRecord) -> Document:
        """Returns one job alone with all details of a snapshot."""
        return self._drawn(record, MAX_PARTS, MAX_SNAPSHOT_BYTES)

    def _drawn(self, record: JobRecord, most_parts: int, most_bytes: int) -> Document:
        """Returns one job of a snapshot, with at most so many parts and bytes."""
        most_subtasks = most_parts - _VERTEX_PARTS * _vertices_of(record) - _edges_in(record)
        has_room = most_subtasks >= 0
        document = job_document(record, self._parts, most_subtasks if has_room else None)
        for name in ("age_s", "duration_s"):  # of an ended job a snapshot would change all the time
            del document[name]
        document |= {"edges": edges_of(record), "chaining": chaining_of(record)} if has_room else _NO_PARTS
        document["results"] = shortened(document["results"], RESULT_CHARACTERS)
        document["failures"] = [
            {name: value for name, value in each.items() if name not in ("report", "beside")}
            for each in document["failures"]
        ]
        if record.master is not None and has_room:
            self._add_details(document, record.stored.job_id, record.master)
        document["bottleneck"] = bottleneck_of(document, CHANNEL_COLUMNS)
        size = fit_job(document, most_bytes)
        if most_bytes < MAX_SNAPSHOT_BYTES:
            self._sizes[record.stored.job_id] = size
        return document

    def _add_details(self, document: Document, job_id: str, master: JobMaster) -> None:
        tasks: dict[tuple[int, int], Mapping[str, Any]] = {}
        all_rates: dict[tuple[int, int], tuple[int, int, int] | None] = {}
        networks = []
        for name, report in self._details.items():
            job = report.document["jobs"].get(job_id)
            if job is None:
                continue
            if job["network"] is not None:
                networks.append({"taskmanager": name, **job["network"]})
            for task in job["tasks"]:
                vertex, subtask, attempt = task["attempt"]
                if _is_there(document, vertex, subtask, attempt, name):
                    tasks[vertex, subtask] = task
                    all_rates[vertex, subtask] = report.rates.get((job_id, vertex, subtask, attempt))
        document["networks"] = networks
        for (vertex, subtask), task in tasks.items():
            row = document["vertices"][vertex]["subtasks"][subtask]
            rates = all_rates[vertex, subtask]
            row |= {
                "records_in": task["records_in"],
                "records_out": task["records_out"],
                "busy": None if rates is None else rates[0],
                "idle": None if rates is None else rates[1],
                "backpressured": None if rates is None else rates[2],
                "barriers": task["barriers"],
                "pools": [each["pool"] for each in task["outputs"]],
                "floating": [each["floating"] for each in task["inputs"]],
            }
        places = {
            (vertex, each["subtask"]): each["taskmanager"]
            for vertex, row in enumerate(document["vertices"])
            for each in row["subtasks"]
        }
        for edge in document["edges"]:
            edge |= _channels(edge, tasks, places)


_NO_PARTS: Final[Document] = {"edges": [], "chaining": [], "left_out": ["vertices"]}


def _vertices_of(record: JobRecord) -> int:
    if record.master is not None:
        return len(record.master.scheduler.topology.job.vertices)
    return len((record.last or {}).get("vertices", ()))


def _parts_of(record: JobRecord) -> int:
    """Returns how many parts a job adds to a snapshot."""
    if record.master is not None:
        subtasks = record.master.scheduler.topology.subtask_count
    else:
        subtasks = sum(len(vertex["subtasks"]) for vertex in (record.last or {}).get("vertices", ()))
    return subtasks + _VERTEX_PARTS * _vertices_of(record) + _edges_in(record)


def _edges_in(record: JobRecord) -> int:
    return 0 if record.generated is None else len(record.generated.chaining.graph.edges)


def _rates(now: tuple[float, float, float], then: tuple[float, float, float]) -> tuple[int, int, int] | None:
    """Returns the time shares between two reports in thousandths; None if no time has passed."""
    busy_s, idle_s, waiting_s = (max(0.0, late - early) for late, early in zip(now, then, strict=True))
    whole_s = busy_s + idle_s + waiting_s
    if not whole_s > 0:
        return None
    return round(1000 * (busy_s / whole_s)), round(1000 * (idle_s / whole_s)), round(1000 * (waiting_s / whole_s))


def _is_there(document: Mapping[str, Any], vertex: int, subtask: int, attempt: int, taskmanager: str) -> bool:
    """Whether this is the current attempt of a subtask and deployed to this TaskManager."""
    vertices = document["vertices"]
    if not 0 <= vertex < len(vertices) or not 0 <= subtask < len(vertices[vertex]["subtasks"]):
        return False
    task = vertices[vertex]["subtasks"][subtask]
    return bool((task["attempt"], task["taskmanager"]) == (attempt, taskmanager))


def _channels(
    edge: Mapping[str, Any],
    tasks: Mapping[tuple[int, int], Mapping[str, Any]],
    places: Mapping[tuple[int, int], str | None],
) -> Document:
    """Returns the channels of an edge with both of their ends, and their total number."""
    rows: list[list[Any]] = []
    count = 0
    sent: dict[tuple[int, int], list[Any]] = {}
    for (vertex, subtask), task in tasks.items():
        if vertex == edge["producer"] and edge["output"] < len(task["outputs"]):
            for row in task["outputs"][edge["output"]]["rows"]:
                sent[subtask, row[0]] = row
    for (vertex, subtask), task in sorted(tasks.items(), key=lambda item: item[0]):
        if vertex != edge["consumer"] or edge["input"] >= len(task["inputs"]):
            continue
        gate = task["inputs"][edge["input"]]
        count += gate["channels"]
        for row in gate["rows"]:
            _, producer, _, subpartition, is_local, peer, *queues, buffers, is_finished = row
            there = sent.get((producer, subpartition))
            credit, backlog, sending, is_blocked = (
                (None, None, None, None) if there is None else (there[3], there[2], there[1], there[4])
            )
            connection = _connection(is_local, peer, places.get((edge["consumer"], subtask)))
            rows.append(
                [
                    producer,
                    subtask,
                    subpartition,
                    is_local,
                    connection,
                    credit,
                    backlog,
                    sending,
                    is_blocked,
                    *queues,
                    buffers,
                    is_finished,
                ]
            )
    return {"channel_count": count, "channels": rows}


def _connection(is_local: bool, peer: str, consumer_at: str | None) -> str:
    if is_local:
        return "local"
    return f"{peer.partition('://')[2] or peer} → {consumer_at or '?'}"
