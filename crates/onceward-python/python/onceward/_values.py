"""Converts values that are not JSON for use in a key. The native module calls this for all types that are not plain."""

from __future__ import annotations

import base64
import dataclasses
import os
from collections import UserDict
from collections.abc import Mapping, Set
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from importlib import import_module
from pathlib import PurePath
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
    _refuse_state(value)
    if _is_numpy(value):
        return _numpy(value)
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


# Types whose plain value is complete. A subclass that adds attributes means more than that value.
_COMPLETE = (
    str, int, float, Decimal, dict, UserDict, list, tuple, set, frozenset, bytes, bytearray, date, time, timedelta,
    UUID, PurePath,
)  # fmt: skip


def _refuse_state(value: Any) -> None:
    """Refuses an object whose attributes would be lost, and with them what distinguishes it."""
    kind = type(value)
    declared = "__dataclass_fields__" in kind.__dict__ or "__attrs_attrs__" in kind.__dict__
    if isinstance(value, type) or declared or kind.__module__ in _STANDARD or kind.__module__.startswith("pandas"):
        # pandas keeps parts of a time in attributes, which say nothing else.
        return
    inherits = hasattr(kind, "__dataclass_fields__") or hasattr(kind, "__attrs_attrs__")
    if not inherits and not isinstance(value, _COMPLETE):
        return
    known = set(_fields(value) or ()) if inherits else {"data"} if isinstance(value, UserDict) else set()
    slots = [name for parent in kind.__mro__ for name in _own_slots(parent)]
    own = [name for name in (*getattr(value, "__dict__", ()), *slots) if name not in known]
    if own:
        raise TypeError(
            f"is a {kind.__module__}.{kind.__qualname__}, whose attributes ({', '.join(own)}) are not part of its "
            "plain value; give the class a method __onceward__() that returns what identifies it, or pass the parts "
            "as arguments of their own"
        )


_STANDARD = frozenset({"builtins", "collections", "datetime", "decimal", "pathlib", "pathlib._local", "uuid"})


def _own_slots(kind: type) -> list[str]:
    if kind.__module__ in _STANDARD:
        return []
    slots = kind.__dict__.get("__slots__", ())
    return [name for name in ([slots] if isinstance(slots, str) else slots) if not name.startswith("__")]


def _is_numpy(value: object) -> bool:
    return not isinstance(value, type) and type(value).__module__.partition(".")[0] == "numpy"


# The length of a numpy unit in seconds, as a factor and a power of ten. Months and years have no fixed length.
_UNITS = {"W": (604_800, 0), "D": (86_400, 0), "h": (3_600, 0), "m": (60, 0), "s": (1, 0), "ms": (1, -3), "us": (1, -6),
          "ns": (1, -9), "ps": (1, -12), "fs": (1, -15), "as": (1, -18)}  # fmt: skip


def _numpy(value: Any) -> object:
    kind = value.dtype.kind
    if kind not in "mM":
        return value.tolist()
    if getattr(value, "ndim", 0):
        return list(value)
    # Of an array without dimensions, its only item. `tolist` drops the unit of spans, and of moments in nanoseconds.
    value = value[()]
    if str(value) == "NaT":
        raise TypeError("is NaT, which is no time")
    unit, count = import_module("numpy").datetime_data(value.dtype)
    if kind == "M":
        # One moment has one text, whatever its unit; a date stays a date.
        coarse = {"Y": "D", "M": "D", "W": "D", "h": "s", "m": "s"}.get(unit)
        text = str(value.astype(f"datetime64[{coarse}]") if coarse else value)
        return text.rstrip("0").rstrip(".") if "." in text else text
    if unit not in _UNITS:
        raise TypeError("is a span in months or years, or without a unit, which has no fixed length in seconds")
    factor, power = _UNITS[unit]
    return _decimal((Decimal(int(value.astype("int64"))) * (count * factor)).scaleb(power))


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
        # pandas counts nanoseconds as well.
        nanoseconds = getattr(value, "nanoseconds", 0)
        return _decimal((Decimal(value // timedelta(microseconds=1)) * 1000 + nanoseconds).scaleb(-9))
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
