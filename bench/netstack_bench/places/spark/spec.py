"""`SparkSpec`: the settings of one run on Spark. Its hash is the id of the run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Final, final

from netstack.base.errors import ConfigError

from ...spec import RunSpec, refuse_below
from ..hosts.spec import MeshSpec

_NOWHERE_PORT: Final = 6121  # a placeholder: nodes have no address before they run
_NAMED_LATER: Final = "rows"  # a placeholder: rows are read when the session is open


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSpec(RunSpec):
    """One run on `nodes` TaskManagers, one for each barrier task; `rate_per_s` and `records` apply to each source.

    With `relay` records make a round trip. With `one_way` half of the nodes have the sources and the others the sinks.
    """

    ENGINE_KIND: ClassVar[str] = "spark"

    START_S: ClassVar[float] = 0.8
    """A run's part of the start of a barrier job, in seconds: the exchange of addresses alone takes one for all."""

    nodes: int = 2
    sources_per_node: int = 1
    sinks_per_node: int = 1
    relay: bool = False
    one_way: bool = False

    def __post_init__(self) -> None:
        RunSpec.__post_init__(self)
        refuse_below(("--nodes", self.nodes, 1), ("--parallelism", min(self.sources_per_node, self.sinks_per_node), 1))
        if self.one_way and (self.nodes < 2 or self.relay):
            raise ConfigError("--one-way needs two nodes, and sinks beside no source: not --nodes 1, not --relay")
        try:
            self.as_mesh()
        except ConfigError as error:
            raise ConfigError(str(error).replace("with --hosts", "with --place spark")) from None

    def subtasks(self) -> tuple[tuple[int, int], ...]:
        """Returns (sources, sinks) of each node, by rank."""
        sources, sinks = self.sources_per_node, self.sinks_per_node
        if not self.one_way:
            return ((sources, sinks),) * self.nodes
        half = self.nodes // 2
        return ((sources, 0),) * half + ((0, sinks),) * (self.nodes - half)

    def run_settings(self) -> dict[str, Any]:
        """Returns the settings of a `RunSpec`, as plain data."""
        names = {field.name for field in dataclasses.fields(RunSpec)}
        return {name: value for name, value in self.as_dict().items() if name in names}

    def as_mesh(self) -> MeshSpec:
        """Returns the same run over hosts with placeholder addresses."""
        counts = enumerate(self.subtasks())
        hosts = tuple(f"node{rank}:{_NOWHERE_PORT}={sources}/{sinks}" for rank, (sources, sinks) in counts)
        rows_file = None if self.input_path is None else _NAMED_LATER
        return MeshSpec(**self.run_settings(), hosts=hosts, relay=self.relay, rows_file=rows_file)
