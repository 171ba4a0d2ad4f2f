"""TaskManagers whose slots are processes: each slot is a place for partitions, and its end is one failure."""

from __future__ import annotations

import numpy as np
from schedule.played import BLOCKING, PIPELINED, POINTWISE, Play, canceled, deployed, timer, two_vertices

from netstack.schedule.descriptors.descriptors import TaskDeploymentDescriptor
from netstack.schedule.descriptors.shuffle import TaskManagerLocation
from netstack.schedule.events import SlotsOffered, TaskManagerLost, TaskManagerRegistered, TasksLost, TimerDue
from netstack.schedule.failover.restart import FixedDelay
from netstack.schedule.instructions import Deploy
from netstack.schedule.structures import index_array


def registered(play: Play, name: str, slots: int) -> None:
    addresses = tuple(f"tcp://{name}:{1 + slot}" for slot in range(slots))
    location = TaskManagerLocation(name, f"tcp://{name}:0", slot_addresses=addresses)
    play.give(TaskManagerRegistered(location))
    play.give(SlotsOffered(name, tuple(range(slots))))


def lost(play: Play, *subtasks: int) -> TasksLost:
    attempts = np.array([play.attempts[subtask] for subtask in subtasks], np.uint32)
    return TasksLost(index_array(subtasks), attempts, "its process exited with code 3")


def test_consumers_are_told_the_port_of_the_producers_slot() -> None:
    play = Play(two_vertices(2, PIPELINED), taskmanagers=0)
    registered(play, "tm", 2)
    play.start()
    actual = {}
    for instruction in play.said:
        if isinstance(instruction, Deploy):
            slots = dict(zip(instruction.subtasks.tolist(), instruction.slots, strict=True))
            for subtask, packed in play.scheduler.descriptors(instruction):
                descriptor = TaskDeploymentDescriptor.parse(packed)
                assert descriptor.allocation == f"tm/{slots[subtask].index}"
                for gate in descriptor.gates:
                    actual[subtask] = {str(each.address) for each in gate.gate().channels}
    assert actual == {2: {"tcp://tm:1", "tcp://tm:2"}, 3: {"tcp://tm:1", "tcp://tm:2"}}


def test_the_end_of_a_slot_is_one_failure_however_many_regions_were_there() -> None:
    play = Play(two_vertices(2, PIPELINED, POINTWISE), restart=FixedDelay(1, 0.0), taskmanagers=0)
    registered(play, "tm", 4)
    play.start()
    play.run(0, 1, 2, 3)
    message = play.give(lost(play, 0, 1))  # sources of two regions
    assert play.scheduler.statistics().failures == 1
    assert canceled(message) == [2, 3]


def test_of_an_attempt_that_is_over_nothing_is_lost() -> None:
    play = Play(two_vertices(2, PIPELINED, POINTWISE), restart=FixedDelay(9, 0.0), taskmanagers=0)
    registered(play, "tm", 4)
    play.start()
    play.run(0, 1, 2, 3)
    before = lost(play, 0)
    play.fail(0)
    stale = play.scheduler.statistics().stale
    assert play.give(before) == []
    assert play.scheduler.statistics().stale == stale
    assert play.scheduler.statistics().failures == 1


def test_all_places_of_a_lost_taskmanager_are_lost() -> None:
    play = Play(two_vertices(2, BLOCKING), restart=FixedDelay(9, 0.0), taskmanagers=0)
    registered(play, "tm-0", 2)
    registered(play, "tm-1", 2)
    play.start()
    play.finish(0, 1)
    play.run(2, 3)
    assert set(play.where.values()) == {"tm-0"}
    message = play.give(TaskManagerLost("tm-0", "gone"))
    again = deployed(play.give(TimerDue(timer(message).timer)))
    assert again == [0, 1], "both partitions were there, in two slots"
