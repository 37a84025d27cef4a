"""The decorator: what runs, what is replayed, what is refused, and what each answer says."""

from __future__ import annotations

import json
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from onceward import (
    BudgetExhausted,
    Failed,
    InDoubt,
    InvalidInput,
    KeyExpired,
    KeyMissing,
    KeyReused,
    Ledger,
    LedgerUnavailable,
    NotDispatched,
    Receipt,
    Unverified,
    Yes,
    current_operation,
    errors,
)
from onceward._onceward import CODES


class Effects(list[Any]):
    """The effects that happened."""

    def happen(self, *what: Any) -> dict[str, int]:
        self.append(what)
        return {"id": len(self)}


@pytest.fixture
def world() -> Effects:
    return Effects()


def test_a_retry_gets_the_first_result_and_nothing_runs(ledger: Ledger, world: Effects) -> None:
    @ledger.once(key=["customer", "amount"], effect="created")
    def charge(customer: str, amount: int, note: str = "") -> dict[str, int]:
        """Charges a customer."""
        return world.happen(customer, amount)

    first, retry = charge.receipt("c1", 100), charge.receipt("c1", 100)
    assert (first.effect, first.replayed, first.value) == ("created", False, {"id": 1})
    assert (retry.effect, retry.replayed, retry.value) == ("noop", True, {"id": 1})
    assert retry.original_effect == "created" and "nothing was run" in (retry.reason or "")
    assert charge("c1", 100) == {"id": 1} and len(world) == 1
    assert charge.__name__ == "charge" and charge.__doc__ == "Charges a customer."


def test_another_payload_under_the_same_key_is_refused_by_name(ledger: Ledger, world: Effects) -> None:
    @ledger.once(key=["order"])
    def ship(order: int, address: str) -> dict[str, int]:
        return world.happen(order)

    ship(1, "a")
    with pytest.raises(KeyReused, match="address") as refused:
        ship(1, "b")
    assert list(refused.value.fields) == ["/address"] and refused.value.happened == "yes"
    assert not refused.value.ran and not refused.value.retryable and len(world) == 1
    assert refused.value.operation is not None and refused.value.operation.state == "done"


def test_a_deliberate_repeat_has_another_occurrence(ledger: Ledger, world: Effects) -> None:
    charge = ledger.once(name="charge")(lambda amount: world.happen(amount))
    assert [charge(1), charge(1), charge.occurrence(2)(1), charge.occurrence(2)(1), charge.occurrence("may")(1)] == [
        {"id": 1}, {"id": 1}, {"id": 2}, {"id": 2}, {"id": 3},
    ]  # fmt: skip


def test_a_key_may_be_a_function_of_the_arguments(ledger: Ledger, world: Effects) -> None:
    @ledger.once(key=lambda order, **_: f"order-{order['id']}", scope=lambda order, **_: order["tenant"])
    def ship(order: dict[str, Any]) -> dict[str, int]:
        return world.happen(order)

    receipt = ship.receipt({"id": 7, "tenant": "t1"})
    assert (receipt.operation.key, receipt.operation.scope) == ("order-7", "t1")
    ship({"id": 7, "tenant": "t2"})
    assert len(world) == 2
    with pytest.raises(InvalidInput, match="key of this call is a NoneType"):
        ledger.once(key=lambda a: None, name="f")(lambda a: a)(1)  # type: ignore[arg-type, return-value]


def test_scopes_never_see_each_other(ledger: Ledger, world: Effects) -> None:
    one, two = ledger.session("run-1"), ledger.session("run-2")
    for session in (one, two, one):
        session.call("charge", {"amount": 1}, lambda amount: world.happen(amount))
    assert len(world) == 2
    assert [record.scope for record in one.operations()] == ["run-1"]


def test_a_call_takes_a_given_key_and_a_closure(ledger: Ledger, world: Effects) -> None:
    receipts = [ledger.call("mail", {"to": "a"}, lambda: world.happen("a"), key="mail-1") for _ in range(2)]
    assert [receipt.replayed for receipt in receipts] == [False, True]
    assert isinstance(receipts[0], Receipt) and receipts[0].operation.key == "mail-1"
    with pytest.raises(KeyReused):
        ledger.call("mail", {"to": "b"}, lambda: world.happen("b"), key="mail-1")


def test_a_certain_failure_is_tried_again(ledger: Ledger, world: Effects) -> None:
    def refused(amount: int) -> Any:
        if not world:
            world.append("refused")
            with socket.socket() as line:
                line.connect(("127.0.0.1", 1))
        return world.happen(amount)

    charge = ledger.once(refused)
    with pytest.raises(Failed) as failed:
        charge(1)
    assert failed.value.retryable and failed.value.happened == "no"
    assert isinstance(failed.value.__cause__, ConnectionRefusedError)
    receipt = charge.receipt(1)
    assert receipt.operation.attempt == 2 and receipt.operation.history[0]["ended"] == "failed"


def test_a_call_may_retry_by_itself_within_its_budget(ledger: Ledger, world: Effects) -> None:
    @ledger.once(retries=2, backoff=0.001, attempts=4)
    def flaky() -> None:
        world.append(current_operation().attempt)
        raise NotDispatched("not yet")

    with pytest.raises(Failed):
        flaky()
    assert world == [1, 2, 3]
    with pytest.raises(Failed):
        flaky()
    with pytest.raises(BudgetExhausted):
        flaky()
    assert world == [1, 2, 3, 4]


def test_an_error_without_a_class_is_in_doubt_and_never_run_again(ledger: Ledger, world: Effects) -> None:
    @ledger.once
    def charge(amount: int) -> None:
        world.happen(amount)
        raise RuntimeError("after the effect")

    with pytest.raises(InDoubt) as doubt:
        charge(1)
    assert isinstance(doubt.value.__cause__, RuntimeError) and doubt.value.happened == "unknown"
    with pytest.raises(InDoubt) as again:
        charge(1)
    assert again.value.__cause__ is None and len(world) == 1
    assert again.value.operation is not None
    ledger.settle(again.value.operation.id, "done", result={"id": 9})
    assert charge(1) == {"id": 9}  # type: ignore[func-returns-value]


def test_errors_that_are_named_had_no_effect(ledger: Ledger) -> None:
    class Invalid(Exception): ...

    @ledger.once(no_effect=Invalid)
    def charge() -> None:
        raise Invalid("no such card")

    with pytest.raises(Failed, match="no such card"):
        charge()


def test_marks_tell_where_the_function_stands(ledger: Ledger) -> None:
    @ledger.once(dispatch="marked")
    def charge(fails: str) -> None:
        if fails == "before":
            raise ValueError(fails)
        with current_operation().dispatched():
            raise ValueError(fails)

    with pytest.raises(Failed):
        charge("before")
    with pytest.raises(InDoubt):
        charge("after")


def test_a_probe_answers_for_an_operation_in_doubt(ledger: Ledger, world: Effects) -> None:
    answer: list[object] = [None]

    @ledger.once(probe=lambda amount: answer[0])
    def charge(amount: int) -> Any:
        world.happen(amount)
        if len(world) == 1:
            raise TimeoutError
        return "second"

    with pytest.raises(InDoubt):
        charge(1)
    for unsure in (None, [], "yes", 0):
        answer[0] = unsure
        with pytest.raises(InDoubt):
            charge(1)
    answer[0] = Yes({"found": True})
    assert charge(1) == {"found": True} and len(world) == 1


def test_a_probes_no_lets_it_run_again(ledger: Ledger, world: Effects) -> None:
    @ledger.once(probe=lambda: False, quarantine=0)
    def charge() -> int:
        world.happen()
        if len(world) == 1:
            raise TimeoutError
        return len(world)

    with pytest.raises(InDoubt):
        charge()
    assert charge() == 2


def test_a_probe_that_fails_cannot_tell(ledger: Ledger, world: Effects) -> None:
    @ledger.once(probe=lambda: 1 / 0)
    def charge() -> None:
        world.happen()
        raise TimeoutError

    for _ in range(2):
        with pytest.raises(InDoubt):
            charge()
    assert len(world) == 1


def test_accepted_is_not_done(ledger: Ledger) -> None:
    seen: list[object] = []

    def check(value: object, amount: int) -> bool | None:
        seen.append((value, amount))
        return None if len(seen) == 1 else amount < 10

    charge = ledger.once(name="charge", verify=check, verify_deadline="5s")(lambda amount: {"id": amount})
    assert charge.receipt(1).operation.verified == "confirmed"
    assert seen == [({"id": 1}, 1)] * 2
    with pytest.raises(Unverified) as refuted:
        charge(10)
    assert refuted.value.happened == "unknown"


def test_the_classes_of_the_contract(ledger: Ledger, world: Effects) -> None:
    def fails(kind: str) -> None:
        world.happen(kind)
        raise TimeoutError

    for kind, runs in (("once", 1), ("idempotent", 2), ("keyed", 2)):
        guarded = ledger.once(name=kind, class_=kind)(fails)
        for _ in range(2):
            with pytest.raises(InDoubt):
                guarded(kind)
        assert world.count((kind,)) == runs, kind
    with pytest.raises(Failed):
        ledger.once(name="read", class_="read")(fails)("read")
    assert not list(ledger.operations(name="read"))


def test_a_downstream_key_is_the_same_for_every_attempt(ledger: Ledger) -> None:
    keys: list[tuple[str, str]] = []

    @ledger.once(class_="keyed", retries=1, backoff=0)
    def charge() -> None:
        operation = current_operation()
        keys.append((operation.downstream_key("stripe"), operation.downstream_key("google")))
        raise NotDispatched

    with pytest.raises(Failed):
        charge()
    assert len(keys) == 2 and keys[0] == keys[1]
    assert keys[0][0].startswith("op_") and len(keys[0][1]) == 36


def test_the_function_may_say_what_it_did(ledger: Ledger) -> None:
    def found() -> str:
        current_operation().noop("it was there")
        return "x"

    receipt = ledger.once(effect="created")(found).receipt()  # type: ignore[call-overload]
    assert (receipt.effect, receipt.reason, receipt.value) == ("noop", "it was there", "x")
    with pytest.raises(LookupError):
        current_operation()


def test_a_dry_run_writes_and_runs_nothing(ledger: Ledger, world: Effects) -> None:
    def charge(amount: int) -> dict[str, int]:
        return world.happen(amount)

    dry = ledger.once(name="charge", effect="created", dry_run=True)(charge)
    plan = dry(1)
    assert (plan.decision, plan.effect, plan.operation) == ("run", "would_create", None)
    assert not world and not list(ledger.operations())
    real = ledger.once(name="charge", effect="created")(charge)
    real(1)
    assert (real.plan(1).decision, real.plan(1).effect) == ("replay", "would_noop")
    assert plan.id == real.plan(1).id == real.receipt(1).id


def test_a_dry_run_makes_no_ledger_and_says_whether_one_could_be_made(tmp_path: Path) -> None:
    dry = Ledger(tmp_path / "agent.db").once(name="charge", dry_run=True)(lambda order: order)
    assert dry("x").decision == "run" and not list(tmp_path.iterdir())
    nowhere = Ledger(tmp_path / "no such folder" / "agent.db").once(name="charge", dry_run=True)(lambda order: order)
    with pytest.raises(LedgerUnavailable):
        nowhere("x")


def test_a_plan_that_is_refused_says_what_the_error_would(ledger: Ledger) -> None:
    @ledger.once(name="charge")
    def charge(amount: int) -> None:
        raise OSError("reset")

    with pytest.raises(InDoubt):
        charge(1)
    plan = charge.plan(1)
    with pytest.raises(InDoubt) as refused:
        charge(1)
    error = refused.value
    assert (plan.decision, plan.code, plan.happened, plan.ran) == ("refuse", error.code, error.happened, error.ran)
    assert (plan.retryable, plan.next, plan.fix_command) == (error.retryable, error.next, error.fix_command)
    assert plan.options == list(error.options) and plan.fix_command is not None
    assert json.loads(plan.to_json())["error"]["code"] == "IN_DOUBT"


def test_results_expire_and_a_given_key_is_not_run_again(ledger: Ledger, world: Effects) -> None:
    given = {"key": "k", "ttl": timedelta(milliseconds=1)}
    ledger.call("charge", {}, world.happen, **given)
    ledger.wait(next(ledger.operations()).id)
    until_expired(ledger)
    with pytest.raises(KeyExpired):
        ledger.call("charge", {}, world.happen, **given)
    assert len(world) == 1
    ledger.call("charge", {}, world.happen, **given, on_expired="rerun")
    assert len(world) == 2


def until_expired(ledger: Ledger) -> None:
    """Waits by the ledger's own clock."""
    while next(ledger.operations()).state != "expired":
        pass


def test_options_are_checked_before_anything_runs(ledger: Ledger, tmp_path: Path) -> None:
    def f() -> None: ...

    with pytest.raises(TypeError, match="no option colour"):
        ledger.once(colour="red")
    with pytest.raises(InvalidInput, match="is not one of read, idempotent"):
        ledger.once(class_="twice")(f)  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match="in a list"):
        ledger.once(key="customer")
    with pytest.raises(InvalidInput, match="retention is 0"):
        ledger.once(ttl=0)(f)
    with pytest.raises(InvalidInput, match="names 'missing'"):
        ledger.once(key=["missing"])(f)
    with pytest.raises(InvalidInput, match="not a duration"):
        ledger.once(ttl="soon")(f)
    with pytest.raises(TypeError, match="generator"):
        ledger.once(name="f")(lambda: (yield))
    with pytest.raises(InvalidInput, match="not understood"):
        Ledger("ftp://x")
    assert not list(ledger.operations())


def test_a_policy_file_holds_for_python_too(tmp_path: Path, world: Effects) -> None:
    policy = tmp_path / "onceward.toml"
    charge_rule = '[operation."charge"]\nkey = ["customer"]\nvolatile = ["note"]\neffect = "created"\n'
    policy.write_text(charge_rule + '[operation."pay"]\nkeys = "keyed"\n')
    with Ledger(tmp_path / "a.db", policy=policy) as ledger:
        charge = ledger.once(name="charge")(lambda customer, note: world.happen(customer))
        assert charge.receipt("c", "x").effect == "created" and charge("c", "y") == {"id": 1}
        with pytest.raises(KeyMissing):
            ledger.call("pay", {}, world.happen)


def test_a_ledger_that_cannot_be_written_runs_nothing(tmp_path: Path, world: Effects) -> None:
    (tmp_path / "not-a-ledger.db").write_text("hello, this is a text that is long enough to be something else")
    with pytest.raises(LedgerUnavailable) as unavailable:
        Ledger(tmp_path / "not-a-ledger.db").once(name="f")(lambda: world.happen())()
    assert unavailable.value.happened == "unknown" and not unavailable.value.ran and not world


def test_every_code_of_the_contract_has_its_class() -> None:
    assert set(CODES) == set(errors._BY_CODE)
    for code, kind in errors._BY_CODE.items():
        assert kind.code == code and issubclass(kind, errors.OncewardError)


def test_names_are_stable_between_a_script_and_its_import(ledger: Ledger) -> None:
    def charge() -> None: ...

    name = ledger.once(charge).operation_name  # type: ignore[attr-defined]
    assert name == "tests.test_once.test_names_are_stable_between_a_script_and_its_import.charge"
    charge.__module__ = "__main__"
    assert not ledger.once(charge).operation_name.startswith("__main__")  # type: ignore[attr-defined]
