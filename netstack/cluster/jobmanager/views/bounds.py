"""Bounds of answers that everybody receives: of what one job or TaskManager adds to them, and of their pages.

Takes: documents of jobs and TaskManagers. Gives: the same documents, or less detail of those that are too large.

Rules: only the largest documents lose something, and all of them are brought to the same size, so a small job is
complete whatever others run. `left_out` of a document names what is missing.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, TypeAlias

import msgpack

from ....base.errors import ConfigError
from ....base.text.json_text import shortened
from ....base.text.safe_text import is_utf8, safe_repr, safe_text

Document = dict[str, Any]

RESULT_CHARACTERS: Final = 4096
"""Maximum length of a job's results and reason in a snapshot; a request for the job returns all, if they fit."""

_FEW_SUBTASKS: Final = 1000
_FEW_ENTRIES: Final = 50


def fair_part(sizes: Iterable[int], most: int) -> int:
    """Returns the largest size at which all parts, cut to that size, have at most `most` together."""
    ascending = sorted(sizes)
    left = most
    for number, size in enumerate(ascending):  # small parts stay whole, large ones divide the rest
        each = left // (len(ascending) - number)
        if size > each:
            return each
        left -= size
    return ascending[-1] if ascending else 0


def shortened_vertices(vertices: Sequence[Document], most: int) -> list[Document]:
    """Returns vertices that list at most so many subtasks; `left_out` of a vertex counts its others by state."""
    each = fair_part([len(vertex["subtasks"]) for vertex in vertices], most)
    result = []
    for vertex in vertices:
        rest = vertex["subtasks"][each:]
        if rest:
            left_out = Counter(vertex.get("left_out", {})) + Counter(subtask["state"] for subtask in rest)
            vertex = {**vertex, "subtasks": vertex["subtasks"][:each], "left_out": dict(left_out)}
        result.append(vertex)
    return result


def packed_bytes(document: Document) -> int:
    """Returns the size of a document in a message."""
    return sendable(document)[1]


def sendable(document: Document) -> tuple[Document, int]:
    """Returns a document as a message can have it, and its size.

    What a message cannot have, such as the sum of the largest numbers that two peers sent, is replaced by what is
    closest to it: one such value must not hide a whole list.
    """
    try:
        return document, len(msgpack.packb(document))
    except (ValueError, TypeError, OverflowError):
        plain: Document = _clamped(shortened(document, sys.maxsize))
        return plain, len(msgpack.packb(plain))


def _clamped(value: Any) -> Any:
    if type(value) is dict:
        return {_clamped(key): _clamped(each) for key, each in value.items()}
    if type(value) is list:
        return [_clamped(each) for each in value]
    if type(value) is int:
        return max(-(1 << 63), min(value, (1 << 64) - 1))
    if type(value) is str and not is_utf8(value):
        return safe_text(value, len(value))
    return value


def fit_job(document: Document, most_bytes: int) -> int:
    """Leaves details of a job out until its document is small enough.

    Args:
        document: of `job_document`, alone or with what a snapshot adds; it is changed, its parts are not.
        most_bytes: its maximum size, from 64 KiB on.

    Returns:
        The size of the whole document.
    """
    size = whole = packed_bytes(document)
    names: list[str] = []
    for name, leave_out in _LESS:
        if size <= most_bytes:
            break
        before = size
        leave_out(document)
        size = packed_bytes(document)
        if size < before:
            names.append(name)
    if names:
        document["left_out"] = [*dict.fromkeys([*document.get("left_out", ()), *names])]
    return whole


def _without(*names: str) -> Callable[[Document], None]:
    def leave_out(document: Document) -> None:
        for name in names:
            if document.get(name):
                document[name] = []

    return leave_out


def _no_channels(document: Document) -> None:
    if "edges" in document:
        document["edges"] = [{**edge, "channels": []} for edge in document["edges"]]


def _few_subtasks(document: Document) -> None:
    document["vertices"] = shortened_vertices(document["vertices"], _FEW_SUBTASKS)


def _few_log_entries(document: Document) -> None:
    document["log"] = document["log"][-_FEW_ENTRIES:]


def _few_results(document: Document) -> None:
    if "results" in document:
        document["results"] = shortened(document["results"], RESULT_CHARACTERS)


def _no_failures(document: Document) -> None:
    document["failures_left_out"] += len(document["failures"])
    document["failures"] = []


def _no_vertices(document: Document) -> None:
    document["vertices"] = []
    if "edges" in document:  # edges name vertices by their number
        document |= {"edges": [], "bottleneck": None}


def _short_texts(document: Document) -> None:
    for name in ("reason", "waits_for"):
        document[name] = document[name][:RESULT_CHARACTERS]
    document |= {"blocked": [], "not_restored": [], "checkpoints_in_progress": [], "speculation": None}


_LESS: Final[tuple[tuple[str, Callable[[Document], None]], ...]] = (
    ("results", _few_results),
    ("chaining", _without("chaining")),
    ("channels", _no_channels),
    ("log", _few_log_entries),
    ("subtasks", _few_subtasks),
    ("networks and checkpoints", _without("networks", "checkpoints")),
    ("failures", _no_failures),
    ("vertices", _no_vertices),
    ("log", _without("log")),
    ("texts", _short_texts),
)
"""What is left out first, and what last."""

Position: TypeAlias = tuple[float, str]
"""When an entry came, in seconds since 1970, and its unique name."""

Entries: TypeAlias = Iterable[tuple[Position, Callable[[], Document]]]
"""Positions of entries in any order, and functions that create their documents."""

PAGE_BYTES: Final = 1 << 20

ENTRY_BYTES: Final = 2 << 20
"""Limit of an entry: with a page that is almost full before it, the answer fits into a frame of 4 MiB."""


def page(request: Mapping[str, Any], lists: Mapping[str, Entries]) -> Document:
    """Returns the page of lists that a client requests, which fits into a message.

    A page ends behind the entry that brings it to `PAGE_BYTES`, so an entry must not exceed `ENTRY_BYTES`. Positions
    never change and order the entries, so an entry that is present all the time is in exactly one page.

    Args:
        request: its `after` is that of the previous page; None or missing: the first page.
        lists: the entries of each list, in the order in which clients receive the lists.

    Returns:
        For each list its entries in this page, and `after` if there are more.

    Raises:
        ConfigError: `after` is malformed.
    """
    names = list(lists)
    start = _start(request.get("after"), names)
    answer: Document = {name: [] for name in names}
    size = 0
    last: tuple[int, float, str] | None = None
    for number, name in enumerate(names):
        for position, create in sorted(lists[name], key=itemgetter(0)):
            here = number, *position
            if start is not None and here <= start:
                continue
            if size > PAGE_BYTES and last is not None:
                return answer | {"after": [names[last[0]], *last[1:]]}
            entry, entry_bytes = sendable(create())
            answer[name].append(entry)
            size += entry_bytes
            last = here
    return answer


def _start(after: object, names: list[str]) -> tuple[int, float, str] | None:
    if after is None:
        return None
    if type(after) is list and [type(each) for each in after] == [str, float, str] and after[0] in names:
        return names.index(after[0]), after[1], after[2]
    raise ConfigError(f"after={safe_repr(after)} of a request is not where a page ended")
