"""Unpacks untrusted msgpack with bounds on nesting depth and on the number of containers.

Takes: bytes from a peer or a file. Gives: lists, dicts and plain values, or a `ValueError` with the reason.

Rules: one byte of msgpack can become a list of 56 bytes, and a thousand lists can be nested; `repr`, `==`, `copy` and
user code then recurse although the unpacker did not. So depth and container count are bounded before any caller sees
the document. This module does not recurse, and documents that cannot exceed a bound are not scanned. Values are None,
bools, ints, floats, texts and bytes. The first extension type (timestamps included) is refused, because each one
creates a Python object.
"""

from __future__ import annotations

from collections.abc import Collection
from sys import getsizeof
from typing import Any, Final

import msgpack

MAX_DOCUMENT_DEPTH: Final = 32
"""The deepest nesting of lists and dicts; netstack's own messages use less than ten levels."""

MAX_DOCUMENT_CONTAINERS: Final = 1 << 18
"""The most lists and dicts in one document: at most about 60 MiB."""

_OPENERS: Final = bytes([*range(0x80, 0xA0), *range(0xDC, 0xE0)])
"""The first bytes of msgpack lists and maps. Other data may contain these bytes too, so counting them gives an upper
bound.
"""

_CONTAINERS: Final = frozenset({list, dict})


def unpack_document(
    data: bytes, *, max_depth: int = MAX_DOCUMENT_DEPTH, max_containers: int = MAX_DOCUMENT_CONTAINERS
) -> Any:
    """Unpacks the one value in `data`.

    Args:
        data: the complete document.
        max_depth: a plain value has depth 0, a list of plain values depth 1.
        max_containers: the most lists and dicts together.

    Raises:
        ValueError: `data` is not msgpack, is nested too deeply, or has too many containers; the text is the reason
            only.
    """
    most = len(data) - len(data.translate(None, _OPENERS))
    count = 0

    def counted(container: Any) -> Any:
        nonlocal count
        count += 1
        if count > max_containers:
            raise ValueError("too many")
        return container

    hook = counted if most > max_containers else None
    try:
        document = msgpack.unpackb(
            data, strict_map_key=False, list_hook=hook, object_hook=hook, ext_hook=_refuse, max_ext_len=0
        )
    except msgpack.StackError as error:
        raise ValueError(f"it is nested deeper than {max_depth} levels") from error
    except (msgpack.UnpackException, ValueError, TypeError) as error:
        if "max_ext_len" in str(error):
            raise ValueError("it has values of an extension type of msgpack") from error
        if count > max_containers:
            raise ValueError(f"it has more than {max_containers} lists and maps") from error
        raise ValueError(f"it is not msgpack: {type(error).__name__} {error}".rstrip()) from error
    if most > max_depth:  # otherwise it cannot be deeper
        _check_depth(document, max_depth)
    return document


def _refuse(code: int, data: bytes) -> None:
    """Handles an extension type without data; `max_ext_len` refuses those with data."""
    raise ValueError(f"extension type {code}")


def _check_depth(document: Any, max_depth: int) -> None:
    """Walks the document level by level, keeping only the lists and dicts of each level."""
    level = [document] if type(document) in _CONTAINERS else []
    depth = 0
    while level:
        depth += 1
        if depth > max_depth:
            raise ValueError(f"it is nested deeper than {max_depth} levels")
        inner: list[Any] = []
        for each in level:  # keys are hashed, so no list or dict is among them
            inner += [value for value in (each.values() if type(each) is dict else each) if type(value) in _CONTAINERS]
        level = inner


def memory_bytes(document: object, most: int) -> int:
    """Returns how much memory plain data takes, containers and values; stops soon after `most`."""
    total = getsizeof(document)
    containers = [document]
    while containers and total <= most:
        container = containers.pop()
        values: Collection[Any]
        if type(container) is dict:
            total += sum(map(getsizeof, container))
            values = container.values()
        elif type(container) is list or type(container) is tuple:
            values = container
        else:
            continue
        total += sum(map(getsizeof, values))
        containers += [each for each in values if type(each) in _HOLDERS]
    return total


_HOLDERS: Final = frozenset({dict, list, tuple})
