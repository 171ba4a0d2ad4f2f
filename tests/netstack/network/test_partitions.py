"""PartitionRegistry: views now, later, or never."""

from __future__ import annotations

import pytest

from netstack.base.errors import ChannelFailed, ErrorCode, LocalProtocolError, PartitionNotFound, ProducerFailed
from netstack.base.ids import PartitionId, ResultPartitionType
from netstack.exchange.buffer.buffer import BufferSource
from netstack.exchange.buffer.pools import NetworkBufferPool
from netstack.exchange.outbound.partition import ResultPartition
from netstack.network import partitions
from netstack.network.partitions import PartitionRegistry
from netstack.testing.scripted import VirtualHost


def nothing() -> None:
    pass


class Stage:
    def __init__(self) -> None:
        self.host = VirtualHost(nothing)
        self.registry = PartitionRegistry(timeout_s=10.0, now=self.host.now, call_at=self.host.call_at)
        self.network = NetworkBufferPool(32, 16)
        self.views: list[BufferSource] = []
        self.errors: list[ChannelFailed] = []

    def create(self, name: str = "p") -> ResultPartition:
        partition = ResultPartition(
            PartitionId(name),
            ResultPartitionType.PIPELINED,
            2,
            self.network.create_pool(3, None),
            on_released=self.registry.remove,
            host=self.host,
        )
        self.registry.add(partition)
        return partition

    def request(self, name: str = "p", subpartition: int = 0) -> object:
        return self.registry.open_view(name, subpartition, nothing, self.views.append, self.errors.append)


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_partition_that_is_there_is_served_at_once(stage: Stage) -> None:
    partition = stage.create()
    stage.request()
    assert (len(stage.views), stage.errors) == (1, [])
    assert stage.registry.find("p") is partition
    assert stage.registry.all() == (partition,)


def test_a_partition_created_later_serves_everybody_who_waits(stage: Stage) -> None:
    stage.request(subpartition=0)
    stage.request(subpartition=1)
    stage.request("other")
    stage.host.advance(9.9)
    stage.create()
    assert (len(stage.views), stage.errors) == (2, [])
    stage.host.advance(0.2)
    (error,) = stage.errors
    assert "'other'" in str(error)


def test_a_partition_may_be_made_when_it_is_asked_for(stage: Stage) -> None:
    made: list[str] = []

    def make(name: str) -> None:
        made.append(name)
        if name.endswith("now"):
            stage.create(name)

    stage.registry.answer("s", make)
    for name in ("s?now", "s?later", "s", "t?now"):
        stage.request(name)
    assert made == ["s?now", "s?later"]
    assert len(stage.views) == 1
    stage.create("s?later")
    assert len(stage.views) == 2
    stage.request("s?later", subpartition=1)
    assert len(made) == 2, "it is there"


def test_a_request_for_a_bad_index_fails_when_the_partition_comes(stage: Stage) -> None:
    stage.request(subpartition=5)
    stage.create()
    (error,) = stage.errors
    assert error.code is ErrorCode.SUBPARTITION_OUT_OF_RANGE


def test_a_partition_that_never_comes_is_not_found_and_the_message_helps(stage: Stage) -> None:
    stage.create("q")
    stage.request()
    stage.host.advance(9.9)
    assert stage.errors == []
    stage.host.advance(0.2)
    (error,) = stage.errors
    assert isinstance(error, PartitionNotFound)
    assert "no partition 'p' was created within 10 s (known: q)" in str(error)
    stage.create()  # too late for that request
    assert stage.views == []


def test_a_request_that_was_withdrawn_hears_nothing(stage: Stage) -> None:
    withdraw = stage.request()
    assert callable(withdraw)
    withdraw()
    withdraw()
    partition = stage.create()
    stage.host.advance(20)
    assert (stage.views, stage.errors) == ([], [])
    partition.create_view(0, nothing)  # nobody has consumed it


def test_withdrawing_what_was_served_changes_nothing(stage: Stage) -> None:
    stage.create()
    withdraw = stage.request()
    assert callable(withdraw)
    withdraw()
    assert not stage.views[0].is_released


def test_a_name_is_used_once_at_a_time(stage: Stage) -> None:
    partition = stage.create()
    with pytest.raises(LocalProtocolError, match="partition 'p' already exists"):
        stage.create()
    partition.release()
    assert stage.registry.find("p") is None
    again = stage.create()
    partition.release()  # the old one once more
    assert stage.registry.find("p") is again


def test_a_released_name_waits_for_its_next_partition(stage: Stage) -> None:
    stage.create().release()
    stage.request()
    assert stage.errors == []
    stage.create()
    assert len(stage.views) == 1


def test_who_comes_after_a_failure_is_told_its_cause() -> None:
    calls: list[object] = []
    registry = PartitionRegistry(timeout_s=1.0, now=lambda: 0.0, call_at=lambda deadline, callback: None)

    class Failed:
        partition_id = "p"
        failure = "disk on fire"

    registry.remove(Failed())  # type: ignore[arg-type]  # all that the registry looks at
    registry.open_view("p", 0, lambda: None, calls.append, calls.append)
    assert [type(call) for call in calls] == [ProducerFailed]
    assert "disk on fire" in str(calls[0])


def test_requests_that_wait_are_bounded_and_there_is_room_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "WAITING_AT_MOST", 3)
    for name in ("a", "b", "c", "d"):
        stage.request(name)
    (error,) = stage.errors
    assert isinstance(error, PartitionNotFound)
    assert "3 requests already wait here, which is the maximum" in str(error)
    stage.create("b")
    assert len(stage.views) == 1
    stage.request("d")
    stage.create("d")
    assert (len(stage.views), len(stage.errors)) == (2, 1)
