"""Whether two values are the same, in type and in value, and where they differ."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import Any

_DEPTH = 100


def difference(first: Any, again: Any) -> str | None:
    """Where a value that was stored and read back differs from the original; `None` if it does not."""
    return _differs(first, again, "the result", _DEPTH)


def _differs(first: Any, again: Any, where: str, depth: int) -> str | None:
    if first is again:
        return None
    if type(first) is not type(again):
        return f"{where} is a {_kind(first)} and comes back as a {_kind(again)}"
    if depth == 0:
        return None
    kind = type(first)
    if kind is dict:
        return _members(first, again, where, depth)
    if isinstance(first, (list, tuple)):
        if len(first) != len(again):
            return f"{where} comes back with {len(again)} items, not {len(first)}"
        pairs = zip(first, again, strict=True)
        found = _first(_differs(one, other, f"{where}[{index}]", depth - 1) for index, (one, other) in enumerate(pairs))
        return found or _attributes(first, again, where, depth)
    if isinstance(first, datetime):
        return _moments(first, again, where)
    if kind is float and first != first and again != again:
        return None
    fields = _fields(first)
    if fields is not None:
        return _first(
            _differs(getattr(first, name, None), getattr(again, name, None), f"{where}.{name}", depth - 1)
            for name in fields
        ) or _attributes(first, again, where, depth)
    try:
        equal = bool(first == again)
    except Exception:
        equal = False
    return None if equal else f"{where} comes back as another {_kind(first)}"


def _members(first: dict[Any, Any], again: dict[Any, Any], where: str, depth: int) -> str | None:
    if list(first) != list(again) or any(type(a) is not type(b) for a, b in zip(first, again, strict=True)):
        return f"{where} comes back with other keys"
    return _first(_differs(first[name], again[name], f"{where}[{name!r}]", depth - 1) for name in first)


def _attributes(first: Any, again: Any, where: str, depth: int) -> str | None:
    """Compares what an object holds besides its fields."""
    own, theirs = getattr(first, "__dict__", {}), getattr(again, "__dict__", {})
    for part, words in (("private", "private attributes"), ("extra", "further fields")):
        held = [getattr(one, f"__pydantic_{part}__", None) or {} for one in (first, again)]
        if held[0] != held[1]:
            return f"{where} comes back without its {words}"
    if own.keys() != theirs.keys():
        return f"{where} comes back without {', '.join(sorted(map(str, own.keys() ^ theirs.keys())))}"
    return _first(_differs(own[name], theirs[name], f"{where}.{name}", depth - 1) for name in own)


def _moments(first: datetime, again: datetime, where: str) -> str | None:
    if first.replace(tzinfo=None) != again.replace(tzinfo=None) or first.fold != again.fold:
        return f"{where} comes back as another time"
    if type(first.tzinfo) is not type(again.tzinfo) or first.tzinfo != again.tzinfo:
        return f"{where} comes back in another zone: {again.tzinfo} and not {first.tzinfo}"
    return None


def _fields(value: Any) -> list[str] | None:
    kind = type(value)
    if dataclasses.is_dataclass(kind):
        return [one.name for one in dataclasses.fields(kind)]
    if isinstance(getattr(kind, "model_fields", None), dict):
        return list(kind.model_fields)
    if hasattr(kind, "__attrs_attrs__"):
        return [one.name for one in kind.__attrs_attrs__]
    return None


def _first(found: Any) -> str | None:
    return next((one for one in found if one is not None), None)


def _kind(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
