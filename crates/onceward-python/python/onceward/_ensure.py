"""Check, then act, guarded by the ledger."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from . import _watch
from ._guard import Yes
from ._operation import current_operation
from ._wrap import is_async
from .errors import InvalidInput

if TYPE_CHECKING:
    from ._ledger import Ledger


def ensured(ledger: Ledger, check: Callable[..., Any], act: Callable[..., Any], options: dict[str, Any]) -> Any:
    """A guarded function that acts unless the check finds that there is nothing to do."""
    if isinstance(act, functools.partial):
        raise InvalidInput("the act is a functools.partial; pass a function with the same arguments as the check")
    options = {"effect": "created", **options}
    waits = is_async(act) or is_async(check)
    checked: Any = _checked_async(check, act) if waits else _checked(check, act)
    checked.__onceward_of__ = act
    guard: Any = ledger.once(**options, probe=_asked_async(check) if waits else _asked(check))
    return guard(checked)


def _checked(check: Callable[..., Any], act: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(act)
    def checked(*args: Any, **kwargs: Any) -> Any:
        with _unobserved():
            there = check(*args, **kwargs)
        return act(*args, **kwargs) if _absent(there) else _as_it_was(there)

    return checked


def _asked(check: Callable[..., Any]) -> Callable[..., Any]:
    def asked(*args: Any, **kwargs: Any) -> object:
        there = check(*args, **kwargs)
        return False if _absent(there) else Yes(there)

    return asked


def _checked_async(check: Callable[..., Any], act: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(act)
    async def checked(*args: Any, **kwargs: Any) -> Any:
        with _unobserved():
            there = await _awaited(check(*args, **kwargs))
        return await _awaited(act(*args, **kwargs)) if _absent(there) else _as_it_was(there)

    return checked


def _asked_async(check: Callable[..., Any]) -> Callable[..., Any]:
    async def asked(*args: Any, **kwargs: Any) -> object:
        there = await _awaited(check(*args, **kwargs))
        return False if _absent(there) else Yes(there)

    return asked


@contextmanager
def _unobserved() -> Iterator[None]:
    """Ignores requests of a check: it only reads."""
    trace = _watch.Trace()
    token = _watch.enter(trace)
    try:
        yield
    finally:
        _watch.leave(trace, token)


async def _awaited(value: Any) -> Any:
    return await value if hasattr(value, "__await__") else value


def _absent(there: object) -> bool:
    return there is None or there is False


def _as_it_was(there: object) -> object:
    current_operation().noop("it was so already")
    return there
