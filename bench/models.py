"""Runs bench/models: one JSON line per measurement, and the tables of BENCHMARKS.md at the end.

Every request has a prompt of its own, so every one is a first call: a generation that is recorded. The candidates are
measured in turn in every round, so that a busy machine slows all of them down, and differences and ratios are formed
within a round. The processor time of a server per request depends least on what else runs on the machine. A candidate
that does not start, or a measurement that fails, is reported and left out.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

import serve
from serve import HOST, folder_in, free_port, port_of, private, running, wait_for

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("tests", "tests/models")]

DOCUMENT = '{"model":"m","messages":[{"role":"user","content":"%s"}]}'
STREAM = '{"model":"m","stream":true,"messages":[{"role":"user","content":"%s"}]}'
PACED = '{"model":"m","stream":true,"pause":%d,"messages":[{"role":"user","content":"%s"}]}'
LONG = '{"model":"m","stream":true,"events":%d,"messages":[{"role":"user","content":"%s"}]}'
# How many streams are open at the same time, and the pause between two of their 51 events, in milliseconds.
OPEN, PAUSE = 1000, 600
# How many streams the first byte is measured with, and their pause.
FIRSTS, FIRST_PAUSE = 20, 5
# The events of a stream of 20 MB.
LONG_EVENTS = 73_000
SYNCS = 200
TICKS = os.sysconf("SC_CLK_TCK")
# Their requests take milliseconds, and with 64 clients whole seconds: they are measured with one client.
PEERS = ("LiteLLM", "Portkey")


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True, help="where ledgers are made")
    parser.add_argument("--once", required=True, help="the program `once`")
    parser.add_argument("--servers", required=True, help="the benchmark `serve` of onceward-http")
    parser.add_argument("--cache", type=Path, required=True, help="where LiteLLM and Portkey are installed")
    parser.add_argument("--peers", choices=["yes", "no"], default="yes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--only", default="", help="a pattern for what to measure")
    return parser.parse_args()


@contextlib.contextmanager
def server(options, *words):
    """A server of crates/onceward-http/benches/serve.rs; gives its address and process."""
    command = [options.servers, *words]
    with running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process.stdout.readline().strip(), process.pid


@contextlib.contextmanager
def direct(options, model):
    yield model, {}, None


@contextlib.contextmanager
def passed_through(options, model):
    with server(options, "proxy", model) as (url, pid):
        yield url, {}, pid


def once(settings=""):
    """`once serve` on a ledger with these settings in its URL."""
    return lambda options, model: once_serve(options, model, settings)


@contextlib.contextmanager
def once_serve(options, model, settings):
    with folder_in(options) as folder:
        policy, port = folder / "onceward.toml", free_port()
        policy.write_text(f'[upstream.openai]\nurl = "{model}"\nallow_private = true\n')
        command = [
            options.once,
            "--config",
            str(policy),
            "--ledger",
            f"sqlite:{folder}/once.db{settings}",
            "serve",
            "--listen",
            f"{HOST}:{port}",
        ]
        with running(command, env=private(folder), stderr=subprocess.DEVNULL) as process:
            wait_for(port, "/healthz")
            yield f"http://{HOST}:{port}/gw/openai", {}, process.pid


def peer(name):
    @contextlib.contextmanager
    def start(options, model):
        from peers import PEERS

        with PEERS[name](options.cache, model) as at:
            yield *at, None

    return start


CANDIDATES = {
    "direct": direct,
    "pass-through": passed_through,
    "once": once(),
    "once, sync=normal": once("?sync=normal"),
    **{name: peer(name) for name in PEERS},
}


def used(pid):
    """The processor time that a process has used, in microseconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS * 1e6


def wrk(options, at, body, connections):
    url, headers, pid = at
    split = re.match(r"(http://[^/]+)(.*)", url)
    before = used(pid) if pid else 0
    path = f"{split[2]}/v1/chat/completions"
    line = serve.wrk(options, split[1], "first", path, body, connections, "X-Prompt", headers)
    if pid and line["requests"]:
        line["cpu_us"] = round((used(pid) - before) / line["requests"], 1)
    return line


async def stream(url, body, headers):
    """Asks for a stream. Gives the seconds to its first byte and its length."""
    split = re.match(r"http://([^:]+):(\d+)(.*)", url)
    reader, writer = await asyncio.open_connection(split[1], int(split[2]))
    more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    begun = time.monotonic()
    writer.write(
        (
            f"POST {split[3]}/v1/chat/completions HTTP/1.1\r\nHost: {split[1]}\r\nConnection: close\r\n"
            f"Authorization: Bearer k\r\nContent-Type: application/json\r\n{more}"
            f"Content-Length: {len(body)}\r\n\r\n{body}"
        ).encode()
    )
    length, first = 0, 0.0
    while data := await reader.read(65536):
        if b"data: " in data and not first:
            first = time.monotonic() - begun
        length += len(data)
    writer.close()
    return first, length


def first_byte(url, headers):
    async def all_of_them():
        return [
            (await stream(url, PACED % (FIRST_PAUSE, f"first {time.monotonic_ns()}"), headers))[0]
            for _ in range(FIRSTS)
        ]

    took = asyncio.run(asyncio.wait_for(all_of_them(), 300))
    return {"p50_ms": round(statistics.median(took) * 1e3, 2), "pause_ms": FIRST_PAUSE}


def memory_of(pid, field="VmRSS"):
    """The memory of a process in MiB."""
    return int(re.search(rf"{field}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) // 1024


def open_streams(url, headers, pid):
    """The memory of the server: before, while the streams are open, and after them."""

    async def all_of_them():
        before = memory_of(pid)
        bodies = [PACED % (PAUSE, f"open {number}") for number in range(OPEN)]
        streams = [asyncio.create_task(stream(url, body, headers)) for body in bodies]
        seconds = 51 * PAUSE / 1e3
        seen = []
        for _ in range(4):
            await asyncio.sleep(seconds / 5)
            seen.append(memory_of(pid))
        ends = await asyncio.gather(*streams)
        return {
            "before": before,
            "open": seen,
            "after": memory_of(pid),
            "whole": sum(length > 50 * 150 for _, length in ends),
        }

    return asyncio.run(asyncio.wait_for(all_of_them(), 300))


def long_stream(url, headers, pid):
    """The most memory that one stream of 20 MB costs."""
    before = memory_of(pid)
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    body = LONG % (LONG_EVENTS, f"long {time.monotonic_ns()}")
    _, length = asyncio.run(asyncio.wait_for(stream(url, body, headers), 300))
    return {"before": before, "peak": memory_of(pid, "VmHWM"), "after": memory_of(pid), "mb": round(length / 1e6, 1)}


def sync_time(options):
    """How long one write with fdatasync takes where the ledgers are."""
    with folder_in(options) as folder, (folder / "file").open("wb", buffering=0) as file:
        took = []
        for _ in range(SYNCS):
            begun = time.monotonic()
            file.write(b"x" * 4096)
            os.fdatasync(file.fileno())
            took.append(time.monotonic() - begun)
    return {"p50_us": round(statistics.median(took) * 1e6)}


def measures(options, name, at, round_):
    url, headers, pid = at
    yield "document, 1 client", lambda: wrk(options, at, DOCUMENT, 1)
    yield "stream, 1 client", lambda: wrk(options, at, STREAM, 1)
    if name not in PEERS or not round_:
        yield "document, 64 clients", lambda: wrk(options, at, DOCUMENT, 64)
        yield "stream, 64 clients", lambda: wrk(options, at, STREAM, 64)
    yield "first byte of a paced stream", lambda: first_byte(url, headers)
    if pid and not round_:
        yield "MiB of one stream of 20 MB", lambda: long_stream(url, headers, pid)
        yield f"MiB with {OPEN} open streams", lambda: open_streams(url, headers, pid)


def measure_all(options, started):
    """All rounds, one measurement after the other, each for all candidates in turn."""
    for round_ in range(options.rounds):
        yield {"what": "fdatasync", "name": "disk", "round": round_, **sync_time(options)}
        plans = {name: dict(measures(options, name, at, round_)) for name, at in started.items()}
        for what in dict.fromkeys(what for plan in plans.values() for what in plan):
            for name, plan in plans.items():
                if what not in plan or not re.search(options.only, f"{what}: {name}"):
                    continue
                about = {"what": what, "name": name, "round": round_, "load": os.getloadavg()[0]}
                try:
                    yield {**about, **plan[what]()}
                except (OSError, subprocess.SubprocessError, TimeoutError, json.JSONDecodeError) as error:
                    print(f"{what}: {name}: {error!r}", file=sys.stderr)


class Table:
    """The medians of what was measured, and of differences and ratios within a round."""

    def __init__(self, measured):
        self.measured = measured
        self.names = list(dict.fromkeys(line["name"] for line in measured if line["name"] != "disk"))

    def by_round(self, what, name, field):
        # A round in which no request was answered says nothing about how long one takes.
        return {
            line["round"]: line[field]
            for line in self.measured
            if (line["what"], line["name"]) == (what, name) and field in line and line.get("requests") != 0
        }

    def median(self, what, name, field, beside=None, how=lambda own, other: own - other):
        own, other = self.by_round(what, name, field), self.by_round(what, beside, field)
        values = [
            how(value, other[round_]) if beside else value
            for round_, value in own.items()
            if not beside or other.get(round_)
        ]
        return statistics.median(values) if values else None

    def cell(self, what, name):
        def told(text, value):
            return "" if value is None else text.format(value)

        cpu = told(", {:,.0f} µs of processor", self.median(what, name, "cpu_us"))
        errors = sum(self.by_round(what, name, "errors").values())
        failed = f", {errors} errors" if errors else ""
        if "1 client" in what:
            added = told(" ({:+,.0f})", self.median(what, name, "p50_us", "pass-through"))
            return told("{:,.0f} µs", self.median(what, name, "p50_us")) + added + cpu + failed
        if "64 clients" in what:
            ratio = self.median(what, name, "per_second", "pass-through", lambda own, other: own / other)
            return told("{:,.0f}/s", self.median(what, name, "per_second")) + told(" ({:.2f} ×)", ratio) + cpu + failed
        if "first byte" in what:
            return told("{:.2f} ms", self.median(what, name, "p50_ms"))
        return self.memory(what, name)

    def memory(self, what, name):
        for line in self.measured:
            if (line["what"], line["name"]) == (what, name):
                during = " → ".join(map(str, line["open"])) if "open" in line else line["peak"]
                return f"{line['before']}, then {during}, after {line['after']}"
        return ""

    def print(self):
        print("\n| what | " + " | ".join(self.names) + " |\n|---|" + "---|" * len(self.names))
        for what in dict.fromkeys(line["what"] for line in self.measured if line["name"] != "disk"):
            print(f"| {what} | " + " | ".join(self.cell(what, name) for name in self.names) + " |")
        loads = [line["load"] for line in self.measured if "load" in line]
        print(
            f"\nfdatasync: {self.median('fdatasync', 'disk', 'p50_us'):,.0f} µs. "
            f"Load: {min(loads):.1f} to {max(loads):.1f}, {os.cpu_count()} processors."
        )


def main():
    options = arguments()
    options.dir.mkdir(parents=True, exist_ok=True)
    options.cache = options.cache.resolve()
    names = [name for name in CANDIDATES if options.peers == "yes" or name not in PEERS]
    if options.peers == "yes":
        from kit import install

        install(options.cache, Path(__file__).parents[1] / "tests/models/versions.toml")
    measured, started = [], {}
    with contextlib.ExitStack() as stack:
        model, _ = stack.enter_context(server(options, "model"))
        wait_for(port_of(model))
        for name in names:
            try:
                started[name] = stack.enter_context(CANDIDATES[name](options, model))
            except (OSError, RuntimeError) as error:
                print(f"{name} does not start: {error}", file=sys.stderr)
        for line in measure_all(options, started):
            measured.append(line)
            print(json.dumps(line), flush=True)
    Table(measured).print()


if __name__ == "__main__":
    main()
