"""Reading records and administering them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onceward import InDoubt, InvalidInput, Ledger, NotFound, WrongState


@pytest.fixture
def doubted(ledger: Ledger) -> str:
    def lost() -> None:
        raise TimeoutError

    with pytest.raises(InDoubt) as doubt:
        ledger.once(name="lost")(lost)()
    assert doubt.value.operation is not None
    return doubt.value.operation.id


def test_listing_by_state_name_and_scope(ledger: Ledger, doubted: str) -> None:
    for number in range(7):
        ledger.call("mail", {"n": number}, lambda: None, scope=f"s{number % 2}")
    assert [record.id for record in ledger.operations(state="in_doubt")] == [doubted]
    assert len(list(ledger.operations(name="mail"))) == 7
    assert len(list(ledger.operations(name="mail", scope="s0", limit=3))) == 3
    assert len(list(ledger.operations(state=["done", "in_doubt"]))) == 8
    with pytest.raises(InvalidInput, match="is not one of staged"):
        list(ledger.operations(state="lost"))


def test_more_than_a_page(ledger: Ledger) -> None:
    for number in range(510):
        ledger.call("mail", {"n": number}, lambda: None)
    assert len({record.id for record in ledger.operations()}) == 510


def test_settling_and_what_a_record_tells(ledger: Ledger, doubted: str) -> None:
    record = ledger.show(doubted)
    assert (record.state, record.attempt, record.class_, record.reason) == ("in_doubt", 1, "once", "TimeoutError")
    settled = ledger.settle(doubted, "done", result={"id": 1}, reason="seen in the bank's own list")
    assert settled.state == "done" and json.loads(settled.json or "") == {"id": 1} and settled.settled_by
    with pytest.raises(WrongState) as wrong:
        ledger.settle(doubted, "failed")
    # No call was made, so the error does not describe one; the operation can be queried.
    assert (wrong.value.happened, wrong.value.ran, wrong.value.effect) == (None, None, "noop")
    assert wrong.value.operation is not None and wrong.value.operation.happened == "yes"
    with pytest.raises(InvalidInput, match="not one of done, failed"):
        ledger.settle(doubted, "maybe")  # type: ignore[arg-type]


def test_forgetting_and_cancelling(ledger: Ledger, doubted: str) -> None:
    with pytest.raises(WrongState):
        ledger.cancel(doubted)
    ledger.settle(doubted, "failed")
    assert ledger.cancel(doubted) and ledger.show(doubted).state == "cancelled"
    ledger.forget(doubted)
    with pytest.raises(NotFound):
        ledger.show(doubted)
    with pytest.raises(InvalidInput, match="is not an operation id"):
        ledger.show("42")


def test_sweeping(ledger: Ledger) -> None:
    ledger.call("mail", {}, lambda: None, ttl=0.001)
    while next(ledger.operations()).state != "expired":
        pass
    assert ledger.sweep() == {"expired": 1, "deleted": 0, "doubted": 0}


def test_a_closed_ledger_opens_again(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "a.db"))
    charge = ledger.once(name="f")(lambda: 1)
    charge()
    ledger.close()
    ledger.close()
    assert charge.receipt().replayed and "a.db" in repr(ledger)
    assert "secret" not in repr(Ledger("postgres://me:secret@127.0.0.1/db"))
    ledger.close()
