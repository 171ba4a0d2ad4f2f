"""What TaskManagers, clients, browsers and files tell in documents: each taken, or refused as promised.

A target suppresses exactly the errors that its function promises; `fuzz.targets.run` those of netstack.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import trio

from netstack.base.errors import RecordError
from netstack.base.text.json_text import json_text, shortened
from netstack.cluster.control.frames import unpack
from netstack.cluster.control.link import TASKMANAGER, Greeting
from netstack.cluster.failure_report import checked_report, rendered, with_place
from netstack.cluster.jobmanager.resource_manager.taskmanagers import TaskManagers
from netstack.cluster.jobmanager.store import JobStore, StoredJob
from netstack.cluster.jobmanager.views.cluster_snapshots import check_details
from netstack.cluster.task.checkpoints import checked_subtask_report
from netstack.cluster.taskmanager.code import checked_archive
from netstack.cluster.web.guard import Guard, LoginSessions, json_of
from netstack.cluster.web.recording import read_recording
from netstack.network.connection.authentication import Secret
from netstack.spark.epoch_folder import EpochFolder
from netstack.spark.stream_schema import StreamSchema

SECRET = Secret(b"a secret for fuzzing only")
JOB = StoredJob("0123456789abcdef", {"name": "words"}, 0.0, None, {}, {})


def as_json(value: object) -> None:
    """Everything that was taken can be shown, whole and in short."""
    for text in (json_text(value), json_text(value, compact=True), json_text(shortened(value, 100))):
        json.loads(text, parse_constant=no_constant)
        text.encode()


def no_constant(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def details(data: bytes) -> None:
    """What a TaskManager tells of its channels."""
    document: Any = unpack(data)
    with contextlib.suppress(ValueError):
        check_details(document)
        as_json(document)


def facts(data: bytes) -> None:
    """What a TaskManager registers with."""
    document = unpack(data)
    if isinstance(document, dict):
        link: Any = SimpleNamespace(peer="peer", place="tcp://10.0.0.1:6121", heard_s=0.0)

        async def register() -> None:
            TaskManagers(require_tls=False).register(link, Greeting(1, "x", "tm", TASKMANAGER, document))

        trio.run(register)
        as_json(document)


def results(data: bytes) -> None:
    """What the sinks of a job have returned: it comes back as it was, whatever it is."""
    value = unpack(data)
    as_json(value)
    with tempfile.TemporaryDirectory() as folder:
        store = JobStore(Path(folder))
        store.put(JOB)
        results = {"sink": {"0": value}}
        store.put_end(JOB.job_id, {"state": "finished", "reason": "", "ended_at": 1.5, "results": results})
        ((actual,), damaged) = store.jobs()
        assert not damaged
        assert actual.end is not None
        assert repr(actual.end["results"]) == repr(results)


def reports(data: bytes) -> None:
    """How a task failed, and how a checkpoint went there."""
    document = unpack(data)
    if isinstance(document, dict):
        with contextlib.suppress(ValueError):
            report = checked_report(document)
            rendered(report)
            with_place("x", report)
            as_json(report)
        with contextlib.suppress(ValueError):
            as_json(checked_subtask_report(document))


def _in_file(name: str, data: bytes, read: Callable[[Path], object]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(data)
        read(path)


def recording(data: bytes) -> None:
    """The lines of a recording, under their compression."""
    _in_file("x.gz", gzip.compress(data, 1), read_recording)


def store(data: bytes) -> None:
    """A file of a job in the JobManager's folder."""
    for name in ("job.json", "end.json", "life.json"):
        with tempfile.TemporaryDirectory() as folder:
            actual = JobStore(Path(folder))
            actual.put(JOB)
            Path(folder, "jobs", JOB.job_id, name).write_bytes(data)
            actual.jobs()


def epochs(data: bytes) -> None:
    """A manifest in the folder of a Subscriber; whatever it says, nothing outside of the folder is removed."""
    with tempfile.TemporaryDirectory() as folder:
        outside, inside = Path(folder, "kept"), Path(folder, "epochs")
        outside.touch()
        inside.mkdir()
        (inside / "epoch-000000000003.json").write_bytes(data)
        try:
            EpochFolder(inside, resume=4)
        finally:
            assert outside.exists()


def rows(data: bytes) -> None:
    """What lies in the folder of a stream as the rows of an epoch, and as its columns."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "schema.arrow").write_bytes(data)
        (path / "staged-0a-0-0-0b.arrow").write_bytes(data)
        manifest = {"epoch": 0, "writer": "0a", "batch": 0, "files": ["staged-0a-0-0-0b.arrow"]}
        (path / "epoch-000000000000.json").write_text(json.dumps(manifest))
        with contextlib.suppress(RecordError):
            StreamSchema(path).check(pyarrow.schema([]))
        with contextlib.suppress(RecordError):
            for batch in EpochFolder(path).read(0):
                batch.to_pylist()


def request(data: bytes) -> None:
    """A request to the page: a line with method, path and query, headers, an empty line, a body."""
    head, _, body = data.partition(b"\n\n")
    line, *rest = head.split(b"\n")
    method, _, path = line.partition(b" ")
    headers = [(name.strip().lower(), value.strip()) for name, _, value in (each.partition(b":") for each in rest)]
    text: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        sessions = LoginSessions([SECRET], is_secure=False)
        sessions.may({name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]})
        with contextlib.suppress(ValueError):
            actual = json_of((await receive())["body"])
            as_json(actual)
            if isinstance(actual, dict) and isinstance(actual.get("token"), str):
                sessions.log_in(actual["token"])
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        text.append(message)

    async def run() -> None:
        place, _, query = path.partition(b"?")
        scope = {
            "type": "http",
            "method": method.decode("latin-1"),
            "path": place.decode("latin-1"),
            "headers": headers,
        }
        await Guard(app)(scope | {"raw_path": place, "query_string": query}, receive, send)

    trio.run(run)
    assert text[0]["status"] < 500, text


TARGETS: dict[str, Callable[[bytes], None]] = {
    "details": details,
    "facts": facts,
    "results": results,
    "reports": reports,
    "recording": recording,
    "job-store": store,
    "package": lambda data: checked_archive("pack", data),
    "epoch-folder": epochs,
    "epoch-rows": rows,
    "request": request,
}
