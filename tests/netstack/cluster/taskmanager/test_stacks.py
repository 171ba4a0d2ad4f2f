"""Stacks of slot processes: what `faulthandler` writes, and which operator a line belongs to."""

from __future__ import annotations

import faulthandler
import json
import os
import tempfile
from typing import Any

import pytest
import trio

from netstack.base.errors import RemoteProtocolError
from netstack.cluster.taskmanager.job_in_slots import place_of
from netstack.cluster.taskmanager.slot_pool import counted_up
from netstack.cluster.taskmanager.slot_supervision import how_ended
from netstack.cluster.taskmanager.stacks import CodeTable, coroutine_stack, parse_stack
from netstack.schedule.descriptors.descriptors import ExecutionAttemptId, TaskDeploymentDescriptor


def written_stack() -> str:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file=file, all_threads=False)
        file.seek(0)
        return file.read()


def test_a_stack_of_faulthandler_is_read_innermost_first() -> None:
    frames = parse_stack("noise before\n" + written_stack())
    assert [frame.function for frame in frames[:2]] == [
        "written_stack",
        "test_a_stack_of_faulthandler_is_read_innermost_first",
    ]
    assert frames[0].file == __file__
    assert "dump_traceback" in frames[0].document()["source"]
    assert parse_stack("") == []
    of_c = 'Current thread\'s C stack trace (most recent call first):\n  Binary file "python", at _Py_DumpStack+0x3d\n'
    assert parse_stack(written_stack() + of_c)[0].function == "written_stack"


@pytest.mark.parametrize("name", ["ünï", "日本", "🐍", "a b", r"a\ub"])
def test_files_and_functions_of_every_name_are_found(name: str) -> None:
    """`faulthandler` escapes what is not ASCII, so that no line of a checkout in such a folder had its operator."""
    function = "größe"
    names: dict[str, Any] = {"written_stack": written_stack}
    exec(compile(f"def {function}(): return written_stack()", f"/{name}/job.py", "exec"), names)
    frame = parse_stack(names[function]())[1]
    assert (frame.file, frame.function) == (f"/{name}/job.py", function)


def test_a_line_is_told_with_its_task_and_operator() -> None:
    frames = parse_stack(written_stack())
    table = CodeTable()
    first = written_stack.__code__.co_firstlineno
    line = {
        "job_id": "j",
        "attempt": [1, 2, 0],
        "task": "map",
        "rows": [["m", __file__, "written_stack", first, first + 9]],
    }
    assert table.add(json.dumps(line))
    actual = table.located(frames)
    assert (actual["task"], actual["subtask"], actual["operator"]) == ("map", 2, "m")
    assert (actual["file"], actual["function"]) == (__file__, "written_stack")
    table.forget("j")
    assert "operator" not in table.located(frames)
    assert table.located([]) == {}


@pytest.mark.parametrize(
    "line", ["", "{", "[]", "{}", '{"attempt": 3, "rows": []}', '{"attempt": [0,0,0], "rows": [1]}']
)
def test_what_user_code_writes_into_the_pipe_is_no_code(line: str) -> None:
    assert not CodeTable().add(line)


async def test_a_coroutine_that_waits_has_a_stack() -> None:
    async def outer() -> None:
        await inner()

    async def inner() -> None:
        await trio.sleep_forever()

    tasks: list[Any] = []

    async def run(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        tasks.append(trio.lowlevel.current_task())
        task_status.started()
        await outer()

    async with trio.open_nursery() as nursery:
        await nursery.start(run)
        await trio.testing.wait_all_tasks_blocked()
        functions = [frame.function for frame in coroutine_stack(tasks[0].coro)]
        nursery.cancel_scope.cancel()
    assert functions[-3:] == ["inner", "outer", "run"]


def test_the_slot_of_a_task_is_read_without_the_rest() -> None:
    descriptor = TaskDeploymentDescriptor(ExecutionAttemptId("job", 3, 4, 5), "10.0.0.1:6121#2/7", b"x" * 100, b"")
    assert place_of(descriptor.pack()) == ((3, 4, 5), 7)
    for damaged in (b"", b"\xc1", descriptor.pack()[:8], b"\x91\x01"):
        with pytest.raises(RemoteProtocolError):
            place_of(damaged)


def test_ports_are_counted_up_and_ends_have_names() -> None:
    assert counted_up("tcp://0.0.0.0:6121", 2) == "tcp://0.0.0.0:6123"
    assert counted_up("127.0.0.1:9249", 1) == "127.0.0.1:9250"
    assert counted_up("tcp://127.0.0.1:0", 3) == "tcp://127.0.0.1:0"
    assert how_ended(os.waitstatus_to_exitcode(3 << 8)) == "exited with code 3"
    assert how_ended(-11) == "was killed by SIGSEGV"
