"""Taking operations back: a compensation is an ordinary operation, tied to the one that it takes back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ._guard import Guard
from ._onceward import Record, Undoing
from ._wrap import single
from .errors import InvalidInput, OncewardError, Unverified

if TYPE_CHECKING:
    from ._ledger import Ledger

Gone = Callable[[Any], Any]
"""Gets the result of the operation; says whether its effect is gone: True, False, or None (cannot tell)."""


class Compensation:
    """An undo that has begun."""

    def __init__(
        self,
        ledger: Ledger,
        operation: str | Record,
        undo: Callable[..., Any] | None,
        gone: Gone | None,
        options: Mapping[str, Any],
        *,
        waits: bool,
    ) -> None:
        id = operation if isinstance(operation, str) else operation.id
        record = ledger.show(id)
        registered, decode = ledger._undos.get(record.name, (None, None))
        function = undo or registered
        if function is None:
            raise InvalidInput(
                f"nothing is registered here that takes {record.name} back; declare it with undo=, or pass the function"
            )
        value = json.loads(record.json) if record.json is not None else None
        self.result = decode(value) if decode is not None else value
        self.handle, self.gone = ledger._handle, gone
        if waits:

            async def act_async() -> Any:
                return await function(self.result)

            act: Callable[[], Any] = act_async
        else:

            def act() -> Any:
                return function(self.result)

        # From here on a retry of the operation is refused, until the outcome is recorded.
        self.undoing: Undoing = self.handle.begin_undo(id)
        inputs = {"undoes": id, "created_ms": self.undoing.created_ms}
        named = {"key": self.undoing.key, "scope": self.undoing.scope}
        self.guard: Guard = single(ledger, self.undoing.name, act, inputs, {**options, **named}, waits=waits, undoes=id)
        self.inputs = inputs

    def ended(self, error: OncewardError | None) -> Record:
        """Records what the end of the compensation proves, and raises its error."""
        happened = "yes" if error is None else error.happened
        if error is not None and error.code in ("KEY_REUSED", "INVALID_INPUT", "KEY_MISSING"):
            # The compensation's key belongs to another action, so nothing ran for this one.
            happened = "no"
        now: bool | str | None = "not asked"
        if self.gone is not None and happened != "no":
            now = self.gone(self.result)
        words = {True: "gone", False: "there", None: "cannot tell", "not asked": None}
        reason = str(error) if error is not None else ""
        record = self.handle.end_undo(self.undoing, happened, reason, words[now])
        is_gone = record.undone is not None and record.undone["gone"]
        if error is not None and not is_gone:
            raise error
        if not is_gone:
            raise Unverified("the compensation reported success, but the effect is not confirmed to be gone")
        return record


def compensate(
    ledger: Ledger,
    operation: str | Record,
    undo: Callable[..., Any] | None,
    gone: Gone | None,
    options: Mapping[str, Any],
) -> Record:
    """Runs the compensation of an operation, once."""
    found = _undone(ledger, operation)
    if found is not None:
        return found
    started = Compensation(ledger, operation, undo, gone, options, waits=False)
    try:
        started.guard.run((started.inputs,), None)
    except OncewardError as error:
        return started.ended(error)
    return started.ended(None)


async def acompensate(
    ledger: Ledger,
    operation: str | Record,
    undo: Callable[..., Any] | None,
    gone: Gone | None,
    options: Mapping[str, Any],
) -> Record:
    """The same for a coroutine function."""
    found = _undone(ledger, operation)
    if found is not None:
        return found
    started = Compensation(ledger, operation, undo, gone, options, waits=True)
    try:
        await started.guard.run_async((started.inputs,), None)
    except OncewardError as error:
        return started.ended(error)
    return started.ended(None)


def _undone(ledger: Ledger, operation: str | Record) -> Record | None:
    record = ledger.show(operation if isinstance(operation, str) else operation.id)
    return record if record.undone is not None and record.undone["gone"] else None
