"""The loop that measures a Python peer; the same as in src/bin/agent_effects_bench.rs.

`first` calls keys 0, 1, 2, …; `replay` calls the same keys again in the same directory.
"""

import argparse
import itertools
import json
import sys
import threading
import time
from importlib.metadata import version
from pathlib import Path


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--dir", type=Path, required=True, help="where the ledger is: empty before `first`, kept for `replay`"
    )
    parser.add_argument("--mode", choices=["first", "replay"], default="first")
    parser.add_argument("--callers", type=int, default=1, help="concurrent callers: threads in this process")
    parser.add_argument("--operations", type=int, default=5000, help="how many keys to call")
    parser.add_argument("--again", action="store_true", help="call the keys over and over until the time is over")
    parser.add_argument("--seconds", type=float, default=8.0, help="start no call after this many seconds")
    parser.add_argument("--first", type=int, default=0, help="the first key; other processes have other keys")
    parser.add_argument("--start-at", type=float, default=0.0, help="start at this time, together with other processes")
    return parser


class Action:
    """The effect: it only counts its runs, so that a replay that executes is noticed."""

    def __init__(self):
        self._runs = itertools.count()

    def __call__(self):
        next(self._runs)
        return {"id": "charge-1", "ok": True}

    def executed(self):
        return next(self._runs)


def measure(call, action, options, *, peer, package, syncs, note=None):
    """Run `call(number)` for each key from `options.callers` threads and print one JSON line."""
    numbers = itertools.count(options.first)
    end = options.first + options.operations
    start = threading.Barrier(options.callers + 1)
    latencies, errors = [], []

    def caller():
        start.wait()
        started = time.perf_counter()
        while time.perf_counter() - started < options.seconds:
            number = next(numbers)
            if options.again:
                number %= options.operations
            elif number >= end:
                break
            before = time.perf_counter()
            try:
                call(number)
            except Exception as error:
                errors.append(error)
                print(f"key {number}: {error!r}", file=sys.stderr)
            else:
                latencies.append(time.perf_counter() - before)

    threads = [threading.Thread(target=caller) for _ in range(options.callers)]
    for thread in threads:
        thread.start()
    time.sleep(max(0.0, options.start_at - time.time()))
    start.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started

    latencies.sort()
    line = {
        "peer": peer,
        "version": version(package),
        "mode": options.mode,
        "callers": options.callers,
        "operations": len(latencies),
        "seconds": round(seconds, 3),
        "per_second": round(len(latencies) / seconds, 1),
        "p50_us": percentile(latencies, 0.50),
        "p99_us": percentile(latencies, 0.99),
        "syncs": syncs,
        "executed": action.executed(),
        "errors": len(errors),
    }
    if note:
        line["note"] = note
    print(json.dumps(line, separators=(",", ":")))


def percentile(ordered, share):
    return round(ordered[int(len(ordered) * share)] * 1e6, 1) if ordered else None
