"""Documents of strangers: msgpack with bounds on depth and on what it becomes in memory.

Takes: bytes that a peer or a file gave. Gives: lists, dicts and plain values; a `ValueError` that says what is wrong.

Rules: a byte of msgpack may become a list of 56 bytes, and a thousand of them may lie in each other: `repr`, `==`,
`copy` and user code recurse where the unpacker did not. So both are bounded before anybody sees the document. Nothing
here recurses, and what is small or flat is not looked at twice. Values are None, bools, ints, floats, texts and bytes:
the extension types of msgpack, timestamps among them, are refused at the first one, since each is an object of Python.
"""

from __future__ import annotations

from typing import Any, Final

import msgpack

MAX_DOCUMENT_DEPTH: Final = 32
"""Of lists and dicts in each other; what we send ourselves has less than ten."""

MAX_DOCUMENT_CONTAINERS: Final = 1 << 18
"""Lists and dicts in one document: about 60 MiB of them at most."""

_OPENERS: Final = bytes([*range(0x80, 0xA0), *range(0xDC, 0xE0)])
"""The bytes with which a list or a map begins; others may look like them, never the other way round."""

_CONTAINERS: Final = frozenset({list, dict})


def unpack_document(
    data: bytes, *, max_depth: int = MAX_DOCUMENT_DEPTH, max_containers: int = MAX_DOCUMENT_CONTAINERS
) -> Any:
    """The one value in `data`.

    Args:
        data: all of it.
        max_depth: a value alone has depth 0, a list of values 1.
        max_containers: lists and dicts together.

    Raises:
        ValueError: it is no msgpack, too deep, or of too many parts; the text says only what is wrong.
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
    if most > max_depth:  # else it cannot be deeper
        _check_depth(document, max_depth)
    return document


def _refuse(code: int, data: bytes) -> None:
    """An extension type without data; those with data are too long."""
    raise ValueError(f"extension type {code}")


def _check_depth(document: Any, max_depth: int) -> None:
    """Level by level: what is kept of each are its lists and dicts."""
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
