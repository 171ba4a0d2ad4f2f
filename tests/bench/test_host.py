from __future__ import annotations

import json

from netstack_bench.host import cpu_seconds, host_facts, version


def test_facts_are_plain_and_name_the_machine() -> None:
    facts = host_facts()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["cores"] >= facts["cores_usable"] >= 1
    assert facts["packages"]["numpy"]
    assert facts["python"].startswith("3.")


def test_cpu_seconds_grow_with_work() -> None:
    before = cpu_seconds()
    while cpu_seconds() == before:
        sum(range(1000))


def test_there_is_a_version() -> None:
    assert version()
