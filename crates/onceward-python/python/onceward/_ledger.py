"""The ledger: guard functions, make single calls, look at records and settle them."""

from __future__ import annotations

import atexit
import functools
import inspect
import os
import sys
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, overload
from uuid import UUID

from . import _options, _watch
from ._dedupe import Dedupe
from ._identity import Known
from ._onceward import Handle, Receipt, Record, Spec
from ._options import Class, Span, check, ms
from ._session import Session
from ._wrap import actors_of, single, wrap
from .errors import InvalidInput

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._atomic import Atomic
    from ._once import ByPlan, ByReceipt, ByValue, OnceFunction
    from ._options import CallOptions, Options

P = ParamSpec("P")
R = TypeVar("R")

_handles: weakref.WeakSet[Handle] = weakref.WeakSet()


class Ledger:
    """The ledger between intent and effect, in this process.

    `url` is a path, `sqlite:PATH`, `postgres://…`, `redis://…` or `memory:`. It is opened when it is first used; a
    relative path is taken from the folder in which the ledger is made, wherever the program goes later.
    `policy` is the path of an `onceward.toml`. With `nfc`, two spellings of one text (é, e + ´) are one.
    """

    def __init__(
        self, url: str | bytes | os.PathLike[str], *, policy: str | os.PathLike[str] | None = None, nfc: bool = False
    ) -> None:
        self.url = _url(url)
        self._nfc = nfc
        self._policy = _text(policy) if policy is not None else None
        self._handle = Handle(self.url)
        self._known: Known = {}
        _handles.add(self._handle)
        _watch.install()

    @overload
    def once(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> OnceFunction[P, Coroutine[Any, Any, R], Coroutine[Any, Any, Receipt]]: ...

    @overload
    def once(self, function: Callable[P, R], /) -> OnceFunction[P, R, Receipt]: ...

    @overload
    def once(
        self, *, returns: Literal["value"] = "value", dry_run: Literal[False] = False, **options: Unpack[Options]
    ) -> ByValue: ...

    @overload
    def once(
        self, *, returns: Literal["receipt"], dry_run: Literal[False] = False, **options: Unpack[Options]
    ) -> ByReceipt: ...

    @overload
    def once(
        self, *, dry_run: Literal[True], returns: Literal["value", "receipt"] = "value", **options: Unpack[Options]
    ) -> ByPlan: ...

    def once(self, *functions: Callable[..., Any], **options: Any) -> Any:
        """Lets each call of the function happen once, however often it is made. For functions and coroutines.

        Who it is:

        - `key`: the arguments that identify the action (all of them by default), or a function that is given the
          arguments and returns the key.
        - `name`: what is done, the same in every version of the code; by default the function's module and name.
        - `scope`: who shares the key. `occurrence`: the same action, wanted again: 2, 3, … or any label.
        - `volatile`: arguments that may differ between a call and its retry, and need not be JSON.

        What it does, and what to do when it is in doubt:

        - `effect`: what a success changes: `created`, `updated`, `deleted` or `noop`.
        - `class_`: `once` (stays in doubt until it is settled), `probed`, `keyed`, `idempotent` (run again) or `read`.
        - `probe`: asked with the arguments whether it happened: True, False, None (cannot tell) or `Yes(result)`.
          A "no" counts only when the `quarantine` is over (60 s): until then what was sent may still take effect.
        - `verify`: asked with the result and the arguments whether it is so: True, False or None (not yet);
          `verify_deadline` says for how long (60 s).

        Which failures are certain:

        - `no_effect`: exceptions that are certain to have had no effect.
        - `known_failures=False`: nothing else is certain, not even a refused connection.
        - `dispatch="marked"`: the function says itself when the request leaves (`current_operation().dispatched()`);
          until then a failure or a crash is certain to have had no effect.

        Times and limits (seconds, `"24h"` or a timedelta):

        - `retries`, `backoff`: how often one call tries again after a certain failure, and the first pause (doubled
          each time). `attempts`: the limit for all calls together. `on_failure="replay"`: a later call is given the
          stored failure and does not try again.
        - `ttl`: how long a result is replayed (24 h; 30 days in a scope or session). `on_expired`: what a call gets
          after that: `refuse`, `rerun`, or `auto` (a key or a scope that was given is refused, others run again).
        - `wait`: how long to wait for another caller (30 s). `lease`: how soon a silent owner on a server counts as
          gone (15 s). `window`: how long the vendor honours a key (24 h).

        What a call gives:

        - `codec`: makes plain data of the result and back. `returns="receipt"`: give the receipt, not the value.
        - `dry_run=True`: give the plan of each call; run and write nothing.
        """
        if len(functions) > 1:
            raise TypeError("once() guards one function; its options have names")
        check(options)
        decorate = functools.partial(wrap, self, options=options)
        return decorate(*functions) if functions else decorate

    def call(self, name: str, inputs: object, function: Callable[..., Any], **options: Unpack[CallOptions]) -> Receipt:
        """Lets one call happen once: the function gets the inputs as named arguments (none, where it takes none).

        The options are those of `once`; `key` is here the key itself. Gives the receipt.
        """
        guard = single(self, name, function, inputs, options, waits=False)
        return guard.run((inputs,), None)

    async def acall(
        self, name: str, inputs: object, function: Callable[..., Any], **options: Unpack[CallOptions]
    ) -> Receipt:
        """The same for a coroutine function."""
        guard = single(self, name, function, inputs, options, waits=True)
        return await guard.run_async((inputs,), None)

    def session(self, id: str | int | UUID) -> Session:
        """The ledger with keys that are shared within one session, run or conversation, and with no other."""
        return Session(self, id)

    @overload
    def ensure(  # type: ignore[overload-overlap]
        self, check: Callable[P, Any], act: Callable[P, Coroutine[Any, Any, R]], **options: Unpack[Options]
    ) -> OnceFunction[P, Coroutine[Any, Any, R], Coroutine[Any, Any, Receipt]]: ...

    @overload
    def ensure(
        self, check: Callable[P, Any], act: Callable[P, R], **options: Unpack[Options]
    ) -> OnceFunction[P, R, Receipt]: ...

    def ensure(self, check: Callable[..., Any], act: Callable[..., Any], **options: Any) -> Any:
        """Check-then-act, without the race: a function that acts unless `check` finds that it is so already.

        `check` is called with the same arguments and returns what is there, or `None`. It is asked under the ledger's
        guard, so of two callers one acts; and again when it is in doubt whether an earlier call acted.
        """
        from ._ensure import ensured

        _options.check(options)
        return ensured(self, check, act, options)

    def dedupe(
        self,
        event_id: str | int,
        *,
        source: str = "webhook",
        scope: str | None = None,
        ttl: Span = "30d",
        class_: Class = "once",
        wait: Span | None = None,
        no_effect: _options.Kinds = (),
        known_failures: bool = True,
    ) -> Dedupe:
        """An event that may be delivered more than once: `with ledger.dedupe(id) as event: if event.new: …`.

        In a coroutine it is `async with`. The event counts as handled if the block ends without an error. If it raises,
        or the process dies in it, a block that certainly had no effect is run again by the next delivery; otherwise the
        event is in doubt, and the next delivery raises `InDoubt`. With `class_="idempotent"` the block is run again
        until it succeeds. As a condition (`if ledger.dedupe(id):`) it is true the first time, and counts as handled at
        once.
        """
        if isinstance(event_id, bool) or not isinstance(event_id, (str, int)) or event_id == "":
            raise InvalidInput(f"the id of the event is {event_id!r}; give text")
        options = {"class_": class_, "ttl": ttl, "wait": wait, "scope": scope, "no_effect": no_effect}
        check({**options, "known_failures": known_failures})
        terms = {**_options.terms(options), "effect": "updated"}
        spec = Spec(f"event {source}", key=event_id, scope=scope, terms=terms, policy=self._policy)
        return Dedupe(self._handle, spec, actors_of({**options, "known_failures": known_failures}))

    def atomic(self, connection: Any) -> Atomic:
        """The ledger on your own `sqlite3` or `psycopg` connection: record and effect are one commit, exactly once.

        On `sqlite3` the records are in a table `onceward` beside your own; on `psycopg` they are this ledger's, which
        must be in the same database.
        """
        from ._atomic import Atomic

        return Atomic(self, connection)

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
            if not page:
                return
            yield from (record for _, record in page)
            before, left = page[-1][0], left - len(page)

    def show(self, id: str) -> Record:
        """The operation of that id, and where it really stands."""
        return self._handle.show(id)

    def settle(
        self, id: str, verdict: Literal["done", "failed"], *, result: object = None, reason: str | None = None
    ) -> Record:
        """Settles an operation in doubt: it is done (with that result), or it failed without effect."""
        import getpass

        from ._json import dumps

        json = dumps(result) if verdict == "done" and result is not None else None
        return self._handle.settle(id, verdict, json=json, reason=reason, by=getpass.getuser())

    def cancel(self, id: str) -> bool:
        """Asks an operation to stop. True: it is certain that it will not happen."""
        return self._handle.cancel(id)[0]

    def forget(self, id: str) -> Record:
        """Deletes the record: the next call with its key runs. The say-so is yours."""
        return self._handle.forget(id)

    def wait(self, id: str, timeout: Span = 30) -> Record:
        """Waits until the operation has ended, or the time is over."""
        return self._handle.wait_for(id, ms(timeout))

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

    def __reduce__(self) -> tuple[Callable[..., Ledger], tuple[str, str | None, bool]]:
        # Another process opens a ledger of its own at the same place.
        return _reopened, (self.url, self._policy, self._nfc)

    def __repr__(self) -> str:
        place = self.url if self.url.startswith(("sqlite:", "memory:")) else self.url.partition(":")[0] + "://…"
        return f"Ledger({place!r})"


def _reopened(url: str, policy: str | None, nfc: bool) -> Ledger:
    ledger = Ledger(url, nfc=nfc)
    ledger._policy = policy
    return ledger


def _url(place: str | bytes | os.PathLike[str]) -> str:
    if isinstance(place, bytes):
        place = os.fsdecode(place)
    if isinstance(place, str):
        if place in ("memory:", ":memory:"):
            return "memory:"
        if not place:
            raise InvalidInput("the ledger has no place: give a path, or a URL such as postgres://…")
        if "://" in place and not place.startswith("sqlite:"):
            return place
        place = place.removeprefix("sqlite://").removeprefix("sqlite:")
    if not isinstance(place, (str, os.PathLike)):
        raise InvalidInput(f"the ledger's place is {place!r}; give a path, or a URL such as postgres://…")
    # Where the program is when it makes the ledger, not where it is when it first uses it.
    return f"sqlite:{os.path.abspath(os.fsdecode(place))}"


def _text(path: str | os.PathLike[str]) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


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


def _shown() -> inspect.Signature:
    """What `help` shows of `once`."""
    kind = inspect.Parameter
    options = [*_options.Options.__annotations__, "returns", "dry_run"]
    named = [kind(name, kind.KEYWORD_ONLY, default=None) for name in options]
    first = [kind("self", kind.POSITIONAL_ONLY), kind("function", kind.POSITIONAL_ONLY, default=None)]
    return inspect.Signature([*first, *named])


Ledger.once.__signature__ = _shown()  # type: ignore[attr-defined]
