"""Every message arrives as it was; what is none is refused, whatever it is."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgpack
import pytest
from hypothesis import given, strategies as st

from netstack.base.errors import ConfigError, RemoteProtocolError
from netstack.base.text.bounded_msgpack import MAX_DOCUMENT_DEPTH as MAX_DEPTH
from netstack.cluster.control.codec import LINE_CHARACTERS, TEXT_CHARACTERS, Message, check_plain
from netstack.cluster.control.frames import MAX_FRAME_BYTES, pack, unpack
from netstack.cluster.control.messages import (
    CODEC,
    SLICE_BYTES,
    CancelTasks,
    Refused,
    SubmitTasks,
    blob_parts,
    slices,
    submissions,
)
from netstack.cluster.control.reports import CheckpointDeclined, JobClosed, JobRefused, SlotEnded, TaskFailed

INTEGERS = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
PLAIN = st.recursive(
    st.none() | st.booleans() | INTEGERS | st.floats(allow_nan=False) | TEXT | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT | INTEGERS, inner, max_size=3),
    max_leaves=8,
)
DICTS = st.dictionaries(TEXT, PLAIN, max_size=4)
ATTEMPTS = st.tuples(*[st.integers(0, 1 << 40)] * 3)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "int": INTEGERS,
    "str": TEXT,
    "Line": TEXT.filter(str.isprintable),
    "bool": st.booleans(),
    "bytes": st.binary(max_size=20),
    "float": st.floats(min_value=0, allow_nan=False),
    "Plain": DICTS,
    "Plain | None": st.none() | DICTS,
    "Attempt": ATTEMPTS,
    "tuple[Attempt, ...]": st.lists(ATTEMPTS, max_size=3).map(tuple),
    "tuple[str, ...]": st.lists(TEXT, max_size=3).map(tuple),
    "tuple[bytes, ...]": st.lists(st.binary(max_size=20), max_size=3).map(tuple),
    "tuple[tuple[int, ...], ...]": st.lists(st.lists(INTEGERS, max_size=3).map(tuple), max_size=3).map(tuple),
}
KINDS: list[type[Any]] = [*CODEC.kinds]
MESSAGES: st.SearchStrategy[Any] = st.sampled_from(KINDS).flatmap(
    lambda kind: st.builds(kind, *(FIELDS[str(field.type)] for field in dataclasses.fields(kind)))
)


def refusal(document: list[Any]) -> str:
    """Why a document is no message; `none` for one that is."""
    try:
        CODEC.decode(document)
    except RemoteProtocolError as error:
        return str(error)
    return "none"


def nested(depth: int) -> Any:
    actual: Any = 1
    for level in range(depth):
        actual = [actual] if level % 2 else {"x": actual}
    return actual


@given(MESSAGES)
def test_every_message_arrives_as_it_was(message: Message) -> None:
    assert CODEC.decode(unpack(pack(CODEC.encode(message))[4:])) == message


@given(MESSAGES, st.data())
def test_a_message_with_a_field_too_few_too_many_or_of_another_type_is_refused(message: Message, data: Any) -> None:
    document = unpack(pack(CODEC.encode(message))[4:])
    for wrong in (document[:-1], [*document, None]):
        with pytest.raises(RemoteProtocolError, match="MALFORMED_FRAME"):
            CODEC.decode(wrong)
    fields = dataclasses.fields(message)
    place = data.draw(st.sampled_from(range(len(fields))))
    document[1 + place] = object()
    with pytest.raises(RemoteProtocolError, match=f"MALFORMED_FRAME: {document[0]}: "):
        CODEC.decode(document)


@given(st.lists(PLAIN, max_size=8), st.sampled_from(["", *(kind.__name__ for kind in KINDS)]))
def test_any_document_is_a_message_or_refused(rest: list[Any], kind: str) -> None:
    for document in (rest, [kind, *rest]):
        assert len(refusal(document)) < 900


@pytest.mark.parametrize("seconds", [-1, -0.001, float("nan"), True, "1", None, 1 << 63])
def test_seconds_are_a_number_from_zero_on(seconds: Any) -> None:
    message = refusal(["OpenJob", "r", "name", seconds, "tcp://a:1", None, b""])
    assert ("not a number of seconds" in message) == (seconds != 1 << 63)


@pytest.mark.parametrize("attempt", [[], [1, 2], [1, 2, 3, 4], [1, 2, -1], [1, 2, True], "abc", [1, 2, 3.0], None])
def test_an_attempt_is_three_numbers_from_zero_on(attempt: Any) -> None:
    assert "is not an attempt" in refusal(["CancelTasks", "j", [[0, 0, 0], attempt]])


def test_texts_are_cut_and_made_readable() -> None:
    kind, *fields = CODEC.encode(TaskFailed("r", (0, 0, 0), "ValueError", "x" * 10_000_000, False, "", True))
    assert (kind, fields[3]) == ("TaskFailed", "x" * TEXT_CHARACTERS)
    assert CODEC.encode(Refused("half a \ud800 pair"))[1] == "half a ? pair"


def test_a_message_to_or_from_a_task_is_a_dict() -> None:
    assert check_plain({"a": 1}) == {"a": 1}
    with pytest.raises(ConfigError, match=r"\[1\] cannot be sent: give a dict"):
        check_plain([1])


@pytest.mark.parametrize("kind", [kind.__name__ for kind in KINDS])
@pytest.mark.parametrize("depth", [MAX_DEPTH, 200, 1015, 100_000])
def test_documents_nested_deep_are_refused_in_every_field_and_shown_briefly(kind: str, depth: int) -> None:
    """By class: whatever is nested anywhere ends in a short refusal, never in a RecursionError."""
    deep = b"\x91" * depth + b"\x01"
    head = msgpack.packb(kind)
    fields = len(dataclasses.fields(next(each for each in KINDS if each.__name__ == kind)))
    for place in range(fields):
        body = bytes([0x90 | (fields + 1)]) + head + b"\x01" * place + deep + b"\x01" * (fields - place - 1)
        with pytest.raises(RemoteProtocolError, match=r"nested deeper|not msgpack") as caught:
            unpack(body)
        assert len(str(caught.value)) < 900
    for document in (nested(MAX_DEPTH), nested(300)):
        with pytest.raises(ConfigError, match="nested deeper than"):
            pack(["OperatorEvent", "j", [0, 0, 0], {"deep": document}])


@given(PLAIN, st.integers(1, MAX_DEPTH - 1))
def test_a_value_of_any_type_is_shown_in_a_line(value: Any, depth: int) -> None:
    for _ in range(depth):
        value = [value]
    for kind in ("CancelTasks", "OperatorEvent", value):
        assert len(refusal([kind, value, value, value])) < 900


@given(st.lists(st.integers(0, 3 << 19), max_size=30))
def test_submissions_keep_everything_in_order_and_fit_a_frame(sizes: list[int]) -> None:
    descriptors = [bytes(size) for size in sizes]
    messages = list(submissions("j", descriptors))
    assert [each for message in messages for each in message.descriptors] == descriptors
    for message in messages:
        assert message.descriptors
        assert len(message.descriptors) == 1 or sum(map(len, message.descriptors)) <= SLICE_BYTES
        assert len(pack(CODEC.encode(message))) < MAX_FRAME_BYTES


def test_ten_thousand_attempts_are_one_message_and_a_million_are_several() -> None:
    assert len(list(slices((0, number, 0) for number in range(10_000)))) == 1
    for attempts in slices((1, number, 0) for number in range(1_000_000)):
        pack(CODEC.encode(CancelTasks("j", attempts)))
    assert list(slices([])) == []
    assert list(submissions("j", [])) == []
    assert SubmitTasks("j", ()) not in list(submissions("j", [b""]))


@given(st.integers(0, 5), st.integers(0, 3))
def test_a_blob_comes_back_part_by_part(whole: int, rest: int) -> None:
    data = bytes(whole * SLICE_BYTES + rest)
    actual = b""
    while True:
        part = blob_parts("k", data, len(actual))
        assert (part.offset, part.total) == (len(actual), len(data))
        actual += part.data
        if len(actual) == part.total:
            break
    assert actual == data
    assert blob_parts("k", data, len(data) + 1).data == b""
    assert blob_parts("k", data, -1).data == b""


HIDDEN = "\n\x1b[2J\u202e\u2028"


@pytest.mark.parametrize("kind", KINDS)
def test_every_text_of_every_message_is_bounded_where_it_is_decoded(kind: type[Any]) -> None:
    """Each field at its limit, and at twice its limit: an honest peer cuts texts, another one need not."""
    plain = {
        "int": 1,
        "str": "x",
        "Line": "x",
        "bool": True,
        "bytes": b"",
        "float": 1.0,
        "Plain": {},
        "Plain | None": None,
        "Attempt": [0, 0, 0],
    }
    fields = dataclasses.fields(kind)
    document = [kind.__name__, *(plain.get(str(field.type), []) for field in fields)]
    assert refusal(document) == "none"
    for place, field in enumerate(fields, 1):
        if field.type not in ("str", "Line", "tuple[str, ...]"):
            continue
        for characters in (TEXT_CHARACTERS, 2 * TEXT_CHARACTERS):
            text = (HIDDEN * characters)[:characters]
            hostile = [*document]
            hostile[place] = [text] if field.type == "tuple[str, ...]" else text
            if characters > TEXT_CHARACTERS:
                message = refusal(hostile)
                assert f"a text has {characters} characters" in message
                assert (len(message) < 400, message.isprintable()) == (True, True)
                continue
            decoded = getattr(CODEC.decode(hostile), field.name)
            if field.type == "Line":
                assert (len(decoded) <= LINE_CHARACTERS, decoded.isprintable()) == (True, True)


def test_reasons_that_are_logged_are_lines() -> None:
    """Of these a JobManager wrote what a TaskManager sent, with its line ends and escapes."""
    for kind, name in (
        (JobRefused, "text"),
        (JobClosed, "reason"),
        (CheckpointDeclined, "reason"),
        (SlotEnded, "text"),
    ):
        assert {str(field.type) for field in dataclasses.fields(kind) if field.name == name} == {"Line"}
