"""From what was said of a function to the function under guard."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Union

from . import _codec
from ._guard import Guard
from ._onceward import Plan, Receipt, Spec, span_ms
from .errors import InvalidInput

if TYPE_CHECKING:
    import inspect
    from datetime import timedelta

    from ._ledger import Ledger

Span = Union[float, str, "timedelta"]
"""A span of time: seconds, `"24h"`, or a timedelta."""

# What `once` takes beside what makes the terms of an operation.
_OPTIONS = {
    "key", "name", "scope", "occurrence", "volatile", "probe", "verify", "no_effect", "dispatch", "codec", "returns",
    "dry_run",
}  # fmt: skip
_TERMS = {
    "effect": "effect", "class_": "class", "retries": "retries", "attempts": "attempts", "on_failure": "on_failure",
    "on_expired": "on_expired",
}  # fmt: skip
_SPANS = {
    "ttl": "retention_ms", "wait": "wait_ms", "lease": "lease_ms", "backoff": "backoff_ms",
    "window": "downstream_window_ms", "verify_deadline": "verify_deadline_ms",
}  # fmt: skip


def check(options: Mapping[str, Any]) -> None:
    known = _OPTIONS | _TERMS.keys() | _SPANS.keys()
    unknown = sorted(options.keys() - known)
    if unknown:
        raise TypeError(f"once() has no option {', '.join(unknown)}; it has {', '.join(sorted(known))}")
    if options.get("returns", "value") not in ("value", "receipt"):
        raise InvalidInput(f"returns is {options['returns']!r}; it is 'value' or 'receipt'")
    if options.get("dispatch", "begin") not in ("begin", "marked"):
        raise InvalidInput(f"dispatch is {options['dispatch']!r}; it is 'begin' or 'marked'")
    if isinstance(options.get("key"), str):
        raise InvalidInput(f"key is the text {options['key']!r}; give the names of arguments in a list, or a function")


def _terms(options: Mapping[str, Any]) -> dict[str, Any]:
    terms = {term: options[name] for name, term in _TERMS.items() if options.get(name) is not None}
    terms |= {term: ms(options[name]) for name, term in _SPANS.items() if options.get(name) is not None}
    if options.get("probe") is not None:
        terms.setdefault("class", "probed")
    return terms


def wrap(ledger: Ledger, function: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """The function under guard: a function, or a coroutine function where it was one."""
    import inspect

    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{function.__qualname__} is a generator: guard a function that returns when it is done")
    guard = guard_of(ledger, function, options)
    run, run_async = guard.run, guard.run_async

    def plan(*args: Any, **kwargs: Any) -> Plan:
        return guard.plan(args, kwargs)

    def receipt(*args: Any, **kwargs: Any) -> Receipt:
        return run(args, kwargs)

    def value(*args: Any, **kwargs: Any) -> Any:
        return run(args, kwargs).value

    async def receipt_async(*args: Any, **kwargs: Any) -> Receipt:
        return await run_async(args, kwargs)

    async def value_async(*args: Any, **kwargs: Any) -> Any:
        return (await run_async(args, kwargs)).value

    by_receipt, by_value = receipt, value
    if inspect.iscoroutinefunction(function):
        by_receipt, by_value = receipt_async, value_async  # type: ignore[assignment]
    if options.get("dry_run"):
        by_receipt = by_value = plan  # type: ignore[assignment]
    guarded: Any = functools.wraps(function)(by_receipt if options.get("returns") == "receipt" else by_value)
    guarded.receipt = by_receipt
    guarded.plan = plan
    guarded.identity = lambda *args, **kwargs: guard.spec.identity(args, kwargs)
    guarded.occurrence = lambda label: wrap(ledger, function, {**options, "occurrence": label})
    guarded.operation_name = guard.spec.name
    return guarded


def guard_of(ledger: Ledger, function: Callable[..., Any], options: Mapping[str, Any]) -> Guard:
    """The guard of a function whose arguments are its inputs."""
    import inspect

    key = options.get("key")
    asked = key if callable(key) else None
    volatile = list(options.get("volatile", ()))
    signature = inspect.signature(function)
    codec = options.get("codec") or _codec.of_function(function)
    spec = Spec(
        options.get("name") or _name(function),
        scope=options.get("scope"),
        key=asked,
        key_fields=list(key or ()) if asked is None else [],
        volatile=volatile,
        occurrence=options.get("occurrence"),
        params=_rows(signature, volatile),
        bind=signature.bind,
        nfc=ledger._nfc,
        terms=_terms(options),
        policy=ledger._policy,
        decode=codec.decode if codec is not None else None,
    )
    return Guard(ledger._handle, spec, function, **_actors(options), codec=codec)


def single(ledger: Ledger, name: str, function: Callable[..., Any], options: Mapping[str, Any]) -> Guard:
    """The guard of one call that is made of a name, its inputs and a function."""
    known = options.get("key")
    fields = [] if known is None or isinstance(known, (str, int)) else list(known)
    check({**options, "key": None})
    codec = options.get("codec") or _codec.of_function(function)
    spec = Spec(
        name,
        scope=options.get("scope"),
        key=known if not fields else None,
        key_fields=fields,
        volatile=list(options.get("volatile", ())),
        occurrence=options.get("occurrence"),
        nfc=ledger._nfc,
        terms=_terms(options),
        policy=ledger._policy,
        decode=codec.decode if codec is not None else None,
    )
    actors = _actors(options)
    for question in ("probe", "verify"):
        if actors[question] is not None:
            actors[question] = _with_inputs(actors[question], leading=int(question == "verify"))
    return Guard(ledger._handle, spec, _with_inputs(function), **actors, codec=codec)


def _actors(options: Mapping[str, Any]) -> dict[str, Any]:
    no_effect = options.get("no_effect", ())
    return {
        "probe": options.get("probe"),
        "verify": options.get("verify"),
        "no_effect": no_effect if isinstance(no_effect, tuple) else (no_effect,),
        "marked": options.get("dispatch") == "marked",
    }


def _with_inputs(function: Callable[..., Any], leading: int = 0) -> Callable[..., Any]:
    """A function that is called with the inputs as its named arguments; one that takes none is called with none."""
    import inspect

    try:
        takes = len(inspect.signature(function).parameters) > leading
    except (TypeError, ValueError):
        takes = True

    def called(*args: Any) -> Any:
        *before, inputs = args
        if not takes:
            return function(*before)
        return function(*before, **inputs) if isinstance(inputs, Mapping) else function(*before, inputs)

    return called


def _rows(signature: inspect.Signature, volatile: Sequence[str]) -> list[tuple[str, int, bool, tuple[Any] | None]]:
    """The table of parameters that the native half binds calls by."""
    rows = []
    for index, (name, parameter) in enumerate(signature.parameters.items()):
        owner = index == 0 and name in ("self", "cls")
        default = None if parameter.default is parameter.empty else (parameter.default,)
        rows.append((name, int(parameter.kind), not owner and name not in volatile, default))
    return rows


def _name(function: Callable[..., Any]) -> str:
    """The function's module and name. A script is called as it would be if it were imported."""
    module = getattr(function, "__module__", None) or ""
    if module in ("__main__", "__mp_main__"):
        main = sys.modules.get(module)
        spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        stem = os.path.splitext(os.path.basename(path))[0] if path else ""
        module = spec.name if spec is not None else stem
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    name = name.replace("<locals>.", "")
    return f"{module}.{name}" if module else name


def ms(span: Span) -> int:
    if isinstance(span, str):
        return span_ms(span)
    seconds = float(span) if isinstance(span, (int, float)) else span.total_seconds()
    if not 0 <= seconds < 3_153_600_000:
        raise InvalidInput(f"{span!r} is not a span of time of up to a hundred years")
    return round(seconds * 1000)
