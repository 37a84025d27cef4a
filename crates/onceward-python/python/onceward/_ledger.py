"""The ledger: guard functions, make single calls, look at records and settle them."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeVar, cast, overload

from . import _codec
from ._dedupe import Dedupe
from ._onceward import Handle, Plan, Receipt, Record, Spec
from ._session import Session
from ._wrap import Span, check, ms, single, wrap

if TYPE_CHECKING:
    from ._atomic import Atomic

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

Effect = Literal["created", "updated", "deleted", "noop"]
Class = Literal["read", "idempotent", "keyed", "probed", "once"]
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

    def __init__(
        self, url: str | os.PathLike[str], *, policy: str | os.PathLike[str] | None = None, nfc: bool = False
    ) -> None:
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

    def once(self, *functions: Callable[..., Any], **options: Any) -> Any:
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
        check(options)
        decorate = functools.partial(wrap, self, options=options)
        return decorate(*functions) if functions else decorate

    def call(self, name: str, inputs: object, function: Callable[..., Any], **options: Any) -> Receipt:
        """Lets one call happen once: the function gets the inputs as named arguments (none, where it takes none).

        The options are those of `once`; `key` is here the key itself. Gives the receipt.
        """
        guard = single(self, name, function, options)
        return guard.run((inputs,), None)

    async def acall(self, name: str, inputs: object, function: Callable[..., Any], **options: Any) -> Receipt:
        """The same for a coroutine function."""
        guard = single(self, name, function, options)
        return await guard.run_async((inputs,), None)

    def session(self, id: str) -> Session:
        """The ledger with keys that are shared within one session, run or conversation, and with nobody else."""
        return Session(self, id)

    def ensure(self, check: Callable[P, Any], act: Callable[P, R], **options: Any) -> OnceFunction[P, R]:
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
        terms = {"class": "idempotent", "effect": "updated", "retention_ms": ms(ttl)}
        spec = Spec(f"event {source}", key=event_id, scope=scope, terms=terms, policy=self._policy)
        return Dedupe(self._handle, spec)

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


def _url(place: str | os.PathLike[str]) -> str:
    if isinstance(place, str) and (place == "memory:" or "://" in place or place.startswith("sqlite:")):
        return place
    return f"sqlite:{os.fspath(place)}"


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
