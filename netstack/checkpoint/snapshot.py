"""What a task leaves in a checkpoint, the list of all of them, and the bytes of the files that hold these.

Takes: a task's snapshot, or a checkpoint's manifest. Gives: the bytes of its file, and back.

A state file, numbers big-endian:

    magic `NSCKPT` | version, u16 | length of the body, u64 | body | CRC-32 of everything before, u32

The body is one msgpack map, compressed as an LZ4 frame; a tuple in it is a map of one key, the empty extension of type
1, to a list, so nothing is unpacked by recursion. A manifest is JSON for people to read; its last member is the
CRC-32 of the bytes before that. Both are refused unless every byte is as it was written.

Rules: only plain data is stored: None, bool, int of 64 bits, float, str, bytes, list, tuple, dict. It comes back as it
was, keys of dicts included, except that bytearrays and memoryviews come back as bytes, and Counters and other kinds of
dict as dicts; msgpack's own `Timestamp` and `ExtType` come back as they are. Lists and dicts may be nested about 1,000
deep, tuples half of that: what is deeper is refused when it is written, never when it is read. Nothing read from a file
is unpickled or evaluated.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import lz4.frame
import msgpack

from .. import crc
from ..errors import CheckpointStorageError, LocalProtocolError, StateNotPlain
from ..shown import shown, shown_error

MAX_DEPTH: Final = 500
"""A way this long says nothing more; deeper states are refused as a whole."""

_LEAVES: Final = (type(None), bool, float, str, bytes, bytearray, memoryview, msgpack.Timestamp, msgpack.ExtType)


def misfit(state: Any) -> str:
    """The way to what cannot be stored, such as `['counts'][3]: {1, 2} is of type builtins.set`; else empty.

    Recurses nowhere: a state that contains itself is one that is nested too deep.
    """
    stack: list[tuple[Any, str, int]] = [(state, "", 0)]
    while stack:
        value, way, depth = stack.pop()
        if depth > MAX_DEPTH:
            return f"{way[:80]}... is nested too deep"
        if isinstance(value, dict):
            inside = []
            for key, inner in value.items():
                inside.append((inner, f"{way}[{shown(key)}]", depth + 1))
                if wrong := _wrong(key):
                    return f"a key of {way or 'it'}: {wrong}"
            stack += reversed(inside)
        elif type(value) in (list, tuple):
            stack += [(inner, f"{way}[{index}]", depth + 1) for index, inner in reversed([*enumerate(value)])]
        elif wrong := _wrong(value):
            return f"{way}: {wrong}" if way else wrong
    return ""


def _wrong(value: Any) -> str:
    if type(value) is tuple:
        return next((wrong for wrong in map(_wrong, value) if wrong), "")
    if type(value) is int:
        return "" if -(1 << 63) <= value < 1 << 64 else f"an int of {value.bit_length()} bits does not fit 64"
    if type(value) in _LEAVES:
        return ""
    kind = type(value)
    return f"{shown(value)} is of type {kind.__module__}.{kind.__qualname__}"


ChannelKey: TypeAlias = tuple[str, int]
"""A channel by what it reads: the partition's name, which is unique in the job, and the subpartition."""

ChannelBytes: TypeAlias = dict[ChannelKey, bytes]

VERSION: Final = 2
"""Of state files and manifests; another one is refused."""

_MAGIC: Final = b"NSCKPT"
_HEADER: Final = struct.Struct(">6sHQ")
_CRC: Final = struct.Struct(">I")
HEADER_BYTES: Final = _HEADER.size
CRC_BYTES: Final = _CRC.size
_MANIFEST_FORMAT: Final = "netstack checkpoint"
_MANIFEST_END_BYTES: Final = len('01234567"\n}\n')
_TUPLE: Final = msgpack.ExtType(1, b"")  # msgpack knows lists only, and lists cannot be keys


@dataclass(frozen=True, slots=True)
class TaskSnapshot:
    """All that one subtask leaves in a checkpoint.

    Attributes:
        task: the task's name.
        subtask: which of its subtasks, from 0.
        operator: the state of its operator: plain data (see the module).
        inputs: overtaken data that had arrived, by the channel it arrived on.
        outputs: overtaken data that had not been sent, by the channel it was for.
    """

    task: str
    subtask: int
    operator: Any = None
    inputs: Mapping[ChannelKey, bytes] = field(default_factory=dict)
    outputs: Mapping[ChannelKey, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskFile:
    """A subtask's snapshot on disk; what its acknowledgement carries.

    Attributes:
        task: the task's name.
        subtask: which of its subtasks.
        size_bytes: of the file.
        crc32: with which the file ends.
    """

    task: str
    subtask: int
    size_bytes: int
    crc32: int

    @property
    def name(self) -> str:
        """The file's, in the checkpoint's folder. It names the contents, so nobody writes over another's."""
        return state_file_name(self.task, self.subtask, self.crc32)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a complete checkpoint consists of.

    Attributes:
        checkpoint_id: its number.
        created_at: when, with a time zone; informative only.
        parallelism: how many subtasks each task had.
        files: exactly one for every subtask, in any order.
        is_savepoint: whether it was asked for, and is therefore not removed when newer ones come.
        job_goes_on: whether it is a savepoint that did not stop its job: nothing was committed for it, and the job
            itself does not begin from it after a failure.
        epoch: of the master that completed it; the storage sets it.

    Raises:
        LocalProtocolError: the files are not those of the subtasks.
    """

    checkpoint_id: int
    created_at: datetime
    parallelism: Mapping[str, int]
    files: tuple[TaskFile, ...]
    is_savepoint: bool = False
    job_goes_on: bool = False
    epoch: int = 0

    def __post_init__(self) -> None:
        have = Counter((file.task, file.subtask) for file in self.files)
        want = Counter((task, subtask) for task, count in self.parallelism.items() for subtask in range(count))
        if have != want:
            wrong = sorted((want - have) + (have - want))
            raise LocalProtocolError(
                f"checkpoint {self.checkpoint_id} needs one state file for each of its {want.total()} subtasks; not so:"
                f" {', '.join(f'{task}-{subtask}' for task, subtask in wrong[:5])}"
            )

    @property
    def size_bytes(self) -> int:
        """Of all state files together."""
        return sum(file.size_bytes for file in self.files)


def state_file_name(task: str, subtask: int, crc32: int) -> str:
    """The name of a subtask's file: readable, different for each and its contents, and never a way out of its folder.

    Everything but letters, digits and `_.-~` is written as %XX. Of a name that would be too long for a file, the end is
    replaced by a checksum and its length.
    """
    name = quote(task, safe="", errors="surrogatepass")
    if len(name) > 150:
        data = name.encode()
        name = f"{name[:100]}~{crc.crc32(data):08x}{zlib.adler32(data):08x}~{len(data)}"
    return f"{name}-{subtask}.{crc32:08x}.state"


def encode_snapshot(checkpoint_id: int, snapshot: TaskSnapshot) -> tuple[list[bytes], TaskFile]:
    """The bytes of a state file, in pieces to be written one after the other, and what to remember of it.

    Raises:
        StateNotPlain: the operator's state is not plain data, or too large for msgpack.
    """
    document = {
        "checkpoint": checkpoint_id,
        "task": snapshot.task,
        "subtask": snapshot.subtask,
        "operator": snapshot.operator,
        "inputs": [[*channel, data] for channel, data in snapshot.inputs.items()],
        "outputs": [[*channel, data] for channel, data in snapshot.outputs.items()],
    }
    try:
        body = lz4.frame.compress(_packed(document))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        why = "it is nested too deep" if "recursion" in str(error) else misfit(snapshot.operator) or error
        raise StateNotPlain(
            f"checkpoint {checkpoint_id}: the state of {snapshot.task}-{snapshot.subtask} cannot be stored: {why};"
            " keep None, bool, int of 64 bits, float, str, bytes, and lists, tuples and dicts of these"
        ) from error
    header = _HEADER.pack(_MAGIC, VERSION, len(body))
    crc32 = crc.crc32(body, crc.crc32(header))
    pieces = [header, body, _CRC.pack(crc32)]
    size_bytes = HEADER_BYTES + len(body) + CRC_BYTES
    return pieces, TaskFile(snapshot.task, snapshot.subtask, size_bytes, crc32)


def check_header(data: bytes, size_bytes: int) -> None:
    """Looks at the start of a state file.

    Args:
        data: the file's first bytes.
        size_bytes: the file's length.

    Raises:
        CheckpointStorageError: it is not a state file of this version and length; the text says only what is wrong.
    """
    if len(data) < HEADER_BYTES or not data.startswith(_MAGIC):
        raise CheckpointStorageError(f"is no state file: it begins with {data[:HEADER_BYTES]!r}")
    _, version, body_bytes = _HEADER.unpack_from(data)
    if version != VERSION:
        raise CheckpointStorageError(f"has version {version}; this release reads {VERSION}")
    if size_bytes != HEADER_BYTES + body_bytes + CRC_BYTES:
        raise CheckpointStorageError(
            f"has {size_bytes} bytes; its header says {HEADER_BYTES + body_bytes + CRC_BYTES}: it was cut or mixed up"
        )


def decode_snapshot(data: bytes, checkpoint_id: int) -> TaskSnapshot:
    """The snapshot in a state file.

    Raises:
        CheckpointStorageError: it is damaged or of another checkpoint; the text says only what is wrong.
    """
    check_header(data, len(data))
    (expected,) = _CRC.unpack(data[-CRC_BYTES:])
    view = memoryview(data)
    check_crc32(crc.crc32(view[:-CRC_BYTES]), expected)
    try:
        document = _unpacked(lz4.frame.decompress(view[HEADER_BYTES:-CRC_BYTES]))
        snapshot = TaskSnapshot(
            document["task"],
            document["subtask"],
            document["operator"],
            {(partition, subpartition): data for partition, subpartition, data in document["inputs"]},
            {(partition, subpartition): data for partition, subpartition, data in document["outputs"]},
        )
        found = document["checkpoint"]
    # The checksum holds, so this was written by something else, whatever that was.
    except (RuntimeError, ValueError, KeyError, TypeError, msgpack.UnpackException) as error:
        raise CheckpointStorageError(f"does not hold a snapshot: {shown_error(error)}") from error
    if found != checkpoint_id:
        raise CheckpointStorageError(f"belongs to checkpoint {found}")
    return snapshot


def check_crc32(found: int, expected: int) -> None:
    """Compares two checksums.

    Raises:
        CheckpointStorageError: they differ; the text says only what is wrong.
    """
    if found != expected:
        raise CheckpointStorageError(f"has CRC-32 {found:08x}, expected is {expected:08x}: it was damaged")


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of a manifest's file."""
    document = {
        "format": _MANIFEST_FORMAT,
        "version": VERSION,
        "checkpoint": manifest.checkpoint_id,
        "kind": "savepoint" if manifest.is_savepoint else "checkpoint",
        "job_goes_on": manifest.job_goes_on,
        "created_at": manifest.created_at.isoformat(),
        "epoch": manifest.epoch,
        "parallelism": dict(manifest.parallelism),
        "files": [
            {
                "name": file.name,
                "task": file.task,
                "subtask": file.subtask,
                "bytes": file.size_bytes,
                "crc32": f"{file.crc32:08x}",
            }
            for file in manifest.files
        ],
    }
    head = (json.dumps(document, indent=2).removesuffix("\n}") + ',\n  "crc32": "').encode()
    return head + _manifest_end(head)


def decode_manifest(data: bytes, checkpoint_id: int) -> Manifest:
    """The manifest in a file.

    Raises:
        CheckpointStorageError: it is damaged, of another version or of another checkpoint; the text says only what is
            wrong.
    """
    head, end = data[:-_MANIFEST_END_BYTES], data[-_MANIFEST_END_BYTES:]
    if end != _manifest_end(head):
        raise CheckpointStorageError("does not end with its checksum: it was damaged, cut or edited")
    try:
        document = json.loads(data)
        if document["format"] != _MANIFEST_FORMAT or document["version"] != VERSION:
            raise CheckpointStorageError(
                f"is {shown(document['format'])} of version {shown(document['version'])}; this release reads"
                f" {_MANIFEST_FORMAT!r} of version {VERSION}"
            )
        manifest = Manifest(
            document["checkpoint"],
            datetime.fromisoformat(document["created_at"]),
            document["parallelism"],
            tuple(
                TaskFile(file["task"], file["subtask"], file["bytes"], int(file["crc32"], 16))
                for file in document["files"]
            ),
            is_savepoint=document["kind"] == "savepoint",
            job_goes_on=document.get("job_goes_on") is True,
            epoch=int(document["epoch"]),
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, LocalProtocolError) as error:
        raise CheckpointStorageError(f"does not describe a checkpoint: {shown_error(error)}") from error
    if manifest.checkpoint_id != checkpoint_id:
        raise CheckpointStorageError(f"belongs to checkpoint {manifest.checkpoint_id}")
    return manifest


def _manifest_end(head: bytes) -> bytes:
    return b'%08x"\n}\n' % crc.crc32(head)


def _packed(value: Any) -> bytes:
    # Strict: what is only like a number, a text or a list would come back as something else.
    packed: bytes = msgpack.packb(value, strict_types=True, default=_plain, unicode_errors="surrogatepass")
    return packed


def _plain(value: Any) -> Any:
    """What msgpack has no exact type for."""
    if type(value) is tuple:
        return {_TUPLE: list(value)}
    if isinstance(value, dict):
        return dict(value)
    if type(value) is int:
        raise OverflowError(f"an int of {value.bit_length()} bits does not fit 64")
    kind = type(value)
    raise TypeError(f"{shown(value)} is of type {kind.__module__}.{kind.__qualname__}")


def _unpacked(data: bytes) -> Any:
    return msgpack.unpackb(
        data, strict_map_key=False, ext_hook=_extension, object_hook=_map, unicode_errors="surrogatepass"
    )


def _extension(code: int, data: bytes) -> Any:
    return _TUPLE if code == 1 and not data else msgpack.ExtType(code, data)


def _map(found: dict[Any, Any]) -> Any:
    """A tuple is made when its list is: keys that are tuples are hashed after that."""
    if len(found) == 1 and type(items := found.get(_TUPLE)) is list:
        return tuple(items)
    return found
