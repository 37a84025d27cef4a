"""A guarded function: what runs around it, for functions and coroutines."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Token
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

from . import _codec, _results, _watch
from ._onceward import Attempt, Handle, Plan, Receipt, Spec
from ._operation import Operation, _current
from .errors import Failed, Held, InProgress, InvalidInput, KeyMissing, OncewardError, as_raised, is_control_flow
from .failures import Verdict, judge

# How an attempt ended, as a tuple for the native module: see `wire.rs`.
Report = tuple[object, ...]

_LONGEST_REASON = 2_000


class Yes:
    """A probe's answer: it happened, with this result."""

    __slots__ = ("value",)

    def __init__(self, value: object = None) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Yes({self.value!r})"


class Guard:
    """One function that the ledger guards."""

    __slots__ = (
        "codec", "effect", "function", "handle", "known_failures", "marked", "no_effect", "probe", "reads", "spec",
        "verify", "warned",
    )  # fmt: skip

    def __init__(
        self,
        handle: Handle,
        spec: Spec,
        function: Callable[..., Any],
        *,
        probe: Callable[..., Any] | None,
        verify: Callable[..., Any] | None,
        no_effect: tuple[type[BaseException], ...],
        known_failures: bool | None,
        codec: _codec.Codec | None,
        marked: bool,
        reads: bool,
    ) -> None:
        self.handle = handle
        self.spec = spec
        self.function = function
        self.effect = spec.effect
        self.probe = probe
        self.verify = verify
        self.no_effect = no_effect
        self.known_failures = known_failures
        self.codec = codec
        self.marked = marked
        self.reads = reads
        self.warned: set[str] = set()

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None, held: str | None = None) -> Receipt:
        """Makes the call once. `held` is the id of a held operation that the call executes."""
        if _current.get() is not None:
            self._refuse_itself(args, kwargs)
        if "gevent" in sys.modules:
            from . import _green

            if _green.is_patched() and held is None:
                return self.ended(lambda: _green.run(self, args, kwargs))
        probe = None if self.probe is None else self._probe
        verify = None if self.verify is None else self._verify
        return self.ended(lambda: self.handle.run(self.spec, args, kwargs, self._perform, probe, verify, held))

    def ended(self, call: Callable[[], Receipt]) -> Receipt:
        """Makes the call, and reports how it ended: to its caller, to an enclosing call, and to the log."""
        outer = _watch.current()
        try:
            receipt = call()
        except BaseException as error:
            raised = self._raised(error, outer)
            if raised is error:
                raise
            raise raised from raised.__cause__
        self._answered(receipt, outer)
        return receipt

    async def run_async(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None, held: str | None = None) -> Receipt:
        """The same for a coroutine. The ledger never blocks the event loop."""
        if _current.get() is not None:
            self._refuse_itself(args, kwargs)
        outer = _watch.current()
        try:
            receipt = await self._run_async(args, kwargs, held)
        except BaseException as error:
            raised = self._raised(error, outer)
            if raised is error:
                raise
            raise raised from raised.__cause__
        self._answered(receipt, outer)
        return receipt

    async def _run_async(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None, held: str | None) -> Receipt:
        from . import _loop

        if not self.handle.is_open:
            await _loop.in_a_thread(self.handle.open)
        asks = {"probe": self.probe is not None, "verify": self.verify is not None}
        call = self.handle.start_async(self.spec, args, kwargs, **asks, held=held)
        while True:
            try:
                kind, about = await _loop.next_request(call)
            except BaseException:
                call.abandon()
                raise
            if kind == "answer":
                receipt: Receipt = about
                return receipt
            if kind == "execute":
                report = await self._perform_async(about, args, kwargs)
                broken_off = report[2] if report[0] != "done" else None
                if isinstance(broken_off, BaseException) and not isinstance(broken_off, Exception):
                    # Cancelled, or the loop is shutting down: record it now, without waiting for the loop.
                    call.end(report)
                    raise broken_off
                call.executed(report)
            elif kind == "probe":
                call.probed(await self._ask(self.probe, args, kwargs, self._probed))
            else:
                call.verified(await self._ask(self.verify, (about, *args), kwargs, _verified))

    def plan(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Plan:
        """What the call would do. Nothing is run or written."""
        return self.handle.plan(self.spec, args, kwargs)

    def identity(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> tuple[str, str, str]:
        """The key, the fingerprint and the id that the call has in this ledger."""
        return self.handle.identity(self.spec, args, kwargs)

    def _refuse_itself(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> None:
        """Refuses a call within itself, which would wait for its own end."""
        running = _current.get()
        if running is None:
            return
        _, _, id = self.identity(args, kwargs)
        while running is not None:
            if running.id == id and not running.over:
                error = InProgress(
                    f"{self.spec.name} is called within itself with the same key and would wait for its own end; "
                    "this call ran nothing. Give the inner call another key or occurrence"
                )
                raise error
            running = running.outer

    # What happens after a call: for its caller, for an enclosing call, and for the log.

    def _raised(self, error: BaseException, outer: _watch.Trace | None) -> BaseException:
        if not isinstance(error, OncewardError):
            if outer is not None and not self.reads:
                _watch.Wire("CALL").leave()
            return error
        nothing = isinstance(error, (Failed, Held, InvalidInput, KeyMissing)) and error.happened in ("no", None)
        if outer is not None and not nothing and not self.reads:
            _watch.Wire("CALL").leave()
        _results.log(self.spec.name, error)
        cause = error.__cause__
        if cause is not None and is_control_flow(cause):
            return cause
        return as_raised(error)

    def _answered(self, receipt: Receipt, outer: _watch.Trace | None) -> None:
        if outer is not None and not self.reads:
            _watch.Wire("CALL").leave()
        _results.log(self.spec.name, receipt)

    # One attempt.

    def _begin(self, attempt: Attempt) -> tuple[Operation, _watch.Trace, Token[Operation | None], Token[Any]]:
        operation = Operation(attempt, self.effect, _current.get())
        if not self.marked:
            attempt.dispatched()
        trace = _watch.Trace(operation.noticed if self.marked else None)
        return operation, trace, _current.set(operation), _watch.enter(trace)

    def _perform(self, attempt: Attempt, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Report:
        try:
            operation, trace, *tokens = self._begin(attempt)
        except OncewardError as error:
            return ("not_started", f"it was not begun: {error}", error, True)
        try:
            value = self.function(*args, **(kwargs or {}))
        except BaseException as error:
            return self._failure(error, operation, trace)
        finally:
            _end(operation, trace, tokens)
        return self._success(operation, value)

    async def _perform_async(self, attempt: Attempt, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Report:
        from . import _loop

        # In the context of the caller: what it does is not the function's.
        stopper = _loop.Stopper(attempt)
        try:
            operation, trace, *tokens = self._begin(attempt)
        except OncewardError as error:
            stopper.end()
            return ("not_started", f"it was not begun: {error}", error, True)
        try:
            _watch.check_loop()
            value = self.function(*args, **(kwargs or {}))
            if hasattr(value, "__await__"):
                value = await value
        except BaseException as error:
            if stopper.end() and not isinstance(error, Exception):
                return self._stopped(error, operation, trace)
            return self._failure(error, operation, trace)
        finally:
            stopper.end()
            _end(operation, trace, tokens)
        return self._success(operation, value)

    def _stopped(self, error: BaseException, operation: Operation, trace: _watch.Trace) -> Report:
        """A coroutine that was cancelled because it was asked to stop. Its caller was not cancelled."""
        kind = self._failure(error, operation, trace)[0]
        return (kind, "it was asked to stop, and its coroutine was cancelled", None, False)

    def _success(self, operation: Operation, value: object) -> Report:
        unfinished = _unfinished(value)
        if unfinished is not None:
            problem = TypeError(
                f"the function returned {unfinished}, whose work is not finished: guard the function that does the work"
            )
            return ("in_doubt", str(problem), problem, False)
        reason = operation.reason if operation.effect == "noop" else None
        return ("done", operation.effect, self.encode(value), value, reason)

    def encode(self, value: object) -> str | None:
        """The result as JSON text; `None` if it has none, which does not make the operation run again."""
        json, problem = _results.kept(value, self.codec)
        if problem is not None and problem not in self.warned and len(self.warned) < 100:
            self.warned.add(problem)
            _results.warn(self.spec.name, problem, lost=json is None)
        return json

    def _failure(self, error: BaseException, operation: Operation, trace: _watch.Trace) -> Report:
        if self.marked and not operation.left and not trace.goes_on and not trace.changed_elsewhere:
            verdict: Verdict = "declared"
        else:
            verdict = judge(
                error,
                trace,
                no_effect=self.no_effect,
                known_failures=self.known_failures,
                marked=operation.marked or self.marked,
            )
        return (verdict, in_words(error), error, not is_control_flow(error))

    # Probes and checks.

    def _probe(self, _record: object, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Report:
        assert self.probe is not None
        try:
            return self._probed(self.probe(*args, **(kwargs or {})))
        except Exception as error:
            return ("cannot_tell", in_words(error))

    def _verify(self, value: object, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Report:
        assert self.verify is not None
        try:
            return _verified(self.verify(value, *args, **(kwargs or {})))
        except Exception as error:
            return ("pending", in_words(error))

    async def _ask(
        self,
        question: Callable[..., Any] | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
        understand: Callable[[object], Report],
    ) -> Report:
        assert question is not None
        try:
            answer: Awaitable[object] | object = question(*args, **(kwargs or {}))
            return understand(await answer if isinstance(answer, Awaitable) else answer)
        except Exception as error:
            return ("cannot_tell" if understand == self._probed else "pending", in_words(error))

    def _probed(self, answer: object) -> Report:
        if isinstance(answer, Yes):
            return ("yes", self.encode(answer.value))
        if answer is True:
            return ("yes", None)
        if answer is False:
            return ("no", None)
        # Anything else is ambiguous: an empty list does not mean "yes".
        _close(answer)
        said = "the probe cannot tell" if answer is None else f"the probe said {answer!r}, not True, False, None or Yes"
        return ("cannot_tell", said)


def _end(operation: Operation, trace: _watch.Trace, tokens: list[Any]) -> None:
    operation.over = True
    # A coroutine that is closed from outside ends in another context, in which no operation is set.
    with suppress(ValueError):
        _current.reset(tokens[0])
    _watch.leave(trace, tokens[1])


def _unfinished(value: object) -> str | None:
    """Describes a returned value whose work is not finished, or not started."""
    if isinstance(value, CoroutineType):
        value.close()
        return "a coroutine"
    if isinstance(value, (GeneratorType, AsyncGeneratorType, map, filter)):
        return f"a {type(value).__name__}"
    if hasattr(type(value), "__await__"):
        return f"a {type(value).__name__}, which must be awaited"
    futures = sys.modules.get("concurrent.futures")
    if futures is not None and isinstance(value, futures.Future):
        return "a future"
    return None


def _close(answer: object) -> None:
    if isinstance(answer, CoroutineType):
        answer.close()


def _verified(answer: object) -> Report:
    if answer is None:
        return ("pending", "the check cannot tell yet")
    if answer is True:
        return ("confirmed", "")
    if answer is False:
        return ("refuted", "the check says that it did not take effect")
    _close(answer)
    return ("pending", f"the check said {answer!r}, not True, False or None")


def in_words(error: BaseException) -> str:
    """The exception as the reason of a record. A doubt of an inner call is not wrapped in another one."""
    if isinstance(error, OncewardError) and error.args:
        words = str(error.args[0])
    else:
        try:
            said = str(error)
        except Exception:
            said = ""
        words = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return words[:_LONGEST_REASON].encode("utf-8", "backslashreplace").decode()
