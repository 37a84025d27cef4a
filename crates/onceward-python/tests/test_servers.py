"""The same package on PostgreSQL and Redis: effects, coroutines, leases that are kept, forks."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from servers import free_port
from test_processes import in_child

from onceward import InDoubt, Ledger, LedgerUnavailable


@pytest.fixture(params=["postgres", "redis"])
def shared(request: pytest.FixtureRequest) -> Iterator[Ledger]:
    with Ledger(request.getfixturevalue(request.param).fresh()) as ledger:
        yield ledger


def test_threads_and_tasks_on_one_key(shared: Ledger) -> None:
    runs: list[int] = []

    @shared.once
    def charge(amount: int) -> int:
        runs.append(amount)
        time.sleep(0.02)  # the other callers arrive meanwhile
        return amount

    @shared.once(name="mail")
    async def mail(n: int) -> int:
        runs.append(n)
        await asyncio.sleep(0.02)
        return n

    async def main() -> list[int]:
        return await asyncio.gather(*(mail(5) for _ in range(20)))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(charge, [7] * 16)) == [7] * 16
    assert asyncio.run(main()) == [5] * 20 and runs == [7, 5]


def test_a_lease_is_kept_while_the_function_runs(shared: Ledger) -> None:
    """The function runs longer than its lease and blocks its thread: no other caller overtakes it."""
    runs: list[int] = []

    @shared.once(lease=5)
    def slow() -> int:
        runs.append(1)
        time.sleep(9)  # time is the subject: almost two leases
        return len(runs)

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(slow)
        time.sleep(7)  # time is the subject: more than a lease
        second = pool.submit(slow)
        assert first.result() == second.result() == 1


def test_a_lease_is_kept_while_a_coroutine_blocks_its_loop(shared: Ledger) -> None:
    runs: list[int] = []

    @shared.once(name="slow", lease=5)
    async def slow() -> int:
        runs.append(1)
        time.sleep(9)  # time is the subject: almost two leases
        return len(runs)

    other: list[object] = []

    def from_another_thread() -> None:
        time.sleep(7)  # time is the subject: more than a lease
        other.append(asyncio.run(slow()))

    thread = threading.Thread(target=from_another_thread)
    thread.start()
    assert asyncio.run(slow()) == 1
    thread.join()
    assert other == [1]


def test_an_owner_that_is_gone_is_in_doubt_when_its_lease_is_over(shared: Ledger) -> None:
    def dies() -> int:
        with Ledger(shared.url) as ledger:
            ledger.call("charge", {}, lambda: os._exit(7), lease=0.3)
        return 0

    assert in_child(dies) == 7
    with pytest.raises(InDoubt):
        shared.call("charge", {}, lambda: None)


def test_a_task_that_is_cancelled_before_it_began_has_failed(shared: Ledger) -> None:
    """Its intent may still be on its way to the server, which cannot see that its owner is gone."""
    runs: list[int] = []

    @shared.once(name="charge", lease=60)
    async def charge(number: int) -> int:
        runs.append(number)
        return number

    async def main() -> None:
        # Open the ledger first, so that the first step of the call sends its intent.
        shared.open()
        # A fast server may answer within that step: then the call was not cancelled before it began.
        for number in range(50):
            call = asyncio.create_task(charge(number))
            await asyncio.sleep(0)
            call.cancel()
            with suppress(asyncio.CancelledError):
                await call
            if number not in runs:
                assert await charge(number) == number and runs.count(number) == 1
                return
        raise AssertionError("it always began before it could be cancelled")

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_has_its_own_connection(shared: Ledger) -> None:
    assert shared.call("charge", {"n": 1}, lambda: 5).value == 5
    assert (
        in_child(
            lambda: shared.call("charge", {"n": 1}, lambda: 6).value + shared.call("charge", {"n": 2}, lambda: 8).value
        )
        == 13
    )
    assert shared.call("charge", {"n": 2}, lambda: 9).value == 8


@pytest.mark.parametrize(
    "url", ["postgres://postgres@127.0.0.1:{port}/x?connect_timeout=1", "redis://127.0.0.1:{port}/0?timeout=500ms"]
)
def test_a_server_that_is_away_runs_nothing(url: str) -> None:
    ledger = Ledger(url.format(port=free_port()))
    with pytest.raises(LedgerUnavailable) as away:
        ledger.call("charge", {}, lambda: pytest.fail("it must not run"))
    assert away.value.happened == "unknown" and not away.value.ran
