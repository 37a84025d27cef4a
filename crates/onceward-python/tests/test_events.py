"""Check-then-act, and events that are delivered twice."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from onceward import InDoubt, Ledger


def test_of_many_callers_one_acts(ledger: Ledger) -> None:
    there: dict[str, str] = {}
    created: list[str] = []
    both_checked = threading.Barrier(8)

    def find(user: str, plan: str) -> str | None:
        return there.get(user)

    def create(user: str, plan: str) -> str:
        created.append(user)
        there[user] = plan
        return plan

    ensure = ledger.ensure(find, create)

    def caller() -> None:
        both_checked.wait()
        assert ensure("u1", "pro") == "pro"

    threads = [threading.Thread(target=caller) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert created == ["u1"]


def test_what_is_there_already_is_a_noop(ledger: Ledger) -> None:
    ensure = ledger.ensure(lambda user: {"plan": "pro"}, lambda user: pytest.fail("it was there"), name="ensure")
    receipt = ensure.receipt("u1")
    assert (receipt.effect, receipt.value, receipt.reason) == ("noop", {"plan": "pro"}, "it was so already")


def test_a_lost_reply_is_found_by_the_check(ledger: Ledger) -> None:
    there: list[str] = []

    def create(user: str) -> str:
        there.append(user)
        raise TimeoutError("created, but the reply was lost")

    ensure = ledger.ensure(lambda user: there[0] if there else None, create)
    with pytest.raises(InDoubt):
        ensure("u1")
    assert ensure("u1") == "u1" and there == ["u1"]


def test_coroutines_too(ledger: Ledger) -> None:
    there: list[str] = []

    async def find(user: str) -> str | None:
        return there[0] if there else None

    async def create(user: str) -> str:
        there.append(user)
        return user

    ensure = ledger.ensure(find, create)

    async def main() -> list[str]:
        return await asyncio.gather(*(ensure("u1") for _ in range(10)))  # type: ignore[arg-type]

    assert asyncio.run(main()) == ["u1"] * 10 and there == ["u1"]


def test_an_event_is_handled_once(ledger: Ledger) -> None:
    handled = []
    for _ in range(3):
        with ledger.dedupe("evt_1") as event:
            if event.new:
                handled.append(1)
    assert handled == [1]
    with ledger.dedupe("evt_1", source="other") as event:
        assert event.new


@pytest.mark.parametrize("options", [{"class_": "idempotent"}, {"no_effect": RuntimeError}])
def test_an_event_whose_handler_failed_is_handled_again_on_request(ledger: Ledger, options: Any) -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match="handler"), ledger.dedupe("evt_1", **options) as event:
            assert event.new
            raise RuntimeError("handler")
    with ledger.dedupe("evt_1", **options) as event:
        assert event.new
    with ledger.dedupe("evt_1", **options) as event:
        assert not event.new


def test_an_event_whose_handler_failed_is_in_doubt(ledger: Ledger) -> None:
    with pytest.raises(RuntimeError, match="handler"), ledger.dedupe("evt_1"):
        raise RuntimeError("handler")
    with pytest.raises(InDoubt), ledger.dedupe("evt_1"):
        pytest.fail("it must not be handled again")
    (record,) = ledger.operations()
    ledger.settle(record.id, "failed")
    with ledger.dedupe("evt_1") as event:
        assert event.new


def test_an_event_whose_handler_could_not_reach_anything_is_handled_again(ledger: Ledger) -> None:
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError), ledger.dedupe("evt_1"), socket.socket() as line:
            line.connect(("127.0.0.1", 1))


def test_deliveries_in_one_event_loop_never_stop_it(ledger: Ledger) -> None:
    handled: list[int] = []
    began = asyncio.Event()
    go_on = asyncio.Event()

    async def deliver() -> bool:
        async with ledger.dedupe("evt_1") as event:
            if event.new:
                began.set()
                await go_on.wait()
                handled.append(1)
            return event.new

    async def main() -> list[bool]:
        first = asyncio.create_task(deliver())
        await began.wait()
        second = asyncio.create_task(deliver())
        # Time is the subject: it does not end before the release.
        await asyncio.sleep(0.05)
        assert not second.done(), "it waits, and the loop keeps running"
        go_on.set()
        with pytest.raises(RuntimeError, match="async with"):
            with ledger.dedupe("evt_1"):
                pass
        return [await first, await second]

    assert asyncio.run(main()) == [True, False] and handled == [1]


def test_an_event_whose_task_was_cancelled_is_in_doubt(ledger: Ledger) -> None:
    async def main() -> None:
        async def deliver() -> None:
            async with ledger.dedupe("evt_1"):
                began.set()
                await asyncio.Event().wait()

        began = asyncio.Event()
        task = asyncio.create_task(deliver())
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(InDoubt):
            async with ledger.dedupe("evt_1"):
                pass

    asyncio.run(main())


def test_an_event_as_a_condition(ledger: Ledger) -> None:
    assert [bool(ledger.dedupe("evt_1")) for _ in range(3)] == [True, False, False]


def test_a_second_delivery_waits_for_the_first(ledger: Ledger) -> None:
    began, seen = threading.Event(), []

    def second() -> None:
        began.wait()
        with ledger.dedupe("evt_1") as event:
            seen.append(event.new)

    thread = threading.Thread(target=second)
    thread.start()
    with ledger.dedupe("evt_1") as event:
        assert event.new
        began.set()
        thread.join(0.05)
        assert thread.is_alive() and not seen
    thread.join()
    assert seen == [False]
