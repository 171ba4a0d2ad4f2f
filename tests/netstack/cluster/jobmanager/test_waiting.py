"""Who waits for a job outlives its JobManager."""

from __future__ import annotations

import pytest
import trio
from jobmanager.played_jobmanager import JobManager, an_address, answering, goes, play
from trio.testing import MockClock

from netstack.base.errors import ConnectionLost, JobFailed, RequestRefused
from netstack.cluster.jobmanager.client import JobResult, wait_for_job

FINISHED = {"state": "finished", "reason": "", "results": {"show": {"0": [1]}}}


async def lives(url: str, *jobmanagers: JobManager, pause_s: float = 20) -> None:
    """One JobManager after the other at one address, with pauses in which nobody listens."""
    for jobmanager in jobmanagers:
        await play(url, jobmanager)
        await trio.sleep(pause_s)


async def test_a_jobmanager_that_dies_twice_and_comes_back_is_asked_again(autojump_clock: MockClock) -> None:
    url, reported = an_address(), list[str]()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lives, url, goes, goes, answering(FINISHED))
        await trio.testing.wait_all_tasks_blocked()
        result = await wait_for_job(
            "ab", url, on_lost=lambda _: reported.append("lost"), on_found=lambda: reported.append("found")
        )
        nursery.cancel_scope.cancel()
    assert result == JobResult("ab", "finished", "", {"show": {0: [1]}})
    assert reported == ["lost", "found"] * 2
    assert 40 <= trio.current_time() < 45


async def test_the_job_fails_under_the_second_one(autojump_clock: MockClock) -> None:
    url = an_address()
    async with trio.open_nursery() as nursery:
        failed = {"state": "failed", "reason": "no", "results": {}, "traceback": ""}
        nursery.start_soon(lives, url, goes, answering(failed))
        with pytest.raises(JobFailed, match=r"^no$"):
            await wait_for_job("ab", url)
        nursery.cancel_scope.cancel()


async def test_patience_ends_with_a_sentence_that_says_what_to_do(autojump_clock: MockClock) -> None:
    url = an_address()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(play, url, goes)
        await trio.testing.wait_all_tasks_blocked()
        began_s = trio.current_time()
        with pytest.raises(ConnectionLost, match=r"at memory://.* for 30 s .*netstack jobs ab"):
            await wait_for_job("ab", url, patience_s=30)
        assert 30 <= trio.current_time() - began_s < 33


async def test_each_loss_has_patience_of_its_own(autojump_clock: MockClock) -> None:
    url = an_address()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lives, url, goes, goes, goes, answering(FINISHED))
        assert (await wait_for_job("ab", url, patience_s=30)).state == "finished"
        nursery.cancel_scope.cancel()


async def test_one_that_comes_back_on_another_folder_does_not_know_the_job(autojump_clock: MockClock) -> None:
    url = an_address()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lives, url, goes, answering("there is no job 'ab'"))
        with pytest.raises(
            RequestRefused,
            match=r"^there is no job 'ab'; .* same --folder$",
        ):
            await wait_for_job("ab", url)
        nursery.cancel_scope.cancel()


async def test_a_job_that_never_was_is_the_caller_s_mistake(autojump_clock: MockClock) -> None:
    url = an_address()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(play, url, answering("there is no job 'ab'"))
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(RequestRefused, match=r"^there is no job 'ab'$"):
            await wait_for_job("ab", url)


async def test_who_waits_may_give_up_at_any_time(autojump_clock: MockClock) -> None:
    url = an_address()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lives, url, goes, goes)
        for seconds in (0, 5, 25):
            with trio.move_on_after(seconds) as scope:
                await wait_for_job("ab", url)
            assert scope.cancelled_caught
        nursery.cancel_scope.cancel()
