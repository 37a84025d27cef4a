"""Waits for the ledger in an event loop. No thread of the ledger enters the interpreter; it wakes the loop instead."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from ._onceward import AsyncCall, Attempt, LoopWaker, StopWatch

R = TypeVar("R")

# How long a coroutine runs before the ledger is read for a request to stop, in seconds.
_LOOK = 0.5
_STOPPED = "onceward: the run was stopped, or the operation cancelled"

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
    waker = _waker_of(loop)
    while True:
        future: asyncio.Future[None] = loop.create_future()
        turn = call.poll(waker, future)
        if turn is not None:
            return turn
        await future


def _waker_of(loop: asyncio.AbstractEventLoop) -> LoopWaker:
    waker = _wakers.get(loop)
    if waker is None:
        waker = _wakers[loop] = LoopWaker()
        loop.add_reader(waker.fileno(), waker.wake_futures)
    return waker


class Stopper:
    """Cancels the task that runs an attempt when someone asks for its end. It costs a timer until it is needed."""

    __slots__ = ("_alone", "_attempt", "_ended", "_fired", "_loop", "_task", "_timer", "_watch")

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._alone = self._ended = self._fired = False
        self._watch: StopWatch | None = None
        self._timer: asyncio.TimerHandle | None = None
        # A task of trio can only be cancelled by a scope around it; there the function asks.
        if _trio() is None:
            self._loop = asyncio.get_running_loop()
            self._task = asyncio.current_task(self._loop)
            self._timer = self._loop.call_later(_LOOK, self._look)

    def _look(self, _woken: object = None) -> None:
        if self._ended:
            return
        if self._watch is None:
            self._watch = self._attempt.watch_stop()
        future: asyncio.Future[None] = self._loop.create_future()
        if not self._watch.poll(_waker_of(self._loop), future):
            future.add_done_callback(self._look)
        elif self._task is not None:
            self._fired = True
            self._task.cancel(_STOPPED)

    def end(self) -> bool:
        """Ends the watch. Returns whether it cancelled the task, and nothing else did."""
        if self._ended:
            return self._alone
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        if self._watch is not None:
            self._watch.close()
        if self._fired and self._task is not None:
            # Before Python 3.11 a task does not count its cancellations.
            uncancel = getattr(self._task, "uncancel", None)
            self._alone = uncancel is None or uncancel() == 0
        return self._alone


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
