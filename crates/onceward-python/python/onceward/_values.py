"""Converts values that are not JSON for use in a key. The native module calls this for all types that are not plain."""

from __future__ import annotations

import base64
import dataclasses
import os
from collections.abc import Mapping, Set
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from ._identity import class_name
from ._onceward import canonical


def plain(value: object) -> object:
    """The plain value for `value`. Raises TypeError if there is none."""
    own = getattr(type(value), "__onceward__", None)
    if own is not None and not isinstance(value, type):
        return own(value)
    if isinstance(value, Enum):
        return {"$class": class_name(type(value)), "value": value.value}
    if isinstance(value, (str, int, float)):
        return _builtin(value)
    if isinstance(value, Decimal):
        return _decimal(value)
    if isinstance(value, (datetime, date, time, timedelta)):
        return _time(value)
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return _container(value)


def _builtin(value: str | int | float) -> object:
    """The plain value of an instance of a subclass of a plain type."""
    if isinstance(value, str):
        return str.__str__(value)
    return int(value) if isinstance(value, int) else float(value)


def _decimal(value: Decimal) -> object:
    if not value.is_finite():
        raise TypeError(f"is the decimal {value}, which is not a finite number")
    if value == value.to_integral_value():
        return int(value)
    # A float of the same value has the same key. A number with more digits than a float can hold is written as text.
    nearest = float(value)
    return nearest if Decimal(repr(nearest)) == value else format(value.normalize(), "f")


def _time(value: datetime | date | time | timedelta) -> object:
    if isinstance(value, timedelta):
        return _decimal(Decimal(value // timedelta(microseconds=1)) / 1_000_000)
    if isinstance(value, datetime) and value.tzinfo is not None:
        # One moment in time is one text, in whichever zone it was given.
        moment = value.astimezone(timezone.utc).replace(tzinfo=None)
        return _no_trailing_zeros(moment.isoformat()) + "Z"
    return _no_trailing_zeros(value.isoformat())


def _no_trailing_zeros(text: str) -> str:
    return text.rstrip("0") if "." in text and text[-7:-6] == "." else text


def _container(value: object) -> object:
    if not isinstance(value, type):
        fields = _fields(value)
        if fields is not None:
            # Two classes with the same fields are different.
            return {"$class": class_name(type(value)), **fields}
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, list):
        return list.copy(value)
    if isinstance(value, Set):
        return sorted(value, key=canonical)
    if not isinstance(value, type):
        secret = getattr(value, "get_secret_value", None)
        if callable(secret):
            return secret()
        if type(value).__module__.partition(".")[0] == "numpy":
            return value.tolist()  # type: ignore[attr-defined]
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise TypeError(
        f"is a {kind}, which has more than one possible JSON form; name the argument in volatile=, "
        "or give the class a method __onceward__() that returns what identifies it"
    )


def _fields(value: Any) -> dict[str, object] | None:
    """All declared fields of an object, including those that it omits when it is serialized."""
    kind = type(value)
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    declared = getattr(kind, "model_fields", None)
    if isinstance(declared, dict) and callable(getattr(value, "model_dump", None)):
        extra = getattr(value, "__pydantic_extra__", None) or {}
        return {**{name: getattr(value, name) for name in declared}, **extra}
    attributes = getattr(kind, "__attrs_attrs__", None)
    if attributes is not None:
        return {attribute.name: getattr(value, attribute.name) for attribute in attributes}
    names = getattr(kind, "_fields" if isinstance(value, tuple) else "__struct_fields__", None)
    return {name: getattr(value, name) for name in names} if isinstance(names, tuple) else None


def reduced_receipt(kind: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """The pickled form of a receipt. A value or decoder that cannot be pickled is left out."""
    import pickle

    kept = list(given)
    for place in (-2, -1):
        try:
            pickle.dumps(kept[place])
        except Exception:
            kept[place] = None
    return kind._restored, tuple(kept)
