"""The torture of the ledger through its Python API: `python torture.py [--url URL]` prints the table, cell by cell.

Each cell counts the effects that really happened (lines in a file) with processes that are killed, stopped, refused
or race each other. A cell with an unexpected value makes the exit status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onceward import InDoubt, KeyReused, Ledger, OncewardError, Yes, current_operation

PATIENCE_S = 60.0


class Bench:
    """The folder of one cell: a ledger, and a file that counts effects."""

    def __init__(self, folder: Path, url: str | None = None) -> None:
        self.folder = folder
        self.url = url or str(folder / "ledger.db")

    def effect(self, what: str = "x") -> None:
        descriptor = os.open(self.folder / "effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, what.encode() + b"\n")
        os.close(descriptor)

    def effects(self) -> list[str]:
        file = self.folder / "effects"
        return file.read_text().split() if file.exists() else []

    def touch(self, mark: str) -> None:
        (self.folder / mark).touch()

    def wait_for(self, mark: str) -> None:
        until = time.monotonic() + PATIENCE_S
        while not (self.folder / mark).exists():
            assert time.monotonic() < until, f"{mark} does not come"
            time.sleep(0.002)

    def ready(self) -> None:
        """This process is ready, and waits until all start at once."""
        self.touch(f"ready-{os.getpid()}")
        self.wait_for("go")

    def start(self, role: str, count: int) -> list[subprocess.Popen[str]]:
        """Processes that start at once."""
        crowd = [self.worker(role) for _ in range(count)]
        for worker in crowd:
            self.wait_for(f"ready-{worker.pid}")
        self.touch("go")
        return crowd

    def worker(self, role: str, *more: str) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, "--worker", role, str(self.folder), self.url, *more]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


# What workers do: each is a separate process.


def one_key(bench: Bench) -> str:
    """One of many callers of one key."""

    def work() -> int:
        bench.effect()
        time.sleep(0.05)  # the other callers arrive meanwhile
        return 42

    bench.ready()
    receipt = Ledger(bench.url).call("charge", {"amount": 1}, work)
    assert receipt.value == 42
    return "replayed" if receipt.replayed else "ran"


def many_keys(bench: Bench) -> str:
    """One of many callers of the same two hundred keys."""
    ledger = Ledger(bench.url)
    answers: Counter[str] = Counter()
    bench.ready()
    for key in range(200):
        receipt = ledger.call("charge", {"n": key}, lambda n: bench.effect(str(n)))
        answers["replayed" if receipt.replayed else "ran"] += 1
    return json.dumps(answers)


def killed(bench: Bench, when: str, how: str) -> str:
    """A worker that is killed before or after its effect."""

    def work() -> None:
        operation = current_operation()
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        operation.dispatched()
        bench.effect()
        os.kill(os.getpid(), signal.SIGKILL)

    Ledger(bench.url).call("charge", {}, work, dispatch=how, quarantine=0)
    return "survived"


def stopped(bench: Bench) -> str:
    """A worker that begins, is stopped for longer than its lease, resumes, and only then has its effect."""

    def work() -> str:
        bench.touch("began")
        bench.wait_for("wake")
        bench.effect()
        return "late"

    receipt = Ledger(bench.url).call("charge", {}, work, lease=0.3)
    return str(receipt.value)


WORKERS: dict[str, Callable[..., str]] = {"one": one_key, "many": many_keys, "killed": killed, "stopped": stopped}


# The cells. Each returns what was observed; the table has the expected values.


def a_one_key(bench: Bench, warm: bool = False) -> str:
    if warm:
        Ledger(bench.url).call("warm", {}, lambda: None)
    crowd = bench.start("one", 16)
    answers = Counter(worker.communicate(timeout=PATIENCE_S)[0].strip() or "error" for worker in crowd)
    told = ", ".join(f"{answers[word]} {word}" for word in ("ran", "replayed"))
    return f"{len(bench.effects())} effect, {told}, {answers['error']} errors"


def a_warm(bench: Bench) -> str:
    return a_one_key(bench, warm=True)


def killed_then(bench: Bench, when: str, how: str, probe: Any = None) -> str:
    bench.worker("killed", when, how).communicate(timeout=PATIENCE_S)
    started = time.monotonic()
    try:
        receipt = Ledger(bench.url).call("charge", {}, bench.effect, dispatch=how, probe=probe, quarantine=0)
        said = "replayed" if receipt.replayed else "ran"
    except InDoubt:
        said = "in doubt"
    # A lease would be fifteen seconds; the kernel knows at once, however busy the machine is.
    slow = time.monotonic() - started > 14
    return f"{len(bench.effects())} effect, {said}{', slowly' if slow else ''}"


def b_killed_after(bench: Bench) -> str:
    return killed_then(bench, "after", "begin")


def b_killed_after_probed(bench: Bench) -> str:
    return killed_then(bench, "after", "begin", lambda: Yes(1) if bench.effects() else False)


def c_killed_before_marked(bench: Bench) -> str:
    return killed_then(bench, "before", "marked")


def c_killed_before_probed(bench: Bench) -> str:
    return killed_then(bench, "before", "begin", lambda: Yes(1) if bench.effects() else False)


def c_killed_before(bench: Bench) -> str:
    return killed_then(bench, "before", "begin")


def twice(bench: Bench, work: Callable[[], object], **options: Any) -> str:
    said = []
    with Ledger(bench.url) as ledger:
        for _ in range(2):
            try:
                said.append("replayed" if ledger.call("charge", {}, work, **options).replayed else "ran")
            except OncewardError as error:
                said.append(error.code)
    return f"{len(bench.effects())} effect, {', '.join(said)}"


def d_timeout_after(bench: Bench) -> str:
    def work() -> None:
        bench.effect()
        raise TimeoutError("the reply was lost")

    return twice(bench, work)


def d_exception_after(bench: Bench) -> str:
    def work() -> None:
        bench.effect()
        raise RuntimeError("a bug after the effect")

    return twice(bench, work)


def i_refused_before(bench: Bench) -> str:
    tries: list[int] = []

    def work() -> None:
        tries.append(1)
        if len(tries) == 1:
            with socket.socket() as line:
                line.connect(("127.0.0.1", 1))
        bench.effect()

    return twice(bench, work)


def i_exception_before(bench: Bench) -> str:
    tries: list[int] = []

    def work() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("a bug before the effect")
        with current_operation().dispatched():
            bench.effect()

    return twice(bench, work, dispatch="marked")


def e_other_payload(bench: Bench) -> str:
    with Ledger(bench.url) as ledger:
        ledger.call("charge", {"amount": 100}, lambda: bench.effect(), key="order-1")
        try:
            ledger.call("charge", {"amount": 999}, lambda: bench.effect(), key="order-1")
        except KeyReused as refused:
            return f"{len(bench.effects())} effect, detected in {refused.fields[0]}"
    return f"{len(bench.effects())} effects, not detected"


def j_bad_result(bench: Bench) -> str:
    import warnings

    def work() -> object:
        bench.effect()
        return object()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return twice(bench, work)


def h_deliberate_repeat(bench: Bench) -> str:
    with Ledger(bench.url) as ledger:
        for occurrence in (1, 2, 1, 2):
            ledger.call("charge", {}, lambda: bench.effect(), occurrence=occurrence)
    return f"{len(bench.effects())} effects"


def g_many_keys(bench: Bench) -> str:
    crowd = bench.start("many", 8)
    answers: Counter[str] = Counter()
    for worker in crowd:
        answers.update(json.loads(worker.communicate(timeout=PATIENCE_S)[0] or "{}"))
    counts = Counter(bench.effects())
    duplicates, lost = sum(count - 1 for count in counts.values()), 200 - len(counts)
    return f"{duplicates} duplicates, {lost} lost, {answers['replayed']} replayed"


def k_zombie(bench: Bench) -> str:
    owner = bench.worker("stopped")
    bench.wait_for("began")
    owner.send_signal(signal.SIGSTOP)
    time.sleep(1.0)  # time is the subject: longer than any lease
    said = "ran"
    try:
        Ledger(bench.url).call("charge", {}, bench.effect, wait=0.5, lease=0.3)
    except OncewardError as error:
        said = error.code
    bench.touch("wake")
    owner.send_signal(signal.SIGCONT)
    late = owner.communicate(timeout=PATIENCE_S)[0].strip()
    receipt = Ledger(bench.url).call("charge", {}, bench.effect)
    return f"{len(bench.effects())} effect, {said} meanwhile, then {late} and {receipt.value}"


# The expected values, if the kernel knows whether an owner is alive.
CELLS: list[tuple[str, Callable[[Bench], str], str]] = [
    ("a: 16 processes, one key, cold", a_one_key, "1 effect, 1 ran, 15 replayed, 0 errors"),
    ("a: 16 processes, one key, warm", a_warm, "1 effect, 1 ran, 15 replayed, 0 errors"),
    ("b: kill -9 after the effect", b_killed_after, "1 effect, in doubt"),
    ("b: the same, with a probe", b_killed_after_probed, "1 effect, replayed"),
    ("c: kill -9 before the effect", c_killed_before, "0 effect, in doubt"),
    ("c: the same, with marks", c_killed_before_marked, "1 effect, ran"),
    ("c: the same, with a probe", c_killed_before_probed, "1 effect, ran"),
    ("d: timeout after the effect", d_timeout_after, "1 effect, TIMEOUT, IN_DOUBT"),
    ("d: exception after the effect", d_exception_after, "1 effect, IN_DOUBT, IN_DOUBT"),
    ("e: same key, other payload", e_other_payload, "1 effect, detected in /amount"),
    ("g: 200 keys × 8 processes", g_many_keys, "0 duplicates, 0 lost, 1400 replayed"),
    ("h: a deliberate repeat", h_deliberate_repeat, "2 effects"),
    ("i: refused before the effect", i_refused_before, "1 effect, FAILED, ran"),
    ("i: exception before the mark", i_exception_before, "1 effect, FAILED, ran"),
    ("j: result that is not JSON", j_bad_result, "1 effect, ran, replayed"),
    ("k: stopped past its lease, wakes", k_zombie, "1 effect, IN_PROGRESS meanwhile, then late and late"),
]


def run() -> int:
    wrong = 0
    for name, cell, expected in CELLS:
        with tempfile.TemporaryDirectory(prefix="onceward-torture-") as folder:
            started = time.monotonic()
            seen = cell(Bench(Path(folder)))
            took = time.monotonic() - started
        wrong += seen != expected
        print(f"{'ok  ' if seen == expected else 'WRONG'} {name:34} {seen}  ({took:.2f} s)")
        if seen != expected:
            print(f"      expected{'':28} {expected}")
    print(f"{len(CELLS) - wrong} of {len(CELLS)} cells are right")
    return int(wrong > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        role, folder, url, *more = options.worker
        print(WORKERS[role](Bench(Path(folder), url), *more))
        return 0
    return run()


if __name__ == "__main__":
    sys.exit(main())
