"""The REST interface and the page of a JobManager, as an ASGI application.

Takes: a JobManager in this process. Gives: Flink's paths with Flink's field names (`flink`), netstack's own paths under
`/netstack`, server-sent events, one self-contained page.

Rules: with a secret, every path except the page requires a web token as bearer token, or a session created with one.
Requests that change something are rejected unless `may_change` is set. Snapshots use at most a twentieth of the event
loop's time. A snapshot that fails is logged and leaves a gap in the history; jobs continue.
"""

from __future__ import annotations

import gzip
import logging
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final, final

import trio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ...base.errors import ConfigError, NetstackError
from ...base.text.json_text import json_text
from ...base.text.limited_log import LimitedLog
from ...base.text.safe_text import safe_error
from ...base.timing.steady_clock import steady_time
from ..jobmanager.job_record import JobRecord, audit
from ..jobmanager.service import JobManager
from ..jobmanager.views.documents import edges_of, job_document, summary, taskmanagers_document
from . import flink
from .guard import BROKE, LoginSessions, json_of
from .history import History, snapshot_text
from .http1 import PART_BYTES
from .page import page

POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self';"
    " frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)

MAX_HISTORIES: Final = 2
"""History responses that are built concurrently; each may be a hundred megabytes of text."""

_histories: Final[trio.lowlevel.RunVar[trio.CapacityLimiter]] = trio.lowlevel.RunVar("netstack_histories")

MOST_CHARACTERS: Final = 32 << 20
"""Maximum length of one response; a job's results may be longer and are cut for the browser."""


@final
class JsonResponse(Response):
    """A JSON response that tolerates any values from users and peers."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Encodes the content as JSON."""
        return json_text(content, compact=True, most_characters=MOST_CHARACTERS).encode()


@final
class EventsResponse(StreamingResponse):
    """Server-sent events; the generator is closed with the response, also when the peer has left."""

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events."""
        async with aclosing(self._events):
            await super().__call__(scope, receive, send)


def page_response(text: str) -> Response:
    """Returns the page with a policy that forbids loading anything from elsewhere."""
    return HTMLResponse(text, headers={"Content-Security-Policy": POLICY, "Cache-Control": "no-store"})


async def history_response(request: Request, history: History) -> Response:
    """Returns the whole history; built in a thread, compressed if the client accepts gzip."""
    kept = history.kept()
    is_compressed = "gzip" in request.headers.get("accept-encoding", "")

    def encode() -> bytes:
        text = History.text(kept).encode()
        return gzip.compress(text, 1) if is_compressed else text

    try:
        limiter = _histories.get()
    except LookupError:
        limiter = trio.CapacityLimiter(MAX_HISTORIES)
        _histories.set(limiter)
    data = await trio.to_thread.run_sync(encode, limiter=limiter)
    headers = {"Cache-Control": "no-store", "Vary": "Accept-Encoding"}
    if is_compressed:
        headers["Content-Encoding"] = "gzip"
    return Response(data, media_type="application/json", headers=headers)


LOGGER: Final = logging.getLogger("netstack.web")

LOOK_S: Final = 0.5
"""Interval of snapshots; longer where a snapshot takes long."""

LOOK_PART: Final = 0.05
"""Maximum share of the event loop's time for snapshots."""

HOW: Final = "create one with: netstack web-token --secret-file FILE"

MAX_STREAMS: Final = 64
"""Pages that receive events at a time; the oldest is disconnected and reconnects."""

MAX_EVENTS_BYTES: Final = 64 << 20
"""Different events that streams are sending; a snapshot may have 16 MiB."""

EVENT_BYTES_PER_S: Final = 32 << 20
"""Events of all streams together: with large snapshots and many streams each gets fewer of them."""

EVENT_S: Final = 30.0
"""Limit for a peer to take an event."""

MAX_SAVEPOINTS: Final = 100
"""Savepoint requests whose status is stored."""


@final
class Web:
    """The REST interface and the page of one JobManager.

    Args:
        sessions: decides which requests are authorised.
        may_change: whether requests may cancel jobs and take savepoints.
        facts: extra fields of each snapshot.
    """

    def __init__(
        self, manager: JobManager, *, sessions: LoginSessions, may_change: bool, facts: dict[str, Any] | None = None
    ) -> None:
        self._manager = manager
        self._sessions = sessions
        self._may_change = may_change
        self._changers = 2 if manager.config.is_shared else 1
        self._facts = {"may_change": may_change, **(facts or {})}
        self.history = History()
        self._savepoints: dict[str, dict[str, Any]] = {}
        self._streams: dict[object, None] = {}  # the oldest first
        self._sending: dict[object, bytes] = {}  # the event that each stream is sending, also one that has to end
        self._event = -1, b""
        self._nursery: trio.Nursery | None = None
        self.app = Starlette(
            exception_handlers={Exception: _broke},
            routes=[
                Route("/", self._page),
                Route("/netstack/session", self._log_in, methods=["POST"]),
                *(
                    Route(path, self._guarded(handler), methods=[method])
                    for path, handler, method in (
                        ("/overview", self._overview, "GET"),
                        ("/jobs", self._jobs, "GET"),
                        ("/jobs/overview", self._jobs_overview, "GET"),
                        ("/jobs/{job}", self._job, "GET"),
                        ("/jobs/{job}", self._patch_job, "PATCH"),
                        ("/jobs/{job}/plan", self._plan, "GET"),
                        ("/jobs/{job}/vertices/{vertex:int}", self._vertex, "GET"),
                        ("/jobs/{job}/vertices/{vertex:int}/backpressure", self._backpressure, "GET"),
                        ("/jobs/{job}/vertices/{vertex:int}/flamegraph", self._flame_graph, "GET"),
                        ("/jobs/{job}/checkpoints", self._checkpoints, "GET"),
                        ("/jobs/{job}/exceptions", self._exceptions, "GET"),
                        ("/jobs/{job}/savepoints", self._savepoint, "POST"),
                        ("/jobs/{job}/savepoints/{trigger}", self._savepoint_status, "GET"),
                        ("/taskmanagers", self._taskmanagers, "GET"),
                        ("/taskmanagers/{name}", self._taskmanager, "GET"),
                        ("/netstack/jobs/{job}", self._own_job, "GET"),
                        ("/netstack/jobs/{job}/log", self._log, "GET"),
                        ("/netstack/history", self._all_history, "GET"),
                        ("/netstack/events", self._events, "GET"),
                    )
                ),
            ],
        )

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Takes snapshots of the cluster while the block runs."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._watch)
            yield
            nursery.cancel_scope.cancel()

    async def _watch(self) -> None:
        log = LimitedLog(LOGGER, trio.current_time, per_second=1 / 60, burst=1)
        while True:
            began_s = time.perf_counter()
            try:
                self._manager.snapshots.request_updates()
                self.history.add(steady_time(), snapshot_text(self._manager.snapshots.snapshot() | self._facts))
            except Exception as error:  # a failed snapshot must not end the JobManager
                log.log(logging.ERROR, "look", "the web page could not take a snapshot of the cluster", error=error)
            await trio.sleep(max(LOOK_S, (time.perf_counter() - began_s) / LOOK_PART))

    # Authorisation.

    def _guarded(self, handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def checked(request: Request) -> Response:
            if not self._sessions.may(request.headers):
                return _refusal(401, f"this request needs a web token of the cluster's secret as bearer token; {HOW}")
            is_change = request.method not in ("GET", "HEAD")
            if is_change and not self._may_change:
                return _refusal(
                    403, "the web interface is read-only: start netstack jobmanager with --web-submit to allow changes"
                )
            if is_change and not self._sessions.may(request.headers, only=self._changers):
                return _refusal(
                    403,
                    "a token of the clients' secret is read-only: use a token of the cluster's"
                    " secret, or start the JobManager with --shared",
                )
            try:
                return await handler(request)
            except ConfigError as error:
                return _refusal(404, str(error))
            except NetstackError as error:
                return _refusal(409, str(error))

        return checked

    async def _log_in(self, request: Request) -> Response:
        try:
            body = json_of(await request.body())
        except ValueError as error:
            return _refusal(400, f"the body is not JSON: {error}")
        token = body.get("token") if isinstance(body, dict) else None
        cookie = self._sessions.log_in(token) if isinstance(token, str) else None
        if cookie is None:
            return _refusal(401, f"not a valid web token of this cluster's secret, or it has expired; {HOW}")
        return JsonResponse({}, headers={"Set-Cookie": cookie, "Cache-Control": "no-store"})

    async def _page(self, request: Request) -> Response:
        return page_response(page())

    # Flink's paths.

    def _summaries(self) -> list[dict[str, Any]]:
        return [summary(record, self._manager.parts) for record in self._manager.dispatcher.records.values()]

    def _find(self, request: Request) -> JobRecord:
        return self._manager.dispatcher.find(request.path_params["job"])

    async def _overview(self, request: Request) -> Response:
        return JsonResponse(flink.overview(self._summaries(), taskmanagers_document(self._manager.parts)))

    async def _jobs(self, request: Request) -> Response:
        return JsonResponse(flink.job_ids(self._summaries()))

    async def _jobs_overview(self, request: Request) -> Response:
        return JsonResponse(flink.jobs_overview(self._summaries()))

    async def _job(self, request: Request) -> Response:
        record = self._find(request)
        return JsonResponse(flink.job(job_document(record, self._manager.parts), edges_of(record)))

    async def _plan(self, request: Request) -> Response:
        record = self._find(request)
        return JsonResponse(flink.plan(job_document(record, self._manager.parts), edges_of(record)))

    async def _patch_job(self, request: Request) -> Response:
        record = self._find(request)
        mode = request.query_params.get("mode", "cancel")
        if mode != "cancel":
            return _refusal(400, f"mode={mode[:20]!r} is not supported; use mode=cancel")
        if record.master is None:
            return _refusal(409, f"job {record.stored.job_id} has already ended")
        audit("cancel", record, _who(request))
        record.master.cancel()
        return JsonResponse({}, status_code=202)

    async def _vertex(self, request: Request) -> Response:
        number, vertex = _vertex_of(request, job_document(self._find(request), self._manager.parts))
        return JsonResponse(flink.vertex(number, vertex))

    async def _backpressure(self, request: Request) -> Response:
        self._manager.snapshots.request_updates()
        return JsonResponse(
            flink.backpressure(_vertex_of(request, self._manager.snapshots.drawn(self._find(request)))[1])
        )

    async def _flame_graph(self, request: Request) -> Response:
        record = self._find(request)
        number = request.path_params["vertex"]
        if record.master is None:
            return _refusal(409, f"job {record.stored.job_id} has ended; a flame graph needs a running job")
        if number >= len(record.master.scheduler.topology.job.vertices):
            return _refusal(404, f"job {record.stored.job_id} has no vertex {number}")
        return JsonResponse(flink.flame_graph(await self._manager.stacks.flame_graph(record.master, number)))

    async def _checkpoints(self, request: Request) -> Response:
        return JsonResponse(flink.checkpoints(job_document(self._find(request), self._manager.parts)))

    async def _exceptions(self, request: Request) -> Response:
        most = request.query_params.get("maxExceptions", "")
        if most and not (most.isascii() and most.isdigit()):
            return _refusal(400, f"maxExceptions={most[:20]!r} is not a number from 0")
        job = job_document(self._find(request), self._manager.parts)
        return JsonResponse(flink.exceptions(job, int(most[:9]) if most else len(job["failures"])))

    async def _savepoint(self, request: Request) -> Response:
        record = self._find(request)
        if record.master is None:
            return _refusal(409, f"job {record.stored.job_id} has ended; a savepoint needs a running job")
        try:
            body = json_of(await request.body())
        except ValueError as error:
            return _refusal(400, f"the body is not JSON: {error}")
        stop = bool(isinstance(body, dict) and body.get("cancel-job"))
        if sum(each["status"]["id"] == "IN_PROGRESS" for each in self._savepoints.values()) >= MAX_SAVEPOINTS:
            return _refusal(429, f"{MAX_SAVEPOINTS} savepoints are in progress; wait until some of them complete")
        audit("savepoint and stop" if stop else "savepoint", record, _who(request))
        trigger = secrets.token_hex(16)
        self._savepoints[trigger] = {"status": {"id": "IN_PROGRESS"}}
        while len(self._savepoints) > MAX_SAVEPOINTS:
            del self._savepoints[next(iter(self._savepoints))]
        assert self._nursery is not None
        self._nursery.start_soon(self._save, record, trigger, stop)
        return JsonResponse({"request-id": trigger}, status_code=202)

    async def _save(self, record: JobRecord, trigger: str, stop: bool) -> None:
        assert record.master is not None
        master = record.master
        try:
            report = await master.savepoint(stop=stop)
            operation: dict[str, Any] = {"location": master.path_of(report.checkpoint_id)}
        except Exception as error:  # fails this savepoint only
            if not isinstance(error, NetstackError):
                LOGGER.exception("savepoint of job %s failed with an unexpected error", record.stored.job_id)
            operation = {"failure-cause": {"class": type(error).__name__, "stack-trace": safe_error(error)}}
        self._savepoints[trigger] = {"status": {"id": "COMPLETED"}, "operation": operation}

    async def _savepoint_status(self, request: Request) -> Response:
        status = self._savepoints.get(request.path_params["trigger"])
        return (
            _refusal(404, "unknown savepoint request id, or its status has been discarded")
            if status is None
            else JsonResponse(status)
        )

    async def _taskmanagers(self, request: Request) -> Response:
        return JsonResponse(flink.taskmanagers(taskmanagers_document(self._manager.parts)))

    async def _taskmanager(self, request: Request) -> Response:
        name = request.path_params["name"]
        matches = [each for each in taskmanagers_document(self._manager.parts) if each["name"] == name]
        return (
            JsonResponse(flink.taskmanager(matches[0]))
            if matches
            else _refusal(404, f"no TaskManager is named {name[:60]!r}")
        )

    # netstack's own paths.

    async def _own_job(self, request: Request) -> Response:
        self._manager.snapshots.request_updates()
        return JsonResponse(self._manager.snapshots.drawn(self._find(request)))

    async def _log(self, request: Request) -> Response:
        words = {*request.query_params.get("search", "").lower().split()}
        log = job_document(self._find(request), self._manager.parts)["log"]
        texts = [f"{each['what']} {each['text']}".lower() for each in log]
        entries = [each for each, text in zip(log, texts, strict=True) if all(word in text for word in words)]
        return JsonResponse(entries)

    async def _all_history(self, request: Request) -> Response:
        return await history_response(request, self.history)

    async def _events(self, request: Request) -> Response:
        async def snapshots() -> AsyncGenerator[bytes, None]:
            seen = -1
            me = object()
            self._streams[me] = None
            try:
                while len(self._streams) > MAX_STREAMS:
                    del self._streams[next(iter(self._streams))]
                while me in self._streams:
                    number, event = self._newest_event()
                    if number != seen:
                        seen = number
                        self._sending[me] = event
                        began_s = trio.current_time()
                        for start in range(0, len(event), PART_BYTES):
                            yield event[start : start + PART_BYTES]
                            if trio.current_time() - began_s > EVENT_S:
                                return  # it connects again, and gets the newest one
                        del self._sending[me]
                    else:
                        event = b""
                        yield b": alive\n\n"
                    await trio.sleep(max(LOOK_S, len(event) * len(self._streams) / EVENT_BYTES_PER_S))
            finally:
                self._streams.pop(me, None)
                self._sending.pop(me, None)

        return EventsResponse(snapshots())

    def _newest_event(self) -> tuple[int, bytes]:
        """The newest snapshot as an event, with its number; all streams share it.

        An older one while streams of slow readers hold too many others.
        """
        if self._event[0] != self.history.number:
            held = {id(event): len(event) for event in self._sending.values()}
            data = f'{{"at":{steady_time():.3f},"snapshot":{self.history.last or "null"}}}'
            if sum(held.values()) + len(data) <= MAX_EVENTS_BYTES:
                self._event = self.history.number, f"event: snapshot\ndata: {data}\n\n".encode()
        return self._event


def _vertex_of(request: Request, job: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """The requested vertex of a job's document. Raises ConfigError if there is none."""
    vertices, number = job["vertices"], request.path_params["vertex"]
    if number >= len(vertices):
        raise ConfigError(f"the job has vertices 0 to {len(vertices) - 1}")
    return number, vertices[number]


def _who(request: Request) -> str:
    return "the page" if request.client is None else f"the page, from {request.client.host}"


async def _broke(request: Request, error: Exception) -> Response:
    """Answers a request that failed with an unexpected error; the guard logs the error."""
    return _refusal(500, BROKE)


def _refusal(status: int, text: str) -> JsonResponse:
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JsonResponse({"errors": [text]}, status_code=status, headers=headers)
