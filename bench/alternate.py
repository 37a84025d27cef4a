#!/usr/bin/env python3
"""Compares two builds of the ledger's benchmark in one run: their rounds alternate, so a slow minute affects both.

    bench/alternate.py OLD NEW [--rounds 7] [--only 'onceward first']

OLD and NEW are the programs that `cargo bench -p onceward-store --bench ledger --no-run` names. Prints medians: the
rate, and the processor time of an operation, in which waiting for the disk or for other programs does not count.
BENCH_DIR selects the file system.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys


def measure(program, only):
    environment = {**os.environ, "BENCH_ROUNDS": "1", "BENCH_ONLY": only}
    before = os.times()
    said = subprocess.run([program, "--bench"], env=environment, check=True, capture_output=True, text=True).stdout
    after = os.times()
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    line = json.loads(said.splitlines()[-1])
    return line["per_second"], seconds * 1e6 / line["operations"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", action="append", help="measurements, such as 'onceward first 64'")
    options = parser.parse_args()
    modes = options.only or ["onceward first 1", "onceward first 64", "onceward first 256"]
    figures = {mode: {program: [] for program in (options.old, options.new)} for mode in modes}
    for number in range(options.rounds):
        for mode in modes:
            # Each build is first in every other round.
            for program in [options.old, options.new][:: 1 if number % 2 == 0 else -1]:
                figures[mode][program].append(measure(program, mode))
        print(f"\rround {number + 1}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(
        "| what | before, per second | after | ratio | before, µs of processor time | after | ratio |\n"
        + "|---" * 7
        + "|"
    )
    for mode in modes:
        old, new = (
            [statistics.median(column) for column in zip(*figures[mode][program], strict=True)]
            for program in (options.old, options.new)
        )
        rates, times = (
            f"{old[0]:,.0f} | {new[0]:,.0f} | {new[0] / old[0]:.2f}",
            f"{old[1]:.1f} | {new[1]:.1f} | {new[1] / old[1]:.2f}",
        )
        print(f"| {mode} | {rates} | {times} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
