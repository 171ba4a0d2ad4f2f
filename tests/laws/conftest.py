"""Soak tests run once for every seed: how many there are, and how a failed one is run alone.

A test that takes `seed` runs `EVERYDAY_SEEDS` times (of its module), always the same. The profile `fresh` takes four
times as many, others each time (they begin at NETSTACK_FUZZ_SEED), `thorough` some seventy times as many, and
NETSTACK_SOAK_SEEDS names them: `17`, or `1000-2999`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

VARIABLE = "NETSTACK_SOAK_SEEDS"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", _seeds(metafunc.module.EVERYDAY_SEEDS))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.failed and isinstance(item, pytest.Function) and hasattr(item, "callspec"):
        seed = item.callspec.params.get("seed")
        if seed is not None:
            path = item.nodeid.partition("[")[0]
            report.sections.append(("This seed alone", f"{VARIABLE}={seed} python -m pytest {path}"))
    return report


def _seeds(everyday: int) -> range:
    named = os.environ.get(VARIABLE)
    if named is None:
        if settings.default.derandomize:
            return range(everyday)
        first_seed = int(os.environ["NETSTACK_FUZZ_SEED"])
        return range(first_seed, first_seed + everyday * settings.default.max_examples // 15)
    first, _, last = named.partition("-")
    return range(int(first), int(last or first) + 1)
