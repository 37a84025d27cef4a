"""How each type of value is represented in a key."""

from __future__ import annotations

import dataclasses
import enum
import uuid
from collections import OrderedDict, UserDict, namedtuple
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any

import attrs
import pydantic
import pytest

from onceward import InvalidInput, Ledger, canonical


class Colour(enum.Enum):
    RED = "red"


class Size(enum.IntEnum):
    BIG = 3


class Word(str, enum.Enum):
    YES = "y"


@dataclasses.dataclass
class Order:
    id: int
    lines: list[str]


class Model(pydantic.BaseModel):
    id: int
    price: Decimal


@attrs.define
class Attributes:
    a: int


class Money:
    def __onceward__(self) -> object:
        return {"cents": 100}


Pair = namedtuple("Pair", "a b")
PLUS_TWO = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "1"), (1.0, "1"), (Decimal("1"), "1"), (Decimal("1.00"), "1"), (True, "true"), ("1", '"1"'), (None, "null"),
        (-0.0, "0"), (1e21, "1" + 21 * "0"), (2**64, "18446744073709551616"), (10**30 + 1, "1" + 29 * "0" + "1"),
        (0.1, "0.1"), (Decimal("0.1"), "0.1"), (Decimal("0.10"), "0.1"), (1e-7, "1e-7"),
        (Decimal("0.1000000000000000000001"), '"0.1000000000000000000001"'),
        (Decimal("12345678901234567890.5"), '"12345678901234567890.5"'),
        (Colour.RED, '{"$class":"tests.test_values.Colour","value":"red"}'),
        (Size.BIG, '{"$class":"tests.test_values.Size","value":3}'),
        (Word.YES, '{"$class":"tests.test_values.Word","value":"y"}'),
        ((1, "a"), '[1,"a"]'),
        (Pair(1, 2), '{"$class":"tests.test_values.Pair","a":1,"b":2}'),
        ({3, 1, 2}, "[1,2,3]"), (frozenset({"b", "a"}), '["a","b"]'),
        (datetime(2026, 1, 2, 3, 4, 5), '"2026-01-02T03:04:05"'),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc), '"2026-01-02T03:04:05Z"'),
        (datetime(2026, 1, 2, 5, 4, 5, tzinfo=PLUS_TWO), '"2026-01-02T03:04:05Z"'),
        (datetime(2026, 1, 2, 3, 4, 5, 120000, tzinfo=timezone.utc), '"2026-01-02T03:04:05.12Z"'),
        (date(2026, 1, 2), '"2026-01-02"'), (time(3, 4), '"03:04:00"'),
        (timedelta(hours=1, milliseconds=500), "3600.5"),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (b"\x00\xff", '"AP8="'), (bytearray(b"a"), '"YQ=="'),
        (PurePosixPath("/a/b"), '"/a/b"'),
        (Order(1, ["x"]), '{"$class":"tests.test_values.Order","id":1,"lines":["x"]}'),
        (Model(id=1, price=Decimal("2.50")), '{"$class":"tests.test_values.Model","id":1,"price":2.5}'),
        (Attributes(1), '{"$class":"tests.test_values.Attributes","a":1}'),
        (Money(), '{"cents":100}'), (OrderedDict(b=1, a=2), '{"a":2,"b":1}'),
        ({Word.YES: 1}, r'{"{\"$class\":\"tests.test_values.Word\",\"value\":\"y\"}":1}'),
        ({"nested": {"d": Decimal("1.0"), "t": (date(2026, 1, 2),)}}, '{"nested":{"d":1,"t":["2026-01-02"]}}'),
        (2**60, "1152921504606846976"), (float(2**60), "1152921504606846976"),
    ],
)  # fmt: skip
def test_the_canonical_text_of(value: object, text: str) -> None:
    assert canonical(value) == text


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (float("nan"), "not a finite number"), (float("inf"), "not a finite number"), (Decimal("NaN"), "not a finite"),
        ({1: "a"}, "keys are text"), (object(), "one possible JSON form"), ({"a": [object()]}, "the input/a/0 is a"),
        (10**1001, "number"),
    ],
)  # fmt: skip
def test_what_has_no_one_meaning_is_refused(value: object, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem) as refused:
        canonical(value)
    assert refused.value.happened is None and not refused.value.ran and refused.value.code == "INVALID_INPUT"


class Money(Decimal):
    """A value with an attribute, which its plain value does not have."""

    currency = ""

    def of(self, currency: str) -> Money:
        self.currency = currency
        return self


class Command(dict[str, int]):
    kind: str


class Slotted(str):
    __slots__ = ("kind",)


class Point(namedtuple("Point", "x y")):
    pass


@dataclasses.dataclass(frozen=True)
class Plain:
    a: int


class Grown(Plain):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(a)
        object.__setattr__(self, "b", b)


def with_attribute(value: Any, name: str) -> Any:
    setattr(value, name, "x")
    return value


@pytest.mark.parametrize(
    "value",
    [
        Money("5").of("USD"),
        with_attribute(Command(a=1), "kind"),
        with_attribute(Slotted("a"), "kind"),
        with_attribute(Point(1, 2), "label"),
        with_attribute(type("Wrapped", (UserDict,), {})(a=1), "kind"),
        with_attribute(type("Later", (timedelta,), {})(seconds=1), "months"),
        Grown(1, 2),
    ],
    ids=lambda value: type(value).__name__,
)
def test_attributes_are_not_lost(value: object) -> None:
    for given in (value, [value]):
        with pytest.raises(InvalidInput, match="attributes"):
            canonical(given)


def test_subclasses_without_attributes_are_their_plain_values() -> None:
    assert canonical([Money("5"), Command(a=1), Plain(1)]) == canonical([5, {"a": 1}, Plain(1)])


def test_nanoseconds_count() -> None:
    span = type("Timedelta", (timedelta,), {"nanoseconds": property(lambda self: 7)})
    assert canonical([span(seconds=1), timedelta(seconds=1)]) == "[1.000000007,1]"


def test_a_value_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidInput, match="contains itself"):
        canonical(loop)


def test_two_spellings_are_two_texts_unless_nfc_is_asked_for() -> None:
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    assert canonical(composed) != canonical(decomposed)
    assert canonical(composed, nfc=True) == canonical(decomposed, nfc=True) == canonical(composed)
    with pytest.raises(InvalidInput, match="twice"):
        canonical({composed: 1, decomposed: 2}, nfc=True)


def test_a_ledger_with_nfc_knows_the_retry(tmp_path: Any) -> None:
    with Ledger(tmp_path / "a.db", nfc=True) as ledger:
        book = ledger.once(name="book")(lambda name: [name])
        assert book.identity("caf\u00e9") == book.identity("cafe\u0301")


def test_arguments_count_by_name_and_defaults_are_arguments(ledger: Ledger) -> None:
    @ledger.once(name="f")
    def f(a: int, /, b: int = 2, *rest: int, c: int = 3, **more: int) -> None: ...

    same = f.identity(1)
    assert same == f.identity(1, 2) == f.identity(1, b=2) == f.identity(1, c=3) == f.identity(1.0, b=2)  # type: ignore[arg-type]
    others = [f.identity(2), f.identity(1, 3), f.identity(1, 2, 4), f.identity(1, c=4), f.identity(1, d=1)]
    assert len({same, *others}) == 6


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, 2, 3), {}), ((1,), {"x": 1}), ((1,), {"a": 1})])
def test_a_call_that_does_not_fit_is_pythons_own_error(ledger: Ledger, args: Any, kwargs: Any) -> None:
    @ledger.once(name="f")
    def f(a: int, b: int = 2) -> None: ...

    with pytest.raises(TypeError, match="argument"):
        f(*args, **kwargs)
    assert not list(ledger.operations())


def test_volatile_arguments_and_self_need_not_be_values(ledger: Ledger) -> None:
    class Shop:
        @ledger.once(volatile=["self", "client"])
        def order(self, item: str, client: object) -> str:
            return item

    assert Shop().order("x", object()) == "x"
    assert Shop().order("x", object()) == "x"
    assert len(list(ledger.operations())) == 1


def test_a_problem_names_the_argument(ledger: Ledger) -> None:
    with pytest.raises(InvalidInput, match=r"the argument order/items/1 is a builtins\.object"):
        ledger.once(name="order")(lambda order: None)({"items": [1, object()]})
    assert not list(ledger.operations())
