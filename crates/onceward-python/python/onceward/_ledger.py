"""The ledger: guard functions, make single calls, inspect and settle records."""

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

from . import _held, _options, _watch
from ._dedupe import Dedupe
from ._held import Released
from ._identity import Known
from ._onceward import Handle, Receipt, Record, Spec, masked
from ._options import Class, Span, check, ms
from ._session import Session
from ._wrap import actors_of, is_async, single, wrap
from .errors import InvalidInput, OncewardError

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._atomic import Atomic
    from ._guard import Guard
    from ._once import ByPlan, ByReceipt, ByValue, OnceFunction
    from ._options import CallOptions, Options, Terms

Speaker = Literal["person", "agent", "program"]
"""Who speaks when an operation is settled, released or cancelled. It is recorded."""

P = ParamSpec("P")
R = TypeVar("R")

_handles: weakref.WeakSet[Handle] = weakref.WeakSet()


class Ledger:
    """The ledger between intent and effect, in this process.

    `url` is a path, `sqlite:PATH`, `postgres://…`, `redis://…`, the address of a `once serve` (`https://…`,
    `unix:PATH`) or `memory:`. The ledger is opened when it is first used. A relative path is resolved when the object
    is created, whatever the working directory is later. `policy` is the path of an `onceward.toml`. With `nfc`, two
    spellings of one text (é, e + ´) are the same.
    """

    def __init__(
        self, url: str | bytes | os.PathLike[str], *, policy: str | os.PathLike[str] | None = None, nfc: bool = False
    ) -> None:
        self.url = _url(url)
        self._nfc = nfc
        self._policy = _text(policy) if policy is not None else None
        self._handle = Handle(self.url)
        self._known: Known = {}
        self._functions: dict[str, Guard] = {}
        self._undos: dict[str, tuple[Callable[..., Any], Callable[[Any], Any] | None]] = {}
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
        """Makes each call of the function happen once, however often it is made. For functions and coroutines.

        Identity:

        - `key`: the arguments that identify the action (by default all of them), or a function that gets the arguments
          and returns the key.
        - `name`: the name of the action, the same in every version of the code; by default the function's module and
          name.
        - `scope`: the namespace of the key. `occurrence`: repeats the same action deliberately: 2, 3, … or any label.
        - `volatile`: arguments that may differ between a call and its retry, and need not be JSON.

        Effects and doubts:

        - `effect`: what a success changes: `created`, `updated`, `deleted` or `noop`.
        - `class_`: `once` (stays in doubt until it is settled), `probed`, `keyed`, `idempotent` (run again) or `read`.
        - `probe`: called with the arguments; says whether it happened: True, False, None (cannot tell) or
          `Yes(result)`. A "no" counts only after the `quarantine` (60 s), because a request may still take effect
          until then.
        - `verify`: called with the result and the arguments; says whether the result is true: True, False or None (not
          yet). `verify_deadline` limits how long it is asked (60 s).
        - `undo`: takes the effect back; `ledger.compensate` calls it with the result.

        Failures without effect:

        - `no_effect`: exceptions that prove that nothing happened.
        - `known_failures=False`: nothing else proves it, not even a refused connection. `True`: it does, even if a
          module of `onceward.failures.UNOBSERVED` is loaded; the function does not use it.
        - `dispatch="marked"`: the function says when it sends the request (`current_operation().dispatched()`). A
          failure or a crash before that had no effect.

        Times and limits (seconds, `"24h"` or a timedelta):

        - `retries`, `backoff`: how often one call tries again after a failure without effect, and the first pause,
          which doubles each time. `attempts`: the limit for all calls together. `on_failure="replay"`: later calls
          get the stored failure and do not try again.
        - `ttl`: how long a result is replayed (24 h; 30 days in a scope or session). `on_expired`: what a call gets
          afterwards: `refuse`, `rerun`, or `auto` (refuse if a key or a scope was given, otherwise run again).
        - `hold`: hold each call back: `"10m"` lets it start after that time, `"approve"` when a person releases it. A
          call that is held raises `Held`, and nothing is run; the same call gets the result later. `release_due` runs
          it, in any process that guards the function, if its arguments are JSON.
        - `wait`: how long to wait for another caller (30 s). `lease`: how long an owner on a server may be silent
          before it counts as gone (15 s). `window`: how long the vendor honours a key (24 h).

        Results:

        - `codec`: converts the result to plain data and back. `returns="receipt"`: return the receipt, not the value.
        - `dry_run=True`: return the plan of each call; run and write nothing.
        """
        if len(functions) > 1:
            raise TypeError("once() guards one function; pass options by name")
        check(options)
        decorate = functools.partial(wrap, self, options=options)
        return decorate(*functions) if functions else decorate

    def call(self, name: str, inputs: object, function: Callable[..., Any], **options: Unpack[CallOptions]) -> Receipt:
        """Makes one call once. The function gets the inputs as named arguments, or none if it takes none.

        The options are those of `once`, except that `key` is the key itself. Returns the receipt.
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
        """The ledger with keys that are shared only within one session, run or conversation."""
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
        """Check-then-act without a race: a function that acts unless `check` finds that there is nothing to do.

        `check` is called with the same arguments and returns what exists, or `None`. The ledger guards it, so only one
        of two callers acts. It is called again if it is in doubt whether an earlier call acted.
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
        known_failures: bool | None = None,
    ) -> Dedupe:
        """An event that may be delivered more than once: `with ledger.dedupe(id) as event: if event.new: …`.

        In a coroutine, use `async with`. The event is handled if the block ends without an error. If the block raises
        or the process dies in it, and it definitely had no effect, the next delivery runs it again. Otherwise the event
        is in doubt, and the next delivery raises `InDoubt`. With `class_="idempotent"` the block runs again until it
        succeeds. As a condition (`if ledger.dedupe(id):`) it is true the first time, and the event counts as handled at
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
        """The operations, newest first: all of them, or those with a state, a name or a scope."""
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
        """The operation with that id, and its effective state."""
        return self._handle.show(id)

    def settle(
        self,
        id: str,
        verdict: Literal["done", "failed"],
        *,
        result: object = None,
        reason: str | None = None,
        speaker: Speaker = "program",
    ) -> Record:
        """Settles an operation in doubt: it is done (with that result), or it failed without effect.

        Who said so is kept: `speaker` is what this process speaks for.
        """
        from ._json import dumps

        json = dumps(result) if verdict == "done" and result is not None else None
        return self._handle.settle(
            id, verdict, json=json, reason=reason, by=_user(), speaker=speaker, policy=self._policy
        )

    def cancel(self, id: str, *, reason: str | None = None, speaker: Speaker = "program") -> bool:
        """Asks an operation to stop. True: it will definitely not happen. Equal calls get the reason."""
        return self._handle.cancel(id, reason=reason, by=_user(), speaker=speaker, policy=self._policy)[0]

    def held(self, *, scope: str | None = None) -> list[Record]:
        """The operations that are held back, oldest first. `record.held` says until when and by whom."""
        return self._handle.held(scope=scope)

    def release(self, id: str | Record, *, reason: str | None = None, speaker: Speaker = "program") -> Record:
        """Releases a held operation before its time. The next `release_due`, or the same call again, starts it."""
        id = id if isinstance(id, str) else id.id
        return self._handle.release(id, reason=reason, by=_user(), speaker=speaker, policy=self._policy)

    def release_due(self, *, scope: str | None = None) -> list[Released]:
        """Runs the held calls whose time has come, or that were released, of functions that this ledger object guards.

        Each runs once, however many processes call this. Coroutine functions are left to `arelease_due`. A call that
        cannot run here is reported with an error and stays held: a function that this object does not guard, arguments
        that do not fit, or a call that is sealed with a missing key.
        """
        ended = []
        for due in _held.due(self, scope):
            if isinstance(due, Released):
                ended.append(due)
                continue
            record, guard, args, kwargs = due
            if is_async(guard.function):
                continue
            try:
                ended.append(Released(record, guard.run(args, kwargs, record.id), None))
            except OncewardError as error:
                ended.append(Released(record, None, error))
        return ended

    async def arelease_due(self, *, scope: str | None = None) -> list[Released]:
        """The same for an event loop. It runs coroutine functions too."""
        from . import _loop

        ended = []
        for due in await _loop.in_a_thread(lambda: _held.due(self, scope)):
            if isinstance(due, Released):
                ended.append(due)
                continue
            record, guard, args, kwargs = due
            try:
                ended.append(Released(record, await guard.run_async(args, kwargs, record.id), None))
            except OncewardError as error:
                ended.append(Released(record, None, error))
        return ended

    def compensate(
        self,
        operation: str | Record,
        undo: Callable[[Any], Any] | None = None,
        *,
        gone: Callable[[Any], Any] | None = None,
        **options: Unpack[Terms],
    ) -> Record:
        """Takes an operation back, once, with the function that was registered with `undo=`, or with this one. The
        function gets the result of the operation.

        It runs as an operation of its own, with the key `undo:<operation id>`, so it survives a crash and does not run
        twice. The options are those of `call`. `gone` gets the result as well and says whether the effect is gone:
        True, False or None (cannot tell); with it, the operation is undone only if it says True. Raises the error of
        the compensation. Returns the operation, whose `undone` says what became of it.
        """
        from ._undo import compensate

        return compensate(self, operation, undo, gone, options)

    async def acompensate(
        self,
        operation: str | Record,
        undo: Callable[[Any], Any] | None = None,
        *,
        gone: Callable[[Any], Any] | None = None,
        **options: Unpack[Terms],
    ) -> Record:
        """The same for a coroutine function."""
        from ._undo import acompensate

        return await acompensate(self, operation, undo, gone, options)

    def stop(
        self, scope: str, *, reason: str | None = None, wait: Span = 30, speaker: Speaker = "program"
    ) -> Mapping[str, Any]:
        """Stops a scope: nothing in it begins any more, in any process (`Stopped`). What is held back is cancelled, and
        what runs is asked to end. Waits for it, and returns the settlement: every intent is accounted for.

        Refused calls say who stopped it and why: `speaker` is what this process speaks for."""
        import json

        settled = self._handle.stop(scope, reason=reason, by=_user(), speaker=speaker, timeout_ms=ms(wait))
        settlement: Mapping[str, Any] = json.loads(settled)
        return settlement

    def resume(self, scope: str, *, reason: str | None = None, speaker: Speaker = "program") -> bool:
        """Lets operations of a stopped scope begin again. False: it was not stopped."""
        return self._handle.resume(scope, reason=reason, by=_user(), speaker=speaker)

    def settlement(self, scope: str) -> Mapping[str, Any]:
        """What became of every intent of the scope, with the evidence for it."""
        import json

        settlement: Mapping[str, Any] = json.loads(self._handle.settlement(scope))
        return settlement

    def forget(self, id: str) -> Record:
        """Deletes the record, so that the next call with its key runs. You take responsibility for that."""
        return self._handle.forget(id)

    def wait(self, id: str, timeout: Span = 30) -> Record:
        """Waits until the operation has ended, or the timeout is over."""
        return self._handle.wait_for(id, ms(timeout))

    def sweep(self) -> Mapping[str, int]:
        """Expires results, deletes old tombstones, and marks abandoned attempts as in doubt."""
        expired, deleted, doubted = self._handle.sweep()
        return {"expired": expired, "deleted": deleted, "doubted": doubted}

    def open(self) -> Ledger:
        """Opens the ledger now, so that a problem with it is reported now."""
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
        # Another process opens its own ledger at the same path or URL.
        return _reopened, (self.url, self._policy, self._nfc)

    def __repr__(self) -> str:
        is_local = self.url.startswith(("sqlite:", "memory:"))
        place = masked(self.url) if is_local else self.url.partition(":")[0] + "://…"
        return f"Ledger({place!r})"


def _reopened(url: str, policy: str | None, nfc: bool) -> Ledger:
    ledger = Ledger(url, nfc=nfc)
    ledger._policy = policy
    return ledger


def _user() -> str:
    import getpass

    return getpass.getuser()


def _url(place: str | bytes | os.PathLike[str]) -> str:
    if isinstance(place, bytes):
        place = os.fsdecode(place)
    if isinstance(place, str):
        if place in ("memory:", ":memory:"):
            return "memory:"
        if not place:
            raise InvalidInput("the ledger has no URL: give a path, or a URL such as postgres://…")
        if place.startswith("unix:"):
            socket, question, options = place.removeprefix("unix:").partition("?")
            return f"unix:{os.path.abspath(socket)}{question}{options}" if socket else place
        if "://" in place and not place.startswith("sqlite:"):
            return place
        path = place.removeprefix("sqlite:")
        # A server's URL behind `sqlite:` is not a path. The error names it without its password.
        if "://" in path or (path.startswith("//") and "@" in path[2:].split("/")[0]):
            return place
        place = place.removeprefix("sqlite://").removeprefix("sqlite:")
    if not isinstance(place, (str, os.PathLike)):
        raise InvalidInput(f"the ledger's URL is {place!r}; give a path, or a URL such as postgres://…")
    # The working directory of when the ledger object is created, not of its first use.
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
    """The signature that `help` shows for `once`."""
    kind = inspect.Parameter
    options = [*_options.Options.__annotations__, "returns", "dry_run"]
    named = [kind(name, kind.KEYWORD_ONLY, default=None) for name in options]
    first = [kind("self", kind.POSITIONAL_ONLY), kind("function", kind.POSITIONAL_ONLY, default=None)]
    return inspect.Signature([*first, *named])


Ledger.once.__signature__ = _shown()  # type: ignore[attr-defined]
