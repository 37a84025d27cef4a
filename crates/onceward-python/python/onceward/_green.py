"""Support for gevent: while a call waits, other greenlets run."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._loop import Woken
from ._onceward import LoopWaker, Receipt

if TYPE_CHECKING:
    from ._guard import Guard


def is_patched() -> bool:
    """Whether gevent has replaced the interpreter's sockets and this thread runs its hub."""
    monkey: Any = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("socket"))


def run(guard: Guard, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Receipt:
    """Makes the call once. While the ledger waits, the hub keeps running."""
    gevent: Any = sys.modules["gevent"]
    wait_read: Any = import_module("gevent.socket").wait_read

    if not guard.handle.is_open:
        gevent.get_hub().threadpool.apply(guard.handle.open)
    asks_probe, asks_check = guard.probe is not None, guard.verify is not None
    call = guard.handle.start_async(guard.spec, args, kwargs, probe=asks_probe, verify=asks_check)
    waker = LoopWaker()
    while True:
        try:
            turn = call.poll(waker, Woken())
            if turn is None:
                wait_read(waker.fileno())
                waker.wake_futures()
                continue
        except BaseException:
            call.abandon()
            raise
        kind, about = turn
        if kind == "answer":
            receipt: Receipt = about
            return receipt
        if kind == "execute":
            report = guard._perform(about, args, kwargs)
            if report[0] != "done" and isinstance(report[2], BaseException) and not isinstance(report[2], Exception):
                call.end(report)
                raise report[2]
            call.executed(report)
        elif kind == "probe":
            call.probed(guard._probe(about, args, kwargs))
        else:
            call.verified(guard._verify(about, args, kwargs))
