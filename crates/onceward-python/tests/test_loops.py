"""Event loops other than asyncio's: other tasks run while a call waits for the ledger."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import trio

from onceward import Failed, InDoubt, Ledger


def test_trio(ledger: Ledger) -> None:
    runs: list[int] = []

    @ledger.once(name="charge")
    async def charge(amount: int) -> int:
        runs.append(amount)
        await trio.sleep(0.05)  # the other callers arrive meanwhile
        return amount

    @ledger.once(name="refused")
    async def refused() -> None:
        await trio.open_tcp_stream("127.0.0.1", 1)

    seen: list[int] = []

    async def ask() -> None:
        seen.append(await charge(5))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask)
        async with ledger.dedupe("evt") as event:
            assert event.new
        async with ledger.dedupe("evt") as event:
            assert not event.new
        with pytest.raises((Failed, InDoubt)):
            await refused()
        began = trio.Event()

        async def endless() -> None:
            began.set()
            await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ledger.once(name="slow")(endless))
            await began.wait()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert runs == [5] and seen == [5] * 5
    assert next(ledger.operations(name="slow")).state == "in_doubt"


GEVENT = """
from gevent import monkey
monkey.patch_all()
import sys
import gevent
from gevent.event import Event
from onceward import Ledger

ledger = Ledger(sys.argv[1])
runs, ticked = [], Event()

# It ends when others have had their turn: a caller that waits for it must not block them.
@ledger.once(name="slow")
def slow():
    runs.append(1)
    return 7 if ticked.wait(50) else 0

def tick():
    for _ in range(40):
        gevent.sleep(0.01)
    ticked.set()

callers = [gevent.spawn(slow) for _ in range(4)]
gevent.joinall([*callers, gevent.spawn(tick)], raise_error=True)
print([caller.value for caller in callers], len(runs))
"""


def test_gevent(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", GEVENT, str(tmp_path / "agent.db")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout == "[7, 7, 7, 7] 1\n", done.stderr
