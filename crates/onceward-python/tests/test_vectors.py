"""Keys, fingerprints and ids are the same as in every other language: the published vectors, with Python objects."""

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
    """Integers keep every digit, as the vectors require; any other number is a float, if a float can hold it."""
    try:
        exact = Decimal(token)
    except InvalidOperation:
        # An exponent that Decimal does not support.
        return float(token)
    if exact == exact.to_integral_value():
        return exact
    if Decimal(repr(float(token))) != exact:
        raise ValueError("a float cannot hold it")
    return float(token)


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name occurs twice, which a dict cannot express")
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


def is_expressible(case: dict[str, Any]) -> bool:
    try:
        read(case["input"])
    except ValueError:
        return False
    return True


EXPRESSIBLE = [case for case in VECTORS["cases"] if is_expressible(case)]


def test_almost_every_case_can_be_expressed_by_python_objects() -> None:
    beyond = [case["description"] for case in VECTORS["cases"] if case not in EXPRESSIBLE]
    assert len(beyond) == 5 and all("fraction" in text or "half" in text for text in beyond), beyond


@pytest.mark.parametrize("case", EXPRESSIBLE, ids=lambda case: case["description"])
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
            # Not JSON, or a name that occurs twice: Python's own reader refuses it.
            beyond += 1
            continue
        with pytest.raises((InvalidInput, UnicodeEncodeError)):
            spec_of(case).identity((value,))
        refused += 1
    assert refused >= 20 and refused + beyond == len(VECTORS["refused"])
