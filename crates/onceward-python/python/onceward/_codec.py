"""Codecs: convert between what a function returns and plain data."""

from __future__ import annotations

import contextlib
import dataclasses
import typing
from collections.abc import Callable
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Protocol, runtime_checkable

from ._json import dumps, loads
from ._same import difference

_OBJECT = "$onceward.object"


@runtime_checkable
class Codec(Protocol):
    """Converts a result to plain data and back."""

    def encode(self, value: Any) -> object:
        """Returns plain data for the value. An exception means that the result cannot be kept."""

    def decode(self, data: Any) -> object:
        """Returns the value for that plain data."""


class Annotated:
    """The codec of a function whose return annotation names classes: replays return objects of the same classes.

    If the fields alone do not identify the object (a subclass, one of several classes, an alias), the stored data also
    names its class and its state, and the object is rebuilt without calling its code, as `copy` and `pickle` do. Only
    classes that can be reached from the annotation are ever rebuilt.
    """

    def __init__(self, kind: object) -> None:
        self.kind = kind
        self._classes: dict[str, type] | None = None

    def encode(self, value: Any) -> object:
        """The fields of an object if the annotation determines its class; otherwise an object that names its class."""
        with contextlib.suppress(Exception):
            plain = _plain(value)
            if difference(value, _build(self.kind, loads(dumps(plain)))) is None:
                return plain
        encoded = self._encoded(value)
        # Mark data that does not match the annotation as plain data.
        return encoded if _mentions_objects(encoded) else {_OBJECT: "", "state": encoded}

    def decode(self, data: Any) -> object:
        if _mentions_objects(data):
            return self._decoded(data)
        # Settled by hand or by a probe: plain data instead of an object.
        return _build(self.kind, data)

    @property
    def classes(self) -> dict[str, type]:
        """The classes that can be reached from the annotation, and their subclasses, by name."""
        if self._classes is None:
            self._classes = {}
            for kind in _led_to(self.kind):
                self._add(kind)
        return self._classes

    def _add(self, kind: type) -> None:
        assert self._classes is not None
        if _name(kind) in self._classes:
            return
        self._classes[_name(kind)] = kind
        for inner in _led_to_by_fields(kind):
            self._add(inner)
        below: list[type] = type.__subclasses__(kind)
        for sub in below:
            if _is_class(sub):
                self._add(sub)

    def _class(self, name: str) -> type:
        if name not in self.classes:
            # Subclasses may have been defined in the meantime.
            self._classes = None
        return self.classes[name]

    def _encoded(self, value: Any) -> Any:
        kind = type(value)
        if kind in (list, tuple, set, frozenset):
            return kind(map(self._encoded, value)) if kind in (list, tuple) else value
        if kind is dict:
            return {name: self._encoded(item) for name, item in value.items()}
        if not _is_class(kind):
            return value
        if self.classes.get(_name(kind)) is not kind:
            self._classes = None
            if self.classes.get(_name(kind)) is not kind:
                raise TypeError(f"a {_name(kind)} does not match the return annotation")
        state = {part: self._encoded(held) for part, held in _state(value).items()}
        return {_OBJECT: _name(kind), "state": state}

    def _decoded(self, data: Any) -> Any:
        kind = type(data)
        if kind in (list, tuple):
            return kind(map(self._decoded, data))
        if kind is not dict:
            return data
        name = data.get(_OBJECT)
        if name is None or data.keys() != {_OBJECT, "state"}:
            return {key: self._decoded(item) for key, item in data.items()}
        if name == "":
            return self._decoded(data["state"])
        return _restored(self._class(name), {part: self._decoded(held) for part, held in data["state"].items()})


def of_function(function: Callable[..., object]) -> Annotated | None:
    """The codec for the function's return annotation; `None` if plain data is enough."""
    if "return" not in getattr(function, "__annotations__", {}):
        return None
    try:
        kind = typing.get_type_hints(function).get("return")
    except Exception:
        # An annotation that cannot be resolved needs no codec.
        return None
    if typing.get_origin(kind) is not None and any(
        getattr(typing.get_origin(kind), "__name__", "") == name for name in ("Coroutine", "Awaitable")
    ):
        kind = typing.get_args(kind)[-1]
    return Annotated(kind) if _led_to(kind) else None


def _led_to(kind: object) -> list[type]:
    """The classes that an annotation names: `list[Order] | None` names one."""
    found = [kind] if _is_class(kind) else []
    inner = [part for one in typing.get_args(kind) for part in _led_to(one)]
    bound = getattr(kind, "__bound__", None)
    origin = typing.get_origin(kind)
    if _is_class(origin):
        found.append(origin)
    return [*typing.cast("list[type]", found), *inner, *(_led_to(bound) if bound is not None else [])]


def _led_to_by_fields(kind: type) -> list[type]:
    try:
        hints = typing.get_type_hints(kind)
    except Exception:
        hints = getattr(kind, "__annotations__", {})
    return [inner for hint in hints.values() for inner in _led_to(hint)]


def _is_class(kind: object) -> bool:
    if not isinstance(kind, type):
        return False
    marks = ("__dataclass_fields__", "__pydantic_core_schema__", "__attrs_attrs__")
    named_tuple = issubclass(kind, tuple) and hasattr(kind, "_fields")
    return issubclass(kind, Enum) or named_tuple or any(hasattr(kind, mark) for mark in marks)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _state(value: Any) -> dict[str, Any]:
    """The state of an object."""
    kind = type(value)
    if isinstance(value, Enum):
        return {"value": value.value if value.name is None or "|" in value.name else None, "name": value.name}
    if isinstance(value, tuple):
        return {"items": list(value)}
    state: dict[str, Any] = {"fields": dict(getattr(value, "__dict__", {}))}
    if hasattr(kind, "__pydantic_fields_set__") or hasattr(value, "__pydantic_fields_set__"):
        state["extra"] = value.__pydantic_extra__
        state["set"] = sorted(value.__pydantic_fields_set__)
        private = value.__pydantic_private__
        state["private"] = dict(private) if private is not None else None
        return state
    for slot in _slots(kind):
        if hasattr(value, slot):
            state["fields"][slot] = getattr(value, slot)
    return state


def _plain(value: Any) -> Any:
    """The fields of objects, at any depth."""
    kind = type(value)
    if kind in (list, tuple):
        return kind(map(_plain, value))
    if kind is dict:
        return {name: _plain(item) for name, item in value.items()}
    if not _is_class(kind):
        return value
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, tuple):
        return {name: _plain(item) for name, item in zip(kind._fields, value, strict=True)}
    return {name: _plain(held) for name, held in _state(value)["fields"].items()}


def _slots(kind: type) -> list[str]:
    names: list[str] = []
    for parent in kind.__mro__:
        slots = parent.__dict__.get("__slots__", ())
        names.extend([slots] if isinstance(slots, str) else slots)
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def _restored(kind: Any, state: dict[str, Any]) -> Any:
    if issubclass(kind, Enum):
        return kind[state["name"]] if state["value"] is None else kind(state["value"])
    if issubclass(kind, tuple):
        return kind._make(state["items"])
    made = object.__new__(kind)
    if "set" in state:
        made.__setstate__(
            {
                "__dict__": state["fields"],
                "__pydantic_extra__": state["extra"],
                "__pydantic_fields_set__": set(state["set"]),
                "__pydantic_private__": state["private"],
            }
        )
        return made
    for name, value in state["fields"].items():
        object.__setattr__(made, name, value)
    return made


def _mentions_objects(data: Any) -> bool:
    if type(data) in (list, tuple):
        return any(map(_mentions_objects, data))
    return type(data) is dict and (_OBJECT in data or any(map(_mentions_objects, data.values())))


# Decoding plain data that does not name its class.


def _build(kind: Any, data: Any) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, UnionType):
        return _build_one_of(arguments, data)
    if origin is list and type(data) is list:
        return [_build(arguments[0], item) for item in data]
    if origin is tuple and type(data) in (tuple, list):
        kinds = [arguments[0]] * len(data) if arguments[-1] is Ellipsis else list(arguments)
        return tuple(_build(part, item) for part, item in zip(kinds, data, strict=True))
    if origin is dict and type(data) is dict:
        return {name: _build(arguments[1], item) for name, item in data.items()}
    if not _is_class(kind) or data is None:
        return data
    if issubclass(kind, Enum):
        return kind(data)
    if hasattr(kind, "model_validate"):
        return kind.model_validate(data)
    if not isinstance(data, dict):
        raise TypeError(f"the stored result is a {type(data).__name__}, not the fields of a {_name(kind)}")
    hints = typing.get_type_hints(kind)
    names = [one.name for one in dataclasses.fields(kind) if one.init] if dataclasses.is_dataclass(kind) else list(data)
    return kind(**{name: _build(hints.get(name), data[name]) for name in names})


def _build_one_of(kinds: tuple[Any, ...], data: Any) -> Any:
    if data is None and NoneType in kinds:
        return None
    plain = [kind for kind in kinds if isinstance(kind, type) and not _is_class(kind)]
    if type(data) in plain:
        return data
    for kind in kinds:
        if kind is not NoneType:
            with contextlib.suppress(Exception):
                return _build(kind, data)
    return data
