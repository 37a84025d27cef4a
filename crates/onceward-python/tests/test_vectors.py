"""Keys, fingerprints and ids are those of every other language: the published vectors, through Python's objects."""

from __future__ import annotations

import json
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import pytest

from onceward import InvalidInput, canonical
from onceward._onceward import Spec

VECTORS = json.loads((Path(__file__).parents[2] / "onceward/vectors/keys.json").read_text(encoding="utf-8"))


def number(token: str) -> object:
    """Whole numbers keep every digit, as the vectors ask for; any other is the double that a reader makes of it."""
    try:
        exact = Decimal(token)
    except InvalidOperation:
        # An exponent that no decimal has.
        return float(token)
    if exact == exact.to_integral_value():
        return exact
    if float(token) == 0:
        raise ValueError("a double cannot tell it from zero")
    return float(token)


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name stands twice, which no dict can say")
    return members


def read(text: str) -> Any:
    return json.loads(text, parse_float=number, object_pairs_hook=once)


def spec_of(case: dict[str, Any]) -> Spec:
    return Spec(
        case["name"],
        scope=case["scope"],
        key=case["given_key"],
        key_fields=case["key_fields"],
        volatile=case["volatile"],
        occurrence=case["occurrence"],
    )


@pytest.mark.parametrize("case", VECTORS["cases"], ids=lambda case: case["description"])
def test_every_case_has_the_published_identity(case: dict[str, Any]) -> None:
    value = read(case["input"])
    assert canonical(value) == case["canonical"]
    assert spec_of(case).identity((value,)) == (case["key"], case["fingerprint"], case["id"])


def test_what_has_no_key_gets_none() -> None:
    refused, beyond = 0, 0
    for case in VECTORS["refused"]:
        try:
            value = read(case["input"])
        except ValueError:
            # Not JSON at all, or a name that stands twice: Python's own reader refuses it.
            beyond += 1
            continue
        with pytest.raises((InvalidInput, UnicodeEncodeError)):
            spec_of(case).identity((value,))
        refused += 1
    assert refused >= 20 and refused + beyond == len(VECTORS["refused"])
