"""Codecs: between what a function returns and plain data."""

from __future__ import annotations

import typing
from collections.abc import Callable
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Codec(Protocol):
    """Makes plain data of a result, and the result of plain data."""

    def encode(self, value: Any) -> object:
        """Plain data that stands for the value. To raise means: the result cannot be kept."""

    def decode(self, data: Any) -> object:
        """The value that the data stands for."""


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


def _adapter(kind: Any) -> Any:
    """Pydantic's own codec, where one of its models is meant."""
    if not any(hasattr(part, "__pydantic_core_schema__") for part in _parts(kind)):
        return None
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def of_function(function: Callable[..., object]) -> Annotated | None:
    """The codec that the return annotation asks for; `None` where plain data is enough."""
    if "return" not in getattr(function, "__annotations__", {}):
        return None
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
    marks = ("__dataclass_fields__", "__pydantic_core_schema__")
    return issubclass(kind, Enum) or any(hasattr(kind, mark) for mark in marks)


def _fields(value: Any) -> object:
    """Dataclasses and enums as what they are made of, at any depth."""
    fields = getattr(type(value), "__dataclass_fields__", None)
    if fields is not None:
        return {name: _fields(getattr(value, name)) for name in fields}
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
        return tuple(_build(part, item) for part, item in zip(kinds, data, strict=True))
    if origin is dict and type(data) is dict:
        return {name: _build(arguments[1], item) for name, item in data.items()}
    if not _is_class(kind):
        return data
    if issubclass(kind, Enum):
        return kind(data)
    hints = typing.get_type_hints(kind)
    fields = kind.__dataclass_fields__.values()
    return kind(**{field.name: _build(hints.get(field.name), data[field.name]) for field in fields if field.init})
