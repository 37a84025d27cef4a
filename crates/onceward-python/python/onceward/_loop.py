"""Waiting for the ledger in an event loop. No thread of the ledger ever enters the interpreter: it rings a bell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from ._onceward import Bell, Conversation

_bells: WeakKeyDictionary[asyncio.AbstractEventLoop, Bell] = WeakKeyDictionary()


async def in_a_thread(work: Callable[[], None]) -> None:
    """Does what may take its time on a thread of the loop's own."""
    await asyncio.get_running_loop().run_in_executor(None, work)


async def next_turn(conversation: Conversation) -> tuple[str, Any]:
    """What the ledger wants done next, or its answer."""
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
