"""Check-then-act and events that come twice."""

from __future__ import annotations

import asyncio
import threading

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
    ensure = ledger.ensure(lambda user: {"plan": "pro"}, lambda user: pytest.fail("it was there"))
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


def test_an_event_whose_handler_failed_is_handled_again(ledger: Ledger) -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match="handler"), ledger.dedupe("evt_1") as event:
            assert event.new
            raise RuntimeError("handler")
    with ledger.dedupe("evt_1") as event:
        assert event.new
    with ledger.dedupe("evt_1") as event:
        assert not event.new


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
