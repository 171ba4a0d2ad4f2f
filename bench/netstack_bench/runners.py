"""The functions that make runs, as one object that tests replace. Late imports keep `--help` fast."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .places.conversation import OnProgress
from .places.hosts.spec import MeshSpec
from .spec import RunSpec


class Runners:
    """Makes runs."""

    def run_once(self, spec: RunSpec, /, on_progress: OnProgress | None = None) -> Mapping[str, Any]:
        """One run of netstack."""
        from .places.local.runner import run_once

        return run_once(spec, on_progress=on_progress)

    def run_with_peers(
        self, spec: RunSpec, peers: list[str], repeats: int, on_progress: OnProgress | None = None
    ) -> Mapping[str, Any]:
        """Runs of netstack and its peers, interleaved."""
        from .places.local.runner import run_with_peers

        return run_with_peers(spec, peers, repeats, on_progress=on_progress)

    @contextmanager
    def flink(self) -> Iterator[Callable[[RunSpec], Mapping[str, Any]]]:
        """The function that makes a run on a real Flink, while the block runs."""
        from .engines.flink import FlinkSession

        with FlinkSession() as session:
            yield session.run_once

    def run_over_hosts(
        self,
        spec: MeshSpec,
        /,
        on_progress: OnProgress | None = None,
        *,
        secret_file: Path | None = None,
        same_build: bool = False,
    ) -> Mapping[str, Any]:
        """One run over daemons."""
        from .places.hosts.coordinator import run_over_hosts

        return run_over_hosts(spec, secret_file=secret_file, same_build=same_build, on_progress=on_progress)

    def check_spark(self) -> None:
        """Checks that Spark can run here. Raises ConfigError if it cannot; the text names what is missing."""
        from netstack.spark.session import check_spark

        check_spark()
