"""Check-then-act, under the ledger's guard."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ._guard import Yes
from ._operation import current_operation

if TYPE_CHECKING:
    from ._ledger import Ledger


def ensured(ledger: Ledger, check: Callable[..., Any], act: Callable[..., Any], options: dict[str, Any]) -> Any:
    """A guarded function that acts unless the check finds that it is so already."""
    options = {"effect": "created", **options}
    if inspect.iscoroutinefunction(act) or inspect.iscoroutinefunction(check):
        guard: Any = ledger.once(**options, probe=_asked_async(check))
        return guard(_checked_async(check, act))

    @functools.wraps(act)
    def checked(*args: Any, **kwargs: Any) -> Any:
        there = check(*args, **kwargs)
        return act(*args, **kwargs) if _absent(there) else _as_it_was(there)

    def asked(*args: Any, **kwargs: Any) -> object:
        there = check(*args, **kwargs)
        return False if _absent(there) else Yes(there)

    guard = ledger.once(**options, probe=asked)
    return guard(checked)


def _checked_async(check: Callable[..., Any], act: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(act)
    async def checked(*args: Any, **kwargs: Any) -> Any:
        there = await _awaited(check(*args, **kwargs))
        return await _awaited(act(*args, **kwargs)) if _absent(there) else _as_it_was(there)

    return checked


def _asked_async(check: Callable[..., Any]) -> Callable[..., Any]:
    async def asked(*args: Any, **kwargs: Any) -> object:
        there = await _awaited(check(*args, **kwargs))
        return False if _absent(there) else Yes(there)

    return asked


async def _awaited(value: Any) -> Any:
    return await value if hasattr(value, "__await__") else value


def _absent(there: object) -> bool:
    return there is None or there is False


def _as_it_was(there: object) -> object:
    current_operation().noop("it was so already")
    return there
