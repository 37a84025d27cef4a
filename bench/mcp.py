#!/usr/bin/env python3
"""bench/mcp.py --once FILE: the overhead of `once mcp`, compared with a raw pipe and other proxies, with many calls and
large messages. Give it a release build. Builds the peers that are crates, which takes minutes; --only leaves them out.
"""

import contextlib
import http.client
import itertools
import json
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median

TESTS = Path(__file__).resolve().parents[1] / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "mcp")]

import kit  # noqa: E402 (the path comes first)
from rig import HERE, LEGACY, Rig, Wire, compared  # noqa: E402

EFFECTFENCE = "0.3.0"  # a crate that also proxies a server

LARGE = 64 << 20
MARGIN = 1 << 20  # what a process holds besides two copies of the message
READ_US, WRITE_US = 100, 200
SYNCED = 2  # durable writes of a mutating call: its intent before it is forwarded, its end before it is answered
ROUND = 50  # calls
LOG = 300  # commits after which the log is written over and grows no more, as the ledger's is


CALLS = 5000


def added(_name, session):
    rig = Rig(session)
    for way, pair in {"stdio": _by_stdio, "HTTP": _by_http}.items():
        yield from _added(way, _latency(rig, CALLS, pair))


def peers(_name, session):
    rig = Rig(session)
    crate = ["cargo", "install", "--quiet", "--locked", "--root", rig.cache, f"effectfence@{EFFECTFENCE}"]
    subprocess.run(crate, check=True)
    for name, front in _peers(rig).items():
        peer = _latency(rig, CALLS // 10, lambda rig, folder, front=front: _by_stdio(rig, folder, front))
        more = {tool: peer["through"][tool] - peer["direct"][tool] for tool in ("peek", "count")}
        said = f"+{more['peek']:.0f} us read, +{more['count']:.0f} us mutating"
        yield compared("overhead", f"a peer: {name}", said, "", True)


def _added(way, seen):
    """What the proxy adds to a read and to a mutating call."""
    commit, direct = seen["commit"], seen["direct"]
    read, write = (seen["through"][tool] - direct[tool] for tool in ("peek", "count"))
    rest = write - SYNCED * commit
    yield compared("overhead", f"{way}: p50 of a read", f"{direct['peek']:.0f} us", f"{read:+.0f} us", read <= READ_US)
    cost = f"{write:+.0f} us = {SYNCED} durable writes x {commit:.0f} us + {rest:.0f} us"
    limit = f"{way}: p50 of a mutating call, at most {SYNCED} durable writes + {WRITE_US} us"
    yield compared("overhead", limit, f"{direct['count']:.0f} us", cost, rest <= WRITE_US)


def _latency(rig, calls, pair):
    """The median time in microseconds, one call at a time; each mutating call is another operation.

    Alternates between calls without the proxy, calls through it, and a durable write, so that all see the same load.
    """
    folder = rig.folder("overhead")
    times = {"direct": {"peek": [], "count": []}, "through": {"peek": [], "count": []}}
    commits = []
    with _database(folder) as database, pair(rig, folder) as clients:
        for number in range(calls):
            for tool in ("peek", "count"):
                for name, call in clients.items():
                    wish = {"op": f"{tool}-{number}"}
                    times[name][tool].append(_timed(lambda: call(tool, wish)))  # noqa: B023 - it is called at once
            commits.append(_timed(lambda: _commit(database)))
    quiet = {name: {tool: _quiet(each) for tool, each in tools.items()} for name, tools in times.items()}
    return {**quiet, "commit": _quiet(commits)}


def _quiet(times):
    """The median of the fastest round, because the machine may be shared."""
    return min(median(times[start : start + ROUND]) for start in range(0, len(times), ROUND))


@contextlib.contextmanager
def _by_stdio(rig, folder, front=None):
    """The calls of two clients of the counting server: one without the proxy, one through it."""
    server, _ = rig.counting(folder)
    with Wire(server) as direct, Wire((front or rig.through)(folder, server)) as through:
        for client in (direct, through):
            client.hello()
            client.ask("tools/list", {})
        yield {"direct": direct.call, "through": through.call}


@contextlib.contextmanager
def _by_http(rig, folder):
    """The same over HTTP, each on a connection that stays open."""
    command = [sys.executable, str(Path(__file__).with_name("mcp_server.py")), str(folder / "effects")]
    server = kit.launch(command, stdout=subprocess.PIPE, text=True)
    try:
        port = json.loads(server.stdout.readline())["port"]
        with rig.listening(folder, f"http://127.0.0.1:{port}/mcp", ["--scope", "rig"]) as url:
            yield {"direct": _poster(port), "through": _poster(int(url.split(":")[2].split("/")[0]))}
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def _poster(port):
    """A client over HTTP without an SDK; yields a function that calls a tool."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    numbers = itertools.count(1)
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}

    def ask(method, params):
        body = json.dumps({"jsonrpc": "2.0", "id": next(numbers), "method": method, "params": params})
        connection.request("POST", "/mcp", body, headers)
        return json.loads(connection.getresponse().read())

    ask("initialize", {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}})
    ask("tools/list", {})
    return lambda tool, wish: ask("tools/call", {"name": tool, "arguments": wish})


def _timed(act):
    start = time.perf_counter_ns()
    act()
    return (time.perf_counter_ns() - start) / 1000


@contextlib.contextmanager
def _database(folder):
    with contextlib.closing(sqlite3.connect(folder / "bare.db", isolation_level=None)) as database:
        database.executescript(
            "PRAGMA journal_mode = wal; PRAGMA synchronous = full; PRAGMA wal_autocheckpoint = 200;CREATE TABLE t (x)"
        )
        for _ in range(LOG):
            _commit(database)
        yield database


def _commit(database):
    """One durable write: a row inserted by SQLite, logged and synced as the ledger's own writes are."""
    database.execute("INSERT INTO t VALUES (zeroblob(300))")


def _peers(rig):
    proxy = [rig.python("fastmcp"), str(HERE / "clients/fastmcp_proxy.py")]
    fence = str(rig.cache / "bin/effectfence")
    return {
        "FastMCP's proxy": lambda folder, server: [*proxy, json.dumps(server)],
        # It keeps its ledger in the user's state folder, which is redirected to this run.
        "effectfence wrap": lambda folder, server: [
            "env",
            f"XDG_STATE_HOME={folder}",
            f"HOME={folder}",
            fence,
            "wrap",
            "--",
            *server,
        ],
    }


def _in_flight(rig, calls=1000):
    """All at once, each a second long: they must run concurrently, and each must be answered."""
    seen = []
    for front in (lambda folder, server: server, rig.through):
        folder = rig.folder("overhead")
        server, effects = rig.counting(folder)
        with Wire(front(folder, server)) as client:
            client.hello()
            client.ask("tools/list", {})
            start = time.monotonic()
            # Write and read concurrently, or both pipes fill up and the processes deadlock.
            writer = threading.Thread(
                target=lambda: [
                    client.request("tools/call", {"name": "count", "arguments": {"op": f"op-{n}", "after": 1}})
                    for n in range(calls)
                ]
            )
            writer.start()
            replies = [json.loads(client.line()) for _ in range(calls)]
            writer.join()
            seen.append((time.monotonic() - start, len({reply["id"] for reply in replies if "result" in reply})))
        runs = len(set(effects.read_text().split()))
    cells = [f"{answered} answered in {spent:.1f} s" for spent, answered in seen]
    return compared("overhead", f"{calls} calls in flight", *cells, seen[1][1] == calls == runs and seen[1][0] < 20)


def _large(rig):
    """The peak memory of the proxy, after 64 MiB in an answer or an argument of a read or a mutating call."""
    folder = rig.folder("overhead")
    server, _ = rig.counting(folder)
    peaks, whole = [], True
    large = {"answer": {"size": LARGE}, "argument": {"more": "x" * LARGE}}
    for tool, where in [(tool, where) for where in large for tool in ("peek", "count")]:
        with Wire(rig.through(folder, server)) as client:
            client.hello()
            client.ask("tools/list", {})
            before = _peak(client.process.pid)
            reply = client.call(tool, {"op": tool, **large[where]})
            length = len(reply["result"]["content"][0]["text"])
            whole = whole and length == (LARGE if where == "answer" else len(f"counted {tool}"))
            peaks.append(_peak(client.process.pid) - before)
    grown = ", ".join(f"+{peak >> 20} MiB" for peak in peaks)
    return compared(
        "overhead",
        "memory for 64 MiB (answer to a read, to a mutating call; argument of each)",
        "",
        grown,
        whole and max(peaks) <= 2 * LARGE + MARGIN,
    )


def _peak(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def in_flight(_name, session):
    yield _in_flight(Rig(session))


def large(_name, session):
    yield _large(Rig(session))


RIGS = {
    "added": kit.Rig(added),
    "peers": kit.Rig(peers, ["fastmcp"]),
    "in flight": kit.Rig(in_flight),
    "large": kit.Rig(large),
}


if __name__ == "__main__":
    sys.exit(kit.main(__doc__, RIGS, versions=TESTS / "mcp/versions.toml"))
