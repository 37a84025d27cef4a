"""A stop that arrives while a function runs: coroutines are cancelled, functions can ask."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from onceward import InDoubt, Ledger, NotDispatched, Stopped, current_operation

STOP = """
import sys
from onceward import Ledger
with Ledger(sys.argv[1]) as ledger:
    sys.stdin.readline()
    settlement = ledger.stop("run-7", reason="wrong list", wait=120)
    print({name: count for name, count in settlement["sums"].items() if count})
"""


class Stopping:
    """Another process that stops the run and waits for what runs."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-c", STOP, str(folder / "agent.db")]
        read, self.pipe = os.pipe()
        self.process = subprocess.Popen(command, stdin=read, stdout=subprocess.PIPE)
        os.close(read)

    def begin(self) -> None:
        """Called by the function, which is under way. Writing to the pipe would count as an effect of the function."""
        os.close(self.pipe)

    def settled(self) -> str:
        out, _ = self.process.communicate(timeout=180)
        assert self.process.returncode == 0
        return out.decode().strip()


def test_a_coroutine_is_cancelled_and_in_doubt(ledger: Ledger, tmp_path: Path) -> None:
    stopping = Stopping(tmp_path)
    raised: list[BaseException] = []

    @ledger.once(scope="run-7")
    async def charge() -> None:
        stopping.begin()
        try:
            await asyncio.sleep(120)
        except asyncio.CancelledError as error:
            raised.append(error)
            raise

    async def main() -> None:
        with pytest.raises(InDoubt, match="it was asked to stop, and its coroutine was cancelled") as told:
            await charge()
        assert told.value.ran and told.value.happened == "unknown"
        # The caller was not cancelled.
        task: Any = asyncio.current_task()
        assert not hasattr(task, "cancelling") or task.cancelling() == 0
        await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(main(), 100))
    assert stopping.settled() == "{'intended': 1, 'in_doubt': 1}"
    assert "the run was stopped" in str(raised[0])


def test_a_coroutine_that_has_its_answer_reports_it(ledger: Ledger, tmp_path: Path) -> None:
    stopping = Stopping(tmp_path)

    @ledger.once(scope="run-7")
    async def charge() -> str:
        stopping.begin()
        try:
            await asyncio.sleep(120)
        except asyncio.CancelledError:
            return "charged"
        return "too late"

    async def main() -> None:
        assert await charge() == "charged"
        await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(main(), 100))
    assert stopping.settled() == "{'intended': 1, 'done': 1, 'standing': 1}"


def test_a_coroutine_that_has_sent_nothing_fails_with_certainty(ledger: Ledger, tmp_path: Path) -> None:
    stopping = Stopping(tmp_path)
    sent: list[int] = []

    @ledger.once(scope="run-7", dispatch="marked")
    async def charge() -> None:
        stopping.begin()
        await asyncio.sleep(120)
        with current_operation().dispatched():
            sent.append(1)

    async def main() -> None:
        with pytest.raises(Stopped, match="wrong list") as told:
            await charge()
        assert told.value.happened == "no"

    asyncio.run(asyncio.wait_for(main(), 100))
    assert stopping.settled() == "{'intended': 1, 'not_done': 1, 'failed': 1}" and not sent


def test_a_cancellation_by_the_caller_stays_one(ledger: Ledger, tmp_path: Path) -> None:
    """The caller gives up at the same time: it gets its own cancellation."""
    stopping = Stopping(tmp_path)

    @ledger.once(scope="run-7")
    async def charge() -> None:
        stopping.begin()
        try:
            await asyncio.sleep(120)
        except asyncio.CancelledError:
            asyncio.get_running_loop().call_soon(task.cancel)
            await asyncio.sleep(60)

    async def main() -> None:
        nonlocal task
        task = asyncio.create_task(charge())
        with pytest.raises((asyncio.CancelledError, InDoubt)) as told:
            await task
        assert isinstance(told.value, asyncio.CancelledError) == hasattr(task, "uncancel")

    task: asyncio.Task[None]
    asyncio.run(asyncio.wait_for(main(), 100))
    assert stopping.settled() == "{'intended': 1, 'in_doubt': 1}"


def test_a_function_can_ask(ledger: Ledger, tmp_path: Path) -> None:
    stopping = Stopping(tmp_path)

    @ledger.once(scope="run-7")
    def charge() -> str:
        assert not current_operation().stop_requested
        stopping.begin()
        until = time.monotonic() + 100
        while not current_operation().stop_requested:
            assert time.monotonic() < until, "the stop was not seen"
            time.sleep(0.02)
        return "stopped in an orderly way"

    assert charge() == "stopped in an orderly way"
    assert stopping.settled() == "{'intended': 1, 'done': 1, 'standing': 1}"


def test_a_function_that_was_stopped_before_it_sent_anything_sends_nothing(ledger: Ledger, tmp_path: Path) -> None:
    stopping = Stopping(tmp_path)
    sent: list[int] = []

    @ledger.once(scope="run-7", dispatch="marked")
    def charge() -> None:
        stopping.begin()
        until = time.monotonic() + 100
        while not current_operation().stop_requested:
            assert time.monotonic() < until, "the stop was not seen"
            time.sleep(0.02)
        with pytest.raises(NotDispatched, match="asked to stop before anything was sent"):
            current_operation().dispatched()
        current_operation().dispatched()
        sent.append(1)

    with pytest.raises(Stopped, match="the attempt of this call had no effect"):
        charge()
    assert stopping.settled() == "{'intended': 1, 'not_done': 1, 'failed': 1}" and not sent
