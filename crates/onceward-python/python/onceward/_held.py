"""Calls that are held back: what is stored of them, and how another process makes them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import OncewardError

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


def request_of(name: str) -> Callable[..., str | None]:
    """A function that turns the arguments of a call into the request that the ledger stores.

    It returns `None` if they would not be the same after JSON: then only the caller itself can make the call later.
    """

    def request(*args: Any, **kwargs: Any) -> str | None:
        arguments = {"args": list(args), "kwargs": kwargs}
        try:
            text = json.dumps({"function": name, "arguments": arguments}, allow_nan=False)
            same = json.loads(text)["arguments"] == arguments
        except (TypeError, ValueError, RecursionError):
            return None
        return text if same else None

    return request


def due(ledger: Ledger, scope: str | None) -> list[tuple[Record, Guard, tuple[Any, ...], dict[str, Any]]]:
    """The held calls of functions that this ledger object guards, whose time has come."""
    now_ms = ledger._handle.clock_ms()
    found = []
    for record in ledger._handle.held(scope=scope):
        held, request = record.held, record._request
        guarded = ledger._functions.get(record.name)
        if held is None or held["surface"] != "python" or request is None or guarded is None:
            continue
        if record._may_start(now_ms):
            try:
                arguments = json.loads(request)["arguments"]
                args, kwargs = tuple(arguments["args"]), dict(arguments["kwargs"])
            except (ValueError, KeyError, TypeError):
                # Sealed with a key that is missing here, or not written by this package.
                continue
            found.append((record, guarded, args, kwargs))
    return found
