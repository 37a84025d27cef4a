"""Waiting for the ledger in an event loop. No thread of the ledger ever enters the interpreter: it rings a bell."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from ._onceward import Bell, Conversation

_bells: WeakKeyDictionary[asyncio.AbstractEventLoop, Bell] = WeakKeyDictionary()


async def in_a_thread(work: Callable[[], None]) -> None:
    """Does what may take its time on a thread of the loop's own."""
    trio = _trio()
    if trio is not None:
        await trio.to_thread.run_sync(work)
        return
    await asyncio.get_running_loop().run_in_executor(None, work)


async def next_turn(conversation: Conversation) -> tuple[str, Any]:
    """What the ledger wants done next, or its answer."""
    trio = _trio()
    if trio is not None:
        return await _next_turn_in_trio(trio, conversation)
    loop = asyncio.get_running_loop()
    bell = _bells.get(loop)
    if bell is None:
        bell = _bells[loop] = Bell()
        loop.add_reader(bell.fileno(), bell.ring)
    while True:
        future: asyncio.Future[None] = loop.create_future()
        turn = conversation.poll(bell, future)
        if turn is not None:
            return turn
        await future


async def _next_turn_in_trio(trio: Any, conversation: Conversation) -> tuple[str, Any]:
    bell = Bell()
    while True:
        turn = conversation.poll(bell, Rung())
        if turn is not None:
            return turn
        await trio.lowlevel.wait_readable(bell.fileno())
        bell.ring()


class Rung:
    """What stands in the place of a future where the bell itself is waited for."""

    __slots__ = ("_done",)

    def __init__(self) -> None:
        self._done = False

    def done(self) -> bool:
        """Whether it was rung."""
        return self._done

    def set_result(self, _result: None) -> None:
        """It is rung."""
        self._done = True


def _trio() -> Any:
    """Trio, if it is what runs this coroutine."""
    trio: Any = sys.modules.get("trio")
    if trio is None:
        return None
    try:
        trio.lowlevel.current_task()
    except RuntimeError:
        return None
    return trio
