"""Settings of a run over hosts, and the sources and sinks of each host (`--hosts`)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Final, final

from netstack.base.errors import ConfigError

from ...spec import RunSpec

_EXAMPLE: Final = "write it like 10.0.0.1:6121, 10.0.0.1:6121=4, 10.0.0.1:6121=2/1 or tls+tcp://10.0.0.1:6121"
_TLS: Final = "tls+tcp://"
_HOST: Final = re.compile(
    r"(?P<scheme>tls\+tcp://)?"
    r"(?P<host>\[[0-9A-Za-z:.%_-]+\]|[^\s:=/\[\]]+):(?P<port>\d+)"
    r"(?P<query>\?[a-z]+=[^=&,]*(?:&[a-z]+=[^=&,]*)*)?(?:=(?P<counts>[^=]*))?"
)
_COUNTS: Final = re.compile(r"(\d+)(?:/(\d+))?")
_MOST_SUBTASKS: Final = 1024  # of one kind on one host; more is a typing error


@final
@dataclass(frozen=True, slots=True)
class HostSpec:
    """One daemon: address of its control port, and its numbers of source and sink subtasks.

    The address is `HOST:PORT`, or with TLS a URL that may name our certificates.
    """

    address: str
    sources: int = 1
    sinks: int = 1

    @classmethod
    def parse(cls, text: str) -> HostSpec:
        """`HOST:PORT`, `HOST:PORT=PARALLELISM` or `HOST:PORT=SOURCES/SINKS`, also after `tls+tcp://`.

        Raises:
            ConfigError: it is none of these; the text says which part is wrong.
        """
        match = _HOST.fullmatch(text.strip())
        if match is None:
            raise ConfigError(f"--hosts {text.strip()!r}: not HOST:PORT[=PARALLELISM]; {_EXAMPLE}")
        port = int(match["port"])
        if not 1 <= port <= 65535:
            raise ConfigError(f"--hosts {text.strip()!r}: port {port}; give 1 to 65535")
        address = f"{match['host']}:{port}"
        if match["scheme"]:
            address = f"{_TLS}{address}{match['query'] or ''}"
        elif match["query"]:
            raise ConfigError(f"--hosts {text.strip()!r}: certificates go with tls+tcp://; {_EXAMPLE}")
        if match["counts"] is None:
            return cls(address)
        counts = _COUNTS.fullmatch(match["counts"])
        if counts is None:
            raise ConfigError(
                f"--hosts {text.strip()!r}: {match['counts']!r} is neither PARALLELISM nor SOURCES/SINKS; {_EXAMPLE}"
            )
        sources = int(counts[1])
        sinks = sources if counts[2] is None else int(counts[2])
        if not sources + sinks:
            raise ConfigError(f"--hosts {text.strip()!r}: it has no subtasks; leave it out")
        if max(sources, sinks) > _MOST_SUBTASKS:
            raise ConfigError(f"--hosts {text.strip()!r}: at most {_MOST_SUBTASKS} sources and sinks a host")
        return cls(address, sources, sinks)

    @property
    def has_tls(self) -> bool:
        """Whether it is reached over TLS."""
        return self.address.startswith(_TLS)

    def __str__(self) -> str:
        return f"{self.address}={self.sources}/{self.sinks}"


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class MeshSpec(RunSpec):
    """Settings of one run over several hosts; `rate_per_s` and `records` are per source.

    With `relay` records make a round trip: source, relay (on every host), and back to a sink beside their source.
    `rows_file` is the name of the packed rows of `input_path` on every host (`netstack_bench.arrow_input.keep`).
    """

    ENGINE_KIND: ClassVar[str] = "hosts"

    START_S: ClassVar[float] = 0.5
    """The daemons run already: this is the time to connect, measure clocks and drain."""

    hosts: tuple[str, ...]
    relay: bool = False
    rows_file: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "hosts", tuple(self.hosts))  # JSON has a list
        with_tls = [host.has_tls for host in self.parsed_hosts]
        if any(with_tls):
            if not all(with_tls):
                raise ConfigError("--hosts has addresses with tls+tcp:// and without: give one kind")
            object.__setattr__(self, "transport", "tls")
        elif self.transport == "tls":
            raise ConfigError("--transport tls with --hosts: write the hosts as tls+tcp://HOST:PORT, as they listen")
        RunSpec.__post_init__(self)
        for is_asked, flag, why in (
            (
                self.transport not in ("tcp", "tls"),
                f"--transport {self.transport}",
                "hosts are reached by TCP; leave it out",
            ),
            (
                self.input_path is not None and self.rows_file is None,
                "--input",
                "the hosts do not have the file; use generated records",
            ),
            (
                self.is_impaired,
                "--network, --round-trip, --link-rate, --queue, --loss and --jitter",
                "the link between hosts is real; shape it there, or measure between two processes",
            ),
        ):
            if is_asked:
                raise ConfigError(f"{flag} with --hosts: {why}")
        hosts = self.parsed_hosts
        if not hosts:
            raise ConfigError("--hosts is empty; give HOST:PORT of at least one netstack taskmanager")
        addresses = [host.address for host in hosts]
        for address in addresses:
            if addresses.count(address) > 1:
                raise ConfigError(f"--hosts names {address} twice; for more subtasks there write {address}=2")
        for what, count in (("source", self.sources), ("sink", self.sinks)):
            if not count:
                raise ConfigError(f"--hosts has no {what} at all; {_EXAMPLE}")
        if self.relay:
            for host in hosts:
                if host.sources != host.sinks:
                    raise ConfigError(
                        f"--relay with {host}: records return to a sink beside their source, so give as many sinks"
                        f" as sources ({host.address}={host.sources or host.sinks})"
                    )

    @property
    def parsed_hosts(self) -> tuple[HostSpec, ...]:
        """The hosts, in the order given."""
        return tuple(HostSpec.parse(text) for text in self.hosts)

    @property
    def sources(self) -> int:
        """Source subtasks on all hosts together."""
        return sum(host.sources for host in self.parsed_hosts)

    @property
    def sinks(self) -> int:
        """Sink subtasks on all hosts together."""
        return sum(host.sinks for host in self.parsed_hosts)

    @property
    def lanes(self) -> int:
        """Subpartitions of a source; its records are distributed over all of them."""
        return self.sinks * self.channels


def split_hosts(text: str) -> tuple[str, ...]:
    """The elements of `--hosts a:6121,b:6121`."""
    return tuple(part for part in (each.strip() for each in text.split(",")) if part)
