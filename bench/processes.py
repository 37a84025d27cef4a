"""Runs bench/processes: one JSON line per measurement, and the table of BENCHMARKS.md at the end."""

import argparse
import json
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import serve

KEYS_EACH = 10_000_000
SECONDS = 4.0
# Time to start all processes and open their ledgers.
START_S = 4.0


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--once", required=True, help="the program `once`")
    parser.add_argument(
        "--onceward", default="", help="the benchmark `processes` of onceward-store; empty: leave it out"
    )
    parser.add_argument("--agent-once", default="", help="its command; empty: leave it out")
    parser.add_argument("--agent-effects", default="", help="its program; empty: leave it out")
    parser.add_argument("--python", default="", help="a Python with this repository's package; empty: leave it out")
    parser.add_argument("--restate", type=Path, help="the folder of bench/load with its packages; without: left out")
    parser.set_defaults(seconds=int(SECONDS))
    return parser.parse_args()


def ours(options, only):
    environment = {
        **os.environ,
        "BENCH_PROCESSES": str(options.processes),
        "BENCH_ROUNDS": "1",
        "BENCH_ONLY": only,
        "BENCH_ONCE": options.once,
        "BENCH_DIR": str(options.dir),
    }
    output = subprocess.run([options.onceward], env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(output.stdout)


def peer(options, command):
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        return together(options, command, folder)


def together(options, command, folder):
    run = [*command.split(), "--dir", folder, "--mode", "first", "--callers", "1", "--operations", str(KEYS_EACH)]
    # The first process creates the ledger.
    subprocess.run([*run, "--seconds", "0.1"], check=True, stdout=subprocess.DEVNULL)
    run += ["--seconds", str(SECONDS), "--start-at", str(time.time() + START_S)]
    started = [
        subprocess.Popen([*run, "--first", str((number + 1) * KEYS_EACH)], stdout=subprocess.PIPE, text=True)
        for number in range(options.processes)
    ]
    lines = [json.loads(process.communicate()[0].splitlines()[-1]) for process in started]
    calls = sum(line["operations"] for line in lines)
    seconds = max(line["seconds"] for line in lines)
    return {
        "peer": f"{lines[0]['peer']} {lines[0]['version']}",
        "mode": "first",
        "processes": options.processes,
        "operations": calls,
        "per_second": round(calls / seconds),
        "p50_us": statistics.median(line["p50_us"] or 0 for line in lines),
        "p99_us": max(line["p99_us"] or 0 for line in lines),
        "errors": sum(line["errors"] for line in lines),
    }


class Server:
    """A `once serve` on a Unix socket. With `kills`, it is killed without warning and started again every 0.4 seconds."""

    def __init__(self, options, folder, kills):
        self.command = [
            options.once,
            "--ledger",
            f"sqlite:{folder}/onceward.db",
            "serve",
            "--socket",
            f"{folder}/once.sock",
        ]
        self.kills, self.killed, self.ends = kills, 0, threading.Event()

    def __enter__(self):
        self.start()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def start(self):
        self.process = subprocess.Popen(self.command, stderr=subprocess.DEVNULL)

    def watch(self):
        while not self.ends.wait(0.4):
            if self.kills:
                self.process.kill()
                self.process.wait()
                self.killed += 1
                self.start()

    def __exit__(self, *_):
        self.ends.set()
        self.thread.join()
        self.process.terminate()
        self.process.wait()


def python(options, how):
    """The same with this repository's Python package. What was acknowledged must be in the file afterwards."""
    command = f"{options.python} bench/peers/onceward_bench.py"
    with tempfile.TemporaryDirectory(dir=options.dir) as folder:
        if how == "file":
            line = together(options, command, folder)
        else:
            with Server(options, folder, kills="killed" in how) as server:
                line = together(options, f"{command} --url unix:{folder}/once.sock", folder)
            line["kills"] = server.killed
        with sqlite3.connect(f"{folder}/onceward.db") as file:
            stored = file.execute("SELECT count(*) FROM operations WHERE state = 'done'").fetchone()[0]
    line["stored"] = stored
    if stored < line["operations"]:
        sys.exit(f"{line['operations']} calls were acknowledged, and {stored} are stored")
    return {**line, "peer": f"onceward in Python, {how}"}


def restate(options):
    """One load generator with as many connections: its client costs less than processes do."""
    with serve.restate(options) as url:
        line = serve.wrk(options, url, "first", "/charges/create", connections=options.processes)
    return {
        "peer": f"Restate {serve.RESTATE_VERSION}",
        "mode": "first",
        "processes": options.processes,
        "operations": line["requests"],
        **line,
    }


def main():
    options = arguments()
    options.dir.mkdir(parents=True, exist_ok=True)
    measure = []
    if options.onceward:
        measure += [lambda only=only: ours(options, only) for only in ("file", "socket", "killed")]
    if options.python:
        ways = ("file", "socket", "socket of a server that is killed")
        measure += [lambda how=how: python(options, how) for how in ways]
    if options.agent_once:
        measure.append(lambda: peer(options, options.agent_once))
    if options.agent_effects:
        measure.append(lambda: peer(options, options.agent_effects))
    if options.restate:
        measure.append(lambda: restate(options))
    measured = []
    for round_ in range(1, options.rounds + 1):
        for one in measure:
            line = {**one(), "round": round_, "load": float(Path("/proc/loadavg").read_text().split()[0])}
            measured.append(line)
            print(json.dumps(line), flush=True)

    def rate(name):
        return statistics.median(line["per_second"] for line in measured if line["peer"] == name)

    socket = rate("onceward, socket" if options.onceward else "onceward in Python, socket")
    print(
        f"\n| {options.processes} processes, first calls | per second | p50 µs | errors | the socket is |",
        file=sys.stderr,
    )
    print("|---|---|---|---|---|", file=sys.stderr)
    for name in dict.fromkeys(line["peer"] for line in measured):
        own = [line for line in measured if line["peer"] == name]
        p50, errors = statistics.median(line["p50_us"] for line in own), sum(line.get("errors", 0) for line in own)
        print(f"| {name} | {rate(name):,.0f} | {p50:,.0f} | {errors} | {socket / rate(name):.1f} × |", file=sys.stderr)


main()
