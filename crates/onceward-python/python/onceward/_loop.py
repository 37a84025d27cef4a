"""Waits for the ledger in an event loop. No thread of the ledger enters the interpreter; it wakes the loop instead."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from ._onceward import AsyncCall, LoopWaker

R = TypeVar("R")

_wakers: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopWaker] = WeakKeyDictionary()


async def in_a_thread(work: Callable[[], R]) -> R:
    """Runs work that may block on a thread, and returns its result."""
    trio = _trio()
    if trio is not None:
        result: R = await trio.to_thread.run_sync(work)
        return result
    return await asyncio.get_running_loop().run_in_executor(None, work)


async def next_request(call: AsyncCall) -> tuple[str, Any]:
    """The ledger's next request, or its answer."""
    trio = _trio()
    if trio is not None:
        return await _next_request_in_trio(trio, call)
    loop = asyncio.get_running_loop()
    waker = _wakers.get(loop)
    if waker is None:
        waker = _wakers[loop] = LoopWaker()
        loop.add_reader(waker.fileno(), waker.wake_futures)
    while True:
        future: asyncio.Future[None] = loop.create_future()
        turn = call.poll(waker, future)
        if turn is not None:
            return turn
        await future


async def _next_request_in_trio(trio: Any, call: AsyncCall) -> tuple[str, Any]:
    waker = LoopWaker()
    while True:
        turn = call.poll(waker, Woken())
        if turn is not None:
            return turn
        await trio.lowlevel.wait_readable(waker.fileno())
        waker.wake_futures()


class Woken:
    """Replaces a future where the caller waits for the waker's socket itself."""

    __slots__ = ("_done",)

    def __init__(self) -> None:
        self._done = False

    def done(self) -> bool:
        """Whether it was woken."""
        return self._done

    def set_result(self, _result: None) -> None:
        """Marks it as woken."""
        self._done = True


def _trio() -> Any:
    """The module trio, if trio runs this coroutine."""
    trio: Any = sys.modules.get("trio")
    if trio is None:
        return None
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return None
    return trio
