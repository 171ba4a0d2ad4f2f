"""`auto` does what takes less time, by a clock that says what writing and compressing take."""

from __future__ import annotations

import random

from hypothesis import given, strategies as st

from netstack.base.events import DataType
from netstack.exchange.buffer.stored import compress
from netstack.exchange.stored.compression import SAMPLE_EVERY, PageCompression, WriteCost, pays
from netstack.exchange.stored.pages import PAGE_BYTES

PAGE = 4096
PAGES = 32
"""In a region."""


class Pace:
    """A clock that compressing a page moves on: two looks, one before and one after it."""

    def __init__(self, page_s: float) -> None:
        self.page_s = page_s
        self.looks = 0

    def ticks(self) -> float:
        self.looks += 1
        return self.looks // 2 * self.page_s


def page(noise: int) -> memoryview:
    return memoryview(random.Random(noise).randbytes(noise) + bytes(PAGE - noise))


def region(compression: PageCompression, memory: memoryview, write_s_per_byte: float) -> int:
    """Writes one; returns its bytes."""
    size = 0
    for _ in range(PAGES):
        size += sum(map(len, compression.encode(DataType.DATA, [memory], len(memory))))
    compression.on_region(size, size * write_s_per_byte, is_scarce=False)
    return size


paces = st.floats(1e-12, 1e-6)


@given(st.sampled_from([0, 1000, 2000, 3000, PAGE]), paces, st.lists(paces, min_size=1, max_size=3))
def test_after_some_regions_it_does_what_pays(noise: int, squeeze: float, phases: list[float]) -> None:
    """Whatever the disk did before."""
    memory = page(noise)
    block = compress(memory)
    share = 1.0 if block is None else (len(block) + PAGE_BYTES) / PAGE
    pace = Pace(squeeze * PAGE)
    compression = PageCompression("auto", WriteCost(), pace.ticks)
    for write in phases:
        sizes = [region(compression, memory, write) for _ in range(100)]
        plain = PAGES * (PAGE + PAGE_BYTES)
        if abs(squeeze - (1 - share) * write) > 0.01 * max(squeeze, write):
            assert compression.is_compressing is pays(write, squeeze, share)
            last = sizes[-1]
            if compression.is_compressing:
                assert last == round(PAGES * share * PAGE)
            else:  # a sample at most
                assert 0 <= plain - last <= PAGE


@given(paces, paces)
def test_what_is_chosen_is_the_cheaper_one(write: float, squeeze: float) -> None:
    """Beside the first region, for want of figures, and samples."""
    memory = page(2000)
    block = compress(memory)
    assert block is not None
    share = (len(block) + PAGE_BYTES) / PAGE
    pace = Pace(squeeze * PAGE)
    compression = PageCompression("auto", WriteCost(), pace.ticks)
    written = sum(region(compression, memory, write) for _ in range(50))
    spent = written * write + compression.compressed_bytes * squeeze
    data = 50 * PAGES * PAGE
    plain = data * write * (1 + PAGE_BYTES / PAGE)
    first = plain / 50 + PAGE * squeeze
    assert spent <= min(plain, data * (squeeze + share * write)) * (1 + 2 / SAMPLE_EVERY + PAGE_BYTES / PAGE) + first


def test_the_disk_is_shared_and_the_data_are_not() -> None:
    cost = WriteCost()
    first = PageCompression("auto", cost, Pace(1e-6 * PAGE).ticks)
    region(first, page(0), 1e-3)
    assert first.is_compressing
    second = PageCompression("auto", cost, Pace(1e-6 * PAGE).ticks)
    assert not second.is_compressing  # nothing is known of its data yet
    region(second, page(PAGE), 1e-3)
    assert not second.is_compressing  # they are noise
    assert second.compressed_bytes == 0


def test_a_choice_that_was_made_is_kept() -> None:
    for choice, share in (("lz4", 1.0), ("none", 0.0)):
        compression = PageCompression(choice, WriteCost(), Pace(1.0).ticks)
        for _ in range(2):
            region(compression, page(0), 1e-3 if choice == "none" else 1e-12)
            compression.on_region(0, 0.0, is_scarce=choice == "none")
        assert compression.data_bytes == 2 * PAGES * PAGE
        assert compression.compressed_bytes == share * compression.data_bytes
