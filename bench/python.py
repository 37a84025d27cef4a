#!/usr/bin/env python3
"""The Python package beside the Rust API and peers, in one run on one file system: bench/python.py [--short]

Builds the wheel and the Rust program, installs the peers from their registry, starts a PostgreSQL and a Redis of its
own, and prints a table. Rounds alternate, so that a slow minute of the machine hits all alike; a ratio is taken within
a round. Peers that do not sync before they answer are marked: a power cut makes them forget.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
VENV = TARGET / "python" / "bench"
PEERS = [
    "agent-once==0.1.0", "ai-effectlog==0.1.0", "exactly-once==0.2.1", "idempotent-tools==0.1.1", "dbos==3.3.0",
    "aws-lambda-powertools==3.37.0", "redis==8.1.0", "boto3==1.43.0", "psycopg[binary]==3.3.8",
]  # fmt: skip

sys.path.insert(0, str(ROOT / "crates/onceward-python/tests"))


def say(what: str) -> None:
    print(f"== {what}", file=sys.stderr)


def prepare(options: argparse.Namespace) -> None:
    """Builds ours and installs the others."""
    if not options.quick:
        say("wheel")
        subprocess.run([ROOT / "scripts/wheel"], check=True, stdout=sys.stderr)
    if not options.only or "rust" in options.only:
        say("the Rust program")
        subprocess.run(
            ["cargo", "build", "--quiet", "--release", "-p", "onceward-store", "--example", "rate"],
            check=True,
            cwd=ROOT,
        )
    say("peers")
    uv, env = TARGET / "python/tools/bin/uv", {**os.environ, "VIRTUAL_ENV": str(VENV)}
    marker = VENV / "peers"
    if not marker.exists() or marker.read_text().split() != PEERS:
        subprocess.run([uv, "venv", "--quiet", "--allow-existing", VENV], check=True, env=env)
        subprocess.run([uv, "pip", "install", "--quiet", *PEERS], check=True, env=env)
        marker.write_text("\n".join(PEERS))
    [wheel] = (TARGET / "wheels").glob("onceward-*.whl")
    subprocess.run([uv, "pip", "install", "--quiet", "--reinstall", "--no-deps", wheel], check=True, env=env)


def contestants() -> dict[str, list[str]]:
    """What is measured, and how it is started. A server in it is filled in, a new one each time."""

    def script(name: str, *more: str) -> list[str]:
        return [str(VENV / "bin/python"), str(ROOT / f"bench/peers/{name}_bench.py"), *more]

    return {
        "rust": [str(TARGET / "release/examples/rate")],
        "onceward": script("onceward"),
        "agent-once": script("agent_once"),
        "exactly-once": script("exactly_once"),
        "effect-log": script("effect_log", "--log", "key"),
        "idempotent-tools": script("idempotent_tools"),
        "Powertools": script("powertools", "--port", "{redis}"),
        "onceward on Redis": script("onceward", "--url", "redis://127.0.0.1:{redis}/0"),
        "DBOS": script("dbos", "--url", "{postgres}"),
        "onceward on PostgreSQL": script("onceward", "--url", "{postgres}"),
    }


@contextmanager
def served(command: list[str], folder: Path) -> Iterator[list[str]]:
    """The command with its own server instead of the server's name."""
    # The tests' own servers; psycopg is the environment's.
    from servers import Postgres, Redis

    text = " ".join(command)
    if "{postgres}" in text:
        server: Postgres | Redis = Postgres.start(_made(folder / "postgres"))
        place = {"{postgres}": server.dsn}
    elif "{redis}" in text:
        server = Redis.start(_made(folder / "redis"))
        place = {"{redis}": str(server.port)}
    else:
        yield command
        return
    try:
        [[name, value]] = place.items()
        yield [part.replace(name, value) for part in command]
    finally:
        server.stop()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def measure(command: list[str], folder: str, mode: str, callers: int, seconds: float, keys: int) -> dict[str, object]:
    if command[0].endswith("rate"):
        arguments = [folder, mode, str(callers), str(seconds)]
    else:
        arguments = ["--dir", folder, "--mode", mode, "--callers", str(callers), "--seconds", str(seconds)]
        # A retry storm: the same keys over and over.
        arguments += ["--operations", str(keys), *(["--again"] if mode == "replay" else [])]
    ended = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120 + 10 * seconds)
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if not lines:
        say(f"{command[1:2]} failed: {ended.stderr[-500:]}")
        return {}
    return dict(json.loads(lines[-1]))


def rounds(all_: dict[str, list[str]], options: argparse.Namespace) -> Seen:
    seen = defaultdict(list)
    for number in range(1, options.rounds + 1):
        for callers in (1, 16):
            for name, command in all_.items():
                say(f"round {number}: {name}, {callers} callers")
                with tempfile.TemporaryDirectory(dir=TARGET) as folder, served(command, Path(folder)) as command:
                    first = measure(command, folder, "first", callers, options.seconds, 10_000_000)
                    keys = int(first.get("operations", 0) or 1)  # type: ignore[call-overload]
                    replay = measure(command, folder, "replay", callers, options.seconds, max(1, min(keys, 1_000)))
                for mode, line in (("first", first), ("replay", replay)):
                    seen[name, mode, callers].append(line)
                    print(json.dumps({"name": name, **line}), file=sys.stderr)
    return seen


# What each one has on disk before it answers a first call; the figures of syncs are counted (bench/peers/README.md).
SYNCS = {
    "rust": "2, shared by callers that wait together",
    "onceward": "2, shared by callers that wait together",
    "agent-once": "2",
    "idempotent-tools": "8",
    "exactly-once": "none: 0.06 (synchronous=NORMAL)",
    "effect-log": "none before the answer (synchronous=NORMAL)",
    "Powertools": "by the server: appendfsync always",
    "onceward on Redis": "by the server: appendfsync always",
    "DBOS": "by the server: one a commit",
    "onceward on PostgreSQL": "by the server, shared by callers that wait together",
}
# Which results are compared: a peer on a server with ours on the same server.
BESIDE = {"Powertools": "onceward on Redis", "DBOS": "onceward on PostgreSQL"}

Seen = dict[tuple[str, str, int], list[dict[str, object]]]


def figures(seen: Seen, name: str, mode: str, callers: int, what: str) -> list[float]:
    """One figure a round."""
    return [float(str(line[what])) for line in seen.get((name, mode, callers), []) if line.get(what) is not None]


def ratio(seen: Seen, ours: str, name: str, mode: str, callers: int) -> float | None:
    """How many times as fast ours is: the median over rounds of the ratio within a round."""
    mine_of, theirs_of = (figures(seen, one, mode, callers, "per_second") for one in (ours, name))
    pairs = zip(mine_of, theirs_of, strict=False)
    within = [mine / theirs for mine, theirs in pairs if theirs]
    return statistics.median(within) if within else None


def table(seen: Seen, names: list[str]) -> None:
    def cell(name: str, mode: str, callers: int, what: str) -> str:
        values = figures(seen, name, mode, callers, what)
        return (
            "–"
            if not values
            else f"{statistics.median(values):,.1f}"
            if what == "p50_us"
            else f"{statistics.median(values):,.0f}"
        )

    def beside(name: str, callers: int) -> str:
        times = ratio(seen, BESIDE.get(name, "onceward"), name, "first", callers)
        return (
            ""
            if times is None or name.startswith("onceward")
            else f"{times:.2f}"
            if name == "rust"
            else f"{times:.1f} ×"
        )

    print(
        "| | first ×1 /s | first ×16 /s | replay ×1 /s | replay ×1 p50 µs | replay ×16 /s | errors "
        "| Python is, ×1 | ×16 | syncs of a first call |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name in names:
        cells = [cell(name, "first", callers, "per_second") for callers in (1, 16)]
        cells += [
            cell(name, "replay", 1, "per_second"),
            cell(name, "replay", 1, "p50_us"),
            cell(name, "replay", 16, "per_second"),
        ]
        errors = sum(figures(seen, name, "first", 16, "errors") + figures(seen, name, "first", 1, "errors"))
        cells += [f"{errors:.0f}", beside(name, 1), beside(name, 16), SYNCS[name]]
        print(f"| {name} | {' | '.join(cells)} |")


def verdicts(seen: Seen) -> bool:
    """What must hold, each with what was seen. Of peers that were not measured nothing is said."""
    asked: list[tuple[str, float | None, float, str]] = [
        (
            f"first call beside the Rust API, {callers} callers",
            ratio(seen, "onceward", "rust", "first", callers),
            0.8,
            "at least",
        )
        for callers in (1, 16)
    ]
    for peer in ("agent-once", "idempotent-tools", "Powertools", "DBOS"):
        for callers, least in ((1, 3.0), (16, 10.0)):
            times = ratio(seen, BESIDE.get(peer, "onceward"), peer, "first", callers)
            asked.append((f"first call ahead of {peer}, which syncs, {callers} callers", times, least, "at least"))
    for peer in ("agent-once", "exactly-once", "effect-log", "idempotent-tools"):
        asked.append(
            (f"replay ahead of {peer}, 16 callers", ratio(seen, "onceward", peer, "replay", 16), 1.0, "at least")
        )
    replay = figures(seen, "onceward", "replay", 1, "p50_us")
    asked.append(("replay p50, µs", statistics.median(replay) if replay else None, 10.0, "at most"))
    asked.append(
        ("import onceward, ms (median of 9, the interpreter's own start not counted)", import_ms(), 100.0, "at most")
    )
    held = True
    print()
    for what, value, bound, how in asked:
        if value is not None:
            holds = value >= bound if how == "at least" else value <= bound
            held = held and holds
            print(f"- {'holds' if holds else 'DOES NOT HOLD'}: {what}: {value:.2f} ({how} {bound:g})")
    print(f"\nload {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores when it ended")
    return held


def import_ms() -> float:
    clock = "import time; t = time.perf_counter(); import onceward; print((time.perf_counter() - t) * 1000)"
    runs = [
        subprocess.run([VENV / "bin/python", "-c", clock], capture_output=True, text=True, check=True) for _ in range(9)
    ]
    return statistics.median(float(run.stdout) for run in runs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--short", action="store_true", help="one round of half a second each: whether it works, not how fast"
    )
    parser.add_argument("--check", action="store_true", help="end with 1 if a figure that must hold does not")
    parser.add_argument("--only", action="append", help="only this one; may be given again", choices=list(SYNCS))
    parser.add_argument("--quick", action="store_true", help="with the wheel that is there")
    options = parser.parse_args()
    if options.short:
        options.seconds, options.rounds = 0.5, 1
    prepare(options)
    sys.path.append(str(next((VENV / "lib").glob("python*/site-packages"))))
    all_ = {name: command for name, command in contestants().items() if not options.only or name in options.only}
    seen = rounds(all_, options)
    table(seen, list(all_))
    return 0 if verdicts(seen) or not options.check else 1


if __name__ == "__main__":
    sys.exit(main())
