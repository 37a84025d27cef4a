"""JSON text and Python values. A value that JSON cannot express is written as a tagged object and restored from it.

This is a separate module because most programs that import the package do not need it at first, and imports are slow.
"""

from __future__ import annotations

import json
import typing
from collections.abc import Callable
from importlib import import_module
from typing import Any

_TAG = "$onceward"


def dumps(value: object) -> str:
    """JSON text from which `loads` restores an equal value. Raises TypeError or ValueError if there is none."""
    return json.dumps(_tagged(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def is_plain(value: object, depth: int = 64) -> bool:
    """Whether JSON expresses the value completely, so that it need not be read back and compared."""
    kind = type(value)
    if value is None or kind in (int, bool):
        return True
    if kind is str:
        return _is_unicode(typing.cast("str", value))
    if kind is float:
        return value == value and value not in (float("inf"), float("-inf"))
    if depth == 0:
        return False
    if kind is list:
        return all(is_plain(item, depth - 1) for item in typing.cast("list[object]", value))
    if kind is dict:
        members = typing.cast("dict[object, object]", value)
        return all(
            type(name) is str and not name.startswith(_TAG) and _is_unicode(name) and is_plain(item, depth - 1)
            for name, item in members.items()
        )
    return False


def _is_unicode(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def loads(text: str) -> object:
    """The value from which `dumps` made this text. Any other JSON is read as it is."""
    value = json.loads(text)
    return _untagged(value) if _TAG in text else value


def _tagged(value: object) -> object:
    kind = type(value)
    if value is None or kind in (int, bool):
        return value
    if kind is str:
        text = typing.cast("str", value)
        if _is_unicode(text):
            return text
        return {_TAG: "text", "value": _to_base64(text.encode("utf-8", "surrogatepass"))}
    if kind is float:
        finite = value == value and value not in (float("inf"), float("-inf"))
        return value if finite else {_TAG: "float", "value": repr(value)}
    if kind is list:
        return [_tagged(item) for item in typing.cast("list[object]", value)]
    if kind is dict:
        members = typing.cast("dict[object, object]", value)
        if _TAG not in members and all(type(name) is str and _is_unicode(name) for name in members):
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


def _moment(value: Any) -> object:
    zone = getattr(value.tzinfo, "key", None)
    if zone is None and not value.fold:
        return str(value.isoformat())
    naive = value.replace(tzinfo=None) if zone is not None else value
    return [str(naive.isoformat()), value.fold, zone]


def _from_moment(value: Any) -> object:
    made = import_module("datetime").datetime
    if isinstance(value, str):
        return made.fromisoformat(value)
    text, fold, zone = value
    moment = made.fromisoformat(text).replace(fold=fold)
    return moment.replace(tzinfo=import_module("zoneinfo").ZoneInfo(zone)) if zone is not None else moment


def _path(value: Any) -> str:
    return str(value)


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


# By the names of classes, so that none of their modules is imported before it is needed.
_WRITE: dict[str, Callable[[Any], object]] = {
    "builtins.tuple": _items,
    "builtins.set": _items,
    "builtins.frozenset": _items,
    "builtins.bytes": _to_base64,
    "builtins.bytearray": _to_base64,
    "builtins.complex": lambda value: [repr(value.real), repr(value.imag)],
    "builtins.range": lambda value: [value.start, value.stop, value.step],
    "builtins.slice": lambda value: [value.start, value.stop, value.step],
    "collections.OrderedDict": lambda value: [[_tagged(name), _tagged(item)] for name, item in value.items()],
    "collections.deque": lambda value: [_items(value), value.maxlen],
    "pathlib.PosixPath": _path,
    "pathlib._local.PosixPath": _path,
    "pathlib.PurePosixPath": _path,
    "pathlib._local.PurePosixPath": _path,
    "fractions.Fraction": lambda value: [value.numerator, value.denominator],
    "ipaddress.IPv4Address": str,
    "ipaddress.IPv6Address": str,
    "zoneinfo.ZoneInfo": lambda value: value.key,
    "datetime.datetime": _moment,
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
    "text": lambda value: _from_base64(value).decode("utf-8", "surrogatepass"),
    "complex": lambda value: complex(float(value[0]), float(value[1])),
    "range": lambda value: range(*value),
    "slice": lambda value: slice(*value),
    "OrderedDict": lambda value: import_module("collections").OrderedDict((name, item) for name, item in value),
    "deque": lambda value: import_module("collections").deque(value[0], value[1]),
    "PosixPath": _made_by("pathlib", "PosixPath"),
    "PurePosixPath": _made_by("pathlib", "PurePosixPath"),
    "Fraction": lambda value: import_module("fractions").Fraction(*value),
    "IPv4Address": _made_by("ipaddress", "IPv4Address"),
    "IPv6Address": _made_by("ipaddress", "IPv6Address"),
    "ZoneInfo": _made_by("zoneinfo", "ZoneInfo"),
    "datetime": _from_moment,
    "date": _made_by("datetime", "date.fromisoformat"),
    "time": _made_by("datetime", "time.fromisoformat"),
    "timedelta": lambda value: import_module("datetime").timedelta(*value),
    "Decimal": _made_by("decimal", "Decimal"),
    "UUID": _made_by("uuid", "UUID"),
}
