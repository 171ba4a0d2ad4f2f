"""The bytes of state files and manifests."""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import lz4.frame
import msgpack
import numpy as np
import pytest

from netstack.base.errors import CheckpointError, CheckpointStorageError, LocalProtocolError
from netstack.schedule.checkpoint.snapshot import (
    Manifest,
    TaskFile,
    TaskSnapshot,
    decode_manifest,
    decode_snapshot,
    encode_manifest,
    encode_snapshot,
    state_file_name,
)

SNAPSHOT = TaskSnapshot("sink", 1, {"a": 1}, {("words-0", 1): b"in"}, {("out-1", 0): b"out", ("out-1", 1): b""})
CREATED = datetime(2026, 11, 21, 17, 31, 5, 250_000, tzinfo=UTC)
MANIFEST = Manifest(
    42,
    CREATED,
    {"source": 1, "sink": 2},
    tuple(TaskFile(*name, 100, 7) for name in [("source", 0), ("sink", 0), ("sink", 1)]),
)


def stored(operator: Any) -> Any:
    pieces, _ = encode_snapshot(1, TaskSnapshot("sink", 0, operator))
    return decode_snapshot(b"".join(pieces), 1).operator


def test_a_snapshot_comes_back() -> None:
    pieces, file = encode_snapshot(42, SNAPSHOT)
    data = b"".join(pieces)
    assert decode_snapshot(data, 42) == SNAPSHOT
    assert (file.task, file.subtask, file.name, file.size_bytes) == (
        "sink",
        1,
        f"sink-1.{file.crc32:08x}.state",
        len(data),
    )
    assert file.crc32 == int.from_bytes(data[-4:], "big") == zlib.crc32(data[:-4])


def test_the_layout() -> None:
    data = b"".join(encode_snapshot(42, SNAPSHOT)[0])
    magic, version, body_bytes = struct.unpack_from(">6sHQ", data)
    assert (magic, version, body_bytes) == (b"NSCKPT", 2, len(data) - 20)
    assert msgpack.unpackb(lz4.frame.decompress(data[16:-4])) == {
        "checkpoint": 42,
        "task": "sink",
        "subtask": 1,
        "operator": {"a": 1},
        "inputs": [["words-0", 1, b"in"]],
        "outputs": [["out-1", 0, b"out"], ["out-1", 1, b""]],
    }


@pytest.mark.parametrize(
    "state",
    [
        None,
        True,
        {1: "int", "1": "str", b"1": "bytes", (1, ("2", b"3")): "tuple", None: "none", 1.5: "float"},
        [2**64 - 1, -(2**63), -0.0, math.inf, "\ud800", b"\xff", [], {}, (), ({"a": (1,)},)],
    ],
)
def test_plain_state_comes_back_as_it_was(state: Any) -> None:
    assert repr(stored(state)) == repr(state)


def test_what_comes_back_plainer() -> None:
    state = [Counter("aab"), bytearray(b"x"), memoryview(b"y")]
    assert stored(state) == [{"a": 2, "b": 1}, b"x", b"y"]
    assert type(stored(Counter("a"))) is dict


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (2**64, "an int of 65 bits does not fit 64"),
        (-(2**63) - 1, "an int of 64 bits"),
        ({"count": np.int64(3)}, r"np.int64\(3\) is of type numpy.int64"),
        ([np.float64(3)], "of type numpy.float64"),
        ({1, 2}, r"\{1, 2\} is of type builtins.set"),
        (print, "of type builtins.builtin_function_or_method"),
    ],
)
def test_other_state_is_refused(state: Any, reason: str) -> None:
    with pytest.raises(CheckpointError, match=f"checkpoint 1: the state of sink-0 cannot be stored: .*{reason}"):
        stored(state)


DEEPENERS = {
    "list": lambda inner: [inner],
    "tuple": lambda inner: (inner,),
    "map": lambda inner: {1: inner},
    "key": lambda inner: {inner if isinstance(inner, tuple) else (inner,): 1},
    "mixed": lambda inner: {(1, 2): ([inner],)},
}


@pytest.mark.parametrize("kind", DEEPENERS)
@pytest.mark.parametrize("levels", [10, 170, 200, 255, 256, 340, 400, 500, 512, 513, 1000, 1019, 1020, 1025, 5000])
def test_what_is_too_deep_is_refused_when_it_is_written_never_when_it_is_read(kind: str, levels: int) -> None:
    if kind == "key":
        levels = min(levels, 1)  # a map cannot be part of a key
    state: Any = None
    for _ in range(levels):
        state = DEEPENERS[kind](state)
    try:
        pieces, _ = encode_snapshot(1, TaskSnapshot("sink", 0, state))
    except CheckpointError as error:
        assert levels > 150
        assert "the state of sink-0 cannot be stored: it is nested too deep" in str(error)  # noqa: PT017  both are right
    else:
        assert levels <= 1020
        actual = decode_snapshot(b"".join(pieces), 1).operator
        for _ in range(levels):  # by hand: comparing recurses
            assert type(actual) is type(state)
            (actual,), (state,) = [
                [*each.values()] if isinstance(each, dict) and kind != "key" else [*each] for each in (actual, state)
            ]
            if kind == "mixed":
                actual, state = actual[0][0], state[0][0]


def test_tuples_as_deep_keys_come_back() -> None:
    key: Any = ()
    for _ in range(250):  # older versions of msgpack take no 300
        key = (key,)
    (actual,) = stored({key: 1})
    for _ in range(250):
        (actual,) = actual
    assert actual == ()


def test_what_only_msgpack_knows_comes_back() -> None:
    state = [msgpack.Timestamp(5, 6), msgpack.ExtType(9, b"x"), msgpack.ExtType(1, b""), {msgpack.ExtType(1, b""): 5}]
    assert stored(state) == state


def test_a_damaged_file_says_what_is_wrong() -> None:
    data = b"".join(encode_snapshot(42, SNAPSHOT)[0])
    with pytest.raises(CheckpointStorageError, match=r"is no state file: it begins with b''"):
        decode_snapshot(b"", 42)
    with pytest.raises(CheckpointStorageError, match="begins with b'MSCKPT"):
        decode_snapshot(b"M" + data[1:], 42)
    with pytest.raises(CheckpointStorageError, match="has version 9; this release reads 2"):
        decode_snapshot(data[:7] + b"\x09" + data[8:], 42)
    with pytest.raises(CheckpointStorageError, match=f"has {len(data) - 1} bytes; its header says {len(data)}"):
        decode_snapshot(data[:-1], 42)
    with pytest.raises(CheckpointStorageError, match=r"has CRC-32 [0-9a-f]{8}, expected is [0-9a-f]{8}"):
        decode_snapshot(data[:30] + bytes([data[30] ^ 1]) + data[31:], 42)
    with pytest.raises(CheckpointStorageError, match="belongs to checkpoint 42"):
        decode_snapshot(data, 41)


@pytest.mark.parametrize(
    "body",
    [
        b"not lz4",
        lz4.frame.compress(b"\xc1"),
        lz4.frame.compress(msgpack.packb({"task": 1})),
        lz4.frame.compress(msgpack.packb([])),
        lz4.frame.compress(msgpack.packb({"operator": msgpack.ExtType(9, b"")})),
        lz4.frame.compress(b"\x81" * 2000),
    ],
)
def test_a_file_that_somebody_else_wrote(body: bytes) -> None:
    data = struct.pack(">6sHQ", b"NSCKPT", 2, len(body)) + body
    with pytest.raises(CheckpointStorageError, match="does not hold a snapshot"):
        decode_snapshot(data + struct.pack(">I", zlib.crc32(data)), 42)


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("sink", "sink-3.000000ff.state"),
        ("a-1", "a-1-3.000000ff.state"),
        ("../../etc/passwd", "..%2F..%2Fetc%2Fpasswd-3.000000ff.state"),
        ("..", "..-3.000000ff.state"),
        ("", "-3.000000ff.state"),
        ("Wörter zählen\0", "W%C3%B6rter%20z%C3%A4hlen%00-3.000000ff.state"),
    ],
)
def test_file_names(task: str, name: str) -> None:
    assert state_file_name(task, 3, 255) == name


def test_long_names_are_cut_and_stay_different() -> None:
    names = {state_file_name("\u4e00" * 200 + end, 1000, 0) for end in ("", "a", "b")}
    assert len(names) == 3
    assert max(map(len, names)) < 200


def test_a_manifest_is_json_for_people_and_comes_back() -> None:
    data = encode_manifest(MANIFEST)
    assert decode_manifest(data, 42) == MANIFEST
    document = json.loads(data)
    assert (document["checkpoint"], document["kind"]) == (42, "checkpoint")
    assert document["created_at"] == "2026-11-21T17:31:05.250000+00:00"
    assert document["parallelism"] == {"source": 1, "sink": 2}
    assert document["files"][1] == {
        "name": "sink-0.00000007.state",
        "task": "sink",
        "subtask": 0,
        "bytes": 100,
        "crc32": "00000007",
    }
    assert MANIFEST.size_bytes == 300
    savepoint = replace(MANIFEST, is_savepoint=True, epoch=7)
    assert decode_manifest(encode_manifest(savepoint), 42) == savepoint


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (b'"version": 2', b'"version": 1', "of version 1; this release reads 'netstack checkpoint' of version 2"),
        (b'"format": "netstack', b'"format": "nestacks', "is 'nestacks checkpoint'"),
        (b'"kind"', b'"Kind"', "does not describe a checkpoint: KeyError"),
        (b'"sink": 2', b'"sink": 3', "does not describe a checkpoint: .*wrong: sink-2"),
        (b"{", b"[", "does not describe a checkpoint: JSONDecodeError"),
        (b'"created_at": "2026', b'"created_at": "abcd', "does not describe a checkpoint: ValueError"),
    ],
)
def test_a_manifest_of_another_kind(old: bytes, new: bytes, reason: str) -> None:
    head = encode_manifest(MANIFEST)[:-12].replace(old, new)
    data = head + b'%08x"\n}\n' % zlib.crc32(head)
    with pytest.raises(CheckpointStorageError, match=reason):
        decode_manifest(data, 42)


def test_an_edited_manifest_is_refused() -> None:
    data = encode_manifest(MANIFEST)
    for other in (b"", data[:-1], data + b"\n", data.replace(b"  ", b"\t"), data.replace(b"100", b"101", 1)):
        with pytest.raises(CheckpointStorageError, match="damaged, truncated or edited"):
            decode_manifest(other, 42)
    with pytest.raises(CheckpointStorageError, match="belongs to checkpoint 42"):
        decode_manifest(data, 43)


@pytest.mark.parametrize(
    ("parallelism", "wrong"),
    [({"source": 1, "sink": 3}, "sink-2"), ({"source": 1, "sink": 1}, "sink-1"), ({"sink": 2}, "source-0")],
)
def test_a_manifest_has_one_file_for_each_subtask(parallelism: dict[str, int], wrong: str) -> None:
    with pytest.raises(LocalProtocolError, match=f"wrong: {wrong}"):
        replace(MANIFEST, parallelism=parallelism)
    with pytest.raises(LocalProtocolError, match="wrong: source-0"):
        replace(MANIFEST, files=(*MANIFEST.files, MANIFEST.files[0]))


def test_the_way_to_what_cannot_be_stored_is_told() -> None:
    snapshot = TaskSnapshot("sink", 0, {"a": [1, (2, {"b": {3}})]})
    with pytest.raises(CheckpointError, match=r"\['a'\]\[1\]\[1\]\['b'\]: \{3\} is of type builtins.set"):
        encode_snapshot(1, snapshot)
    with pytest.raises(CheckpointError, match=r"a key of \['a'\]: \{1\} is of type builtins.frozenset"):
        encode_snapshot(1, TaskSnapshot("sink", 0, {"a": {frozenset((1,)): 2}}))
