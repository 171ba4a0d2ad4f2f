"""The file formats of checkpoints: the snapshot of a task, and the manifest.

Takes: a task's snapshot, or a checkpoint's manifest. Gives: the bytes of its file, and the reverse.

A state file, numbers big-endian:

    magic `NSCKPT` | version, u16 | length of the body, u64 | body | CRC-32 of everything before, u32

The body is one msgpack map, compressed as an LZ4 frame. A tuple is stored as a map from the empty extension of type 1
to a list, so decoding needs no recursion. A manifest is readable JSON; its last member is the CRC-32 of the bytes
before. Both are refused if any byte has changed.

Rules: only plain data is stored: None, bool, int of 64 bits, float, str, bytes, list, tuple, dict. It is restored
exactly, including keys of dicts, except that bytearrays and memoryviews become bytes, and Counters and other kinds of
dict become dicts; msgpack's `Timestamp` and `ExtType` are kept. Lists and dicts may be nested about 1,000 deep, tuples
half of that. Deeper data is refused when it is written, never when it is read. Nothing read from a file is unpickled or
evaluated.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeAlias
from urllib.parse import quote

import lz4.frame
import msgpack

from ...base import crc
from ...base.errors import CheckpointStorageError, LocalProtocolError, StateNotPlain
from ...base.text.safe_text import safe_error, safe_repr

MAX_DEPTH: Final = 500
"""Maximum depth of a path that an error text shows."""

_LEAVES: Final = (type(None), bool, float, str, bytes, bytearray, memoryview, msgpack.Timestamp, msgpack.ExtType)


def misfit(state: Any) -> str:
    """The path to a value that cannot be stored, such as `['counts'][3]: {1, 2} is of type builtins.set`; else empty.

    It does not recurse: a state that contains itself counts as nested too deep.
    """
    stack: list[tuple[Any, str, int]] = [(state, "", 0)]
    while stack:
        value, way, depth = stack.pop()
        if depth > MAX_DEPTH:
            return f"{way[:80]}... is nested too deep"
        if isinstance(value, dict):
            inside = []
            for key, inner in value.items():
                inside.append((inner, f"{way}[{safe_repr(key)}]", depth + 1))
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
    return f"{safe_repr(value)} is of type {kind.__module__}.{kind.__qualname__}"


ChannelKey: TypeAlias = tuple[str, int]
"""A channel, identified by the name of the partition it reads, which is unique in the job, and the subpartition."""

ChannelBytes: TypeAlias = dict[ChannelKey, bytes]

VERSION: Final = 2
"""Version of state files and manifests; other versions are refused."""

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
    """The part of one subtask in a checkpoint.

    Attributes:
        task: name of the task.
        subtask: index of the subtask, from 0.
        operator: the state of its operators: plain data (see the module).
        inputs: overtaken data that had arrived, by channel.
        outputs: overtaken data that had not been sent, by channel.
    """

    task: str
    subtask: int
    operator: Any = None
    inputs: Mapping[ChannelKey, bytes] = field(default_factory=dict)
    outputs: Mapping[ChannelKey, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskFile:
    """A subtask's snapshot on disk, as its acknowledgement describes it.

    Attributes:
        crc32: checksum at the end of the file.
    """

    task: str
    subtask: int
    size_bytes: int
    crc32: int

    @property
    def name(self) -> str:
        """Name of the file in the checkpoint's folder. It contains the checksum, so names of other contents differ."""
        return state_file_name(self.task, self.subtask, self.crc32)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a complete checkpoint.

    Attributes:
        created_at: time of its completion, with a time zone; informative only.
        files: exactly one file for every subtask, in any order.
        is_savepoint: whether it is a savepoint, which is never removed automatically.
        job_goes_on: whether it is a savepoint that did not stop its job. Nothing was committed for it, and the job does
            not restart from it after a failure.
        epoch: epoch of the master that completed it; the storage sets it.

    Raises:
        LocalProtocolError: the files do not match the subtasks.
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
                f"checkpoint {self.checkpoint_id} needs exactly one state file for each of its {want.total()} subtasks;"
                f" wrong: {', '.join(f'{task}-{subtask}' for task, subtask in wrong[:5])}"
            )

    @property
    def size_bytes(self) -> int:
        """Total size of all state files."""
        return sum(file.size_bytes for file in self.files)


def state_file_name(task: str, subtask: int, crc32: int) -> str:
    """The name of a subtask's file: readable, unique for subtask and contents, and safe as a path.

    All characters except letters, digits and `_.-~` are written as %XX. The end of a long name is replaced by a
    checksum and the length.
    """
    name = quote(task, safe="", errors="surrogatepass")
    if len(name) > 150:
        data = name.encode()
        name = f"{name[:100]}~{crc.crc32(data):08x}{zlib.adler32(data):08x}~{len(data)}"
    return f"{name}-{subtask}.{crc32:08x}.state"


def encode_snapshot(checkpoint_id: int, snapshot: TaskSnapshot) -> tuple[list[bytes], TaskFile]:
    """Encodes a state file. Returns its bytes, in pieces, and its description.

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
            f"{f'checkpoint {checkpoint_id}: the' if checkpoint_id else 'the final'} state of"
            f" {snapshot.task}-{snapshot.subtask} cannot be stored: {why};"
            " keep None, bool, int of 64 bits, float, str, bytes, and lists, tuples and dicts of these"
        ) from error
    header = _HEADER.pack(_MAGIC, VERSION, len(body))
    crc32 = crc.crc32(body, crc.crc32(header))
    pieces = [header, body, _CRC.pack(crc32)]
    size_bytes = HEADER_BYTES + len(body) + CRC_BYTES
    return pieces, TaskFile(snapshot.task, snapshot.subtask, size_bytes, crc32)


def check_header(data: bytes, size_bytes: int) -> None:
    """Checks the header of a state file.

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
            f"has {size_bytes} bytes; its header says {HEADER_BYTES + body_bytes + CRC_BYTES}: truncated or corrupt"
        )


def check_pieces(pieces: Iterable[bytes], expected_crc32: int) -> None:
    """Checks the header and the checksum of a state file without holding the whole file in memory.

    Args:
        pieces: the contents of the file, in order.
        expected_crc32: its checksum.

    Raises:
        CheckpointStorageError: the file is damaged; the text says only what is wrong.
    """
    size_bytes = crc32 = 0
    head = tail = b""
    for piece in pieces:
        size_bytes += len(piece)
        if len(head) < HEADER_BYTES:
            head += piece[:HEADER_BYTES]
        held = tail + piece  # the last bytes may be the checksum itself, so they are held back
        crc32 = crc.crc32(memoryview(held)[:-CRC_BYTES], crc32)
        tail = held[-CRC_BYTES:]
    check_header(head, size_bytes)
    check_crc32(crc32, int.from_bytes(tail, "big"))
    check_crc32(crc32, expected_crc32)


def decode_snapshot(data: bytes, checkpoint_id: int) -> TaskSnapshot:
    """Decodes the snapshot in a state file.

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
        stored_id = document["checkpoint"]
    # The checksum is right, so another program wrote this.
    except (RuntimeError, ValueError, KeyError, TypeError, msgpack.UnpackException) as error:
        raise CheckpointStorageError(f"does not hold a snapshot: {safe_error(error)}") from error
    if stored_id != checkpoint_id:
        raise CheckpointStorageError(f"belongs to checkpoint {stored_id}")
    return snapshot


def check_crc32(actual: int, expected: int) -> None:
    """Compares two checksums. Raises CheckpointStorageError if they differ; the text says only what is wrong."""
    if actual != expected:
        raise CheckpointStorageError(f"has CRC-32 {actual:08x}, expected is {expected:08x}: it was damaged")


def encode_manifest(manifest: Manifest) -> bytes:
    """Encodes a manifest."""
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
    """Decodes a manifest.

    Raises:
        CheckpointStorageError: it is damaged, of another version or of another checkpoint; the text says only what is
            wrong.
    """
    head, end = data[:-_MANIFEST_END_BYTES], data[-_MANIFEST_END_BYTES:]
    if end != _manifest_end(head):
        raise CheckpointStorageError("does not end with its checksum: it was damaged, truncated or edited")
    try:
        document = json.loads(data)
        if document["format"] != _MANIFEST_FORMAT or document["version"] != VERSION:
            raise CheckpointStorageError(
                f"is {safe_repr(document['format'])} of version {safe_repr(document['version'])}; this release reads"
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
        raise CheckpointStorageError(f"does not describe a checkpoint: {safe_error(error)}") from error
    if manifest.checkpoint_id != checkpoint_id:
        raise CheckpointStorageError(f"belongs to checkpoint {manifest.checkpoint_id}")
    return manifest


def _manifest_end(head: bytes) -> bytes:
    return b'%08x"\n}\n' % crc.crc32(head)


def _packed(value: Any) -> bytes:
    # Strict, since a subclass of a number, a text or a list would not be restored exactly.
    packed: bytes = msgpack.packb(value, strict_types=True, default=_plain, unicode_errors="surrogatepass")
    return packed


def _plain(value: Any) -> Any:
    """Encodes a value that msgpack has no exact type for."""
    if type(value) is tuple:
        return {_TUPLE: list(value)}
    if isinstance(value, dict):
        return dict(value)
    if type(value) is int:
        raise OverflowError(f"an int of {value.bit_length()} bits does not fit 64")
    kind = type(value)
    raise TypeError(f"{safe_repr(value)} is of type {kind.__module__}.{kind.__qualname__}")


def _unpacked(data: bytes) -> Any:
    return msgpack.unpackb(
        data, strict_map_key=False, ext_hook=_extension, object_hook=_map, unicode_errors="surrogatepass"
    )


def _extension(code: int, data: bytes) -> Any:
    return _TUPLE if code == 1 and not data else msgpack.ExtType(code, data)


def _map(decoded: dict[Any, Any]) -> Any:
    """Turns the encoding of a tuple into the tuple, before it may be hashed as a key."""
    if len(decoded) == 1 and type(items := decoded.get(_TUPLE)) is list:
        return tuple(items)
    return decoded
