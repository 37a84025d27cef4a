"""Threads, processes, forks and signals."""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

from onceward import InDoubt, Ledger, LedgerUnavailable

ALONE_S = 60.0


def test_sixteen_threads_on_one_key(ledger: Ledger) -> None:
    runs: list[int] = []

    @ledger.once
    def charge(amount: int) -> int:
        runs.append(amount)
        time.sleep(0.02)  # the other callers arrive meanwhile
        return amount

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(charge, [7] * 64)) == [7] * 64
    assert runs == [7]


def test_other_threads_run_while_one_waits(ledger: Ledger) -> None:
    """If the interpreter were held, the second caller would wait for itself."""
    release = threading.Event()
    slow = ledger.once(name="slow")(lambda: release.wait(ALONE_S))
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(slow), pool.submit(slow)
        time.sleep(0.05)  # time is the subject: neither ends before the release
        assert not first.done() and not second.done()
        release.set()
        assert first.result() is True and second.result() is True


def eventually(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + ALONE_S
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.005)


def charge_in(path: str) -> int:
    with Ledger(path) as ledger:
        return int(ledger.call("charge", {}, lambda: os.getpid()).value)


def test_processes_share_one_effect(tmp_path: Path) -> None:
    with ProcessPoolExecutor(4, mp_context=multiprocessing.get_context("spawn")) as pool:
        pids = set(pool.map(charge_in, [str(tmp_path / "a.db")] * 8))
    assert len(pids) == 1


def pid_by(ledger: Ledger) -> int:
    return int(ledger.call("charge", {}, lambda: os.getpid()).value)


def test_a_ledger_can_be_sent_to_another_process(ledger: Ledger) -> None:
    own = pid_by(ledger)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(pid_by, ledger).result() == own


def in_child(work: object, *args: object) -> int:
    """The exit status of a forked child that does this work."""
    child = os.fork()
    if child == 0:
        status = 99
        try:
            status = int(work(*args))  # type: ignore[operator]
        finally:
            os._exit(status)
    ended = os.pidfd_open(child)
    hangs = not select.select([ended], [], [], ALONE_S)[0]
    os.close(ended)
    if hangs:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert not hangs, "the child hangs"
    return os.waitstatus_to_exitcode(status)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_of_an_idle_ledger_opens_its_own(ledger: Ledger) -> None:
    runs: list[int] = []
    charge = ledger.once(name="charge")(lambda n: runs.append(n) or n)
    charge(1)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(charge, range(10, 30)))

    def child() -> int:
        return 10 * charge(1) + charge(2) + len(runs) - 21

    assert in_child(child) == 10 + 2 + 1
    assert charge(2) == 2 and 2 not in runs, "the parent sees the child's effect"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_waits_with_its_own_clock(tmp_path: Path) -> None:
    """A child with its parent's timers would wait for ever."""
    with Ledger(tmp_path / "a.db") as ledger:
        began, release = tmp_path / "began", tmp_path / "release"
        hold = (
            "import sys, time, pathlib; from onceward import Ledger\nbegan, release = map(pathlib.Path, sys.argv[2:])\n"
        )
        hold += "def work():\n began.touch()\n while not release.exists(): time.sleep(0.005)\n return 5\n"
        hold += "Ledger(sys.argv[1]).call('slow', {}, work)"
        other = subprocess.Popen([sys.executable, "-c", hold, str(tmp_path / "a.db"), str(began), str(release)])
        eventually(began.exists)
        with ThreadPoolExecutor(1) as pool:
            waits = pool.submit(ledger.call, "slow", {}, lambda: 6)
            time.sleep(0.1)  # nothing shows that it waits; if it comes later, it gets the same result
            release.touch()
            assert waits.result().value == 5
        other.wait()
        for file in (began, release):
            file.unlink()
        other = subprocess.Popen(
            [sys.executable, "-c", hold.replace("'slow'", "'slow2'"), str(tmp_path / "a.db"), str(began), str(release)]
        )
        eventually(began.exists)

        def child() -> int:
            threading.Timer(0.2, release.touch).start()
            return int(ledger.call("slow2", {}, lambda: 6).value)

        assert in_child(child) == 5
        other.wait()


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_of_a_ledger_in_use_says_so(ledger: Ledger) -> None:
    def child() -> int:
        try:
            ledger.call("other", {}, lambda: 1)
        except LedgerUnavailable as error:
            return 1 if "spawn" in str(error) and error.happened == "unknown" and not error.ran else 2
        return 3

    assert ledger.call("forks", {}, lambda: in_child(child)).value == 1
    assert ledger.call("other", {}, lambda: 1).effect == "updated", "the parent continues"


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_ledger_in_memory_stays_with_its_process() -> None:
    ledger = Ledger("memory:")
    assert ledger.call("charge", {}, lambda: 5).value == 5

    def child() -> int:
        with pytest.raises(LedgerUnavailable, match="belongs to the process that created it"):
            ledger.call("charge", {}, lambda: 6)
        return int(Ledger("memory:").call("charge", {}, lambda: 7).value)

    assert in_child(child) == 7
    assert ledger.call("charge", {}, lambda: 8).value == 5, "the parent remembers"


def test_a_child_that_forgets_its_parents_ledger_leaves_its_locks_alone(ledger: Ledger) -> None:
    def work() -> int:
        assert in_child(lambda: 0) == 0
        [running] = ledger.operations(name="forks")
        return int(running.state == "running")

    assert ledger.call("forks", {}, work).value == 1


SCRIPT = """
import sys, signal, os, time
from onceward import Ledger, InDoubt
# A shell starts what runs in the background with Ctrl-C ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
ledger = Ledger(sys.argv[1])
def work():
    print("began", flush=True)
    time.sleep(60)
try:
    print("calls", flush=True)
    ledger.call(sys.argv[2], {}, work, wait=60)
except KeyboardInterrupt:
    print("interrupted", next(iter(ledger.operations())).state, flush=True)
"""


def start(path: Path, name: str) -> subprocess.Popen[str]:
    arguments = [sys.executable, "-c", SCRIPT, str(path), name]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_ctrl_c_in_the_function_is_in_doubt(tmp_path: Path) -> None:
    process = start(tmp_path / "a.db", "work")
    assert (said(process), said(process)) == ("calls", "began")
    process.send_signal(signal.SIGINT)
    assert said(process) == "interrupted in_doubt"
    process.communicate(timeout=ALONE_S)


def test_ctrl_c_while_it_waits_for_another_ends_the_wait(tmp_path: Path) -> None:
    owner = start(tmp_path / "a.db", "work")
    assert (said(owner), said(owner)) == ("calls", "began")
    waiter = start(tmp_path / "a.db", "work")
    assert said(waiter) == "calls"
    with Ledger(tmp_path / "a.db") as ledger:
        # Long enough to be waiting; an earlier interrupt would have the same result.
        time.sleep(0.3)
        waiter.send_signal(signal.SIGINT)
        assert said(waiter) == "interrupted running"
        owner.kill()
        owner.communicate()
        with pytest.raises(InDoubt):
            ledger.call("work", {}, lambda: None)
    waiter.communicate(timeout=ALONE_S)


def test_the_interpreter_ends_with_threads_at_work(tmp_path: Path) -> None:
    script = """
import sys, threading, time
from onceward import Ledger
ledger = Ledger(sys.argv[1])
begun = threading.Event()
def work(n):
    begun.set(); time.sleep(30)
for n in range(4):
    threading.Thread(target=lambda n=n: ledger.call("work", {"n": n}, lambda n: work(n)), daemon=True).start()
    threading.Thread(target=lambda n=n: ledger.call("work", {"n": n}, lambda n: work(n)), daemon=True).start()
begun.wait(); time.sleep(0.1)
print("bye")
"""
    ended = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "a.db")], capture_output=True, timeout=ALONE_S, text=True
    )
    assert (ended.returncode, ended.stdout) == (0, "bye\n"), ended.stderr


FORKS = """
import os, sys
from onceward import Ledger, LedgerUnavailable

how, place, effects = sys.argv[1:]
parent = os.getpid()

def fork():
    child = os.fork()
    if child == 0:
        if how == "exit":
            sys.exit(0)
        if how == "raise":
            raise ValueError("in the child")
        return "the child's"
    os.waitpid(child, 0)
    # What others find while the parent is still working.
    print(Ledger(place).show(next(Ledger(place).operations()).id).state, flush=True)
    with open(effects, "a") as file:
        file.write("x")
    return "the parent's"

ledger = Ledger(place)
try:
    print(ledger.once(name="forks", dispatch=DISPATCH)(fork)(), flush=True)
except LedgerUnavailable as error:
    assert os.getpid() != parent and "forked" in str(error), error
    os._exit(0)
except ValueError:
    assert os.getpid() != parent
    os._exit(0)
"""


@pytest.mark.parametrize("how", ["exit", "raise", "return"])
@pytest.mark.parametrize("dispatch", ["begin", "marked"])
def test_a_forked_child_cannot_write_its_parents_ending(tmp_path: Path, how: str, dispatch: str) -> None:
    place, effects = tmp_path / "agent.db", tmp_path / "effects"
    code = FORKS.replace("DISPATCH", repr(dispatch))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, how, str(place), str(effects)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["running", "the parent's"], done.stdout
    with Ledger(place) as ledger:
        (record,) = ledger.operations()
        assert record.state == "done" and record.json == '"the parent\'s"'
    assert effects.read_text() == "x"


FORKS_IN_A_LOOP = """
import asyncio, os, sys
from onceward import Ledger, LedgerUnavailable

async def forks():
    child = os.fork()
    if child == 0:
        return "the child's"
    os.waitpid(child, 0)
    return "the parent's"

async def main():
    parent = os.getpid()
    try:
        print(await Ledger(sys.argv[1]).once(name="forks")(forks)(), flush=True)
    except LedgerUnavailable:
        assert os.getpid() != parent
        os._exit(0)

asyncio.run(main())
"""


def test_a_forked_child_of_a_coroutine_cannot_either(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS_IN_A_LOOP, str(tmp_path / "agent.db")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "the parent's\n"), done.stderr
