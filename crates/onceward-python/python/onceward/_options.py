"""The options of `once` and of single calls: their types, and what is wrong with them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union

from ._onceward import span_ms
from .errors import InvalidInput

if TYPE_CHECKING:
    from datetime import timedelta

    from ._codec import Codec

Span = Union[float, str, "timedelta"]
"""A duration: seconds, `"24h"`, or a timedelta."""
Effect = Literal["created", "updated", "deleted", "noop"]
Class = Literal["read", "idempotent", "keyed", "probed", "once"]
Label = str | int | Callable[..., str | int]
"""Text for all calls, or a function that gets the arguments of a call."""
Kinds = tuple[type[BaseException], ...] | type[BaseException]


class Terms(TypedDict, total=False):
    """The options that `once` and single calls share."""

    scope: Label | None
    occurrence: Label | None
    volatile: Sequence[str]
    effect: Effect | None
    class_: Class | None
    probe: Callable[..., Any] | None
    verify: Callable[..., Any] | None
    no_effect: Kinds
    known_failures: bool | None
    dispatch: Literal["begin", "marked"]
    retries: int | None
    backoff: Span | None
    attempts: int | None
    ttl: Span | None
    wait: Span | None
    lease: Span | None
    window: Span | None
    on_failure: Literal["retry", "replay"] | None
    on_expired: Literal["auto", "refuse", "rerun"] | None
    hold: Span | Literal["approve", "no"] | None
    verify_deadline: Span | None
    quarantine: Span | None
    codec: Codec | None


class Options(Terms, total=False):
    """The options of `once`, except `returns` and `dry_run`."""

    key: Sequence[str] | Callable[..., str | int] | None
    name: str | None
    undo: Callable[..., Any] | None


class CallOptions(Terms, total=False):
    """The options of a single call."""

    key: str | int | Sequence[str] | None
    undo: Callable[..., Any] | None


_WORDS: dict[str, tuple[str, ...]] = {
    "effect": ("created", "updated", "deleted", "noop"),
    "class_": ("read", "idempotent", "keyed", "probed", "once"),
    "dispatch": ("begin", "marked"),
    "on_failure": ("retry", "replay"),
    "on_expired": ("auto", "refuse", "rerun"),
    "returns": ("value", "receipt"),
}
_TERMS = {
    "effect": "effect", "class_": "class", "retries": "retries", "attempts": "attempts", "on_failure": "on_failure",
    "on_expired": "on_expired",
}  # fmt: skip
_SPANS = {
    "ttl": "retention_ms", "wait": "wait_ms", "lease": "lease_ms", "backoff": "backoff_ms",
    "window": "downstream_window_ms", "verify_deadline": "verify_deadline_ms",
    "quarantine": "quarantine_ms",
}  # fmt: skip
_KNOWN = (*Options.__annotations__, "returns", "dry_run")


def check(options: Mapping[str, Any]) -> None:
    """Refuses unknown options and invalid values."""
    for name in options:
        if name not in _KNOWN:
            near = difflib.get_close_matches(name, _KNOWN, 1)
            hint = f"did you mean {near[0]}=?" if near else f"it has {', '.join(sorted(_KNOWN))}"
            raise TypeError(f"once() has no option {name}=; {hint}")
    for name, words in _WORDS.items():
        said = options.get(name)
        if said is not None and said not in words:
            raise InvalidInput(f"{name}={said!r} is not one of {', '.join(words)}")
    for name in ("key", "volatile"):
        if isinstance(options.get(name), (str, bytes)):
            raise InvalidInput(f"{name} is the text {options[name]!r}; give the names of arguments in a list")
    for name in ("probe", "verify", "undo"):
        if options.get(name) is not None and not callable(options[name]):
            raise InvalidInput(f"{name} is {options[name]!r}; give a function")
    for name in ("retries", "attempts"):
        said = options.get(name)
        if said is not None and (type(said) is not int or said < 0):
            raise InvalidInput(f"{name} is {said!r}; give a number of tries")
    if options.get("scope") == "":
        raise InvalidInput("scope is empty: keys would be shared with every other caller; give an id, or leave it out")
    kinds(options)
    codec = options.get("codec")
    if codec is not None and not (
        callable(getattr(codec, "encode", None)) and callable(getattr(codec, "decode", None))
    ):
        raise InvalidInput(f"codec is {codec!r}; give an object with encode and decode")
    for name in _SPANS:
        if options.get(name) is not None:
            ms(options[name], name)
    if options.get("hold") is not None:
        _hold(options["hold"])


def kinds(options: Mapping[str, Any]) -> tuple[type[BaseException], ...]:
    """The exception classes in `no_effect`."""
    said = options.get("no_effect", ())
    named = (said,) if isinstance(said, type) else said
    try:
        listed = tuple(named)
    except TypeError:
        listed = (named,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in listed):
        raise InvalidInput(f"no_effect is {said!r}; give exception classes")
    return listed


def terms(options: Mapping[str, Any]) -> dict[str, Any]:
    """The operation's terms, for the native module."""
    said = {term: options[name] for name, term in _TERMS.items() if options.get(name) is not None}
    said |= {term: ms(options[name], name) for name, term in _SPANS.items() if options.get(name) is not None}
    if options.get("hold") is not None:
        said["hold"] = _hold(options["hold"])
    if options.get("probe") is not None:
        said.setdefault("class", "probed")
    return said


def _hold(said: Span) -> str:
    """How long a call is held, in the words of a policy."""
    return said if said in ("approve", "no") else f"{ms(said, 'hold')}ms"  # type: ignore[return-value]


def ms(span: Span, name: str = "the span") -> int:
    """A duration in milliseconds."""
    if isinstance(span, str):
        return span_ms(span)
    total = getattr(span, "total_seconds", None)
    if callable(total):
        seconds = float(total())
    elif isinstance(span, (int, float)) and not isinstance(span, bool):
        seconds = float(span)
    else:
        raise InvalidInput(f"{name} is {span!r}; give seconds, text such as '24h', or a timedelta")
    if not 0 <= seconds < 3_153_600_000:
        raise InvalidInput(f"{span!r} is not a duration of up to a hundred years")
    return round(seconds * 1000)
