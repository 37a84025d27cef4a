"""Runs bench/models: one JSON line per measurement, and the tables of BENCHMARKS.md at the end.

Every request has a prompt of its own, so every one is a first call: a generation that is recorded. The candidates are
measured in turn, so that a busy machine slows all of them down.
"""

import argparse
import asyncio
import contextlib
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import serve
from serve import HOST, folder_in, free_port, other, port_of, private, running, wait_for

sys.path.append(str(Path(__file__).parents[1] / "tests/models"))

DOCUMENT = '{"model":"m","messages":[{"role":"user","content":"%s"}]}'
STREAM = '{"model":"m","stream":true,"messages":[{"role":"user","content":"%s"}]}'
PACED = '{"model":"m","stream":true,"pause":%d,"messages":[{"role":"user","content":"%s"}]}'
# How many streams are open at the same time, and the pause between two of their 51 events, in milliseconds.
OPEN, PAUSE = 1000, 400
# How many streams the first byte is measured with, and their pause.
FIRSTS, FIRST_PAUSE = 40, 20


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True, help="where ledgers are made")
    parser.add_argument("--once", required=True, help="the program `once`")
    parser.add_argument("--servers", required=True, help="the benchmark `serve` of onceward-http")
    parser.add_argument("--cache", type=Path, required=True, help="where LiteLLM and Portkey are installed")
    parser.add_argument("--peers", choices=["yes", "no"], default="yes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--only", default="", help="a pattern for what to measure")
    return parser.parse_args()


@contextlib.contextmanager
def direct(options, model):
    yield model, {}, None


@contextlib.contextmanager
def passed_through(options, model):
    with other(options, "proxy", model) as url:
        yield url, {}, None


def once(settings=""):
    """`once serve` on a ledger with these settings in its URL."""
    return lambda options, model: once_serve(options, model, settings)


@contextlib.contextmanager
def once_serve(options, model, settings):
    with folder_in(options) as folder:
        policy, port = folder / "onceward.toml", free_port()
        policy.write_text(f'[upstream.openai]\nurl = "{model}"\nallow_private = true\n')
        command = [options.once, "--config", str(policy), "--ledger", f"sqlite:{folder}/once.db{settings}", "serve",
                   "--listen", f"{HOST}:{port}"]
        with running(command, env=private(folder), stderr=subprocess.DEVNULL) as process:
            wait_for(port, "/healthz")
            yield f"http://{HOST}:{port}/gw/openai", {}, process.pid


def peer(name):
    @contextlib.contextmanager
    def start(options, model):
        from peers import PEERS

        with tempfile.TemporaryDirectory(dir=options.dir) as work, PEERS[name](options.cache, Path(work), model) as at:
            yield *at, None

    return start


CANDIDATES = {"direct": direct, "pass-through": passed_through, "once": once(),
              "once, sync=normal": once("?sync=normal"),
              "LiteLLM": peer("LiteLLM"), "Portkey": peer("Portkey")}


def wrk(options, url, headers, body, connections):
    split = re.match(r"(http://[^/]+)(.*)", url)
    path = f"{split[2]}/v1/chat/completions"
    return serve.wrk(options, split[1], "first", path, body, connections, "X-Prompt", headers)


async def stream(url, body, headers):
    """Asks for a stream. Gives the seconds to its first byte and its length."""
    split = re.match(r"http://([^:]+):(\d+)(.*)", url)
    reader, writer = await asyncio.open_connection(split[1], int(split[2]))
    more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write((f"POST {split[3]}/v1/chat/completions HTTP/1.1\r\nHost: {split[1]}\r\nConnection: close\r\n"
                  f"Authorization: Bearer k\r\nContent-Type: application/json\r\n{more}"
                  f"Content-Length: {len(body)}\r\n\r\n{body}").encode())
    begun = time.monotonic()
    length, first = 0, 0.0
    while data := await reader.read(65536):
        if b"data: " in data and not first:
            first = time.monotonic() - begun
        length += len(data)
    writer.close()
    return first, length


def first_byte(options, url, headers):
    async def all_of_them():
        return [(await stream(url, PACED % (FIRST_PAUSE, f"first {time.monotonic_ns()}"), headers))[0]
                for _ in range(FIRSTS)]

    took = asyncio.run(all_of_them())
    return {"p50_ms": round(statistics.median(took) * 1e3, 2), "of_ms": FIRST_PAUSE}


def memory(options, url, headers, pid):
    """The memory of the server in MiB: before, and while the streams are open, at a third and near the end."""
    def resident():
        return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) // 1024

    async def all_of_them():
        before = resident()
        bodies = [PACED % (PAUSE, f"open {number}") for number in range(OPEN)]
        streams = [asyncio.create_task(stream(url, body, headers)) for body in bodies]
        seconds = 51 * PAUSE / 1e3
        await asyncio.sleep(seconds / 3)
        third = resident()
        await asyncio.sleep(seconds / 2)
        late = resident()
        ends = await asyncio.gather(*streams)
        return {"before": before, "third": third, "late": late, "after": resident(),
                "whole": sum(length > 50 * 150 for _, length in ends)}

    return asyncio.run(all_of_them())


def measures(options, name, url, headers, pid):
    yield "document, 1 client", lambda: wrk(options, url, headers, DOCUMENT, 1)
    yield "stream, 1 client", lambda: wrk(options, url, headers, STREAM, 1)
    yield "document, 64 clients", lambda: wrk(options, url, headers, DOCUMENT, 64)
    yield "stream, 64 clients", lambda: wrk(options, url, headers, STREAM, 64)
    yield "first byte of a paced stream", lambda: first_byte(options, url, headers)
    if pid:
        yield f"MiB with {OPEN} open streams", lambda: memory(options, url, headers, pid)


def tables(measured):
    def median(what, name, field):
        values = [line[field] for line in measured if (line["what"], line["name"]) == (what, name)]
        return statistics.median(values) if values else None

    names = list(dict.fromkeys(line["name"] for line in measured))
    print("\n| what | " + " | ".join(names) + " |\n|---|" + "---|" * len(names))
    for what in dict.fromkeys(line["what"] for line in measured):
        if "1 client" in what:
            base = median(what, "direct", "p50_us")
            cells = [f"{median(what, name, 'p50_us'):,.0f} µs (+{median(what, name, 'p50_us') - base:,.0f})"
                     for name in names]
        elif "64 clients" in what:
            base = median(what, "pass-through", "per_second")
            cells = [f"{median(what, name, 'per_second'):,.0f}/s ({median(what, name, 'per_second') / base:.2f} ×)"
                     for name in names]
        elif "first byte" in what:
            cells = [f"{median(what, name, 'p50_ms')} ms" for name in names]
        else:
            fields = ["before", "third", "late", "after"]
            cells = [" → ".join(f"{median(what, name, field):.0f}" for field in fields)
                     if median(what, name, "late") is not None else "" for name in names]
        print(f"| {what} | " + " | ".join(cells) + " |")


def main():
    options = arguments()
    names = [name for name in CANDIDATES if options.peers == "yes" or name not in ("LiteLLM", "Portkey")]
    if options.peers == "yes":
        from shared import install

        install(options.cache, Path(__file__).parents[1] / "tests/models/versions.toml")
    measured = []
    with contextlib.ExitStack() as stack:
        model = stack.enter_context(other(options, "model"))
        wait_for(port_of(model))
        started = {name: stack.enter_context(CANDIDATES[name](options, model)) for name in names}
        for number in range(options.rounds):
            plans = {name: list(measures(options, name, *started[name])) for name in names}
            for step in range(max(map(len, plans.values()))):
                for name in names:
                    if step >= len(plans[name]):
                        continue
                    what, run = plans[name][step]
                    if not re.search(options.only, f"{what}: {name}") or ("MiB" in what and number):
                        continue
                    line = {"what": what, "name": name, **run()}
                    measured.append(line)
                    print(json.dumps(line), flush=True)
    tables(measured)


if __name__ == "__main__":
    main()
