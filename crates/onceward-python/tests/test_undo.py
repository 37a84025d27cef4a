"""Taking operations back."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from onceward import Failed, InDoubt, InvalidInput, KeyReused, Ledger, NotDispatched, Undone, Unverified, WrongState


def charged(ledger: Ledger, log: list[str], undo: Any = None) -> str:
    def refund(result: dict[str, str]) -> None:
        log.append(f"refund {result['id']}")

    @ledger.once(name="charge", key=["order"], undo=undo or refund)
    def charge(order: str) -> dict[str, str]:
        log.append(f"charge {order}")
        return {"id": f"ch_{order}"}

    charge("7")
    return charge.receipt("7").id


def test_a_compensation_gets_the_result_and_runs_once(ledger: Ledger) -> None:
    log: list[str] = []
    id = charged(ledger, log)
    record = ledger.compensate(id)
    assert record.undone is not None
    assert record.undone["gone"]
    assert record.undone["evidence"] == "compensation"
    assert ledger.show(record.undone["by"]).undoes == id
    assert ledger.show(record.undone["by"]).key == f"undo:{id}"
    ledger.compensate(ledger.show(id))
    assert log == ["charge 7", "refund ch_7"]
    with pytest.raises(Undone) as refused:
        charged(ledger, log)
    assert (refused.value.happened, refused.value.ran) == ("yes", False)
    assert log == ["charge 7", "refund ch_7"]


def test_a_compensation_that_failed_leaves_the_operation_standing(ledger: Ledger) -> None:
    log: list[str] = []

    def refuse(_: Any) -> None:
        raise NotDispatched("the account is closed")

    id = charged(ledger, log, refuse)
    with pytest.raises(Failed):
        ledger.compensate(id)
    assert ledger.show(id).undone is None
    assert charged(ledger, log) == id
    ledger.compensate(id, lambda result: log.append(f"by hand {result['id']}"))
    assert log == ["charge 7", "by hand ch_7"]


def test_a_compensation_in_doubt_is_not_a_success(ledger: Ledger) -> None:
    log: list[str] = []

    def lost(_: Any) -> None:
        raise TimeoutError

    id = charged(ledger, log, lost)
    for _ in range(2):
        with pytest.raises(InDoubt):
            ledger.compensate(id)
    undone = ledger.show(id).undone
    assert undone is not None
    assert not undone["gone"]
    with pytest.raises(Undone, match="may or may not be gone"):
        charged(ledger, log)
    ledger.settle(undone["by"], "done")
    record = ledger.compensate(id)
    assert record.undone is not None
    assert record.undone["gone"]


def test_gone_must_confirm_it(ledger: Ledger) -> None:
    log: list[str] = []
    id = charged(ledger, log)
    for answer in (False, None):
        with pytest.raises(Unverified):
            ledger.compensate(id, gone=lambda _, answer=answer: answer)
        undone = ledger.show(id).undone
        assert undone is not None
        assert not undone["gone"]
    record = ledger.compensate(id, gone=lambda result: result["id"] == "ch_7")
    assert record.undone is not None
    assert record.undone["evidence"] == "probe"
    assert log == ["charge 7", "refund ch_7"]


def test_what_cannot_be_taken_back(ledger: Ledger) -> None:
    receipt = ledger.call("mail", {}, lambda: "sent")
    with pytest.raises(InvalidInput, match="nothing is registered"):
        ledger.compensate(receipt.id)
    assert ledger.show(receipt.id).undone is None

    def lost() -> None:
        raise TimeoutError

    with pytest.raises(InDoubt) as doubt:
        ledger.call("lost", {}, lost)
    assert doubt.value.operation is not None
    with pytest.raises(WrongState):
        ledger.compensate(doubt.value.operation.id, lambda _: None)


def test_one_that_was_forgotten_and_done_again_is_not_taken_back_already(ledger: Ledger) -> None:
    log: list[str] = []
    id = charged(ledger, log)
    ledger.compensate(id)
    ledger.forget(id)
    charged(ledger, log)
    with pytest.raises(KeyReused):
        ledger.compensate(id)
    assert ledger.show(id).undone is None


def test_a_coroutine_takes_back(ledger: Ledger) -> None:
    log: list[str] = []

    async def refund(result: dict[str, str]) -> None:
        await asyncio.sleep(0)
        log.append(f"refund {result['id']}")

    id = charged(ledger, log, refund)
    record = asyncio.run(ledger.acompensate(id))
    assert record.undone is not None
    assert record.undone["gone"]
    assert log == ["charge 7", "refund ch_7"]
