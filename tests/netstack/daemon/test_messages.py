"""Every message arrives as it was; what is none is refused, whatever it is."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.config import NetworkConfig
from netstack.control.frames import pack, unpack
from netstack.daemon.messages import (
    TEXT_CHARACTERS,
    AskStatistics,
    CloseRun,
    Deploy,
    Deployed,
    Message,
    OpenRun,
    Ping,
    Pong,
    Refused,
    RunClosed,
    RunOpened,
    RunRefused,
    Statistics,
    TaskDescriptor,
    TaskEnded,
    TaskFailed,
    TaskSaid,
    ToTask,
    check_said,
    config_document,
    config_of,
    decode,
    encode,
)
from netstack.errors import ConfigError, RemoteProtocolError
from netstack.ids import ChannelDescriptor, ResultPartitionType
from netstack.schedule.descriptors.descriptors import PartitionDescriptor

SMALL = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
PLAIN = st.recursive(
    st.none() | st.booleans() | SMALL | st.floats(allow_nan=False) | TEXT | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT | SMALL, inner, max_size=3),
    max_leaves=8,
)
DICTS = st.dictionaries(TEXT, PLAIN, max_size=4)
TASKS = st.builds(
    TaskDescriptor,
    task=TEXT,
    subtask=SMALL,
    invokable=TEXT,
    parameters=DICTS,
    partitions=st.lists(
        st.builds(PartitionDescriptor, name=TEXT, subpartitions=SMALL, type=st.sampled_from(ResultPartitionType)),
        max_size=3,
    ).map(tuple),
    gates=st.lists(
        st.lists(st.builds(ChannelDescriptor, address=TEXT, partition_id=TEXT, subpartition=SMALL), max_size=3).map(
            tuple
        ),
        max_size=2,
    ).map(tuple),
)
SECONDS = st.floats(min_value=0, allow_nan=False)
MESSAGES: st.SearchStrategy[Any] = st.one_of(
    st.builds(OpenRun, TEXT, TEXT, SMALL, SECONDS, TEXT, DICTS),
    st.builds(Deploy, TEXT, DICTS, st.lists(TASKS, max_size=3).map(tuple)),
    st.builds(ToTask, TEXT, TEXT, SMALL, DICTS),
    st.builds(CloseRun, TEXT),
    st.builds(AskStatistics, SMALL),
    st.builds(Ping, SMALL),
    st.builds(Refused, TEXT),
    st.builds(RunOpened, TEXT),
    st.builds(RunRefused, TEXT, TEXT),
    st.builds(Deployed, TEXT),
    st.builds(TaskSaid, TEXT, TEXT, SMALL, DICTS),
    st.builds(TaskEnded, TEXT, TEXT, SMALL, PLAIN),
    st.builds(TaskFailed, TEXT, TEXT, SMALL, TEXT, TEXT, st.booleans()),
    st.builds(RunClosed, TEXT, TEXT),
    st.builds(Statistics, SMALL, DICTS),
    st.builds(Pong, SMALL, SMALL),
)


def refusal(document: list[Any]) -> str:
    """Why a document is no message; `none` for one that is."""
    try:
        decode(document)
    except RemoteProtocolError as error:
        return str(error)
    return "none"


@given(MESSAGES)
def test_every_message_arrives_as_it_was(message: Message) -> None:
    assert decode(unpack(pack(encode(message))[4:])) == message


@given(MESSAGES, st.data())
def test_a_message_with_a_field_too_few_too_many_or_of_another_type_is_refused(message: Message, data: Any) -> None:
    document = unpack(pack(encode(message))[4:])
    for wrong in (document[:-1], [*document, None]):
        with pytest.raises(RemoteProtocolError, match="MALFORMED_FRAME"):
            decode(wrong)
    fields = dataclasses.fields(message)
    place = data.draw(st.sampled_from(range(len(fields))))
    if fields[place].type != "Any":
        document[1 + place] = None
        with pytest.raises(RemoteProtocolError, match=f"MALFORMED_FRAME: {document[0]}: "):
            decode(document)


@given(st.lists(PLAIN, max_size=8), st.sampled_from(["", *(kind.__name__ for kind in Message.__args__)]))
def test_any_document_is_a_message_or_refused(rest: list[Any], kind: str) -> None:
    for document in (rest, [kind, *rest]):
        assert len(refusal(document)) < 400


@given(DICTS, st.lists(PLAIN, min_size=6, max_size=6))
def test_any_task_is_one_or_refused(builds: dict[str, Any], fields: list[Any]) -> None:
    good = ["task", 0, "a.b:c", {}, [["p", 1, ResultPartitionType.PIPELINED.value]], [[["tcp://a:1", "p", 0]]]]
    decode(["Deploy", "r", builds, [good]])
    for place, field in enumerate(fields):
        broken = [*good[:place], field, *good[place + 1 :]]
        assert refusal(["Deploy", "r", builds, [broken]]).startswith(("MALFORMED_FRAME: Deploy: ", "none"))


@pytest.mark.parametrize("seconds", [-1, -0.001, float("nan"), True, "1", None])
def test_seconds_are_a_number_from_zero_on(seconds: Any) -> None:
    with pytest.raises(RemoteProtocolError, match="no number of seconds"):
        decode(["OpenRun", "r", "name", 1, seconds, "tcp://a:1", {}])


def test_texts_are_cut_and_made_readable() -> None:
    kind, *fields = encode(TaskFailed("r", "task", 0, "ValueError", "x" * 10_000_000, is_secondary=False))
    assert (kind, fields[4]) == ("TaskFailed", "x" * TEXT_CHARACTERS)
    assert encode(Refused("half a \ud800 pair"))[1] == "half a ? pair"


def test_a_message_to_or_from_a_task_is_a_dict() -> None:
    assert check_said({"a": 1}) == {"a": 1}
    with pytest.raises(ConfigError, match=r"\[1\] cannot be sent: give a dict"):
        check_said([1])


def test_settings_travel() -> None:
    config = NetworkConfig(segment_size_bytes=4096, debloat_target_s=0.5, checksum=True)
    assert config_of(unpack(pack([config_document(config)])[4:])[0]) == config
    with pytest.raises(TypeError, match="colour"):
        config_of({"colour": "red"})
    with pytest.raises(ConfigError):
        config_of({"segment_size_bytes": -1})


@pytest.mark.parametrize(
    "wrong", [float("nan"), float("inf"), 1.5, True, "1", b"1", [], {}, None], ids=lambda value: repr(value)
)
@pytest.mark.parametrize("name", ["memory_bytes", "exclusive_buffers_per_channel", "debloat_samples"])
def test_a_setting_of_another_type_is_refused(name: str, wrong: Any) -> None:
    with pytest.raises(ConfigError, match=f"{name}=.* of the run's settings is no int"):
        config_of({name: wrong})


def test_a_task_has_a_name() -> None:
    assert str(TaskDescriptor("source", 3, "a:b")) == "source-3"
