"""What the hosts of a run are, and how they differ.

Takes: what each daemon reported, or the rows of hosts in a stored result. Gives: facts for tables, and a sentence about
a mixture: figures of such a run are those of no single machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from netstack.base.errors import ConfigError

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
