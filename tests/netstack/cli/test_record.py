"""`netstack record` and `netstack replay`: what was seen is in the file, also of a recorder that was killed."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from pathlib import Path

import pytest
import trio
from page_jobs import cluster

from netstack.base.errors import ConfigError, ConnectionLost
from netstack.cli import main
from netstack.cluster.web.recording import MAX_LINE_BYTES, VERSION, Recording, read_recording, recorded


def looks(path: Path) -> list[tuple[float, float, int]]:
    actual = []
    for each in read_recording(path).kept():
        at, until = each.at, each.until
        actual.append((at, until, len(each.packed)))
    return actual


def test_what_lasts_is_written_once(tmp_path: Path) -> None:
    with Recording(tmp_path / "file") as recording:
        for second in range(4):
            recording.add(float(second), '{"n":1}')
        recording.add(900.0, '{"n":2}')
    assert [each[:2] for each in looks(tmp_path / "file")] == [(0.0, 3.0), (900.0, 900.0)], (
        "older than ten minutes, too"
    )
    assert recording.count == 2


def test_a_recording_that_was_cut_short_is_read_as_far_as_it_is_whole(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "file")
    for number in range(50):
        recording.add(float(number), json.dumps({"n": number}))
    killed = (tmp_path / "file").read_bytes()
    recording.close()
    (tmp_path / "killed").write_bytes(killed)
    assert len(looks(tmp_path / "killed")) == 49, "all but the last one, which still held"
    (tmp_path / "killed").write_bytes(killed[: len(killed) // 2])
    assert 1 <= len(looks(tmp_path / "killed")) < 49


def test_what_is_no_recording_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("text")
    with pytest.raises(ConfigError, match="not a recording"):
        read_recording(file)
    for head, words in (
        ({"netstack_history": VERSION + 1}, "this release of netstack reads"),
        ({"netstack_history": VERSION}, "no snapshots"),
    ):
        file.write_bytes(gzip.compress(json.dumps(head).encode() + b"\n"))
        with pytest.raises(ConfigError, match=words):
            read_recording(file)


def recording_of(path: Path, *lines: bytes) -> Path:
    path.write_bytes(gzip.compress(b"\n".join([json.dumps({"netstack_history": VERSION}).encode(), *lines, b""])))
    return path


@pytest.mark.parametrize(
    "line",
    [
        b'{"at": 1%s, "until": 1, "snapshot": {}}' % (b"0" * 400),
        b'{"at": 1%s, "until": 1, "snapshot": {}}' % (b"0" * 5000),
        b'{"at": "1", "until": 1, "snapshot": {}}',
        b'{"at": true, "until": 1, "snapshot": {}}',
        b'{"at": NaN, "until": 1, "snapshot": {}}',
        b'{"at": 1e400, "until": 1, "snapshot": {}}',
        b'{"at": -1, "until": 1, "snapshot": {}}',
        b'{"at": 1, "snapshot": {}}',
        b'{"at": 1, "until": 1, "snapshot": []}',
        b'{"at": 1, "until": 1}',
        b"[]",
        b"\xff",
        b"[" * 1_000_000,
        b'{"at": 1, "until": 1, "snapshot": {"x": ' + b"[" * 100_000,
        b" " * (MAX_LINE_BYTES + 1),
    ],
    ids=range(15),
)
def test_a_line_that_is_no_look_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: bytes
) -> None:
    file = recording_of(tmp_path / "file", line)
    assert main(["replay", str(file), "--json"]) == 2
    reported = capsys.readouterr().err
    assert reported.startswith(f"netstack: {file} is not a recording of netstack: ")
    assert len(reported) < 600


def test_of_a_long_recording_the_first_looks_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("netstack.cluster.web.recording.MAX_TEXT_BYTES", 1 << 20)
    lines = [json.dumps({"at": each, "until": each, "snapshot": {"n": each, "x": " " * 50_000}}) for each in range(100)]
    actual = read_recording(recording_of(tmp_path / "file", *(line.encode() for line in lines)))
    assert actual.number == 20
    assert "later snapshots are left out" in caplog.text


def test_a_pipe_is_no_recording_and_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match="not a regular file"):
        read_recording(tmp_path / "pipe")


def test_what_belongs_to_a_job_is_refused_for_a_jobmanager(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    output = str(tmp_path / "file")
    assert main(["record", "127.0.0.1:1", "-p", "a=1", "--output", output]) == 2
    assert "whose jobs already run" in capsys.readouterr().err
    assert main(["record", "module:job", "--seconds", "1s", "--output", output]) == 2
    assert "a job is recorded until it ends" in capsys.readouterr().err
    assert main(["record", "127.0.0.1:1", "--output", output]) == 1
    assert "no JobManager answers" in capsys.readouterr().err


async def test_a_cluster_is_recorded_down_to_its_channels(tmp_path: Path) -> None:
    async with cluster() as (manager, _, job_id):
        from netstack.cluster.jobmanager.client import open_job_client

        async with open_job_client(manager.address) as client, recorded(tmp_path / "file", client.look):
            while not (await client.look())["jobs"][0]["edges"][0].get("channels"):  # noqa: ASYNC110
                await trio.sleep(0.05)
    last = json.loads(read_recording(tmp_path / "file").last)
    assert last["jobs"][0]["job_id"] == job_id
    assert len(last["jobs"][0]["edges"][0]["channels"]) == 4


async def test_a_look_that_fails_leaves_a_gap(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    count = 0

    async def look() -> dict[str, int]:
        nonlocal count
        count += 1
        await trio.lowlevel.checkpoint()
        if count in (2, 3):
            raise ConnectionLost("nobody answers")
        return {"n": count}

    async with recorded(tmp_path / "file", look):
        while count < 5:  # noqa: ASYNC110  # nobody tells
            await trio.sleep(0.1)
    kept = [json.loads(zlib.decompress(each.packed)) for each in read_recording(tmp_path / "file").kept()]
    numbers = [each["n"] for each in kept]
    assert numbers[:2] == [1, 4]
    assert numbers == sorted(set(numbers)), "the last look may interrupt the one before"
    assert numbers[-1] == count
    (line,) = [each.message for each in caplog.records if each.name == "netstack.web"]
    assert line == "a snapshot of the cluster failed, so the recording has a gap: ConnectionLost: nobody answers"

    count = 0
    with pytest.raises(ExceptionGroup) as raised:
        async with recorded(tmp_path / "other", look, fatal=(ConnectionLost,)):
            await trio.sleep_forever()
    assert raised.group_contains(ConnectionLost)
    assert len(looks(tmp_path / "other")) == 1
