"""Whatever is done to an impaired stream: no byte is lost, none overtakes, none is early, and a cancelled wait changes
nothing.
"""

from __future__ import annotations

import itertools
from collections import deque

import pytest
import trio
import trio.testing
from hypothesis import given, strategies as st
from trio_runs import run_virtual

from netstack.base.transport import transport_for
from netstack_transports.impaired import impairment

QUEUE_BYTES = 1 << 16
LARGEST = 300 * 1024  # more than a block of the store, than the queue, and than the pipe underneath

numbers = itertools.count()
data = bytes(range(251)) * (LARGEST * 3 // 251 + 1)

delays = st.sampled_from([0.0, 0.001, 0.01, 0.2])
rates = st.sampled_from([None, 5e6, 1e8])
pauses = st.sampled_from([0.0, 0.0, 0.0001, 0.01, 0.2])
sizes = st.one_of(st.integers(1, 100), st.integers(1, LARGEST))
changes = st.one_of(
    st.tuples(st.just("delay"), delays),
    st.tuples(st.just("rate"), rates),
    st.tuples(st.just("stall"), st.just(None)),
    st.tuples(st.just("heal"), st.just(None)),
)


@pytest.mark.slow
@given(
    delay_s=delays,
    pieces=st.lists(st.tuples(sizes, pauses), min_size=1, max_size=3),
    script=st.lists(st.tuples(st.sampled_from([0.0001, 0.01, 0.1]), changes), max_size=8),
    windows=st.lists(st.one_of(st.integers(0, 10), st.integers(1, 400_000)), max_size=3),
    patience_s=st.sampled_from([0.0, 0.005, 0.05, 10.0]),
    has_poller=st.booleans(),
)
def test_order_and_completeness(
    delay_s: float,
    pieces: list[tuple[int, float]],
    script: list[tuple[float, tuple[str, float | None]]],
    windows: list[int],
    patience_s: float,
    has_poller: bool,
) -> None:
    total = sum(size for size, _ in pieces)
    received = bytearray()
    sent_at: deque[tuple[int, float]] = deque()  # (position after, when the stream took it)
    unpatient_s = 0.0 if patience_s else 0.005  # virtual time must pass
    least_delay_s = min([delay_s, *(value or 0.0 for _, (kind, value) in script if kind == "delay")])

    async def main() -> None:
        name = f"law-{next(numbers)}"
        url = f"impaired+memory://{name}?queue={QUEUE_BYTES}&name={name}"
        listener = await transport_for(url).listen(url)
        near = await transport_for(url).connect(listener.address)
        far = await listener.accept()
        lab = impairment(name)
        lab.delay_s = delay_s
        is_over = False

        async def write() -> None:
            position = 0
            for size, pause_s in pieces:
                end = position + size
                while position < end:
                    position += (count := near.try_send([data[position:end]]))
                    if count:
                        sent_at.append((position, trio.current_time()))
                    with trio.move_on_after(patience_s):
                        await near.wait_writable()
                    await trio.sleep(unpatient_s)
                await trio.sleep(pause_s)
            near.send_eof()

        def take() -> None:
            nonlocal is_over
            places = [memoryview(bytearray(size)) for size in (*windows, total // 100 + 1)]
            count = far.try_receive_into(places)
            if count:
                received.extend(b"".join(places)[:count])
                while sent_at[0][0] < len(received):
                    sent_at.popleft()
                assert trio.current_time() >= sent_at[0][1] + least_delay_s
            is_over = count == 0
            assert lab.statistics().bytes_held <= max(limits)

        async def read() -> None:
            while not is_over:
                with trio.move_on_after(patience_s):
                    await far.wait_readable()
                take()
                await trio.sleep(unpatient_s)

        async def poll() -> None:
            while not is_over:
                await trio.sleep(0.007)
                if not is_over:
                    take()

        async def control() -> None:
            for pause_s, (kind, value) in script:
                await trio.sleep(pause_s)
                match kind:
                    case "delay":
                        lab.delay_s = value or 0.0
                    case "rate":
                        lab.rate_bytes_per_s = value
                    case "stall":
                        lab.stall()
                    case _:
                        lab.heal()
                limits.append(QUEUE_BYTES + (lab.rate_bytes_per_s or 0.0) * lab.delay_s)
            lab.heal()

        limits = [QUEUE_BYTES + 0.0]
        with trio.fail_after(3600):
            async with trio.open_nursery() as nursery:
                for task in (write, read, control):
                    nursery.start_soon(task)
                if has_poller:
                    nursery.start_soon(poll)
        assert lab.statistics().bytes_delivered == total
        assert lab.statistics().bytes_held == 0
        for closable in (near, far, listener):
            closable.close()

    run_virtual(main)
    assert received == data[:total]
