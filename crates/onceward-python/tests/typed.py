"""What type checkers must understand, and what they must refuse. Checked by test_typing; never run."""

from __future__ import annotations

from typing import Any

from typing_extensions import assert_type

from onceward import Ledger, Plan, Receipt

ledger = Ledger("agent.db")
session = ledger.session("run")


@ledger.once
def plain(a: int, b: str = "") -> float:
    return a


@ledger.once(key=["a"], effect="created", ttl="24h", no_effect=ValueError, known_failures=False)
def keyed(a: int, b: str = "") -> list[int]:
    return [a]


@ledger.once(returns="receipt")
def by_receipt(a: int) -> float:
    return a


@ledger.once(dry_run=True)
def dry(a: int) -> float:
    return a


@session.once
def in_session(a: int) -> float:
    return a


@session.once(volatile=["a"])
async def waits(a: int) -> float:
    return a


class Account:
    @ledger.once
    def withdraw(self, amount: int) -> str:
        return ""

    @ledger.once(key=["amount"])
    async def deposit(self, amount: int) -> str:
        return ""


async def main() -> None:
    assert_type(plain(1), float)
    assert_type(plain.receipt(1, b="x"), Receipt)
    assert_type(plain.plan(1), Plan)
    assert_type(plain.operation_name, str)
    assert_type(plain.occurrence(2)(1), float)
    assert_type(keyed(1), list[int])
    assert_type(by_receipt(1), Receipt)
    assert_type(dry(1), Plan)
    assert_type(in_session(1), float)
    assert_type(await waits(1), float)
    assert_type(await waits.receipt(1), Receipt)
    account = Account()
    assert_type(account.withdraw(5), str)
    assert_type(account.withdraw.receipt(amount=5), Receipt)
    assert_type(account.withdraw.identity(5), tuple[str, str, str])
    assert_type(await account.deposit(5), str)
    assert_type(await account.deposit.receipt(5), Receipt)
    assert_type(ledger.ensure(plain, plain)(1), float)


def mistakes(function: Any) -> None:
    ledger.once(keyy=["a"])  # wrong
    ledger.once(class_="nope")  # wrong
    ledger.once(effect="creatd")  # wrong
    ledger.once(key="a")(plain)  # text is a sequence of text; refused when it runs
    ledger.once(retries="3")  # wrong
    ledger.call("a", {}, function, scop="x")  # wrong
    session.once(keyy=["a"])  # wrong
    session.call("a", {}, function, clas="x")  # wrong
    plain("x")  # wrong
    plain(1, c=2)  # wrong
    plain.receipt("x")  # wrong
    Account().withdraw("x")  # wrong
    Account().withdraw.receipt("x")  # wrong
