"""The client of a JobManager, against one that answers as the test says."""

from __future__ import annotations

import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import trio
from jobmanager.played_jobmanager import answering, client_of, goes
from trio.testing import MockClock

from netstack.base.errors import ConfigError, ConnectionLost, JobFailed, RemoteProtocolError, RequestRefused
from netstack.cluster.control.link import TASKMANAGER, ControlLink
from netstack.cluster.control.messages import SLICE_BYTES, Answer, Ask, Refused
from netstack.cluster.control.reports import JobClosed
from netstack.cluster.jobmanager.client import JobClient, graph_of, open_job_client
from netstack.cluster.jobmanager.shipping import zip_package
from netstack.schedule.graph.stream_builder import StreamEnvironment


async def test_answers_find_their_questions_in_any_order(autojump_clock: MockClock) -> None:
    async def backwards(link: ControlLink) -> None:
        asked = [await link.receive() for _ in range(3)]
        for ask in reversed(asked):
            assert isinstance(ask, Ask)
            link.send(Answer(ask.token, {"state": ask.document["job_id"]}))
        await trio.sleep_forever()

    actual = []

    async def ask(client: JobClient, job_id: str) -> None:
        actual.append((job_id, await client.cancel(job_id)))

    async with client_of(backwards) as client, trio.open_nursery() as nursery:
        for job_id in ("a", "b", "c"):
            nursery.start_soon(ask, client, job_id)
    assert sorted(actual) == [("a", "a"), ("b", "b"), ("c", "c")]


async def test_a_refusal_is_that_question_s_alone(autojump_clock: MockClock) -> None:
    async with client_of(answering("there is no job 'x'; `netstack jobs` lists them", {"jobs": []})) as client:
        with pytest.raises(RequestRefused, match="'x'; `netstack jobs` lists"):
            await client.job("x")
        assert await client.jobs() == []


async def test_a_job_that_failed_raises_its_root_cause(autojump_clock: MockClock) -> None:
    failed = {"state": "failed", "reason": "task split (2/4): ValueError: no", "results": {}, "traceback": "lines"}
    finished = {"state": "finished", "reason": "", "results": {"show": {"0": [1], "10": None}}}
    async with client_of(answering(failed, finished)) as client:
        with pytest.raises(JobFailed, match=r"^task split \(2/4\): ValueError: no$") as caught:
            await client.wait("ab")
        assert (caught.value.job_id, caught.value.traceback) == ("ab", "lines")
        assert (await client.wait("ab")).results == {"show": {0: [1], 10: None}}


async def test_whoever_waits_learns_that_the_jobmanager_has_gone(autojump_clock: MockClock) -> None:
    async with client_of(goes) as client:
        with pytest.raises(ConnectionLost):
            await client.wait("a")
        with pytest.raises(ConnectionLost):
            await client.jobs()


async def test_a_silent_jobmanager_is_lost_too(autojump_clock: MockClock) -> None:
    async def silent(link: ControlLink) -> None:
        await link.receive()
        link.send = lambda message: None  # type: ignore[method-assign]
        await trio.sleep_forever()

    async with client_of(silent) as client:
        with pytest.raises(ConnectionLost, match="was silent for 10 s"):
            await client.wait("a")


@pytest.mark.parametrize(
    ("message", "error"),
    [(Refused("there are too many of you"), RequestRefused), (JobClosed("0" * 15 + "1", ""), RemoteProtocolError)],
)
async def test_what_is_no_answer_ends_the_connection(
    autojump_clock: MockClock, message: Any, error: type[Exception]
) -> None:
    async def wrong(link: ControlLink) -> None:
        await link.receive()
        link.send(message)
        await trio.sleep_forever()

    async with client_of(wrong) as client:
        for _ in range(2):
            with pytest.raises(error):
                await client.jobs()


async def test_an_answer_without_what_was_asked_for(autojump_clock: MockClock) -> None:
    async with client_of(answering({"jobs": 1})) as client:
        with pytest.raises(RemoteProtocolError, match="jobs of type list"):
            await client.jobs()


async def test_a_cancelled_question_leaves_the_others(autojump_clock: MockClock) -> None:
    async def late(link: ControlLink) -> None:
        first, second = await link.receive(), await link.receive()
        assert isinstance(first, Ask)
        assert isinstance(second, Ask)
        link.send(Answer(first.token, {"state": "first"}))
        link.send(Answer(second.token, {"state": "second"}))
        await trio.sleep_forever()

    async with client_of(late) as client:
        with trio.move_on_after(1) as scope:
            await client.cancel("a")
        assert scope.cancelled_caught
        assert await client.cancel("b") == "second"


async def test_a_taskmanager_is_no_jobmanager(autojump_clock: MockClock) -> None:
    with pytest.raises(RequestRefused, match="is a taskmanager, not a JobManager"):
        async with client_of(answering(), TASKMANAGER):
            pass


def test_what_is_no_job_is_refused() -> None:
    for wrong in (5, "words", None):
        with pytest.raises(ConfigError, match=r"the job is an? \w+; give a StreamEnvironment"):
            graph_of(wrong)  # type: ignore[arg-type]


async def test_nobody_there(autojump_clock: MockClock) -> None:
    with pytest.raises(ConnectionLost):
        async with open_job_client("memory://nobody"):
            pass


def words(package: str) -> StreamEnvironment:
    job = StreamEnvironment("words")
    job.source(f"{package}.work:read").key_by("json:loads").sink("nowhere_to_be_found:show")
    return job


def package_at(folder: Path, name: str, size: int = 0) -> str:
    place = folder / name
    (place / "__pycache__").mkdir(parents=True)
    (place / "__pycache__" / "old.pyc").write_bytes(b"x")
    (place / "__init__.py").write_text("")
    (place / "work.py").write_text("def read(): ...\n")
    (place / "table.bin").write_bytes(bytes(i * i % 251 for i in range(size)))
    return str(place)


async def test_a_submission_names_the_code_that_is_meant(
    autojump_clock: MockClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package_at(tmp_path, "submitted_job")
    monkeypatch.syspath_prepend(str(tmp_path))
    asked: list[Ask] = []
    async with client_of(answering({"job_id": "ab"}, asked=asked)) as client:
        assert await client.submit(words("submitted_job"), from_savepoint="/chk-3") == "ab"
    (submitted,) = asked
    assert submitted.what == "submit"
    assert submitted.document["from_savepoint"] == "/chk-3"
    assert submitted.document["code"] == {}
    assert [*submitted.document["builds"]] == ["submitted_job"]  # neither Python's own, nor what is not here
    assert [each["name"] for each in submitted.document["document"]["operators"]] == ["source", "sink"]


async def test_a_package_is_sent_in_parts_before_its_job(autojump_clock: MockClock, tmp_path: Path) -> None:
    asked: list[Ask] = []
    path = package_at(tmp_path, "shipped_job", 3 * SLICE_BYTES)
    async with client_of(answering(*[{"received": 0}] * 20, asked=asked)) as client:
        with pytest.raises(RemoteProtocolError, match="has no job_id of type str"):
            await client.submit(words("shipped_job"), ship=[path])
    *parts, submitted = asked
    data = b"".join(part.document["data"] for part in parts)
    assert [part.document["offset"] for part in parts] == [*range(0, len(data), SLICE_BYTES)]
    assert {part.document["total"] for part in parts} == {len(data)}
    assert submitted.document["code"] == {"shipped_job": parts[0].document["sha256"]}
    assert not submitted.document["builds"]
    names = sorted(zipfile.ZipFile(BytesIO(data)).namelist())
    assert names == ["shipped_job/__init__.py", "shipped_job/table.bin", "shipped_job/work.py"]


def test_the_same_files_are_the_same_archive(tmp_path: Path) -> None:
    one = zip_package(package_at(tmp_path / "a", "same"))
    assert one == zip_package(package_at(tmp_path / "b", "same"))
    assert zip_package(str(tmp_path / "a" / "same" / "work.py")).name == "work"
    assert zip_package("netstack").name == "netstack"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("no_such_package_here", "is not a single folder or file here"),
        ("netstack.cli", "ship the whole package netstack"),
        ("gone.py", "gone.py does not exist"),
        ("a-b", "neither a package, nor a folder"),
    ],
)
def test_what_cannot_be_sent(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        zip_package(name)
