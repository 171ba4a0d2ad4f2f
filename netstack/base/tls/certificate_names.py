"""For which names a certificate is valid, by the rules with which TLS clients compare names.

Takes: the names of a certificate (`ByteStream.certificate_names`) and a dialled host. Gives: whether they match.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any


def names_of(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """The host names and IP addresses in what `ssl.SSLObject.getpeercert` returned."""
    kinds = ("DNS", "IP Address")
    return tuple(str(name) for kind, name in certificate.get("subjectAltName", ()) if kind in kinds)


def covers(names: Iterable[str], host: str) -> bool:
    """Whether a certificate with these names is valid for a dialled host name or IP address."""
    address = _address(host)
    if address is not None:
        return any(_address(name) == address for name in names)
    wanted = host.rstrip(".").lower()
    parent = wanted.partition(".")[2]
    return any(name.lower() in (wanted, f"*.{parent}" if parent else wanted) for name in names)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text.strip())
    except ValueError:
        return None
