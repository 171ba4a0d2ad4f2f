"""What is kept in the corpus, and inputs made of it that are others each time: taken, or refused as promised."""

from __future__ import annotations

import os
import random
from itertools import islice

import pytest
from fuzz.search import CORPUS, corpus_of, failure_of, inputs, search, smallest
from fuzz.targets import TARGETS

SEED = int(os.environ["NETSTACK_FUZZ_SEED"])
INPUTS = int(os.environ.get("NETSTACK_FUZZ_INPUTS", "20"))


@pytest.mark.parametrize("name", TARGETS)
def test_what_was_found_once_is_refused_for_ever(name: str) -> None:
    corpus = corpus_of(name)
    assert corpus
    for file, data in corpus.items():
        error = failure_of(name, data)
        assert error is None, f"{CORPUS / name / file}: {error!r}"


@pytest.mark.parametrize("name", TARGETS)
def test_whatever_else_comes_is_taken_or_refused(name: str) -> None:
    corpus = [*corpus_of(name).values()]
    for data in islice(inputs(random.Random(SEED), corpus), INPUTS):
        error = failure_of(name, data)
        if error is not None:
            small = smallest(name, data)
            pytest.fail(f"NETSTACK_FUZZ_SEED={SEED}: {name} raises {error!r} for {small!r}; keep it in the corpus")


def test_the_search_finds_what_hides_behind_two_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    def target(data: bytes) -> None:
        if data[:1] == b"n" and len(data) > 3 and data[3] == 0xFF:
            raise IndexError("found")

    monkeypatch.setitem(TARGETS, "planted", target)
    monkeypatch.setattr("fuzz.search.corpus_of", lambda _name: {"one": b"net, or not"})
    monkeypatch.setattr("fuzz.search.keep", lambda *_: None)
    chance = random.Random(1)
    assert any(failure_of("planted", data) for data in islice(inputs(chance, [b"net, or not"]), 5000))
    assert smallest("planted", b"net\xff and more") == b"net\xff"
    assert search("event", 0.05, chance)[2] == []
