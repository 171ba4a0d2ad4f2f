"""What tests of `recover` count."""

from __future__ import annotations

from bench.recover.counts import Comparison, KeyCounts, compare, count
from bench.recover.records import Records
from bench.recover.spec import RecoverSpec

STREAM = Records(seed=7, keys=20, long_bytes=9000)
SPLITS = 2
TOTAL = 1501


def counted(records: list[bytes]) -> KeyCounts:
    counts: KeyCounts = {}
    for record in records:
        count(counts, SPLITS, *STREAM.check(record))
    return counts


def compared(*sinks: list[bytes]) -> Comparison:
    return compare(STREAM.expected(SPLITS, TOTAL), map(counted, sinks))


SMALL = RecoverSpec(runs=1, records=300, kills=2)
