"""Results as JSON and back. What JSON cannot say is written as a tagged object and comes back as it was."""

from __future__ import annotations

import json
import typing
from collections.abc import Callable
from enum import Enum
from importlib import import_module
from types import NoneType, UnionType
from typing import Any, Protocol, runtime_checkable

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
    write = _WRITE.get(f"{kind.__module__}.{kind.__qualname__}")
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


def _isoformat(value: Any) -> str:
    return str(value.isoformat())


def _to_base64(value: bytes) -> str:
    return str(import_module("base64").b64encode(value).decode("ascii"))


def _from_base64(text: str) -> bytes:
    return bytes(import_module("base64").b64decode(text))


def _made_by(module: str, name: str) -> Callable[[Any], object]:
    """A constructor that is imported when it is needed: most results need none, and imports are slow."""

    def make(value: Any) -> object:
        made: Any = import_module(module)
        for part in name.split("."):
            made = getattr(made, part)
        return made(value)

    return make


# By the names of classes, so that none of their modules is imported before a value of one comes by.
_WRITE: dict[str, Callable[[Any], object]] = {
    "builtins.tuple": _items,
    "builtins.set": _items,
    "builtins.frozenset": _items,
    "builtins.bytes": _to_base64,
    "builtins.bytearray": _to_base64,
    "datetime.datetime": _isoformat,
    "datetime.date": _isoformat,
    "datetime.time": _isoformat,
    "datetime.timedelta": lambda value: [value.days, value.seconds, value.microseconds],
    "decimal.Decimal": str,
    "uuid.UUID": str,
}

_READ: dict[str, Callable[[Any], object]] = {
    "float": float,
    "dict": lambda value: {name: item for name, item in value},
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "bytes": _from_base64,
    "bytearray": lambda value: bytearray(_from_base64(value)),
    "datetime": _made_by("datetime", "datetime.fromisoformat"),
    "date": _made_by("datetime", "date.fromisoformat"),
    "time": _made_by("datetime", "time.fromisoformat"),
    "timedelta": lambda value: import_module("datetime").timedelta(*value),
    "Decimal": _made_by("decimal", "Decimal"),
    "UUID": _made_by("uuid", "UUID"),
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
        return tuple(_build(part, item) for part, item in zip(kinds, data))
    if origin is dict and type(data) is dict:
        return {name: _build(arguments[1], item) for name, item in data.items()}
    if not _is_class(kind):
        return data
    if issubclass(kind, Enum):
        return kind(data)
    hints = typing.get_type_hints(kind)
    fields = kind.__dataclass_fields__.values()
    return kind(**{field.name: _build(hints.get(field.name), data[field.name]) for field in fields if field.init})
