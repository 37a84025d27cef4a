"""Under gevent: a call that waits lets other greenlets go on."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._loop import Rung
from ._onceward import Bell, Receipt

if TYPE_CHECKING:
    from ._guard import Guard


def is_patched() -> bool:
    """Whether gevent has taken the place of the interpreter's sockets, and this thread runs its hub."""
    monkey: Any = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("socket"))


def run(guard: Guard, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Receipt:
    """Lets the call happen once. Whatever the ledger waits for, the hub goes on."""
    gevent: Any = sys.modules["gevent"]
    wait_read: Any = import_module("gevent.socket").wait_read

    if not guard.handle.is_open:
        gevent.get_hub().threadpool.apply(guard.handle.open)
    asks = {"probe": guard.probe is not None, "verify": guard.verify is not None}
    conversation = guard.handle.converse(guard.spec, args, kwargs, **asks)
    bell = Bell()
    while True:
        try:
            turn = conversation.poll(bell, Rung())
            if turn is None:
                wait_read(bell.fileno())
                bell.ring()
                continue
        except BaseException:
            conversation.abandon()
            raise
        kind, about = turn
        if kind == "answer":
            receipt: Receipt = about
            return receipt
        if kind == "execute":
            told = guard._perform(about, args, kwargs)
            if told[0] != "done" and isinstance(told[2], BaseException) and not isinstance(told[2], Exception):
                conversation.end(told)
                raise told[2]
            conversation.executed(told)
        elif kind == "probe":
            conversation.probed(guard._probe(about, args, kwargs))
        else:
            conversation.verified(guard._verify(about, args, kwargs))
