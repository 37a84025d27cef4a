"""The ledger: guard functions, make single calls, look at records and settle them."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeVar, Union, cast, overload

from . import _codec
from ._dedupe import Dedupe
from ._guard import Guard
from ._onceward import Handle, Plan, Receipt, Record, Spec, span_ms
from ._session import Session
from .errors import InvalidInput

if TYPE_CHECKING:
    import inspect
    from datetime import timedelta

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
F = TypeVar("F", bound=Callable[..., Any])

Effect = Literal["created", "updated", "deleted", "noop"]
Class = Literal["read", "idempotent", "keyed", "probed", "once"]
Span = Union[float, str, "timedelta"]
"""A span of time: seconds, `"24h"`, or a timedelta."""
Label = str | int | Callable[..., str | int]
"""Text for all calls, or a function that is given the arguments of a call."""

_handles: weakref.WeakSet[Handle] = weakref.WeakSet()


class OnceFunction(Protocol[P, R_co]):
    """A guarded function. It is called as it was before."""

    __wrapped__: Callable[..., Any]
    __name__: str

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Lets the call happen once, and gives what the function returned."""

    def __get__(self, instance: Any, owner: Any = None) -> Callable[..., R_co]: ...

    def receipt(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """The same call; gives the receipt (of a coroutine function: to be awaited)."""

    def plan(self, *args: P.args, **kwargs: P.kwargs) -> Plan:
        """What the call would come to. Nothing is run or written."""

    def identity(self, *args: P.args, **kwargs: P.kwargs) -> tuple[str, str, str]:
        """The key, the fingerprint and the id of the call."""

    def occurrence(self, label: str | int) -> Callable[P, R_co]:
        """The same action, wanted again: 2, 3, … or any label."""


class Ledger:
    """The ledger between intent and effect, in this process.

    `url` is a path, `sqlite:PATH`, `postgres://…`, `redis://…` or `memory:`. It is opened when it is first used.
    `policy` is the path of an `onceward.toml`. With `nfc`, two spellings of one text (é, e + ´) are one.
    """

    def __init__(self, url: str | os.PathLike[str], *, policy: str | os.PathLike[str] | None = None, nfc: bool = False) -> None:
        self.url = _url(url)
        self._nfc = nfc
        self._policy = _text(policy) if policy is not None else None
        self._handle = Handle(self.url)
        _handles.add(self._handle)

    @overload
    def once(self, function: Callable[P, R], /) -> OnceFunction[P, R]: ...

    @overload
    def once(
        self,
        *,
        key: Sequence[str] | Callable[..., str | int] | None = None,
        name: str | None = None,
        scope: Label | None = None,
        occurrence: Label | None = None,
        volatile: Sequence[str] = (),
        effect: Effect | None = None,
        class_: Class | None = None,
        probe: Callable[..., Any] | None = None,
        verify: Callable[..., Any] | None = None,
        no_effect: tuple[type[BaseException], ...] | type[BaseException] = (),
        dispatch: Literal["begin", "marked"] = "begin",
        retries: int | None = None,
        backoff: Span | None = None,
        attempts: int | None = None,
        ttl: Span | None = None,
        wait: Span | None = None,
        lease: Span | None = None,
        window: Span | None = None,
        on_failure: Literal["retry", "replay"] | None = None,
        on_expired: Literal["auto", "refuse", "rerun"] | None = None,
        verify_deadline: Span | None = None,
        codec: _codec.Codec | None = None,
        returns: Literal["value"] = "value",
        dry_run: Literal[False] = False,
    ) -> Callable[[Callable[P, R]], OnceFunction[P, R]]: ...

    @overload
    def once(
        self, *, returns: Literal["value", "receipt"] = ..., dry_run: bool = ..., **options: Any
    ) -> Callable[[Callable[P, Any]], OnceFunction[P, Any]]: ...

    def once(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Lets each call of the function happen once, however often it is made. For functions and coroutines.

        - `key`: the arguments that identify the action (all of them by default), or a function that is given the
          arguments and returns the key.
        - `name`: what is done, the same in every version of the code; by default the function's module and name.
        - `scope`: who shares the key. `occurrence`: the same action, wanted again.
        - `volatile`: arguments that may differ between a call and its retry, and need not be JSON.
        - `effect`: what a success changes. `class_`: what may be done when it is in doubt.
        - `probe`: asked with the arguments whether it happened: True, False, None (cannot tell) or `Yes(result)`.
        - `verify`: asked with the result and the arguments whether it is so: True, False or None (not yet).
        - `no_effect`: exceptions that are certain to have had no effect.
        - `dispatch="marked"`: the function says itself when the request leaves (`current_operation().dispatched()`).
        - `retries`, `backoff`: how often one call tries again after a certain failure. `attempts`: the budget in all.
        - `ttl`: how long a result is replayed. `wait`: how long to wait for another caller. `lease`, `window`.
        - `codec`: makes plain data of the result and back. `returns="receipt"`: give the receipt, not the value.
        - `dry_run=True`: give the plan of each call; run and write nothing.
        """
        if function is not None:
            return _wrap(self, function, {})
        _check(options)
        return functools.partial(_wrap, self, options=options)

    def call(self, name: str, inputs: object, function: Callable[..., Any], **options: Any) -> Receipt:
        """Lets one call happen once: the function gets the inputs as named arguments (none, where it takes none).

        The options are those of `once`; `key` is here the key itself. Gives the receipt.
        """
        guard = _single(self, name, function, options)
        return guard.run((inputs,), None)

    async def acall(self, name: str, inputs: object, function: Callable[..., Any], **options: Any) -> Receipt:
        """The same for a coroutine function."""
        guard = _single(self, name, function, options)
        return await guard.run_async((inputs,), None)

    def session(self, id: str) -> Session:
        """The ledger with keys that are shared within one session, run or conversation, and with nobody else."""
        return Session(self, id)

    def ensure(
        self, check: Callable[P, Any], act: Callable[P, R], **options: Any
    ) -> OnceFunction[P, R]:
        """Check-then-act, without the race: a function that acts unless `check` finds that it is so already.

        `check` is called with the same arguments and returns what is there, or `None`. It is asked under the ledger's
        guard, so of two callers one acts; and again when it is in doubt whether an earlier call acted.
        """
        from ._ensure import ensured

        return cast("OnceFunction[P, R]", ensured(self, check, act, options))

    def dedupe(self, event_id: str, *, source: str = "webhook", scope: str | None = None, ttl: Span = "30d") -> Dedupe:
        """An event that may be delivered more than once: `with ledger.dedupe(id) as event: if event.new: …`.

        It counts as handled only if the block ends without an error. As a condition (`if ledger.dedupe(id):`) it is
        true the first time, and counts as handled at once.
        """
        terms = {"class": "idempotent", "effect": "updated", "retention_ms": _ms(ttl)}
        spec = Spec(f"event {source}", key=event_id, scope=scope, terms=terms, policy=self._policy)
        return Dedupe(self._handle, spec)

    def operations(
        self,
        *,
        state: str | Sequence[str] = (),
        name: str | None = None,
        scope: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Record]:
        """The operations, newest first: all, or those in a state, of a name, of a scope."""
        states = [state] if isinstance(state, str) else list(state)
        before: int | None = None
        left = sys.maxsize if limit is None else limit
        while left > 0:
            page = self._handle.list(scope=scope, name=name, states=states, before=before, limit=min(left, 500))
            for before, record in page:
                yield record
            left -= len(page)
            if not page:
                return

    def show(self, id: str) -> Record:
        """The operation of that id, and where it really stands."""
        return self._handle.show(id)

    def settle(self, id: str, verdict: Literal["done", "failed"], *, result: object = None, reason: str | None = None) -> Record:
        """Settles an operation in doubt: it is done (with that result), or it failed without effect."""
        import getpass

        json = _codec.dumps(result) if verdict == "done" and result is not None else None
        return self._handle.settle(id, verdict, json=json, reason=reason, by=getpass.getuser())

    def cancel(self, id: str) -> bool:
        """Asks an operation to stop. True: it is certain that it will not happen."""
        return self._handle.cancel(id)[0]

    def forget(self, id: str) -> Record:
        """Deletes the record: the next call with its key runs. The say-so is yours."""
        return self._handle.forget(id)

    def wait(self, id: str, timeout: Span = 30) -> Record:
        """Waits until the operation has ended, or the time is over."""
        return self._handle.wait_for(id, _ms(timeout))

    def sweep(self) -> Mapping[str, int]:
        """Does what time asks for: expires results, deletes tombstones, writes doubts down."""
        expired, deleted, doubted = self._handle.sweep()
        return {"expired": expired, "deleted": deleted, "doubted": doubted}

    def open(self) -> Ledger:
        """Opens the ledger now, so that what is wrong with it is said now."""
        self._handle.open()
        return self

    def close(self) -> None:
        """Closes the ledger. The next use opens it again."""
        self._handle.close()

    def __enter__(self) -> Ledger:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        place = self.url if self.url.startswith(("sqlite:", "memory:")) else self.url.partition(":")[0] + "://…"
        return f"Ledger({place!r})"


# What `once` takes beside what makes the terms of an operation.
_OPTIONS = {
    "key", "name", "scope", "occurrence", "volatile", "probe", "verify", "no_effect", "dispatch", "codec", "returns",
    "dry_run",
}  # fmt: skip
_TERMS = {"effect": "effect", "class_": "class", "retries": "retries", "attempts": "attempts", "on_failure": "on_failure", "on_expired": "on_expired"}  # fmt: skip
_SPANS = {
    "ttl": "retention_ms", "wait": "wait_ms", "lease": "lease_ms", "backoff": "backoff_ms",
    "window": "downstream_window_ms", "verify_deadline": "verify_deadline_ms",
}  # fmt: skip


def _check(options: Mapping[str, Any]) -> None:
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
    terms |= {term: _ms(options[name]) for name, term in _SPANS.items() if options.get(name) is not None}
    if options.get("probe") is not None:
        terms.setdefault("class", "probed")
    return terms


def _wrap(ledger: Ledger, function: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """The function under guard: a function, or a coroutine function where it was one."""
    import inspect

    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{function.__qualname__} is a generator: guard a function that returns when it is done")
    guard = _guard(ledger, function, options, options.get("occurrence"))
    run, run_async = guard.run, guard.run_async
    as_receipt = options.get("returns") == "receipt"

    if options.get("dry_run"):

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return guard.plan(args, kwargs)

    elif inspect.iscoroutinefunction(function):

        async def receipt(*args: Any, **kwargs: Any) -> Receipt:
            return await run_async(args, kwargs)

        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            answer = await run_async(args, kwargs)
            return answer if as_receipt else answer.value

    else:

        def receipt(*args: Any, **kwargs: Any) -> Receipt:
            return run(args, kwargs)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            answer = run(args, kwargs)
            return answer if as_receipt else answer.value

    guarded: Any = functools.wraps(function)(wrapper)
    guarded.receipt = receipt if not options.get("dry_run") else wrapper
    guarded.plan = lambda *args, **kwargs: guard.plan(args, kwargs)
    guarded.identity = lambda *args, **kwargs: guard.spec.identity(args, kwargs)
    guarded.occurrence = lambda label: _wrap(ledger, function, {**options, "occurrence": label})
    guarded.operation_name = guard.spec.name
    return guarded


def _guard(ledger: Ledger, function: Callable[..., Any], options: Mapping[str, Any], occurrence: Any) -> Guard:
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
        occurrence=occurrence,
        params=_rows(signature, volatile),
        bind=signature.bind,
        nfc=ledger._nfc,
        terms=_terms(options),
        policy=ledger._policy,
        decode=codec.decode if codec is not None else None,
    )
    return Guard(ledger._handle, spec, function, **_actors(options), codec=codec)


def _single(ledger: Ledger, name: str, function: Callable[..., Any], options: Mapping[str, Any]) -> Guard:
    """The guard of one call that is made of a name, its inputs and a function."""
    known = options.get("key")
    fields = [] if known is None or isinstance(known, (str, int)) else list(known)
    _check({**options, "key": None})
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


def _url(place: str | os.PathLike[str]) -> str:
    if isinstance(place, str) and (place == "memory:" or "://" in place or place.startswith("sqlite:")):
        return place
    return f"sqlite:{os.fspath(place)}"


def _text(path: str | os.PathLike[str]) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _ms(span: Span) -> int:
    if isinstance(span, str):
        return span_ms(span)
    seconds = float(span) if isinstance(span, (int, float)) else span.total_seconds()
    if not 0 <= seconds < 3_153_600_000:
        raise InvalidInput(f"{span!r} is not a span of time of up to a hundred years")
    return round(seconds * 1000)


def _before_fork() -> None:
    for handle in list(_handles):
        handle.before_fork()


def _after_fork() -> None:
    for handle in list(_handles):
        handle.after_fork()


def _close_all() -> None:
    for handle in list(_handles):
        handle.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
atexit.register(_close_all)
