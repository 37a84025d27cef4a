"""Results: a replay returns what the first call returned."""

from __future__ import annotations

import dataclasses
import enum
import uuid
import warnings
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pydantic
import pytest

from onceward import Ledger, ResultUnavailable, ResultWarning


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass
class Line:
    item: str
    price: Decimal
    colour: Colour = Colour.RED


@dataclasses.dataclass
class Order:
    id: int
    lines: list[Line]
    parent: Line | None = None


class Model(pydantic.BaseModel):
    id: int
    at: datetime


MOMENT = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -1.5, 1.0, 10**30, "é\u2028\"\\", [], {}, {"b": 1, "a": [1.0, None]}, (1, (2,)), {1, 2},
        frozenset({1}),
        b"\x00\xff", bytearray(b"x"), MOMENT, date(2026, 1, 2), timedelta(days=-1, microseconds=3), Decimal("1.10"),
        uuid.UUID(int=7), {1: "int key", None: "none"}, {"$onceward": "tuple", "value": 1}, [float("inf")],
    ],
    ids=repr,
)  # fmt: skip
def test_a_replay_is_equal_and_of_the_same_type(ledger: Ledger, value: object) -> None:
    give = ledger.once(name="give")(lambda: value)
    assert give() == value
    replayed = give.receipt()
    assert replayed.replayed and replayed.value == value and type(replayed.value) is type(value)
    if isinstance(value, dict):
        assert list(replayed.value) == list(value)


def test_dataclasses_and_models_come_back_by_the_return_annotation(ledger: Ledger) -> None:
    order = Order(1, [Line("x", Decimal("1.10"))], None)
    model = Model(id=1, at=MOMENT)

    @ledger.once
    def give_order() -> Order:
        return order

    @ledger.once
    def give_models() -> list[Model] | None:
        return [model]

    @ledger.once
    def give_colour() -> Colour:
        return Colour.RED

    for give, expect in ((give_order, order), (give_models, [model]), (give_colour, Colour.RED)):
        assert give() == expect and give() == expect  # type: ignore[operator]
        assert give.receipt().replayed  # type: ignore[attr-defined]
    assert give_order.receipt().data["lines"][0]["item"] == "x"


def test_a_codec_of_ones_own(ledger: Ledger) -> None:
    class Upper:
        def encode(self, value: Any) -> object:
            return {"text": value.text}

        def decode(self, data: Any) -> object:
            return data["text"].upper()

    class Text:
        text = "x"

    give = ledger.once(name="give", codec=Upper())(lambda: Text())
    give()
    assert give() == "X"


def test_what_cannot_be_kept_is_done_and_never_run_again(ledger: Ledger) -> None:
    runs: list[int] = []

    def give() -> object:
        runs.append(1)
        return object()

    guarded = ledger.once(give)
    with pytest.warns(ResultWarning, match="cannot be kept"):
        assert type(guarded()) is object
    receipt = guarded.receipt()
    assert receipt.replayed and not receipt.available and receipt.operation.state == "done"
    assert receipt.data is None and "not available" in receipt.warnings[0]
    with pytest.raises(ResultUnavailable) as unavailable:
        guarded()
    assert unavailable.value.happened == "yes" and not unavailable.value.retryable and len(runs) == 1


def test_a_warning_that_is_an_error_does_not_make_a_doubt_of_a_success(ledger: Ledger) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ledger.once(name="give")(lambda: object())()
    assert next(ledger.operations()).state == "done"


def test_a_result_that_is_too_large_is_done(ledger: Ledger) -> None:
    give = ledger.once(name="give")(lambda: "x" * (17 * 1024 * 1024))
    assert len(give()) == 17 * 1024 * 1024
    assert not give.receipt().available
