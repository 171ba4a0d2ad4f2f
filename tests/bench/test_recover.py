"""`recover`: its settings, its records, how counts are compared, and which kills are planned."""

from __future__ import annotations

import copy
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from recover_records import SPLITS, STREAM, TOTAL, compared, counted

from bench.recover.counts import Comparison, compare, count
from bench.recover.kills import MOMENTS, Kill, OnDisk, on_disk, plan
from bench.recover.records import RECORD, Records, key_of, split_records
from bench.recover.spec import RecoverSpec
from netstack.errors import ConfigError, RecordError

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


def all_records() -> list[bytes]:
    splits = [list(STREAM.stream(split, 0, split_records(split, SPLITS, TOTAL))) for split in range(SPLITS)]
    mixed = [record for pair in zip(*splits, strict=False) for record in pair]
    return mixed + splits[0][len(splits[1]) :]


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
        "chk-00000001": ["a-0.01234567.state", "manifest.json"],
        "chk-00000002": ["a-0.01234567.state", ".b-0.state.12345678.tmp"],
        "chk-00000003": [],
    }.items():
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).touch()
    assert on_disk(tmp_path) == OnDisk(2, 1, False)
    assert on_disk(tmp_path).is_half_written
    (tmp_path / "chk-00000002" / "manifest.json").touch()
    assert not on_disk(tmp_path).is_half_written
