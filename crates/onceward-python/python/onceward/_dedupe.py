"""Events that may be delivered more than once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from . import _watch
from ._guard import in_words
from ._onceward import Claim
from ._operation import Operation, _current
from .errors import OncewardError
from .failures import is_certain, judge

if TYPE_CHECKING:
    from ._onceward import AsyncCall, Handle, Spec


class Dedupe:
    """One event. As a `with` or `async with` block it counts as handled only if the block ends without an error."""

    def __init__(self, handle: Handle, spec: Spec, actors: Mapping[str, Any]) -> None:
        self._handle = handle
        self._spec = spec
        self._actors = actors
        self._claim: Claim | None = None
        self._call: AsyncCall | None = None
        self._operation: Operation | None = None
        self._trace: _watch.Trace | None = None
        self._tokens: tuple[Any, Any] | None = None
        self.new = False
        """Whether this is the first delivery of the event. Set when the block is entered."""

    def __enter__(self) -> Dedupe:
        self._refuse_twice()
        _refuse_in_a_loop()
        begun = self._handle.begin(self._spec, ({},))
        self._claim = begun if isinstance(begun, Claim) else None
        self.new = self._claim is not None
        if self._claim is not None:
            self._begin(self._claim.attempt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        claim, self._claim = self._claim, None
        if claim is None:
            return
        word = self._end(error)
        if error is None:
            claim.done("updated", "null")
            return
        # The block's exception propagates; the record says how the event ended.
        with suppress(OncewardError):
            if word == "in_doubt":
                claim.in_doubt(in_words(error))
            else:
                claim.failed(word, in_words(error))

    async def __aenter__(self) -> Dedupe:
        from . import _loop

        self._refuse_twice()
        if not self._handle.is_open:
            await _loop.in_a_thread(self._handle.open)
        call = self._handle.start_async(self._spec, ({},), None, probe=False, verify=False)
        try:
            kind, about = await _loop.next_request(call)
        except BaseException:
            call.abandon()
            raise
        self.new = kind == "execute"
        if self.new:
            self._call = call
            self._begin(about)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        from . import _loop

        call, self._call = self._call, None
        if call is None:
            return
        word = self._end(error)
        if error is None:
            call.executed(("done", "updated", "null", None, None))
            await _loop.next_request(call)
            return
        report = (word, in_words(error), error, isinstance(error, Exception))
        with suppress(OncewardError):
            if not isinstance(error, Exception):
                call.end(report)
                return
            call.executed(report)
            await _loop.next_request(call)

    def __bool__(self) -> bool:
        with self:
            return self.new

    def _begin(self, attempt: Any) -> None:
        attempt.dispatched()
        self._operation = Operation(attempt, "updated", _current.get())
        self._trace = _watch.Trace()
        self._tokens = (_current.set(self._operation), _watch.enter(self._trace))

    def _end(self, error: BaseException | None) -> str:
        """Ends the block. Says whether it definitely had no effect, or may have had one."""
        assert self._operation is not None and self._trace is not None and self._tokens is not None
        word = "done"
        if error is not None:
            verdict = judge(
                error,
                self._trace,
                no_effect=self._actors["no_effect"],
                known_failures=self._actors["known_failures"],
                marked=self._operation.marked,
            )
            word = verdict if is_certain(verdict) else "in_doubt"
        self._operation.over = True
        with suppress(ValueError):
            _current.reset(self._tokens[0])
        _watch.leave(self._trace, self._tokens[1])
        return word

    def _refuse_twice(self) -> None:
        if self._claim is not None or self._call is not None:
            raise RuntimeError("this block was already entered; call ledger.dedupe for each delivery")


def _refuse_in_a_loop() -> None:
    """Refuses a block that would wait for another delivery and so stop the whole event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        "an event loop is running in this thread and must not be blocked: use `async with ledger.dedupe(…)`"
    )
