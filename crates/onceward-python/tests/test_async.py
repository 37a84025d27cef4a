"""Coroutines: the same rules, without blocking the event loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onceward import Failed, InDoubt, KeyReused, Ledger, NotDispatched, Yes, current_operation


def test_a_hundred_tasks_on_one_key_are_one_effect(ledger: Ledger) -> None:
    runs: list[int] = []

    @ledger.once(key=["order"])
    async def ship(order: int, address: str = "") -> dict[str, int]:
        runs.append(order)
        await asyncio.sleep(0)
        return {"order": order}

    async def main() -> list[dict[str, int]]:
        answers = await asyncio.gather(*(ship(1) for _ in range(100)))
        with pytest.raises(KeyReused):
            await ship(1, "elsewhere")
        return answers

    assert asyncio.run(main()) == [{"order": 1}] * 100 and runs == [1]
    assert asyncio.run(ship.receipt(1)).replayed


def test_tasks_of_many_loops_share_the_ledger(ledger: Ledger) -> None:
    @ledger.once
    async def double(x: int) -> int:
        return x * 2

    async def main() -> list[int]:
        return await asyncio.gather(*(double(x) for x in range(50)))

    for _ in range(3):
        assert asyncio.run(main()) == [x * 2 for x in range(50)]


def test_the_loop_keeps_running_while_the_ledger_waits(ledger: Ledger) -> None:
    """A ledger that blocked the loop would wait for ever: what it waits for happens in the same loop."""
    started, release = asyncio.Event(), asyncio.Event()

    @ledger.once
    async def slow() -> int:
        started.set()
        await release.wait()
        return 1

    async def main() -> None:
        first = asyncio.create_task(slow())
        await started.wait()
        others = [asyncio.create_task(slow()) for _ in range(5)]
        for _ in range(20):
            # Time is the subject: none of them ends before the release.
            await asyncio.sleep(0.002)
        assert not first.done() and not any(other.done() for other in others)
        release.set()
        assert [await first, *await asyncio.gather(*others)] == [1] * 6

    asyncio.run(main())


def test_operations_are_the_tasks_own(ledger: Ledger) -> None:
    @ledger.once
    async def own(x: int) -> str:
        before = current_operation().id
        await asyncio.sleep(0)
        assert current_operation().id == before
        return before

    async def main() -> list[str]:
        return await asyncio.gather(*(own(x) for x in range(20)))

    assert len(set(asyncio.run(main()))) == 20


def test_a_cancelled_task_is_in_doubt(ledger: Ledger) -> None:
    started = asyncio.Event()

    @ledger.once
    async def charge() -> None:
        started.set()
        await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(charge())
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert next(ledger.operations()).state == "in_doubt"
        with pytest.raises(InDoubt, match="CancelledError"):
            await charge()

    asyncio.run(main())


def test_a_task_that_is_cancelled_before_its_mark_has_failed(ledger: Ledger) -> None:
    started = asyncio.Event()

    @ledger.once(dispatch="marked", retries=3)
    async def charge(wait: float) -> int:
        started.set()
        await asyncio.sleep(wait)
        return 1

    async def main() -> None:
        task = asyncio.create_task(charge(60))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert next(ledger.operations()).state == "failed"

    asyncio.run(main())


def test_a_task_that_is_cancelled_while_it_waits_leaves_the_owner_alone(ledger: Ledger) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    @ledger.once
    async def charge() -> int:
        started.set()
        await release.wait()
        return 7

    async def main() -> None:
        owner = asyncio.create_task(charge())
        await started.wait()
        waiter = asyncio.create_task(charge())
        await asyncio.sleep(0.01)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
        release.set()
        assert await owner == 7 and await charge() == 7

    asyncio.run(main())


def test_a_timeout_around_the_call_is_in_doubt(ledger: Ledger) -> None:
    started = asyncio.Event()

    @ledger.once
    async def charge() -> None:
        started.set()
        await asyncio.Event().wait()

    async def main() -> None:
        call = asyncio.create_task(charge())
        await started.wait()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(call, 0.01)
        with pytest.raises(InDoubt):
            await charge()

    asyncio.run(main())


def test_a_coroutine_that_is_closed_under_way_is_in_doubt(ledger: Ledger) -> None:
    loop = asyncio.new_event_loop()
    started = asyncio.Event()

    @ledger.once
    async def charge() -> None:
        started.set()
        await asyncio.Event().wait()

    coroutine: Any = charge()
    task = loop.create_task(coroutine)
    loop.run_until_complete(started.wait())
    coroutine.close()
    assert next(ledger.operations()).state == "in_doubt"
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()


def test_errors_retries_probes_and_checks(ledger: Ledger) -> None:
    runs: list[int] = []

    async def probe(kind: str) -> object:
        return Yes("found")

    async def check(value: object, kind: str) -> bool | None:
        return None if len(runs) < 1 else True

    @ledger.once(probe=probe, verify=check, retries=1, backoff=0)
    async def charge(kind: str) -> str:
        runs.append(1)
        if kind == "refused":
            raise NotDispatched("not sent")
        if kind == "timeout":
            raise asyncio.TimeoutError
        return kind

    async def main() -> None:
        with pytest.raises(Failed) as failed:
            await charge("refused")
        assert isinstance(failed.value.__cause__, NotDispatched) and len(runs) == 2
        with pytest.raises(InDoubt):
            await charge("timeout")
        assert await charge("timeout") == "found"
        receipt = await charge.receipt("good")
        assert receipt.operation.verified == "confirmed"

    asyncio.run(main())


def test_a_call_takes_functions_and_coroutines(ledger: Ledger) -> None:
    async def twice(x: int) -> int:
        return x * 2

    async def main() -> tuple[Any, Any, Any]:
        session = ledger.session("run")
        one = await session.acall("twice", {"x": 2}, twice)
        two = await session.acall("twice", {"x": 2}, twice)
        three = await ledger.acall("plain", {"x": 2}, lambda x: x + 1)
        return one, two, three

    one, two, three = asyncio.run(main())
    assert (one.value, two.value, two.replayed, three.value) == (4, 4, True, 3)


def test_a_coroutine_from_a_plain_function_is_not_taken_for_done(ledger: Ledger) -> None:
    async def charge() -> None: ...

    with pytest.raises(InDoubt, match="returned a coroutine"):
        ledger.once(name="charge")(lambda: charge())()
    assert next(ledger.operations()).state == "in_doubt"
