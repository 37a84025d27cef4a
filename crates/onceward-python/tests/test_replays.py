"""A replay has the type and value of the first result, or the first caller is warned: more than forty types."""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import enum
import fractions
import ipaddress
import pathlib
import re
import uuid
import warnings
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple, Union
from zoneinfo import ZoneInfo

import attrs
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onceward import Ledger, ResultUnavailable, ResultWarning
from onceward._same import difference


class Colour(enum.Enum):
    RED = "red"


class Size(enum.IntEnum):
    BIG = 3


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Pair(NamedTuple):
    a: int
    b: str


@dataclasses.dataclass
class Cat:
    name: str


@dataclasses.dataclass
class Dog:
    name: str


@dataclasses.dataclass
class Puppy(Dog):
    weeks: int = 0


@dataclasses.dataclass(frozen=True)
class Frozen:
    cats: tuple[Cat, ...]
    colour: Colour = Colour.RED


@dataclasses.dataclass
class Slotted:
    __slots__ = ("a",)
    a: int


@dataclasses.dataclass
class Counted:
    name: str
    length: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.length = len(self.name)


class Model(pydantic.BaseModel):
    id: int
    at: datetime | None = None
    more: Any = None


class SubModel(Model):
    extra: str = ""


class Aliased(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    id: int = pydantic.Field(alias="ID")
    when: date = date(2026, 1, 1)


class Excluded(pydantic.BaseModel):
    id: int
    secret: int = pydantic.Field(0, exclude=True)
    _private: int = pydantic.PrivateAttr(default=0)


class Secret(pydantic.BaseModel):
    key: pydantic.SecretStr


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    id: int


@attrs.define
class Attributes:
    a: int
    b: list[Cat]


class Text(str):
    pass


counted = Counted("x")
counted.length = 7
excluded = Excluded(id=1, secret=9)
excluded._private = 5
ZONED = datetime(2026, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))

# The annotation, and the returned value.
RESULTS: list[tuple[Any, Any]] = [
    (None, None), (int, 10**30), (float, -0.5), (float, float("inf")), (str, "é\u2028"), (bool, True),
    (bytes, b"\x00\xff"), (bytearray, bytearray(b"x")), (list, [1, [2.0, None]]), (dict, {"b": 1, "a": {}}),
    (dict, {1: "a", None: "b", (1, 2): "c"}), (tuple, (1, (2,))), (set, {1, 2}), (frozenset, frozenset({"a"})),
    (complex, 1 + 2j), (range, range(1, 9, 2)), (Decimal, Decimal("1.10")),
    (fractions.Fraction, fractions.Fraction(1, 3)),
    (uuid.UUID, uuid.UUID(int=7)), (pathlib.Path, pathlib.Path("/a/b")), (datetime, datetime(2026, 1, 2, 3, 4, 5, 6)),
    (datetime, datetime(2026, 1, 2, tzinfo=timezone.utc)), (datetime, ZONED), (datetime, ZONED.replace(fold=1)),
    (datetime, datetime(2026, 10, 25, 2, 30, fold=1)),
    (datetime, datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=2)))),
    (date, date(2026, 1, 2)), (time, time(3, 4, tzinfo=timezone.utc)), (timedelta, timedelta(days=-1, microseconds=3)),
    (ipaddress.IPv4Address, ipaddress.ip_address("127.0.0.1")), (dict, collections.OrderedDict(b=1, a=2)),
    (Any, collections.deque([1], 3)), (str, "lone \ud800 surrogate"), (dict, {"\udcff": 1}), (Colour, Colour.RED),
    (Size, Size.BIG), (Rights, Rights.READ | Rights.WRITE), (Pair, Pair(1, "x")), (Cat, Cat("tom")),
    (Frozen, Frozen((Cat("tom"),))), (Slotted, Slotted(1)), (Counted, counted), (Model, Model(id=1, at=ZONED)),
    (Model, Model(id=1, more=(1, {2}, Decimal("1"), float("inf")))), (Model, Model.model_construct(id="not an int")),
    (Model, SubModel(id=1, extra="x")), (Aliased, Aliased(ID=3)), (Excluded, excluded), (Open, Open(id=1, more="x")),  # type: ignore[call-arg]
    (Attributes, Attributes(1, [Cat("x")])), (Dog, Puppy("rex", 8)), (Cat | Dog, Dog("rex")),
    (Union[Cat, Dog], Cat("tom")),
    (Dog | str, "text"), (str | Dog, Dog("rex")), (Model | dict, {"id": 1}), (Dog | bool, True), (Dog, None),
    (Dog, {"name": "rex"}), (Dog | None, Dog("rex")),
    (Sequence[Dog], [Dog("a"), Puppy("b")]), (Iterable[Dog], [Dog("a")]),
    (Mapping[str, Dog], {"a": Dog("a")}), (list[Cat | Dog] | None, [Dog("a"), Cat("b")]),
    (tuple[Cat, Dog], (Cat("a"), Dog("b"))),
    (dict[str, list[Model]], {"a": [Model(id=1)]}),
]  # fmt: skip
# Values that cannot be restored: here only the warning is tested.
WARNED: list[tuple[Any, Any]] = [
    (Any, object()), (Any, Text("x")), (Secret, Secret(key=pydantic.SecretStr("s"))), (Any, Cat("unannotated")),
    (Any, Colour.RED), (Cat, Dog("not a cat")), (Any, [1, {2: object()}]), (Any, Exception("x")),
    (int, "x" * 17_000_000),
    (Any, collections.Counter("aab")), (Any, memoryview(b"x")),
]  # fmt: skip


def _name(value: object) -> str:
    """Without addresses: every process that collects the tests must find the same names."""
    return re.sub(r" at 0x[0-9a-f]+", "", f"{value!r:.40}")


@pytest.mark.parametrize(("kind", "value"), [*RESULTS, *WARNED], ids=_name)
def test_a_replay_is_the_first_result_or_a_warning_says_what_differs(ledger: Ledger, kind: Any, value: Any) -> None:
    def give() -> Any:
        return value

    give.__annotations__["return"] = kind
    guarded = ledger.once(name="give")(give)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        first = guarded.receipt()
    assert first.value is value and first.operation.state == "done"
    warned = [one for one in said if issubclass(one.category, ResultWarning)]
    assert bool(warned) == any(one is value and said is kind for said, one in WARNED), [
        str(one.message) for one in warned
    ]
    assert all(one.filename == __file__ for one in warned)
    replay = guarded.receipt()
    assert replay.replayed
    if warned:
        try:
            again = replay.value
        except ResultUnavailable as unavailable:
            assert unavailable.happened == "yes" and not unavailable.retryable
            assert unavailable.operation is not None
        else:
            assert difference(value, again) is not None
        return
    assert type(replay.value) is type(value) and difference(value, replay.value) is None
    if not isinstance(value, float):
        assert replay.value == value
    if isinstance(value, Excluded):
        assert replay.value.secret == 9 and replay.value._private == 5


def test_a_warning_names_what_differs(ledger: Ledger) -> None:
    class Rounding:
        def encode(self, value: Any) -> object:
            return {"when": value["when"].isoformat(), "of": list(value["of"])}

        def decode(self, data: Any) -> object:
            return {"when": datetime.fromisoformat(data["when"]), "of": data["of"]}

    guarded = ledger.once(name="give", codec=Rounding())(lambda: {"when": ZONED.replace(tzinfo=None), "of": (1,)})
    with pytest.warns(ResultWarning, match=r"the result\['of'\] is a tuple and comes back as a list"):
        guarded()
    assert guarded()["of"] == [1]


@pytest.mark.parametrize("problem", [ValueError, RecursionError, KeyError, MemoryError])
def test_whatever_a_codec_does_a_success_is_a_success(ledger: Ledger, problem: type[Exception]) -> None:
    class Broken:
        def encode(self, value: Any) -> object:
            return 1

        def decode(self, data: Any) -> object:
            raise problem("no")

    guarded = ledger.once(name="give", codec=Broken())(lambda: {1: 2})
    with pytest.warns(ResultWarning):
        assert guarded() == {1: 2}
    with pytest.raises(ResultUnavailable):
        guarded()


def test_a_class_that_has_changed_since_is_unavailable_and_never_run_again(ledger: Ledger) -> None:
    def give() -> Cat:
        return Cat("tom")

    guarded = ledger.once(name="give")(give)
    guarded()

    def other() -> Aliased:
        raise AssertionError("it is not run")

    for _ in range(2):
        with pytest.raises(ResultUnavailable) as unavailable:
            ledger.once(name="give")(other)()
        assert unavailable.value.operation is not None and unavailable.value.operation.state == "done"


def test_a_result_that_was_settled_by_hand(ledger: Ledger) -> None:
    def give() -> Cat | Dog:
        raise TimeoutError

    guarded = ledger.once(name="give")(give)
    with pytest.raises(TimeoutError):
        guarded()
    (record,) = ledger.operations()
    ledger.settle(record.id, "done", result={"name": "tom"})
    assert guarded() == Cat("tom")


def test_a_coroutine_function_of_the_same_kinds(ledger: Ledger) -> None:
    @ledger.once(name="give")
    async def give() -> Cat | Dog:
        return Puppy("rex", 3)

    assert asyncio.run(give()) == asyncio.run(give()) == Puppy("rex", 3)


PLAIN = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(st.characters()), st.binary(),
        st.decimals(allow_nan=False, allow_infinity=False), st.uuids(), st.datetimes(), st.timedeltas(), st.dates(),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3), st.tuples(inner, inner),
        st.frozensets(st.integers(), max_size=3), st.dictionaries(st.integers(), inner, max_size=2),
    ),
    max_leaves=8,
)  # fmt: skip
ledger_in_memory = Ledger("memory:")


@settings(max_examples=500, deadline=None)
@given(value=PLAIN)
def test_random_values_come_back(value: object) -> None:
    key = uuid.uuid4().hex
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        receipts = [ledger_in_memory.call("give", {}, lambda: value, key=key) for _ in range(2)]
    assert receipts[1].replayed and difference(value, receipts[1].value) is None
