"""Calls that are held back: what is stored of them, and how another process makes them."""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import InvalidInput, OncewardError

if TYPE_CHECKING:
    from ._guard import Guard
    from ._ledger import Ledger
    from ._onceward import Receipt, Record


class Released(NamedTuple):
    """A held operation whose time had come, and what became of it."""

    operation: Record
    """The operation, as it was before."""
    receipt: Receipt | None
    """Its receipt, if it is done."""
    error: OncewardError | None
    """Why it is not done. The error says whether it happened."""


def request_of(*args: Any, **kwargs: Any) -> str | None:
    """The arguments of a call as the ledger stores them.

    It returns `None` if they would not be the same after JSON: then only the caller itself can make the call later.
    """
    arguments = {"args": list(args), "kwargs": kwargs}
    try:
        text = json.dumps(arguments, allow_nan=False)
        same = json.loads(text) == arguments
    except (TypeError, ValueError, RecursionError):
        return None
    return text if same else None


class Due(NamedTuple):
    """A held call whose time has come."""

    record: Record
    guard: Guard
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def due(ledger: Ledger, scope: str | None) -> list[Due | Released]:
    """The held calls whose time has come: each with its function, or with the reason why it cannot run here."""
    now_ms = ledger._handle.clock_ms()
    found: list[Due | Released] = []
    for record in ledger._handle.held(scope=scope):
        held, stored = record.held, record._stored_call
        if held is None or held["surface"] != "python" or stored is None or not record._may_start(now_ms):
            continue
        text, problem = stored
        guarded = ledger._functions.get(record.name)
        if text is None:
            found.append(_refused(record, f"its stored call cannot be run: {problem}"))
        elif guarded is None:
            found.append(_refused(record, f"this ledger object guards no function with the name {record.name!r}"))
        else:
            arguments = json.loads(text)
            call = Due(record, guarded, tuple(arguments["args"]), arguments["kwargs"])
            misfit = _misfit(call)
            found.append(call if misfit is None else _refused(record, f"its stored arguments do not fit: {misfit}"))
    return found


def _misfit(call: Due) -> str | None:
    try:
        signature = inspect.signature(call.guard.function)
    except ValueError:
        return None
    try:
        signature.bind(*call.args, **call.kwargs)
    except TypeError as error:
        return str(error)
    return None


def _refused(record: Record, why: str) -> Released:
    error = InvalidInput(f"{record.name} ({record.id}) is still held: {why}; nothing was run")
    error.happened, error.operation = "no", record
    return Released(record, None, error)
