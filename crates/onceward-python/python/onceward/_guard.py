"""A guarded function: what runs around it, for functions and for coroutines."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Token
from types import CoroutineType
from typing import Any

from . import _codec
from ._onceward import Attempt, Handle, Plan, Receipt, Spec
from ._operation import Operation, _current
from .errors import OncewardError, ResultWarning
from .failures import classify

# What the native half is told of an attempt: see `told.rs`.
Told = tuple[object, ...]

_LONGEST_REASON = 2_000


class Yes:
    """A probe's answer: it happened, and this was its result."""

    __slots__ = ("value",)

    def __init__(self, value: object = None) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Yes({self.value!r})"


class Guard:
    """One function under the ledger's guard."""

    __slots__ = ("codec", "effect", "function", "handle", "marked", "no_effect", "probe", "spec", "verify", "warned")

    def __init__(
        self,
        handle: Handle,
        spec: Spec,
        function: Callable[..., Any],
        *,
        probe: Callable[..., Any] | None,
        verify: Callable[..., Any] | None,
        no_effect: tuple[type[BaseException], ...],
        codec: _codec.Codec | None,
        marked: bool,
    ) -> None:
        self.handle = handle
        self.spec = spec
        self.function = function
        self.effect = spec.effect
        self.probe = probe
        self.verify = verify
        self.no_effect = no_effect
        self.codec = codec
        self.marked = marked
        self.warned = False

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Receipt:
        """Lets the call happen once."""
        probe = None if self.probe is None else self._probe
        verify = None if self.verify is None else self._verify
        return self.handle.run(self.spec, args, kwargs, self._perform, probe, verify)

    async def run_async(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Receipt:
        """The same for a coroutine. The event loop is never blocked by the ledger."""
        from . import _loop

        if not self.handle.is_open:
            await _loop.in_a_thread(self.handle.open)
        asks = {"probe": self.probe is not None, "verify": self.verify is not None}
        conversation = self.handle.converse(self.spec, args, kwargs, **asks)
        while True:
            try:
                kind, about = await _loop.next_turn(conversation)
            except BaseException:
                conversation.abandon()
                raise
            if kind == "answer":
                receipt: Receipt = about
                return receipt
            if kind == "execute":
                told = await self._perform_async(about, args, kwargs)
                broken_off = told[-1] if told[0] != "done" else None
                if isinstance(broken_off, BaseException) and not isinstance(broken_off, Exception):
                    # Cancelled, or the loop is going down: the ledger is told now, without waiting for a turn.
                    conversation.end(told)
                    raise broken_off
                conversation.executed(told)
            elif kind == "probe":
                conversation.probed(await self._ask(self.probe, args, kwargs, self._probed))
            else:
                conversation.verified(await self._ask(self.verify, (about, *args), kwargs, _verified))

    def plan(self, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Plan:
        """What the call would come to. Nothing is run or written."""
        return self.handle.plan(self.spec, args, kwargs)

    def _begin(self, attempt: Attempt) -> tuple[Operation, Token[Operation | None]]:
        operation = Operation(attempt, self.effect)
        if not self.marked:
            attempt.dispatched()
        return operation, _current.set(operation)

    def _perform(self, attempt: Attempt, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Told:
        try:
            operation, token = self._begin(attempt)
        except OncewardError as error:
            return ("failed", f"it was not begun: {error}", error)
        try:
            value = self.function(*args, **(kwargs or {}))
        except BaseException as error:
            return self._failure(error)
        finally:
            _current.reset(token)
        if isinstance(value, CoroutineType):
            value.close()
            problem = TypeError("the function gave a coroutine, which was not run; guard the async function itself")
            return ("failed", str(problem), problem)
        return self._success(operation, value)

    async def _perform_async(self, attempt: Attempt, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Told:
        try:
            operation, token = self._begin(attempt)
        except OncewardError as error:
            return ("failed", f"it was not begun: {error}", error)
        try:
            value = self.function(*args, **(kwargs or {}))
            if hasattr(value, "__await__"):
                value = await value
        except BaseException as error:
            return self._failure(error)
        finally:
            # A coroutine that is closed from elsewhere ends in another context, which never had the operation.
            with suppress(ValueError):
                _current.reset(token)
        return self._success(operation, value)

    def _success(self, operation: Operation, value: object) -> Told:
        reason = operation.reason if operation.effect == "noop" else None
        return ("done", operation.effect, self.encode(value), value, reason)

    def encode(self, value: object) -> str | None:
        """The result as JSON text; `None` where it has none, which is no reason to run it again."""
        from ._json import dumps

        try:
            return dumps(value if self.codec is None else self.codec.encode(value))
        except Exception as problem:
            if not self.warned:
                self.warned = True
                # Where warnings are errors, this one still makes no failure of a success.
                with suppress(ResultWarning):
                    warnings.warn(
                        f"the result of {self.spec.name} cannot be kept ({problem}); it is done and not run again, and "
                        "replays have no result: return plain data, annotate the return type, or give codec=",
                        ResultWarning,
                        stacklevel=2,
                    )
            return None

    def _failure(self, error: BaseException) -> Told:
        verdict = classify(error, self.no_effect)
        kind = {None: "unsaid", "no_effect": "failed", "in_doubt": "in_doubt", "timed_out": "timed_out"}[verdict]
        return (kind, in_words(error), error)

    def _probe(self, _record: object, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Told:
        assert self.probe is not None
        try:
            return self._probed(self.probe(*args, **(kwargs or {})))
        except Exception as error:
            return ("cannot_tell", in_words(error))

    def _verify(self, value: object, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Told:
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
        understand: Callable[[object], Told],
    ) -> Told:
        assert question is not None
        try:
            answer: Awaitable[object] | object = question(*args, **(kwargs or {}))
            return understand(await answer if isinstance(answer, Awaitable) else answer)
        except Exception as error:
            return ("cannot_tell" if understand == self._probed else "pending", in_words(error))

    def _probed(self, answer: object) -> Told:
        if isinstance(answer, Yes):
            return ("yes", self.encode(answer.value))
        if answer is True:
            return ("yes", None)
        if answer is False:
            return ("no", None)
        # Anything else may mean either: an empty list is no "yes".
        said = "the probe cannot tell" if answer is None else f"the probe said {answer!r}, not True, False, None or Yes"
        return ("cannot_tell", said)


def _verified(answer: object) -> Told:
    if answer is None:
        return ("pending", "the check cannot tell yet")
    if answer is True:
        return ("confirmed", "")
    if answer is False:
        return ("refuted", "the check says that it is not so")
    return ("pending", f"the check said {answer!r}, not True, False or None")


def in_words(error: BaseException) -> str:
    """An exception as the reason of a record."""
    words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return words[:_LONGEST_REASON]
