"""`tools/pairs.py`: every pair of features is in a job, and each job is exact or refused in words that name both."""

from __future__ import annotations

import itertools

import pytest
from tool_modules import load_tool

from netstack.testing.simulate.features import AXES, INCOMPATIBLE, Case

pytest.importorskip("covertable")
pairs = load_tool("pairs")


@pytest.fixture(scope="module")
def array() -> list[Case]:
    return [*pairs.covering_array(1)]


@pytest.mark.slow
def test_a_covering_array_has_every_pair(array: list[Case]) -> None:
    every = {
        frozenset(((one, first), (other, second)))
        for one, other in itertools.combinations(AXES, 2)
        for first in AXES[one]
        for second in AXES[other]
    }
    assert every - {pair for case in array for pair in pairs.pairs_of(case)} == set()
    assert sum(not case.is_possible for case in array) == len(INCOMPATIBLE)


@pytest.mark.slow
@pytest.mark.parametrize("share", range(8))
def test_a_job_that_combines_features_is_exact_or_refused_by_their_names(array: list[Case], share: int) -> None:
    for number, case in enumerate(array[share::40]):
        verdict = pairs.play_simulated(case, number)
        assert verdict.state == (pairs.EXACT if case.is_possible else pairs.REFUSED), f"{case}: {verdict.text}"


def test_a_refusal_names_two_features_of_the_case() -> None:
    case = Case(edge="prompt", exchange="blocking")
    refusal = "edge 'a' -> 'b' is blocking, so prompt has no effect"
    assert case.names_two(refusal)
    assert not case.names_two("edge 'a' -> 'b' is blocking")
    assert not Case(exchange="blocking").names_two(refusal)
    assert not case.is_possible


def test_the_page_counts_what_came_of_each_pair() -> None:
    case = Case(edge="broadcast")
    counts: dict[object, object] = {}
    for pair in pairs.pairs_of(case):
        counts[pair] = pairs.Counter({pairs.EXACT: 3})
    page = pairs.page(counts, pairs.Counter(simulated=3, exact=3))
    assert "The last run had 3 simulated jobs and 0 on real processes: 3 exact, 0 refused, 0 wrong." in page
    assert "| edge: prompt | exchange: blocking | 0 |" in page
    assert "0 to 3" in page
