"""Results as JSON and back. What JSON cannot say is written as a tagged object and comes back as it was."""

from __future__ import annotations

import base64
import dataclasses
import json
import typing
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

_TAG = "$onceward"


@runtime_checkable
class Codec(Protocol):
    """Makes plain data of a result, and the result of plain data."""

    def encode(self, value: Any) -> object:
        """Plain data that stands for the value. To raise means: the result cannot be kept."""

    def decode(self, data: Any) -> object:
        """The value that the data stands for."""


def dumps(value: object) -> str:
    """JSON text from which `loads` makes an equal value. Raises TypeError or ValueError where there is none."""
    return json.dumps(_tagged(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def loads(text: str) -> object:
    """The value that `dumps` made this text of. Any other JSON is read as it is."""
    value = json.loads(text)
    return _untagged(value) if _TAG in text else value


def _tagged(value: object) -> object:
    kind = type(value)
    if value is None or kind in (str, int, bool):
        return value
    if kind is float:
        finite = value == value and value not in (float("inf"), float("-inf"))
        return value if finite else {_TAG: "float", "value": repr(value)}
    if kind is list:
        return [_tagged(item) for item in typing.cast("list[object]", value)]
    if kind is dict:
        members = typing.cast("dict[object, object]", value)
        if _TAG not in members and all(type(name) is str for name in members):
            return {name: _tagged(item) for name, item in members.items()}
        return {_TAG: "dict", "value": [[_tagged(name), _tagged(item)] for name, item in members.items()]}
    write = _WRITE.get(kind)
    if write is None:
        raise TypeError(f"a {kind.__module__}.{kind.__qualname__} cannot be written as JSON")
    return {_TAG: kind.__name__, "value": write(value)}


def _untagged(value: Any) -> Any:
    if type(value) is list:
        return [_untagged(item) for item in value]
    if type(value) is not dict:
        return value
    kind = value.get(_TAG)
    read = _READ.get(kind) if isinstance(kind, str) else None
    if read is None:
        return {name: _untagged(item) for name, item in value.items()}
    return read(_untagged(value["value"]))


def _items(value: Any) -> list[object]:
    return [_tagged(item) for item in value]


_WRITE: dict[type, Callable[[Any], object]] = {
    tuple: _items,
    set: _items,
    frozenset: _items,
    bytes: lambda value: base64.b64encode(value).decode("ascii"),
    bytearray: lambda value: base64.b64encode(value).decode("ascii"),
    datetime: datetime.isoformat,
    date: date.isoformat,
    time: time.isoformat,
    timedelta: lambda value: [value.days, value.seconds, value.microseconds],
    Decimal: str,
    UUID: str,
}

_READ: dict[str, Callable[[Any], object]] = {
    "float": float,
    "dict": lambda value: {name: item for name, item in value},
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "bytes": base64.b64decode,
    "bytearray": lambda value: bytearray(base64.b64decode(value)),
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
    "timedelta": lambda value: timedelta(*value),
    "Decimal": Decimal,
    "UUID": UUID,
}


class Annotated:
    """The codec of a function whose return annotation names classes: they come back as what they were."""

    def __init__(self, kind: object) -> None:
        self.kind = kind
        self._adapter = _adapter(kind)

    def encode(self, value: Any) -> object:
        if self._adapter is not None:
            return self._adapter.dump_python(value, mode="json")
        return _fields(value)

    def decode(self, data: Any) -> object:
        if self._adapter is not None:
            return self._adapter.validate_python(data)
        return _build(self.kind, data)


def _adapter(kind: object) -> Any:
    """Pydantic's own codec, where one of its models is meant."""
    if not any(hasattr(part, "__pydantic_core_schema__") for part in _parts(kind)):
        return None
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def of_function(function: Callable[..., object]) -> Annotated | None:
    """The codec that the return annotation asks for; `None` where plain data is enough."""
    try:
        kind = typing.get_type_hints(function).get("return")
    except Exception:
        # An annotation that cannot be read asks for nothing.
        return None
    return Annotated(kind) if any(_is_class(part) for part in _parts(kind)) else None


def _parts(kind: object) -> list[object]:
    """The kind and all that it is made of: `list[Order] | None` has four."""
    return [kind, *(part for inner in typing.get_args(kind) for part in _parts(inner))]


def _is_class(kind: object) -> bool:
    if not isinstance(kind, type):
        return False
    return dataclasses.is_dataclass(kind) or issubclass(kind, Enum) or hasattr(kind, "__pydantic_core_schema__")


def _fields(value: Any) -> object:
    """Dataclasses and enums as what they are made of, at any depth."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _fields(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return _fields(value.value)
    if type(value) in (list, tuple):
        return type(value)(_fields(item) for item in value)
    if type(value) is dict:
        return {name: _fields(item) for name, item in value.items()}
    return value


def _build(kind: Any, data: Any) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, UnionType):
        return None if data is None else _build(next(part for part in arguments if part is not NoneType), data)
    if origin is list and type(data) is list:
        return [_build(arguments[0], item) for item in data]
    if origin is tuple and type(data) is tuple:
        kinds = [arguments[0]] * len(data) if arguments[-1] is Ellipsis else list(arguments)
        return tuple(_build(part, item) for part, item in zip(kinds, data))
    if origin is dict and type(data) is dict:
        return {name: _build(arguments[1], item) for name, item in data.items()}
    if not _is_class(kind):
        return data
    if issubclass(kind, Enum):
        return kind(data)
    hints = typing.get_type_hints(kind)
    made = {field.name: _build(hints.get(field.name), data[field.name]) for field in dataclasses.fields(kind) if field.init}
    return kind(**made)
