"""The document of one run over hosts: the keys of `netstack_bench.document`, and rows for hosts, pairs and time.

- Rates are counted where records arrive, between the end of the warm-up and the moment the first source stopped; rates
  of pairs add up to those of hosts, and these to the run's.
- Rates and latencies of the run and of hosts are those between hosts (`_between_hosts`); `local` ones are apart. Counts
  and CPU time are of all channels.
- `latency_us` is one way, by clocks that were compared; `round_trip_latency_us` (with relays) uses one clock. A run has
  one of them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, final
from urllib.parse import urlsplit

from netstack.base.errors import ConfigError

from ...arrivals import paced_window
from ...document import connection_warnings, document, pace_warnings, timeout_warnings
from ...histogram import Histogram
from ...host import QUEUED, STOLEN, busy_warnings
from ...verifier import Delivery, order_of, problems
from .clocks import HostClock, latency_correction_ns, latency_uncertainty_ns
from .matrix import SINK, SOURCE, Matrix, Placement
from .spec import MeshSpec

FACTS: Final = {
    "netstack_build": "build",
    "python": "Python",
    "kernel": "kernel",
    "cpus": "CPUs",
    "congestion_control": "congestion control",
}
"""The facts of each host, with their names in tables and sentences."""


def facts_of(reported: Mapping[str, Any], connection: str | None = None) -> dict[str, Any]:
    """The facts of a host; None where it does not report one. `connection` is the congestion control that was used."""
    facts = {name: reported.get(name) for name in FACTS}
    return {**facts, "congestion_control": connection or facts["congestion_control"]}


def mixture(hosts: Iterable[Mapping[str, Any]]) -> str:
    """How hosts (rows with `host` and facts) differ, in one sentence; empty if they do not."""
    known = list(hosts)
    parts = []
    for name, words in FACTS.items():
        where: dict[str, dict[str, None]] = {}
        for each in known:
            if each.get(name) is not None:
                where.setdefault(str(each[name]), {})[str(each.get("host"))] = None
        if len(where) > 1:
            parts.append(f"{words} " + ", ".join(f"{value} on {' and '.join(names)}" for value, names in where.items()))
    return f"the hosts differ: {'; '.join(parts)}" if parts else ""


def check_same_build(hosts: Iterable[Mapping[str, Any]]) -> None:
    """Raises ConfigError if hosts run different builds of netstack (`--same-build`)."""
    text = mixture({"host": each["host"], "netstack_build": each.get("netstack_build") or "unknown"} for each in hosts)
    if text:
        raise ConfigError(
            f"--same-build: {text}; run make compiled, or install a wheel, where it is python, or start all with"
            " NETSTACK_PURE=1"
        )


Rows = list[dict[str, Any]]


@final
@dataclass(frozen=True, slots=True)
class Host:
    """One daemon: address of its control port, reported facts, and its clock over the run."""

    address: str
    facts: Mapping[str, Any]
    clock: HostClock


@final
@dataclass(frozen=True, slots=True)
class Outcome:
    """The results of a run, before they become a document.

    Times are in the coordinator's clock; `stopped_ns` has the time at which each source stopped.
    """

    matrix: Matrix
    hosts: tuple[Host, ...]
    start_ns: int
    stopped_ns: tuple[int, ...]
    results: Mapping[Placement, Mapping[str, Any]]
    timeline: Timeline

    def of(self, task: str, host: int | None = None) -> list[Mapping[str, Any]]:
        """The results of a task's subtasks, of one host or of all."""
        return [self.results[each] for each in self.matrix.of_task(task) if host in (None, each.host)]

    @property
    def crowded(self) -> set[int]:
        """The result of `crowded_hosts`."""
        slots = [self.matrix.slots(index) for index in range(len(self.hosts))]
        return crowded_hosts([host.facts for host in self.hosts], slots)

    @property
    def names(self) -> list[str]:
        """A short name for each host: its own, if no two are equal."""
        names = [str(host.facts.get("name") or host.facts.get("hostname") or host.address) for host in self.hosts]
        return names if len(set(names)) == len(names) else [host.address for host in self.hosts]


@final
@dataclass(slots=True)
class _Pair:
    records: int = 0
    records_per_s: float = 0.0
    seconds: float = 0.0
    steady: bool = True
    latency: Histogram = field(default_factory=Histogram)


_Pairs: TypeAlias = dict[tuple[int, int], _Pair]  # by the indexes of two hosts


def document_of(outcome: Outcome, engine_kind: str) -> dict[str, Any]:
    """The document of a run in which every task returned; `engine_kind` is what started the daemons."""
    spec = outcome.matrix.spec
    pairs = _pairs(outcome)
    records = sum(pair.records for pair in pairs.values())
    record_bytes = _record_bytes(outcome)
    seconds = _window(outcome, pairs, records)
    records_per_s, latency = _together(_between_hosts(pairs).values())
    sources, sinks = outcome.of(SOURCE), outcome.of(SINK)
    buffers = sum(each["buffers"] for each in sources)
    controls = sorted({each["congestion_control"] for each in sources} - {None})
    debloated = [each["debloated_buffer_bytes"] for each in sinks if each["debloated_buffer_bytes"] is not None]
    timeline = outcome.timeline.samples(lambda host: outcome.names[host])
    hosts = _host_rows(outcome, pairs)
    result = document(
        spec,
        engine="netstack",
        records=records,
        seconds=seconds,
        records_per_s=records_per_s,
        payload_bytes=round(records * record_bytes),
        wire_bytes=round(sum(_of_host(outcome, index, "bytes_sent") for index in range(len(outcome.hosts)))),
        sent_bytes=_records_between_processes(outcome) * record_bytes,
        latency=latency,
        cpu_s=_cpu_s(outcome),
        problems=_problems(outcome),
        warnings=[
            *filter(None, [mixture(hosts)]),
            *_pace_warnings(outcome, all(pair.steady for pair in pairs.values())),
            *timeout_warnings(spec, max((stopped_ns - outcome.start_ns) / 1e9 for stopped_ns in outcome.stopped_ns)),
            *(text for control in controls for text in connection_warnings(spec, control) if _is_on_loopback(spec)),
            *_clock_warnings(outcome),
            *_crowd_warnings(outcome),
            *([] if outcome.crowded else busy_warnings(timeline)),  # crowded processes wait for each other anyway
        ],
        netstack_build=" and ".join(sorted({str(host["netstack_build"]) for host in hosts})),
        engine_kind=engine_kind,
        round_trip_latency_us=Histogram().summary_us(),
        local=_local(outcome, pairs),
        buffers=buffers,
        credits=sum(each["credits"] for each in sinks) if spec.credit else None,
        congestion_control=", ".join(controls) or None,
        connections=sum(_connections(outcome, index) for index in range(len(outcome.hosts))),
        average_buffer_fill=sum(each["buffer_bytes"] for each in sources) / (buffers * spec.segment_size_bytes)
        if buffers
        else None,
        debloated_buffer_bytes=round(sum(debloated) / len(debloated)) if debloated else None,
        backpressured_ms_per_s={kind: _ms_per_s(sources, f"{kind}_s") for kind in ("soft", "hard")},
        idle_ms_per_s=_ms_per_s(sinks, "idle_s"),
        metrics={"producer": None, "consumer": None},
        hosts=hosts,
        pairs=_pair_rows(outcome, pairs),
        timeline=timeline,
        matrix=outcome.matrix.as_rows(),
        clock=_clock_rows(outcome),
    )
    if spec.relay:  # with one clock there and back
        result["latency_us"], result["round_trip_latency_us"] = result["round_trip_latency_us"], result["latency_us"]
    return result


def of_all_channels(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with the rate of all channels, local ones too: what its processes move."""
    return {**document, "records_per_s": document["records_per_s"] + document["local"].get("records_per_s", 0.0)}


def host_latencies(outcome: Outcome) -> list[Histogram]:
    """Latencies at each host's sinks, from other hosts' sources; one way or, with relays, round trip."""
    latencies = [Histogram() for _ in outcome.hosts]
    for (source, sink), pair in _between_hosts(_pairs(outcome)).items():
        latencies[source if outcome.matrix.spec.relay else sink].merge(pair.latency)
    return latencies


def crowded_hosts(facts: Sequence[Mapping[str, Any]], slots: Sequence[int]) -> set[int]:
    """Indexes of daemons whose machine has so many busy processes that none may spin on the clock.

    If the slots of a daemon are processes, each counts.
    """
    machines = [str(each.get("hostname") or index) for index, each in enumerate(facts)]
    together: Counter[str] = Counter()
    for machine, each, count in zip(machines, facts, slots, strict=True):
        together[machine] += count if each.get("slot_addresses") else 1
    return {
        index
        for index, (machine, each) in enumerate(zip(machines, facts, strict=True))
        if together[machine] > 1 and together[machine] >= int(each.get("cpus") or 1)
    }


def _between_hosts(pairs: _Pairs) -> _Pairs:
    """The pairs whose rates and latencies are the run's: those of two hosts, or all of a run that has one host only."""
    return {ends: pair for ends, pair in pairs.items() if ends[0] != ends[1]} or pairs


def _local(outcome: Outcome, pairs: _Pairs) -> dict[str, Any]:
    """The figures of the channels within a host, where the run has others too; else empty."""
    between = _between_hosts(pairs)
    within = [pair for ends, pair in pairs.items() if ends not in between]
    if not within:
        return {}
    records_per_s, latency = _together(within)
    return {
        "records": sum(pair.records for pair in within),
        "records_per_s": records_per_s,
        "payload_mb_per_s": records_per_s * _record_bytes(outcome) / 1e6,
        "round_trip_latency_us" if outcome.matrix.spec.relay else "latency_us": latency.summary_us(),
    }


def _together(pairs: Iterable[_Pair]) -> tuple[float, Histogram]:
    records_per_s, latency = 0.0, Histogram()
    for pair in pairs:
        records_per_s += pair.records_per_s
        latency.merge(pair.latency)
    return records_per_s, latency


def _records_between_processes(outcome: Outcome) -> int:
    """How many records left their process: `wire_bytes` has them, and their answers with relays."""
    upstream, results = outcome.matrix.upstream(), outcome.results
    return sum(
        int(report["records"])
        for sink in outcome.matrix.of_task(SINK)
        for producer, report in zip(upstream, results[sink]["deliveries"], strict=True)
        if results[producer]["pid"] != results[sink]["pid"] or producer.host != sink.host
    )


def _pairs(outcome: Outcome) -> _Pairs:
    pairs: _Pairs = {}
    spec = outcome.matrix.spec
    clocks = [host.clock for host in outcome.hosts]
    middle_ns = (outcome.start_ns + max(outcome.stopped_ns)) // 2
    for sink in outcome.matrix.of_task(SINK):
        for report in outcome.results[sink]["pairs"]:
            key = (sink.host, report["host"]) if spec.relay else (report["host"], sink.host)
            pair = pairs.setdefault(key, _Pair())
            pair.records += report["records"]
            pair.records_per_s += report["window_records_per_s"]
            pair.seconds = max(pair.seconds, report["window_s"])
            pair.steady = pair.steady and report["steady"]
            latency = Histogram.from_dict(report["latency"])
            if spec.rate_per_s is not None and not spec.relay and spec.rows_file is None:  # otherwise samples are used
                latency = latency.shifted(latency_correction_ns(clocks[key[0]], clocks[key[1]], middle_ns))
            pair.latency.merge(latency)
    return pairs


def _window(outcome: Outcome, pairs: _Pairs, records: int) -> float:
    """The seconds in which rates were counted; completes the pairs' rates if the run had one."""
    rate_per_s = outcome.matrix.spec.rate_per_s
    if rate_per_s is None:
        return max(pair.seconds for pair in _between_hosts(pairs).values())
    last_ns = max(
        each_ns - outcome.hosts[sink.host].clock.before.offset_ns
        for sink in outcome.matrix.of_task(SINK)
        if (each_ns := outcome.results[sink]["last_ns"])
    )
    together = rate_per_s * len(outcome.stopped_ns)
    window = paced_window(together, records, outcome.start_ns, max(outcome.stopped_ns), last_ns)
    for pair in pairs.values():
        pair.records_per_s = pair.records / window["seconds"]
    return float(window["seconds"])


def _problems(outcome: Outcome) -> list[str]:
    matrix, spec = outcome.matrix, outcome.matrix.spec
    upstream = matrix.upstream()
    texts = []
    for source in matrix.of_task(SOURCE):
        deliveries = {}
        for sink in matrix.of_task(SINK):
            report = outcome.results[sink]["deliveries"]
            for group, sender in enumerate(matrix.sources_of(sink.subtask)):
                if sender == source.subtask:
                    name = f"{sink} by way of {upstream[group]}" if spec.relay else str(sink)
                    deliveries[name] = Delivery.from_dict(report[group])
        expected = outcome.results[source]["expected"]
        texts += problems(str(source), expected, deliveries, order=order_of(spec), lanes=spec.lanes)
    return texts


def _host_rows(outcome: Outcome, pairs: _Pairs) -> Rows:
    rows = []
    spec, record_bytes, between = outcome.matrix.spec, _record_bytes(outcome), _between_hosts(pairs)
    for index, (host, name) in enumerate(zip(outcome.hosts, outcome.names, strict=True)):
        here = outcome.matrix.on_host(index)
        ends = {
            (source, sink): pair for (source, sink), pair in pairs.items() if index == (source if spec.relay else sink)
        }
        records = sum(pair.records for pair in ends.values())
        records_per_s = sum(pair.records_per_s for at, pair in ends.items() if at in between)
        middle_ns = (host.clock.before.at_ns + (host.clock.after or host.clock.before).at_ns) // 2
        rows.append(
            {
                "host": name,
                "address": host.address,
                "sources": sum(each.task == SOURCE for each in here),
                "sinks": sum(each.task == SINK for each in here),
                "records": records,
                "bytes": round(records * record_bytes),
                "connections": _connections(outcome, index),
                "records_per_s": records_per_s,
                "payload_mb_per_s": records_per_s * record_bytes / 1e6,
                "local_records_per_s": sum(pair.records_per_s for at, pair in ends.items() if at not in between),
                "cpu_s": _of_host(outcome, index, "cpu_s"),
                "clock_offset_us": host.clock.offset_ns(middle_ns) / 1000,
                "clock_uncertainty_us": host.clock.uncertainty_ns / 1000,
                "backpressured_ms_per_s": _ms_per_s(outcome.of(SOURCE, index), "soft_s", "hard_s"),
                "idle_ms_per_s": _ms_per_s(outcome.of(SINK, index), "idle_s"),
                **facts_of(host.facts, _congestion_control(outcome, index)),
            }
        )
    return rows


def _congestion_control(outcome: Outcome, host: int) -> str | None:
    used = sorted({each["congestion_control"] for each in outcome.of(SOURCE, host)} - {None})
    return ", ".join(used) or None


def _connections(outcome: Outcome, host: int) -> int:
    """How many connections the processes of a host opened to other hosts; each has all channels from one process."""
    own = set(outcome.hosts[host].facts.get("slot_addresses") or ())
    dialled = {
        (outcome.results[each]["pid"], address)
        for each in outcome.matrix.on_host(host)
        for address in outcome.results[each]["dialled"]
    }
    return sum(address not in own for _, address in dialled)


def _pair_rows(outcome: Outcome, pairs: _Pairs) -> Rows:
    spec, names, record_bytes = outcome.matrix.spec, outcome.names, _record_bytes(outcome)
    rows = []
    for (source, sink), pair in sorted(pairs.items()):
        clocks = outcome.hosts[source].clock, outcome.hosts[sink].clock
        row = {
            "source_host": names[source],
            "sink_host": names[sink],
            "is_local": source == sink,
            "records": pair.records,
            "payload_bytes": round(pair.records * record_bytes),
            "records_per_s": pair.records_per_s,
            "payload_mb_per_s": pair.records_per_s * record_bytes / 1e6,
        }
        one_way = Histogram() if spec.relay else pair.latency
        row["latency_us"] = one_way.summary_us()
        row["latency_uncertainty_us"] = None if spec.relay else latency_uncertainty_ns(*clocks) / 1000
        if spec.relay:
            row["round_trip_latency_us"] = pair.latency.summary_us()
        rows.append(row)
    return rows


def _record_bytes(outcome: Outcome) -> float:
    if outcome.matrix.spec.rows_file is None:
        return outcome.matrix.spec.record_bytes
    expected = [each["expected"] for each in outcome.of(SOURCE)]
    records = sum(each["records"] for each in expected)
    return float(sum(each["payload_bytes"] for each in expected) / records) if records else 0.0


def _clock_rows(outcome: Outcome) -> Rows:
    return [
        {
            "host": name,
            "offset_before_us": host.clock.before.offset_ns / 1000,
            "offset_after_us": (host.clock.after or host.clock.before).offset_ns / 1000,
            "round_trip_us": 2 * host.clock.uncertainty_ns / 1000,
        }
        for host, name in zip(outcome.hosts, outcome.names, strict=True)
    ]


def _cpu_s(outcome: Outcome) -> dict[str, float | None]:
    used: dict[tuple[Any, ...], tuple[bool, bool, float]] = {}
    for each, result in outcome.results.items():
        process = outcome.hosts[each.host].facts.get("hostname"), result["pid"]
        writes, reads, cpu_s = used.get(process, (False, False, 0.0))
        used[process] = writes or each.task == SOURCE, reads or each.task != SOURCE, max(cpu_s, result["cpu_s"])
    total = sum(cpu_s for *_, cpu_s in used.values())
    is_split = all(writes != reads for writes, reads, _ in used.values())
    producer = sum(cpu_s for writes, _, cpu_s in used.values() if writes) if is_split else None
    consumer = total - producer if producer is not None else None
    return {"producer": producer, "consumer": consumer, "total": total}


def _pace_warnings(outcome: Outcome, steady: bool) -> list[str]:
    spec = outcome.matrix.spec
    sent_s = [(stopped_ns - outcome.start_ns) / 1e9 for stopped_ns in outcome.stopped_ns]
    if spec.rate_per_s is None:
        return pace_warnings(spec, steady, 0, min(sent_s))
    return [
        f"{each}: {text}"
        for each, seconds in zip(outcome.matrix.of_task(SOURCE), sent_s, strict=True)
        for text in pace_warnings(spec, steady, outcome.results[each]["records"], seconds)
    ]


def _is_on_loopback(spec: MeshSpec) -> bool:
    hosts = [urlsplit(f"//{host.address.rpartition('//')[2]}").hostname or "" for host in spec.parsed_hosts]
    return all(host in ("localhost", "::1") or host.startswith("127.") for host in hosts)


def _clock_warnings(outcome: Outcome) -> list[str]:
    warnings = []
    for host, name in zip(outcome.hosts, outcome.names, strict=True):
        clock = host.clock
        drift_ns = (clock.after or clock.before).offset_ns - clock.before.offset_ns
        if abs(drift_ns) > 2 * clock.uncertainty_ns:
            warnings.append(
                f"the clock of {name} moved by {drift_ns / 1000:.0f} us against this host's during the run; one-way"
                " latencies are corrected for its mean"
            )
    return warnings


def _crowd_warnings(outcome: Outcome) -> list[str]:
    crowded = outcome.crowded
    if not crowded:
        return []
    cpus = outcome.hosts[min(crowded)].facts.get("cpus")
    who = "the slots of a TaskManager" if len(crowded) == 1 else f"{len(crowded)} TaskManagers"
    warnings = [f"{who} share a machine of {cpus} CPUs: they compete for the processor"]
    if outcome.matrix.spec.rate_per_s is not None:
        warnings.append("records leave some 0.1 ms late: tasks do not spin on the clock where processors are shared")
    return warnings


def _of_host(outcome: Outcome, host: int, name: str) -> float:
    by_process: dict[int, float] = {}
    for each in outcome.matrix.on_host(host):
        result = outcome.results[each]
        by_process[result["pid"]] = max(by_process.get(result["pid"], 0.0), float(result[name]))
    return sum(by_process.values())


def _ms_per_s(results: Iterable[Mapping[str, Any]], *names: str) -> float | None:
    means = [
        1000 * sum(each["waits"][name] for name in names) / each["waits"]["t_s"]
        for each in results
        if each["waits"]["t_s"] > 0
    ]
    return min(1000.0, sum(means) / len(means)) if means else None


_MOST: Final = 240  # samples of one task; a longer run repeatedly drops every second one


@final
class Timeline:
    """Running totals of all tasks."""

    def __init__(self) -> None:
        self._messages: dict[Placement, list[Mapping[str, Any]]] = {}
        self._counts: dict[Placement, int] = {}
        self._every: dict[Placement, int] = {}

    def add(self, place: Placement, message: Mapping[str, Any]) -> None:
        """Adds a progress message of a task (`meter.Meter.sample`)."""
        messages = self._messages.setdefault(place, [])
        number = self._counts.get(place, 0)
        self._counts[place] = number + 1
        if number % self._every.setdefault(place, 1) == 0:
            messages.append(message)
        if len(messages) > _MOST:
            del messages[1::2]  # the others hold running totals, so nothing is lost
            self._every[place] *= 2

    def samples(self, host_of: Callable[[int], str]) -> list[dict[str, Any]]:
        """A sample for each stretch of each task, in the order of time.

        Each has `t_s` (its end, seconds from the start), `host`, `task`, `records` (so far), `pool_usage` (at that
        moment, 0 to 1), and over the stretch, null where a task does not write, or not read: `backpressured_ms_per_s`,
        `idle_ms_per_s`, `busy_ms_per_s`; null where not reported: `queued_ms_per_s` of its process, `stolen_ms_per_s`
        of its host.
        """
        rates = [
            {"t_s": round(after["t_s"], 4), "host": host_of(place.host), "task": str(place), **_stretch(before, after)}
            for place, messages in self._messages.items()
            for before, after in itertools.pairwise(messages)
            if after["t_s"] > max(before["t_s"], 0.0)
        ]
        return sorted(rates, key=lambda sample: float(sample["t_s"]))


def _stretch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    seconds = float(after["t_s"]) - max(float(before["t_s"]), 0.0)

    def ms_per_s(*names: str) -> float | None:
        if any(name not in each for name in names for each in (before, after)):
            return None
        waited_s = sum(float(after[name]) - float(before[name]) for name in names)
        return round(min(1000.0, 1000 * waited_s / seconds), 2)

    backpressured, idle = ms_per_s("soft_s", "hard_s"), ms_per_s("idle_s")
    return {
        "records": after["records"],
        "backpressured_ms_per_s": backpressured,
        "busy_ms_per_s": None if idle is None else round(max(0.0, 1000 - idle - (backpressured or 0.0)), 2),
        "idle_ms_per_s": idle,
        "pool_usage": round(after["pool_usage"], 4),
        QUEUED: ms_per_s(QUEUED),
        STOLEN: ms_per_s(STOLEN),
    }
