"""Two actions never share an identity, and one action never has two: callables and arguments of every kind."""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import attrs
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onceward import InvalidInput, Ledger


def charge(who: str, amount: Any = 0) -> None: ...


def refund(who: str, amount: Any = 0) -> None: ...


def make(who: Any) -> Callable[..., None]:
    def tool(amount: Any) -> Any:
        return who, amount

    return tool


def make_of(function: Any) -> Callable[..., None]:
    def run(amount: Any) -> None:
        function(amount)

    return run


class Account:
    def __init__(self, who: str) -> None:
        self.who = who

    def __onceward__(self) -> str:
        return self.who

    def withdraw(self, amount: Any) -> None: ...

    def deposit(self, amount: Any) -> None: ...

    @classmethod
    def close(cls, amount: Any) -> None: ...

    def __call__(self, amount: Any) -> None: ...


class Savings(Account):
    pass


@dataclasses.dataclass(frozen=True)
class Teller:
    name: str

    def pay(self, amount: Any) -> None: ...


class Unnamed:
    def pay(self, amount: Any) -> None: ...

    def __call__(self, amount: Any) -> None: ...


# Each is a callable with one more argument, and a unique description of what it does.
Action = tuple[Any, Any]
names = st.sampled_from(["alice", "bob", ""])
CALLABLES: st.SearchStrategy[Action] = st.one_of(
    names.map(lambda who: (functools.partial(charge, who), ("charge", who))),
    names.map(lambda who: (functools.partial(charge, who=who), None)),
    names.map(lambda who: (functools.partial(functools.partial(refund), who), ("refund", who))),
    st.one_of(names, st.integers(0, 2), st.none(), st.tuples(names), st.sampled_from([Account, Savings])).map(
        lambda who: (make(who), ("made", repr(who)))
    ),
    st.sampled_from([charge, refund, make("x"), make("y")]).map(
        lambda one: (make_of(one), ("made of", one.__qualname__, str(one.__closure__ and one("z"))))  # type: ignore[func-returns-value]
    ),
    names.map(lambda who: (Account(who).withdraw, ("withdraw", who))),
    names.map(lambda who: (Account(who).deposit, ("deposit", who))),
    names.map(lambda who: (Savings(who).deposit, ("deposit of savings", who))),
    names.map(lambda who: (Account(who), ("account", who))),
    names.map(lambda who: (Teller(who).pay, ("teller", who))),
    st.sampled_from([Account, Savings]).map(lambda kind: (kind.close, ("close", kind.__name__))),
).filter(lambda action: action[1] is not None)


class Red(enum.Enum):
    ONE = 1


class Blue(enum.Enum):
    ONE = 1


class RedText(str, enum.Enum):
    ONE = "one"


class BlueText(str, enum.Enum):
    ONE = "one"


@dataclasses.dataclass
class Deposit:
    to: str
    amount: int


@dataclasses.dataclass
class Withdraw:
    to: str
    amount: int


class DepositModel(pydantic.BaseModel):
    to: str
    amount: int = pydantic.Field(exclude=True)

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def now(self) -> str:
        return os.urandom(8).hex()


class WithdrawModel(pydantic.BaseModel):
    to: str
    amount: int


@attrs.define
class DepositAttrs:
    to: str
    amount: int


class DepositTuple(NamedTuple):
    to: str
    amount: int


class WithdrawTuple(NamedTuple):
    to: str
    amount: int


KINDS = (Deposit, Withdraw, DepositModel, WithdrawModel, DepositAttrs, DepositTuple, WithdrawTuple)
ARGUMENTS: st.SearchStrategy[tuple[Any, Any]] = st.one_of(
    st.one_of(st.integers(-2, 2), st.text("ab\u00e9", max_size=2), st.booleans(), st.none()).map(
        lambda value: (value, (type(value).__name__, value))
    ),
    st.sampled_from([Red.ONE, Blue.ONE, RedText.ONE, BlueText.ONE]).map(lambda one: (one, repr(one))),
    st.tuples(st.sampled_from(KINDS), names, st.integers(0, 1)).map(
        lambda made: (made[0](to=made[1], amount=made[2]), (made[0].__name__, *made[1:]))
    ),
    st.lists(st.integers(0, 2), max_size=3).map(lambda value: (value, ("list", *value))),
    st.dictionaries(st.sampled_from("ab"), st.integers(0, 1)).map(
        lambda value: (value, ("dict", *sorted(value.items())))
    ),
)

ledger_for_names = Ledger("memory:")


def identity(action: Action, argument: Any) -> str:
    guarded = Ledger("memory:").once(action[0])
    return str(guarded.identity(argument[0])[2])  # type: ignore[attr-defined]


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(one=CALLABLES, other=CALLABLES, first=ARGUMENTS, second=ARGUMENTS)
def test_identities_are_equal_if_and_only_if_actions_are(one: Action, other: Action, first: Any, second: Any) -> None:
    same = (one[1], first[1]) == (other[1], second[1])
    assert (identity(one, first) == identity(other, second)) == same


@settings(max_examples=300, deadline=None)
@given(who=names, amount=ARGUMENTS)
def test_one_action_however_it_is_written(who: str, amount: Any) -> None:
    value = amount[0]
    plain = ledger_for_names.once(charge)
    expected = plain.identity(who, value)
    assert plain.identity(who=who, amount=value) == plain.identity(amount=value, who=who) == expected
    for partial in (functools.partial(charge, who), functools.partial(charge, amount=value)):
        given = (value,) if partial.args else (who,)
        assert ledger_for_names.once(partial).identity(*given) == expected
    assert plain.identity(who) == plain.identity(who, 0)


@pytest.mark.parametrize(
    ("function", "helps"),
    [
        (lambda amount: None, "name="),
        (Unnamed().pay, "__onceward__"),
        (Unnamed(), "__onceward__"),
        (Unnamed().pay, "name="),
    ],
)
def test_what_cannot_be_told_apart_is_refused_when_it_is_decorated(ledger: Ledger, function: Any, helps: str) -> None:
    with pytest.raises(InvalidInput, match=helps):
        ledger.once(function)
    assert ledger.once(name="own")(function).operation_name == "own"


def test_closures_over_objects_are_refused_when_there_is_a_second(ledger: Ledger) -> None:
    one, other = object(), object()
    ledger.once(make(one))
    ledger.once(make(one))
    with pytest.raises(InvalidInput, match=r"another who each time.*name="):
        ledger.once(make(other))
    ledger.once(name="other")(make(other))


def test_two_functions_of_one_name_are_refused(ledger: Ledger) -> None:
    def both(kind: str) -> Any:
        if kind == "charge":

            def act(amount: int) -> str:
                return "charged"
        else:

            def act(amount: int) -> str:
                return "refunded"

        return act

    ledger.once(both("charge"))
    ledger.once(both("charge"))
    with pytest.raises(InvalidInput, match="another function is called"):
        ledger.once(both("refund"))


def test_methods_of_two_objects_are_two_actions(ledger: Ledger) -> None:
    class Purse:
        def __init__(self, who: str) -> None:
            self.who = who

        def __onceward__(self) -> str:
            return self.who

        @ledger.once
        def withdraw(self, amount: int) -> str:
            return f"{self.who}: {amount}"

        @classmethod
        @ledger.once
        def kind(cls) -> str:
            return cls.__name__

        @staticmethod
        @ledger.once
        def rate(of: int) -> int:
            return of

    class Wallet(Purse):
        pass

    alice, bob = Purse("alice"), Purse("bob")
    assert [alice.withdraw(5), bob.withdraw(5), alice.withdraw(5)] == ["alice: 5", "bob: 5", "alice: 5"]
    assert alice.withdraw.receipt(5).replayed and alice.withdraw.receipt(amount=5).replayed
    assert not alice.withdraw.occurrence(2).receipt(5).replayed
    assert alice.withdraw.plan(5).decision == "replay" and bob.withdraw.plan(6).decision == "run"
    assert alice.withdraw.identity(5) == Purse.withdraw.identity(alice, 5) != bob.withdraw.identity(5)
    assert Wallet("alice").withdraw.identity(5) != alice.withdraw.identity(5)
    assert [Purse.kind(), Wallet.kind(), Wallet.kind()] == ["Purse", "Wallet", "Wallet"]
    assert Purse.rate(1) == alice.rate(1) == 1


def test_a_method_of_an_object_without_an_identity_is_refused(ledger: Ledger) -> None:
    class Shop:
        @ledger.once
        def order(self, item: str) -> str:
            return item

        @ledger.once(key=["item"])
        def keyed(self, item: str) -> str:
            return item

    with pytest.raises(InvalidInput, match=r"__onceward__.*key=.*volatile="):
        Shop().order("x")
    assert not list(ledger.operations())
    assert Shop().keyed("x") == Shop().keyed("x") == "x"
    with pytest.raises(TypeError, match="above the guard"):
        ledger.once(classmethod(lambda cls: None))


@pytest.mark.parametrize("id", [None, "", True, 1.5, object()])
def test_a_session_without_an_id_is_refused(ledger: Ledger, id: Any) -> None:
    with pytest.raises(InvalidInput, match="id of the session"):
        ledger.session(id)
    if id == "":
        with pytest.raises(InvalidInput, match="scope is empty"):
            ledger.once(scope="")(charge)
    with pytest.raises(InvalidInput, match="id of the event"):
        ledger.dedupe(id)


class InjectedState:
    """The mark of agent frameworks for parameters that they fill in."""


class ToolContext:
    pass


ToolContext.__module__ = "google.adk.tools.tool_context"


def test_what_a_framework_fills_in_is_no_part_of_the_key(ledger: Ledger) -> None:
    def tool(
        order: int,
        state: Annotated[dict[str, Any], InjectedState],
        call: Annotated[str, InjectedState()],
        context: ToolContext | None = None,
    ) -> int:
        return order

    guarded = ledger.once(tool)
    first = guarded.identity(1, {"a": 1}, "call_1", ToolContext())
    assert first == guarded.identity(1, {"a": object()}, "call_2") != guarded.identity(2, {}, "call_1")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": ["whoo"]}, "did you mean 'who'"),
        ({"volatile": ["amont"]}, "did you mean 'amount'"),
        ({"key": "who"}, "in a list"),
        ({"volatile": "who"}, "in a list"),
        ({"keyy": ["who"]}, "did you mean key="),
        ({"class_": "nope"}, "not one of"),
        ({"effect": "creatd"}, "not one of"),
        ({"ttl": b"1h"}, "ttl is"),
        ({"ttl": object()}, "ttl is"),
        ({"retries": -1}, "retries is"),
        ({"retries": "3"}, "retries is"),
        ({"no_effect": "ValueError"}, "exception classes"),
        ({"no_effect": (1,)}, "exception classes"),
        ({"probe": True}, "give a function"),
        ({"codec": object()}, "encode and decode"),
        ({"dispatch": "later"}, "not one of"),
        ({"name": 1}, "name is 1"),
        ({"scope": 1.5}, "neither text nor a function"),
    ],
)
def test_every_option_is_checked_when_it_is_given(ledger: Ledger, options: dict[str, Any], message: str) -> None:
    with pytest.raises((InvalidInput, TypeError), match=message):
        ledger.once(**options)(charge)
    with pytest.raises(TypeError, match="guards one function"):
        ledger.once(charge, refund)  # type: ignore[call-overload]


PROGRAM = """
import sys
from onceward import Ledger
ledger = Ledger({ledger!r})

@ledger.once
def charge(amount):
    return {word!r}

if __name__ == "__main__":
    print(charge.operation_name, charge(1))
"""


def run(*args: str, cwd: Path) -> str:
    done = subprocess.run([sys.executable, *args], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_two_programs_of_one_name_are_two(tmp_path: Path) -> None:
    for folder in ("billing", "refunds"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "main.py").write_text(PROGRAM.format(ledger=str(tmp_path / "a.db"), word=folder))
    assert run("billing/main.py", cwd=tmp_path) == "billing.main.charge billing"
    assert run("refunds/main.py", cwd=tmp_path) == "refunds.main.charge refunds"
    assert run("main.py", cwd=tmp_path / "refunds") == "refunds.main.charge refunds"


@pytest.mark.parametrize("package", [True, False])
def test_a_script_has_the_name_that_it_has_when_it_is_imported(tmp_path: Path, package: bool) -> None:
    folder = tmp_path / "pkg"
    folder.mkdir()
    if package:
        (folder / "__init__.py").touch()
    (folder / "mod.py").write_text(PROGRAM.format(ledger=str(tmp_path / "a.db"), word="x"))
    asked = "import pkg.mod; print(pkg.mod.charge.operation_name, pkg.mod.charge(1))"
    beside = "import mod; print(mod.charge.operation_name, mod.charge(1))"
    seen = {
        run("pkg/mod.py", cwd=tmp_path), run("-m", "pkg.mod", cwd=tmp_path), run("-c", asked, cwd=tmp_path),
        run("mod.py", cwd=folder), run("-c", beside, cwd=folder),
    }  # fmt: skip
    assert seen == {"pkg.mod.charge x"}


def test_a_relative_path_is_one_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ledger = Ledger("agent.db")
    other = tmp_path / "other"
    other.mkdir()
    assert ledger.call("a", {}, lambda: 1).value == 1
    monkeypatch.chdir(other)
    ledger.close()
    assert ledger.call("a", {}, lambda: 2).value == 1 and not list(other.iterdir())
    assert Ledger(b"agent.db").url == f"sqlite:{other}/agent.db"
    assert Ledger("sqlite:agent.db").url == f"sqlite:{other}/agent.db"


def test_memory_as_sqlite_spells_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Ledger(":memory:") as ledger:
        assert [ledger.call("a", {}, lambda: 1).replayed for _ in range(2)] == [False, True]
    assert not list(tmp_path.iterdir())
    for place in ("", None, 5):
        with pytest.raises(InvalidInput, match="URL"):
            Ledger(place)  # type: ignore[arg-type]


def test_names_do_not_depend_on_the_temporary_folder() -> None:
    assert tempfile.gettempdir() not in str(ledger_for_names.once(charge).operation_name)


# What distinguishes two functions, and is not among their arguments.


def test_a_variable_that_is_assigned_later_counts(ledger: Ledger) -> None:
    @ledger.once
    def pay(amount: int) -> str:
        return customer

    customer = "alice"
    assert [pay(5), pay(5)] == ["alice", "alice"]
    key = pay.identity(5)[0]
    customer = "bob"
    with pytest.raises(InvalidInput, match="customer has changed"):
        pay(5)
    assert key != made_for(ledger, "bob").identity(5)[0]


def made_for(ledger: Ledger, who: str | None) -> Any:
    @ledger.once
    def pay(amount: int) -> str | None:
        return who

    def becomes(other: str) -> None:
        nonlocal who
        who = other

    pay.becomes = becomes  # type: ignore[attr-defined]
    return pay


@pytest.mark.parametrize("first", ["alice", None])
def test_a_variable_that_changes_is_refused(ledger: Ledger, first: str | None) -> None:
    pay = made_for(ledger, first)
    assert pay(5) == first
    pay.becomes("bob")
    with pytest.raises(InvalidInput, match="who has changed"):
        pay(5)
    early = made_for(ledger, None)
    early.becomes("carol")
    with pytest.raises(InvalidInput, match="who has changed"):
        early(5)


def test_what_the_function_itself_counts_does_not_make_it_another_one(ledger: Ledger) -> None:
    runs = calls = 0

    def helper() -> None:
        nonlocal calls
        calls += 1

    @ledger.once
    def pay(amount: int) -> int:
        nonlocal runs
        runs += 1
        helper()
        return calls

    assert [pay(5), pay(5), pay(6), pay(6)] == [1, 1, 2, 2] and (runs, calls) == (2, 2)


def region(name: str) -> Any:
    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any) -> Any:
            return name, function(*args)

        return wrapper

    return decorate


def plainly(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


def test_decorators_under_the_guard_count(ledger: Ledger) -> None:
    def order(id: str) -> str:
        return id

    assert ledger.once(region("eu")(order))("o-1") == ("eu", "o-1")
    assert ledger.once(region("us")(order))("o-1") == ("us", "o-1")
    ledger.once(plainly(charge))
    with pytest.raises(InvalidInput, match="other decorators"):
        ledger.once(charge)


def test_a_captured_helper_counts_with_its_defaults_and_attributes(ledger: Ledger) -> None:
    def by_default(tenant: str) -> Any:
        def post(order: str, tenant: str = tenant) -> str:
            return tenant

        @ledger.once
        def buy(order: str) -> str:
            return post(order)

        return buy

    def by_attribute(tenant: str) -> Any:
        def post(order: str) -> str:
            return str(post.tenant)  # type: ignore[attr-defined]

        post.tenant = tenant  # type: ignore[attr-defined]

        @ledger.once
        def order(order: str) -> str:
            return post(order)

        return order

    for make in (by_default, by_attribute):
        assert [make("alice")("o-1"), make("bob")("o-1"), make("alice")("o-1")] == ["alice", "bob", "alice"]


def test_classes_that_are_created_more_than_once(ledger: Ledger) -> None:
    def captured(tenant: str) -> Any:
        class Client:
            who = tenant

        @ledger.once
        def buy(order: str) -> str:
            return Client.who

        return buy

    def owned(tenant: str) -> Any:
        @dataclasses.dataclass(frozen=True)
        class Tenant:
            who = tenant

            @ledger.once
            def pay(self, order: str) -> str:
                return self.who

            @classmethod
            @ledger.once
            def bill(cls, order: str) -> str:
                return cls.who

        return Tenant()

    assert [captured("alice")("o-1"), captured("alice")("o-1")] == ["alice", "alice"]
    with pytest.raises(InvalidInput, match="created more than once"):
        captured("bob")("o-1")
    first, again, other = owned("alice"), owned("alice"), owned("bob")
    assert [first.pay("o-1"), again.pay("o-1"), first.bill("o-1")] == ["alice", "alice", "alice"]
    for call in (other.pay, other.bill):
        with pytest.raises(InvalidInput, match="created more than once"):
            call("o-1")


def test_two_files_under_one_module_name(ledger: Ledger, tmp_path: Path) -> None:
    functions = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "plugin.py").write_text("def pay(amount):\n    return __file__\n")
        spec = importlib.util.spec_from_file_location("plugin", tmp_path / folder / "plugin.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        functions.append(module.pay)
    ledger.once(functions[0])
    ledger.once(functions[0])
    with pytest.raises(InvalidInput, match="another function is called"):
        ledger.once(functions[1])
