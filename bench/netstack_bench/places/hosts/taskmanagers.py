"""TaskManagers as processes of this machine, without a JobManager, for one measurement over hosts."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, final

from netstack.base.config import MIB

from ...host import Usage, usage_of
from ..conversation import MeasurementFailed
from ..local.runner import Process

START_S: Final = 30.0
_EXIT_S: Final = 5.0  # from closing its output to its end


@final
@dataclass(frozen=True, slots=True)
class TaskManagers:
    """Running TaskManagers: their `host:port` addresses for `--hosts`, and their process ids."""

    addresses: tuple[str, ...]
    pids: tuple[int, ...]

    def used(self) -> Usage:
        """CPU time and memory of all of them together."""
        each = [usage_of(pid) for pid in self.pids]
        return Usage(sum(one.cpu_s for one in each), sum(one.memory_bytes for one in each))

    def hosts(self, parallelism: int) -> tuple[str, ...]:
        """`--hosts` that distributes this many sources, and as many sinks, over them.

        With more TaskManagers than that, the first ones have a source each and the last ones a sink.
        """
        count = len(self.addresses)
        if count > parallelism:
            counts = [(int(index < parallelism), int(index >= count - parallelism)) for index in range(count)]
            return tuple(
                f"{address}={sources}/{sinks}"
                for address, (sources, sinks) in zip(self.addresses, counts, strict=True)
                if sources or sinks
            )
        whole, more = divmod(parallelism, count)
        return tuple(f"{address}={whole + (index < more)}" for index, address in enumerate(self.addresses))


@contextlib.contextmanager
def local_taskmanagers(
    count: int,
    *,
    slots: int,
    slots_in: str = "loop",
    memory_bytes: int = 256 * MIB,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[TaskManagers]:
    """Starts TaskManagers with these slots and this network memory each, and ends them with the block.

    They are one process each, whose CPU time and memory are measured, unless `slots_in` is "processes".

    Raises:
        MeasurementFailed: one did not start; its last words are quoted.
    """
    with contextlib.ExitStack() as stack:
        processes = []
        for number in range(count):
            name = f"tm-{number}"
            arguments = (
                *("taskmanager", "--listen", "tcp://127.0.0.1:0", "--name", name, "--json", "--until-eof"),
                *("--slots", str(slots), "--slots-in", slots_in, "--memory", str(memory_bytes)),
                *("--allow", "netstack_bench."),
            )
            processes.append(Process(name, "netstack.cli", arguments, environment))
            stack.callback(processes[-1].end)
        until_s = time.monotonic() + START_S
        addresses = tuple(_control_address(process, until_s) for process in processes)
        yield TaskManagers(addresses, tuple(process.process.pid for process in processes))


def _control_address(process: Process, until_s: float) -> str:
    output, errors = process.process.stdout, process.process.stderr
    assert output is not None
    assert errors is not None
    messages: list[dict[str, Any]] = []
    while not messages:
        if not select.select([output], [], [], max(0.0, until_s - time.monotonic()))[0]:
            how = f"did not come up in {START_S:g} s"
        elif chunk := os.read(output.fileno(), 1 << 16):
            messages = process.take_messages(chunk)
            continue
        else:
            how = process.how_it_ended(_EXIT_S)
        process.process.kill()
        process.take_words(errors.read())
        raise MeasurementFailed(f"TaskManager {process.name} {how}{process.quote()}")
    return str(messages[0]["control"]).removeprefix("tcp://")
