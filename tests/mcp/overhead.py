"""What the proxy costs: beside a raw pipe and peers, with many calls in flight, and with very large messages."""

import contextlib
import json
import sqlite3
import threading
import time
from pathlib import Path
from statistics import median

import install
from rig import HERE, Row, Wire

LARGE = 64 << 20
MARGIN = 1 << 20  # what a process holds besides two copies of the message
READ_US, WRITE_US = 100, 200
SYNCED = 2  # durable writes of a mutating call: its intent before it is forwarded, its end before it is answered
LOG = 300  # commits after which the log is written over and grows no more, as the ledger's is


def run(rig):
    calls = 500 if rig.short else 5000
    raw = _latency(rig, calls, lambda folder, server: server)
    ours = _latency(rig, calls, rig.through)
    commit = ours["commit"]
    read, write = ours["peek"] - raw["peek"], ours["count"] - raw["count"]
    # The short run is for machines that others use too: it shows the times and does not judge them.
    quick, cheap = (True, True) if rig.short else (read <= READ_US, write <= commit + WRITE_US)
    yield Row("overhead", "p50 of a read", f"{raw['peek']:.0f} us", f"{read:+.0f} us", quick)
    rest = write - SYNCED * commit
    cost = f"{write:+.0f} us = {SYNCED} durable writes x {commit:.0f} us + {rest:.0f} us"
    limit = f"p50 of a mutating call, at most 1 durable write + {WRITE_US} us"
    yield Row("overhead", limit, f"{raw['count']:.0f} us", cost, cheap)
    if not rig.short:
        install.peers(rig.cache)
        for name, front in _peers(rig).items():
            peer = _latency(rig, calls // 10, front)
            added = {tool: peer[tool] - raw[tool] for tool in peer}
            said = f"+{added['peek']:.0f} us read, +{added['count']:.0f} us mutating"
            yield Row("overhead", f"a peer: {name}", said, "", True)
    yield _in_flight(rig)
    yield _large(rig)


def _latency(rig, calls, front):
    """Half of the time in microseconds, one call at a time; each mutating call is another operation.

    After each call comes a bare durable write, so that both see the same machine.
    """
    folder = rig.folder("overhead")
    server, _ = rig.counting(folder)
    times = {"peek": [], "count": [], "commit": []}
    with _database(folder) as database, Wire(front(folder, server)) as client:
        client.hello()
        client.ask("tools/list", {})
        for number in range(calls):
            for tool in ("peek", "count"):
                wish = {"op": f"{tool}-{number}"}
                times[tool].append(_timed(lambda: client.call(tool, wish)))  # noqa: B023 - it is called at once
            times["commit"].append(_timed(lambda: _commit(database)))
    return {what: median(each) for what, each in times.items()}


def _timed(act):
    start = time.perf_counter_ns()
    act()
    return (time.perf_counter_ns() - start) / 1000


@contextlib.contextmanager
def _database(folder):
    with contextlib.closing(sqlite3.connect(folder / "bare.db", isolation_level=None)) as database:
        database.executescript(
            "PRAGMA journal_mode = wal; PRAGMA synchronous = full; PRAGMA wal_autocheckpoint = 200;"
            "CREATE TABLE t (x)"
        )
        for _ in range(LOG):
            _commit(database)
        yield database


def _commit(database):
    """One durable write: a row inserted by SQLite, logged and synced as the ledger's own writes are."""
    database.execute("INSERT INTO t VALUES (zeroblob(300))")


def _peers(rig):
    proxy = [rig.python("fastmcp"), str(HERE / "clients/fastmcp_proxy.py")]
    fence = str(rig.cache / "effectfence/bin/effectfence")
    return {
        "FastMCP's proxy": lambda folder, server: [*proxy, json.dumps(server)],
        # It keeps its ledger in the user's state folder; here that is a folder of this run.
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
    """All at once, each a second long: they must run beside each other, and each must be answered."""
    seen = []
    for front in (lambda folder, server: server, rig.through):
        folder = rig.folder("overhead")
        server, effects = rig.counting(folder)
        with Wire(front(folder, server)) as client:
            client.hello()
            client.ask("tools/list", {})
            start = time.monotonic()
            # Writing and reading at once, or both pipes fill up and nobody moves.
            writer = threading.Thread(
                target=lambda: [
                    client.request(
                        "tools/call", {"name": "count", "arguments": {"op": f"op-{n}", "after": 1}}
                    )
                    for n in range(calls)
                ]
            )
            writer.start()
            replies = [json.loads(client.line()) for _ in range(calls)]
            writer.join()
            seen.append(
                (time.monotonic() - start, len({reply["id"] for reply in replies if "result" in reply}))
            )
        runs = len(set(effects.read_text().split()))
    cells = [f"{answered} answered in {spent:.1f} s" for spent, answered in seen]
    return Row(
        "overhead", f"{calls} calls in flight", *cells, seen[1][1] == calls == runs and seen[1][0] < 20
    )


def _large(rig):
    """The proxy's memory at its highest, after 64 MiB in an answer or an argument of a read or a mutating call."""
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
    return Row(
        "overhead",
        "memory for 64 MiB (answer to a read, to a mutating call; argument of each)",
        "",
        grown,
        whole and max(peaks) <= 2 * LARGE + MARGIN,
    )


def _peak(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10
