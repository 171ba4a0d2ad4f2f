"""TaskManagers as processes of this machine, without a JobManager, for one measurement over hosts.

Takes: how many, of how many slots and how much memory. Gives: their addresses, and what they have used.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, final

from netstack.config import MIB

from .children import DIED, Children
from .host import Usage, usage_of
from .processes import MeasurementFailed

START_S: Final = 30.0


@final
@dataclass(frozen=True, slots=True)
class TaskManagers:
    """Those that run.

    Attributes:
        addresses: `host:port` of each, for `--hosts`.
        pids: of their processes.
    """

    addresses: tuple[str, ...]
    pids: tuple[int, ...]

    def used(self) -> Usage:
        """What all of them have used so far, together."""
        each = [usage_of(pid) for pid in self.pids]
        return Usage(sum(one.cpu_s for one in each), sum(one.memory_bytes for one in each))

    def hosts(self, parallelism: int) -> tuple[str, ...]:
        """`--hosts` for as many sources, and as many sinks, shared out among them.

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
    memory_bytes: int = 256 * MIB,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[TaskManagers]:
    """Starts them, and ends them with the block.

    Args:
        count: how many.
        slots: of each.
        memory_bytes: network buffers of each.
        environment: what is set for them besides what is set here.

    Raises:
        MeasurementFailed: one did not come up; its last words are quoted.
    """
    with Children("netstack.cli", environment) as children:
        names = [f"tm-{number}" for number in range(count)]
        for name in names:
            children.start(
                name,
                *("taskmanager", "--listen", "tcp://127.0.0.1:0", "--name", name, "--json", "--until-eof"),
                # In one process each: what it uses is what is measured.
                *("--slots", str(slots), "--slots-in", "loop", "--memory", str(memory_bytes)),
                *("--allow", "netstack.bench."),
            )
        addresses: dict[str, str] = {}
        until = time.monotonic() + START_S
        while len(addresses) < count:
            heard = children.receive(max(0.0, until - time.monotonic()))
            if heard is None and time.monotonic() >= until:
                raise MeasurementFailed(f"{count} TaskManagers did not come up in {START_S:g} s:{children.quotes()}")
            if heard is None:
                continue
            name, message = heard
            if message.get("event") == DIED:
                raise MeasurementFailed(f"TaskManager {name} {message['how']}")
            addresses[name] = str(message["control"]).removeprefix("tcp://")
        yield TaskManagers(tuple(addresses[name] for name in names), tuple(children.pid(name) for name in names))
