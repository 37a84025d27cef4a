"""Calls that are held back: they say so, and each runs once when it may start."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from onceward import Cancelled, Held, InvalidInput, KeyReused, Ledger, WrongState


def held_id(error: pytest.ExceptionInfo[Held]) -> str:
    assert error.value.operation is not None
    return error.value.operation.id


def test_a_held_call_raises_and_runs_once_when_it_is_released(ledger: Ledger) -> None:
    sent: list[str] = []

    @ledger.once(name="send", hold="approve")
    def send(to: str) -> str:
        sent.append(to)
        return f"sent to {to}"

    for _ in range(2):
        with pytest.raises(Held) as error:
            send("alice")
        assert (error.value.code, error.value.happened, error.value.ran) == ("HELD", "no", False)
        assert error.value.effect == "held" and "nothing was sent" in str(error.value)
    held = error.value.operation and error.value.operation.held
    assert held == {
        "until": None,
        "by": "caller",
        "surface": "python",
        "released_by": None,
        "would_run": 'send("alice")',
    }
    assert ledger.release_due() == [] and sent == []
    id = held_id(error)
    assert [record.id for record in ledger.held()] == [id]
    ledger.release(id)
    [released] = ledger.release_due()
    assert released.receipt is not None and released.receipt.value == "sent to alice"
    assert send("alice") == "sent to alice" and sent == ["alice"]
    assert ledger.held() == [] and ledger.release_due() == []
    with pytest.raises(WrongState):
        ledger.release(id)


def test_its_time_comes(ledger: Ledger) -> None:
    sent: list[int] = []

    @ledger.once(hold=timedelta(milliseconds=1))
    def send(number: int) -> None:
        sent.append(number)

    with pytest.raises(Held):
        send(1)
    threading.Event().wait(0.02)
    assert [released.error for released in ledger.release_due()] == [None]
    with pytest.raises(Held):
        send(2)
    threading.Event().wait(0.02)
    send(2)
    assert sent == [1, 2]


def test_a_cancelled_call_never_runs(ledger: Ledger) -> None:
    @ledger.once(hold="1ms")
    def send(to: str) -> None:
        raise AssertionError("it was cancelled")

    with pytest.raises(Held) as error:
        send("alice")
    assert ledger.cancel(held_id(error)) is True
    assert ledger.release_due() == []
    with pytest.raises(Cancelled):
        send("alice")


def test_a_persons_no_binds_equal_calls_whatever_their_keys_are(tmp_path: Path) -> None:
    world: list[str] = []

    def pay(ledger: Ledger, key: str | None, to: str = "eve") -> None:
        ledger.call("pay", {"to": to}, lambda: world.append(to), key=key, hold="approve")

    ledger = Ledger(tmp_path / "ledger.db")
    with pytest.raises(Held) as error:
        pay(ledger, "k")
    ledger.cancel(held_id(error), reason="not to her")
    for again in (ledger, Ledger(tmp_path / "ledger.db")):
        for key in ("other", None, "k", "other"):
            with pytest.raises(Cancelled, match="not to her"):
                pay(again, key)
    with pytest.raises(Held):
        pay(ledger, "other", to="bob")
    assert world == []


def test_another_process_runs_it_once_however_many_ask(tmp_path: Path) -> None:
    def guarded(sent: list[tuple[str, int]]) -> tuple[Ledger, object]:
        ledger = Ledger(tmp_path / "agent.db")

        @ledger.once(name="pay", hold="1ms")
        def pay(to: str, *, amount: int) -> int:
            sent.append((to, amount))
            return amount

        return ledger, pay

    first, pay = guarded([])
    with pytest.raises(Held):
        pay("alice", amount=7)  # type: ignore[operator]
    first.close()
    threading.Event().wait(0.02)
    sent: list[tuple[str, int]] = []
    ledgers = [guarded(sent)[0] for _ in range(4)]
    threads = [threading.Thread(target=ledger.release_due) for ledger in ledgers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sent == [("alice", 7)]


def test_arguments_that_are_not_json_are_left_to_the_caller(ledger: Ledger) -> None:
    sent: list[object] = []

    @ledger.once(key=["name"], volatile=["what"], hold="1ms")
    def send(name: str, what: object) -> None:
        sent.append(what)

    with pytest.raises(Held):
        send("a", object())
    threading.Event().wait(0.02)
    assert ledger.release_due() == [] and sent == []
    send("a", object())
    assert len(sent) == 1


def test_a_failure_is_reported_and_not_lost(ledger: Ledger) -> None:
    @ledger.once(name="send", hold="1ms", no_effect=ValueError)
    def send(to: str) -> None:
        raise ValueError("no such address")

    with pytest.raises(Held):
        send("alice")
    threading.Event().wait(0.02)
    [released] = ledger.release_due()
    assert released.receipt is None and released.error is not None
    assert (released.error.code, released.error.happened) == ("FAILED", "no")


def test_a_call_that_cannot_run_here_is_reported_and_stays_held(tmp_path: Path) -> None:
    held = []
    with Ledger(tmp_path / "agent.db") as ledger:

        @ledger.once(name="pay", hold="1ms")
        def pay(to: str, amount: int) -> None: ...

        @ledger.once(name="mail", hold="1ms")
        def mail(to: str) -> None: ...

        for call in (lambda: pay("alice", amount=7), lambda: mail("alice")):
            with pytest.raises(Held) as error:
                call()
            held.append(held_id(error))
    threading.Event().wait(0.02)
    sent: list[str] = []
    with Ledger(tmp_path / "agent.db") as ledger:

        @ledger.once(name="pay", hold="1ms")
        def changed(to: str) -> None:
            sent.append(to)

        first, second = ledger.release_due()
        assert [first.operation.id, second.operation.id] == held
        assert isinstance(first.error, InvalidInput) and "do not fit: got an unexpected" in str(first.error)
        assert isinstance(second.error, InvalidInput) and "guards no function with the name 'mail'" in str(second.error)
        assert (first.error.happened, first.error.ran, sent) == ("no", False, [])
        assert [record.id for record in ledger.held()] == held


def test_coroutines(ledger: Ledger) -> None:
    sent: list[str] = []

    @ledger.once(hold="approve")
    async def send(to: str) -> str:
        sent.append(to)
        return to

    async def run() -> None:
        with pytest.raises(Held) as error:
            await send("alice")
        ledger.release(held_id(error))
        assert ledger.release_due() == []
        [released] = await ledger.arelease_due()
        assert released.receipt is not None and released.receipt.value == "alice"
        assert await send("alice") == "alice"

    asyncio.run(run())
    assert sent == ["alice"]


def test_the_policy_holds_and_a_mistake_is_named(tmp_path: Path) -> None:
    policy = tmp_path / "onceward.toml"
    policy.write_text('[operation.pay]\nhold = "approve"\n')
    ledger = Ledger(tmp_path / "agent.db", policy=policy)

    @ledger.once(name="pay", key=["to"])
    def pay(to: str, amount: int) -> None: ...

    with pytest.raises(Held) as error:
        pay("alice", 1)
    assert error.value.operation is not None and error.value.operation.held is not None
    assert error.value.operation.held["by"] == "policy"
    with pytest.raises(KeyReused):
        pay("alice", 2)
    assert pay.plan("bob", 1).decision == "hold"
    with pytest.raises(InvalidInput):
        ledger.once(hold="soon")(pay)
    with pytest.raises(InvalidInput):
        ledger.call("send", {}, lambda: None, hold=-1)


def test_a_reason_for_a_release_or_a_cancel_is_redacted(tmp_path: Path) -> None:
    policy = tmp_path / "onceward.toml"
    policy.write_text('[defaults]\nredact = ["re:sk_[a-z]+"]\n')
    with Ledger(tmp_path / "agent.db", policy=policy) as ledger:
        for name in ("release", "cancel"):
            with pytest.raises(Held) as error:
                ledger.call(name, {}, lambda: None, hold="approve")
            with pytest.raises(InvalidInput, match="not one of person, agent, program"):
                getattr(ledger, name)(held_id(error), speaker="boss")
            getattr(ledger, name)(held_id(error), reason=f"{name}: saw sk_abc", speaker="person")
    stored = b"".join(file.read_bytes() for file in tmp_path.glob("agent.db*"))
    assert b"release: saw [redacted]" in stored and b"cancel: saw [redacted]" in stored and b"sk_abc" not in stored
