"""`recover`: the records, the counts and their comparison, the plan of kills, the document and the command."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import os
import random
import re
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bench.children import DIED, Children
from bench.cli import main
from bench.processes import MeasurementFailed
from bench.recover import command, measure
from bench.recover.counts import Comparison, KeyCounts, compare, count
from bench.recover.kills import MOMENTS, Kill, OnDisk, on_disk, plan
from bench.recover.measure import Aim, Hit, Run, Supervisor, document
from bench.recover.operators import SINK
from bench.recover.records import RECORD, Records, key_of, split_records
from bench.recover.spec import MASTER, RecoverSpec
from netstack.checkpoint.snapshot import Manifest, TaskSnapshot
from netstack.checkpoint.storage import CheckpointStorage
from netstack.errors import ConfigError, RecordError

STREAM = Records(seed=7, keys=20, long_bytes=9000)
SPLITS = 2
TOTAL = 1501


# ------------------------------------------------------------------------------------------------------------ settings


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"runs": 0}, "--runs 0"),
        ({"kills": -1}, "--kills -1"),
        ({"records": 0}, "--records 0"),
        ({"sources": 0}, "--sources 0"),
        ({"sinks": 0}, "--sinks 0"),
        ({"keys": 0}, "--keys 0"),
        ({"rate_per_s": 0.0}, "--rate 0"),
        ({"interval_s": 0.0}, "--interval 0"),
        ({"aligned_timeout_s": 0.0}, "--aligned-timeout 0"),
        ({"mode": "exactly"}, "--mode exactly"),
    ],
)
def test_what_cannot_work_names_the_flag(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        RecoverSpec(**settings)


def test_settings_travel_whole() -> None:
    spec = RecoverSpec(runs=3, mode="timed", change_parallelism=True)
    assert RecoverSpec.from_dict(json.loads(json.dumps(spec.as_dict()))) == spec


@pytest.mark.parametrize(
    ("mode", "unaligned", "timeout_s"), [("aligned", False, 0.0), ("unaligned", True, 0.0), ("timed", True, 0.02)]
)
def test_modes_are_settings_of_the_coordinator(mode: Any, unaligned: bool, timeout_s: float) -> None:
    settings = RecoverSpec(mode=mode).checkpoints()
    assert (settings.unaligned, settings.aligned_timeout_s) == (unaligned, timeout_s)


# ------------------------------------------------------------------------------------------------------------- records


def test_a_stream_can_start_anywhere() -> None:
    whole = list(STREAM.stream(1, 0, 1000))
    assert len(set(whole)) == 1000
    for first in (1, 255, 256, 257, 999, 1000):
        assert list(STREAM.stream(1, first, 1000)) == whole[first:]
    assert list(STREAM.stream(0, 0, 10)) != whole[:10]
    assert list(Records(8, 20, 9000).stream(1, 0, 10)) != whole[:10]


def test_records_say_who_they_are_and_some_are_long() -> None:
    records = list(STREAM.stream(1, 0, 3000))
    for number, record in enumerate(records):
        key, split, found, digest = STREAM.check(record)
        assert (split, found) == (1, number)
        assert key == key_of(record) == digest % 20
        assert digest == STREAM.digest(1, number)
    assert max(map(len, records)) == RECORD.size + 9000
    assert 0 < sum(len(record) > 9000 for record in records) < 30


@pytest.mark.parametrize("change", ["shorter", "longer", "other"])
def test_a_record_that_was_not_sent_is_refused(change: str) -> None:
    record = next(record for record in STREAM.stream(0, 0, 100) if len(record) > RECORD.size)
    changed = {"shorter": record[:-1], "longer": record + b"x", "other": record[:-1] + bytes((record[-1] ^ 1,))}[change]
    with pytest.raises(RecordError, match="was never sent"):
        STREAM.check(changed)
    with pytest.raises(RecordError, match="a record of 3 bytes"):
        STREAM.check(b"abc")


def test_every_record_is_of_one_split() -> None:
    assert [split_records(split, 3, 11) for split in range(3)] == [4, 4, 3]


def counted(records: list[bytes]) -> KeyCounts:
    counts: KeyCounts = {}
    for record in records:
        count(counts, SPLITS, *STREAM.check(record))
    return counts


def all_records() -> list[bytes]:
    splits = [list(STREAM.stream(split, 0, split_records(split, SPLITS, TOTAL))) for split in range(SPLITS)]
    mixed = [record for pair in zip(*splits, strict=False) for record in pair]
    return mixed + splits[0][len(splits[1]) :]


def compared(*sinks: list[bytes]) -> Comparison:
    return compare(STREAM.expected(SPLITS, TOTAL), map(counted, sinks))


# ---------------------------------------------------------------------------------------------------------- comparison


def test_an_undisturbed_run_counts_what_the_generator_says() -> None:
    records = all_records()
    assert len(records) == TOTAL
    assert compared(records) == Comparison(0, 0, 0, ())
    odd = [record for record in records if key_of(record) % 2]
    even = [record for record in records if not key_of(record) % 2]
    assert compared(odd, even) == Comparison(0, 0, 0, ())


@pytest.mark.parametrize("place", [0, 1, 700, TOTAL - 1])
def test_a_lost_record_is_noticed(place: int) -> None:
    records = all_records()
    lost = records.pop(place)
    found = compared(records)
    assert (found.lost, found.repeated) == (1, 0)
    assert re.fullmatch(rf"key {key_of(lost)}: \d+ records were counted, \d+ were sent", found.problems[0])


@pytest.mark.parametrize("place", [0, 1, 700, TOTAL - 1])
def test_a_repeated_record_is_noticed(place: int) -> None:
    records = all_records()
    records.append(records[place])
    found = compared(records)
    assert (found.lost, found.repeated, found.disordered) == (0, 1, 1)


def test_a_lost_and_a_repeated_record_of_one_key_do_not_hide_each_other() -> None:
    records = all_records()
    first, second, *_ = (record for record in records if key_of(record) == key_of(records[0]))
    records[records.index(second)] = first
    found = compared(records)
    assert (found.lost, found.repeated) == (1, 1)
    assert "but not the ones that were sent" in found.problems[0]


def test_a_key_that_nobody_sent_is_repeated() -> None:
    stray = {99: [2, 5, 0]}
    found = compare(STREAM.expected(SPLITS, TOTAL), [counted(all_records()), stray])
    assert (found.lost, found.repeated) == (0, 2)


def test_nothing_counted_is_everything_lost() -> None:
    found = compared([])
    assert (found.lost, found.repeated) == (TOTAL, 0)
    assert len(found.problems) == 6
    assert found.problems[-1] == "and 15 keys more"


def test_what_overtook_is_noticed() -> None:
    records = all_records()
    first, second, *_ = (
        place for place, record in enumerate(records) if STREAM.check(record)[:2] == STREAM.check(records[0])[:2]
    )
    records[first], records[second] = records[second], records[first]
    assert compared(records) == Comparison(0, 0, 1, ())


def test_counts_can_be_set_back() -> None:
    records = all_records()
    kept = copy.deepcopy(counted(records[:900]))
    lost = counted(records[:1100])
    assert lost != kept
    for record in records[900:]:
        count(kept, SPLITS, *STREAM.check(record))
    assert compare(STREAM.expected(SPLITS, TOTAL), [kept]) == Comparison(0, 0, 0, ())


# --------------------------------------------------------------------------------------------------------------- kills


def test_a_few_runs_have_kills_at_every_moment() -> None:
    planned = [kill for run in range(2) for kill in plan(3, run, 3)]
    assert {kill.moment for kill in planned} == set(MOMENTS)
    assert all(0 <= kill.delay_s <= MOMENTS[kill.moment] for kill in planned)


def test_the_same_seed_plans_the_same_kills() -> None:
    assert plan(1, 4, 5) == plan(1, 4, 5)
    assert plan(1, 4, 5) != plan(2, 4, 5)
    assert plan(1, 4, 5)[0].delay_s != plan(1, 5, 5)[0].delay_s


def test_every_process_may_be_hit() -> None:
    chance = random.Random(0)
    names = ["source-0", "sink-0", "sink-1"]
    assert {Kill("anytime", 0, chance.random()).of(names) for _ in range(50)} == set(names)


def test_what_is_on_the_disk(tmp_path: Path) -> None:
    assert on_disk(tmp_path / "none") == OnDisk()
    for name, files in {
        "chk-00000001": ["a-0.state", "manifest.json"],
        "chk-00000002": ["a-0.state", ".b-0.state.12345678.tmp"],
        "chk-00000003": [],
    }.items():
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).touch()
    assert on_disk(tmp_path) == OnDisk(2, 1, False)
    assert on_disk(tmp_path).is_half_written
    (tmp_path / "chk-00000002" / "manifest.json").touch()
    assert not on_disk(tmp_path).is_half_written


# ---------------------------------------------------------------------------------------------------------- supervisor


class FakeCluster:
    """Stands for the processes: a job fails when one of them is killed, and ends when `kills` were made."""

    def __init__(self, spec: RecoverSpec, *, kills: int) -> None:
        self.spec = spec
        self.names: list[str] = []
        self.kills_left = kills
        self.inbox: deque[tuple[str, dict[str, Any]]] = deque()
        self.jobs: list[dict[str, Any]] = []
        self.killed: list[str] = []
        self.addressed: list[str] = []
        self.lose = 0
        self.mute_masters = 0  # that do not come so far as to tell their address

    def start(self, name: str, *arguments: str) -> None:
        assert name not in self.names
        assert arguments == ("--name", name)
        self.names.append(name)
        if name == MASTER and len(self.killed) >= self.mute_masters:
            self.say(MASTER, "address", address=f"tcp://{len(self.killed)}")

    def say(self, name: str, event: str, **fields: Any) -> None:
        self.inbox.append((name, {"event": event, **fields}))

    def send(self, name: str, event: str, **fields: Any) -> None:
        if event == "address":
            self.addressed.append(name)
            return
        assert (name, event) == (MASTER, "job")
        self.jobs.append(fields)
        now = time.monotonic_ns()
        self.say(MASTER, "opening", at_ns=now)
        self.say(MASTER, "running", restored_from=len(self.jobs) - 1 or None)
        self.say("b-sink-0", "counting", at_ns=now + 1)
        self.say(MASTER, "checkpoint", is_complete=True, channel_state_bytes=1000)
        if not self.kills_left:
            self.finish(Path(fields["folder"]))

    def finish(self, folder: Path) -> None:
        counts: KeyCounts = {}
        spec = self.spec
        for split in range(spec.sources):
            end = split_records(split, spec.sources, spec.records)
            for record in list(spec.stream.stream(split, 0, end))[self.lose :]:
                count(counts, spec.sources, *spec.stream.check(record))
        storage = CheckpointStorage(folder)
        files = (storage.write_task(9, TaskSnapshot(SINK, 0, counts)),)
        storage.complete(Manifest(9, datetime.now(UTC), {SINK: 1}, files))
        self.say(MASTER, "ended")

    def kill(self, name: str) -> None:
        assert name in self.names
        self.killed.append(name)
        self.kills_left -= 1
        if name == MASTER:
            self.say(MASTER, "running", restored_from=77)  # said before, heard after
            for worker in filter(self.addressed.__contains__, self.names):
                self.say(worker, "error", kind="ConnectionLost", text="the master is gone")
                self.say(worker, DIED, how="exited with code 1")
        self.say(name, DIED, how="was ended by signal 9")
        if name != MASTER:
            self.say(MASTER, "failed", reason="a worker is gone")

    def receive(self, wait_s: float) -> tuple[str, dict[str, Any]] | None:
        if not self.inbox:
            return None
        name, message = self.inbox.popleft()
        if message["event"] == DIED:
            self.names.remove(name)
        return name, message

    def quotes(self) -> str:
        return "\n  last words"


SMALL = RecoverSpec(runs=1, records=300, kills=2)


def supervised(
    monkeypatch: pytest.MonkeyPatch, folder: Path, victims: list[float], *, moment: Any = "running", **changed: Any
) -> tuple[Run, FakeCluster]:
    spec = replace(SMALL, kills=len(victims))
    cluster = FakeCluster(spec, kills=len(victims))
    for name, value in changed.items():
        setattr(cluster, name, value)
    monkeypatch.setattr(measure, "plan", lambda *_: [Kill(moment, 0.0, victim) for victim in victims])
    told: list[int] = []
    run = Supervisor(spec, cluster).run(0, folder, lambda: told.append(1))
    assert told
    return run, cluster


def test_a_run_without_kills(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run, cluster = supervised(monkeypatch, tmp_path, [])
    assert (run.hits, run.restored_from, run.recovered_s) == ([], [], [])
    assert run.comparison == Comparison(0, 0, 0, ())
    assert cluster.names == [MASTER, "a-source-0", "a-source-1", "b-sink-0", "b-sink-1"]
    assert cluster.addressed == cluster.names[1:]


def test_who_was_killed_is_started_again_and_the_job_sent_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run, cluster = supervised(monkeypatch, tmp_path, [0.3, 0.7])
    assert cluster.killed == ["a-source-0", "b-sink-1"], "of those that run, the one started again comes last"
    assert [hit.victim for hit in run.hits] == cluster.killed
    assert sorted(cluster.names) == ["a-source-0", "a-source-1", "b-sink-0", "b-sink-1", MASTER]
    assert len(cluster.jobs) == 3
    assert run.restored_from == [1, 2]
    assert len(run.recovered_s) == 1, "the second kill came before a record was counted after the first"
    assert run.state_bytes == [1000] * 3


def test_without_its_master_everybody_starts_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run, cluster = supervised(monkeypatch, tmp_path, [0.0])
    assert cluster.killed == [MASTER]
    assert len(cluster.jobs) == 2
    assert run.restored_from == [1], "what the master said before it died does not count"
    assert sorted(cluster.addressed) == sorted(2 * ["a-source-0", "a-source-1", "b-sink-0", "b-sink-1"])


def test_who_never_heard_of_a_master_waits_for_the_next(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run, cluster = supervised(monkeypatch, tmp_path, [0.0], moment="starting", mute_masters=1)
    assert cluster.killed == [MASTER]
    assert cluster.addressed == ["a-source-0", "a-source-1", "b-sink-0", "b-sink-1"]
    assert run.restored_from == [None]


def test_a_lost_record_of_a_run_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run, _ = supervised(monkeypatch, tmp_path, [0.3], lose=1)
    assert (run.comparison.lost, run.comparison.repeated) == (2, 0), "one of each split"


@pytest.mark.parametrize(
    ("event", "fields", "told"),
    [
        ("failed", {"reason": "a bug"}, "no kill explains it: a bug\n  last words"),
        (DIED, {"how": "exited with code 5"}, "master exited with code 5; it was not killed"),
    ],
)
def test_what_no_kill_explains_is_an_error(event: str, fields: dict[str, Any], told: str, tmp_path: Path) -> None:
    cluster = FakeCluster(SMALL, kills=1)
    cluster.say(MASTER, event, **fields)
    with pytest.raises(MeasurementFailed, match=re.escape(told)):
        Supervisor(SMALL, cluster).run(0, tmp_path, lambda: None)


def test_a_job_that_fails_for_ever_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spec = replace(SMALL, kills=1)
    cluster = FakeCluster(spec, kills=1)

    def fail(name: str, event: str, **fields: Any) -> None:
        if event == "job":
            cluster.jobs.append(fields)
            cluster.say(MASTER, "failed" if cluster.killed else "running", reason="again", restored_from=None)

    cluster.send = fail
    monkeypatch.setattr(measure, "plan", lambda *_: [Kill("running", 0.0, 0.3)])
    with pytest.raises(MeasurementFailed, match="no kill explains it: again"):
        Supervisor(spec, cluster).run(0, tmp_path, lambda: None)
    assert len(cluster.jobs) < 10


def test_a_run_that_stands_still_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(measure, "STALLED_S", 0.0)
    with pytest.raises(MeasurementFailed, match=r"stood still for 0 s after 0 kills\n  last words"):
        Supervisor(SMALL, FakeCluster(SMALL, kills=1)).run(0, tmp_path, lambda: None)


def test_parallelism_changes_at_every_restart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spec = replace(SMALL, change_parallelism=True, kills=6)
    cluster = FakeCluster(spec, kills=6)
    monkeypatch.setattr(measure, "plan", lambda *_: [Kill("running", 0.0, 0.3)] * 6)
    Supervisor(spec, cluster).run(0, tmp_path, lambda: None)
    sinks = [fields["sinks"] for fields in cluster.jobs]
    assert sinks[0] == 2
    assert all(before != after for before, after in itertools.pairwise(sinks))
    assert set(sinks) <= {1, 2, 3, 4}


@pytest.mark.parametrize("before", [0, 2])
def test_ctrl_c_keeps_the_runs_that_ended(before: int, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(SMALL, runs=4, kills=0)
    cluster = FakeCluster(spec, kills=0)
    monkeypatch.setattr(measure, "Children", lambda module: contextlib.nullcontext(cluster))
    heard: list[Any] = []

    def interrupt(progress: Any) -> None:
        heard.append(progress)
        if len(cluster.jobs) > before:
            raise KeyboardInterrupt

    if not before:
        with pytest.raises(KeyboardInterrupt):
            measure.measure(spec, on_progress=interrupt)
        return
    found, stopped = measure.measure(spec, on_progress=interrupt)
    assert stopped
    assert len(found) == before
    assert heard[-1].records == before * spec.records


class Watched:
    """What an aim looks at."""

    def __init__(self) -> None:
        self.began_s: float = 100.0
        self.running_s: float | None = None
        self.disk = OnDisk(1, 3, True)

    def look(self) -> OnDisk:
        return self.disk


def test_moments_are_waited_for() -> None:
    seen = Watched()
    starting, running, checkpoint, files = (
        Aim(Kill(moment, 0.5, 0.0, passed=1)) for moment in ("starting", "running", "checkpoint", "files")
    )
    assert not starting.is_due(seen, 100.4)
    assert starting.is_due(seen, 100.5), "whether the job runs by then or not"
    assert not running.is_due(seen, 200.0)
    seen.running_s = 200.0
    assert not running.is_due(seen, 200.4)
    assert running.is_due(seen, 200.5)
    for number in (1, 2):
        seen.disk = OnDisk(number, 3, False)
        assert not any(aim.is_due(seen, 300.0) for aim in (checkpoint, files)), "one is let pass"
    seen.disk = OnDisk(3, 0, False)
    assert not any(aim.is_due(seen, 301.0) for aim in (checkpoint, files))
    seen.disk = OnDisk(3, 1, False)
    assert not files.is_due(seen, 301.2)
    assert checkpoint.is_due(seen, 301.5)
    assert files.is_due(seen, 301.7)


# ------------------------------------------------------------------------------------------------- document and command


def runs(**compared: Any) -> list[Run]:
    found = {"lost": 0, "repeated": 0, "disordered": 0, "problems": (), **compared}
    half = OnDisk(3, 1, False)
    return [
        Run(
            [Hit("files", "a-source-0", half), Hit("running", MASTER, OnDisk())], [2, None], [0.5], [0, 500, 1000, 0], 1
        ),
        Run([Hit("files", "b-sink-1", OnDisk())], [7], [0.9, 0.7], [3000, 0, 700], 0, Comparison(**found)),
    ]


CONTRACT = {
    "runs", "kills", "lost", "repeated", "time_to_recover_ms", "checkpoints_completed", "restored_from", "delivered",
    "settings", "host", "version",
}  # fmt: skip


def test_the_document_adds_up() -> None:
    told = document(SMALL, runs())
    assert told.keys() >= CONTRACT
    assert (told["runs"], told["kills"], told["lost"], told["repeated"], told["delivered"]) == (2, 3, 0, 0, True)
    assert told["time_to_recover_ms"] == {"p50": 700.0, "max": 900.0}
    assert (told["checkpoints_completed"], told["checkpoints_aborted"]) == (7, 1)
    assert told["channel_state_bytes"] == {"p50": 500, "max": 3000}
    assert told["restored_from"] == [2, None, 7]
    assert told["kills_by_moment"] == {"files": 2, "running": 1}
    assert told["kills_by_process"] == {"a-source-0": 1, MASTER: 1, "b-sink-1": 1}
    assert told["kills_with_half_written_checkpoint"] == 1
    assert document(SMALL, [Run()])["time_to_recover_ms"] is None


@pytest.mark.parametrize("wrong", ["lost", "repeated", "disordered"])
def test_one_record_is_enough_to_fail(wrong: str) -> None:
    told = document(SMALL, runs(**{wrong: 1, "problems": ("key 4: ...",)}))
    assert told[wrong] == 1
    assert told["delivered"] is False
    assert told["warnings"] == ["run 1: key 4: ..."]


@pytest.mark.parametrize(
    ("compared", "stopped", "code"),
    [({}, False, 0), ({"lost": 3}, False, 1), ({"repeated": 2}, False, 1), ({}, True, 1)],
)
def test_recover_tells_and_exits(
    compared: dict[str, Any],
    stopped: bool,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[RecoverSpec] = []

    def fake(spec: RecoverSpec, *, on_progress: object) -> tuple[list[Run], bool]:
        asked.append(spec)
        return runs(**compared), stopped

    monkeypatch.setattr(command, "measure", fake)
    assert main(["recover", "--runs", "2"]) == code
    assert asked == [RecoverSpec(runs=2)]
    printed = capsys.readouterr()
    assert re.search(r"runs +2 of 30,000 records, unaligned *\n", printed.out)
    assert re.search(r"kills +3: 2 files, 1 running *\n", printed.out)
    assert re.search(r"data in flight in them +0\.5 kB, 3 kB at most *\n", printed.out)
    assert re.search(r"restarts +3, 1 of them from the beginning *\n", printed.out)
    assert re.search(r"time to recover +700 ms, 900 ms at most *\n", printed.out)
    assert re.search(rf"records lost +{compared.get('lost', 0)} *\n", printed.out)
    assert re.search(rf"records repeated +{compared.get('repeated', 0)} *\n", printed.out)
    assert ("stopped by Ctrl-C" in printed.err) == stopped
    assert main(["recover", "--json"]) == code
    told = json.loads(capsys.readouterr().out)
    assert told.keys() >= CONTRACT


def test_every_flag_reaches_the_spec(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[RecoverSpec] = []
    monkeypatch.setattr(command, "measure", lambda spec, **_: (asked.append(spec), (runs(), False))[1])
    flags = (
        "recover --runs 4 --kills 5 --seed 6 --records 700 --mode timed --interval 80ms --aligned-timeout 9ms"
        " --change-parallelism --sources 3 --sinks 1 --keys 11 --rate 1200"
    )
    assert main(flags.split()) == 0
    assert asked == [
        RecoverSpec(
            runs=4,
            kills=5,
            seed=6,
            records=700,
            mode="timed",
            interval_s=0.08,
            aligned_timeout_s=0.009,
            change_parallelism=True,
            sources=3,
            sinks=1,
            keys=11,
            rate_per_s=1200.0,
        )
    ]


@pytest.mark.parametrize(
    "flags", [["--runs", "0"], ["--mode", "exactly"], ["--rate", "0"], ["--interval", "0"], ["stray"]]
)
def test_bad_usage_is_exit_code_2(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recover", *flags]) == 2
    assert flags[0] in capsys.readouterr().err


# ----------------------------------------------------------------------------------------------------------- processes


@pytest.fixture
def pids(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Of all processes that are started; none is left in the end."""
    started: list[int] = []
    start = Children.start

    def noted(self: Children, name: str, *arguments: str) -> None:
        start(self, name, *arguments)
        started.append(self.pid(name))

    monkeypatch.setattr(Children, "start", noted)
    yield started
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.slow
def test_a_killed_process_counts_every_record_once(
    pids: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(measure, "plan", lambda *_: [Kill("files", 0.0, 0.99)])
    flags = "--runs 1 --records 6000 --interval 50ms --sources 1 --sinks 1 --change-parallelism"
    assert main(["recover", *flags.split(), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["runs"], told["lost"], told["repeated"], told["disordered"]) == (1, 0, 0, 0)
    assert told["delivered"]
    assert told["checkpoints_completed"] > 0
    assert told["kills_by_process"] == {"b-sink-0": 1}
    assert len(pids) == 4, "who was killed was started again"
    assert len(told["restored_from"]) == 1
