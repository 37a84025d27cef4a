"""A session that continues another one after an operation."""

from __future__ import annotations

import asyncio
import time

import pytest

from onceward import InvalidInput, Ledger, NotFound


def test_a_session_replays_what_lies_before_its_branch_point(ledger: Ledger) -> None:
    sent: list[str] = []

    def send(to: str) -> str:
        time.sleep(0.002)  # Operations of one millisecond are on the same side of a branch point.
        sent.append(to)
        return f"sent to {to}"

    old = ledger.session("run-7")
    first = old.call("mail", {"to": "a"}, send)
    old.call("mail", {"to": "b"}, send)
    new = ledger.session("run-7b", continues=f"run-7@{first.id}")
    again = new.call("mail", {"to": "a"}, send)
    assert (again.replayed, again.value) == (True, "sent to a")
    assert not new.call("mail", {"to": "b"}, send).replayed
    assert sent == ["a", "b", "b"]
    continued = ledger.settlement("run-7b")["continues"]
    assert (continued["scope"], continued["inherited"], len(continued["abandoned"])) == ("run-7", 1, 1)

    async def send_later(to: str) -> str:
        return send(to)

    assert asyncio.run(new.acall("mail", {"to": "a"}, send_later)).replayed


def test_a_branch_point_must_exist(ledger: Ledger) -> None:
    with pytest.raises(InvalidInput, match="SCOPE@OPERATION"):
        ledger.session("b", continues="a").call("mail", {}, lambda: None)
    with pytest.raises(NotFound):
        ledger.session("b", continues=f"a@op_{'a' * 32}").call("mail", {}, lambda: None)
