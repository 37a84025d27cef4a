#!/usr/bin/env python3
"""The Python package beside the Rust API and peers, in one run on one file system: bench/python.py [--seconds N]

Builds the wheel and the Rust program, installs the peers from their registry, starts a PostgreSQL and a Redis of its
own, and prints a table. Rounds alternate, so that a slow minute of the machine hits all alike.
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


def prepare(quick: bool) -> None:
    """Builds ours and installs the others."""
    if not quick:
        say("wheel")
        subprocess.run([ROOT / "scripts/wheel"], check=True, stdout=sys.stderr)
    say("the Rust program")
    subprocess.run(["cargo", "build", "--quiet", "--release", "-p", "onceward-store", "--example", "rate"], check=True, cwd=ROOT)
    say("peers")
    uv, env = TARGET / "python/tools/bin/uv", {**os.environ, "VIRTUAL_ENV": str(VENV)}
    if not VENV.exists():
        subprocess.run([uv, "venv", "--quiet", VENV], check=True, env=env)
        subprocess.run([uv, "pip", "install", "--quiet", *PEERS], check=True, env=env)
    [wheel] = (TARGET / "wheels").glob("onceward-*.whl")
    subprocess.run([uv, "pip", "install", "--quiet", "--reinstall", "--no-deps", wheel], check=True, env=env)


def contestants() -> dict[str, list[str]]:
    """What is measured, and how it is started. A server in it is filled in, a new one each time."""
    script = lambda name, *more: [str(VENV / "bin/python"), str(ROOT / f"bench/peers/{name}_bench.py"), *more]
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
    """The command with a server of its own in the place of its name."""
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
        arguments = ["--dir", folder, "--mode", mode, "--callers", str(callers), "--seconds", str(seconds), "--operations", str(keys)]
    ended = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120 + 10 * seconds)
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if not lines:
        say(f"{command[1:2]} failed: {ended.stderr[-500:]}")
        return {}
    return dict(json.loads(lines[-1]))


def rounds(all_: dict[str, list[str]], options: argparse.Namespace) -> dict[tuple[str, str, int], list[dict[str, object]]]:
    seen = defaultdict(list)
    for number in range(1, options.rounds + 1):
        for callers in (1, 16):
            for name, command in all_.items():
                if options.only and options.only not in name:
                    continue
                say(f"round {number}: {name}, {callers} callers")
                with tempfile.TemporaryDirectory(dir=TARGET) as folder, served(command, Path(folder)) as command:
                    first = measure(command, folder, "first", callers, options.seconds, 10_000_000)
                    keys = int(first.get("operations", 0) or 1)  # type: ignore[call-overload]
                    replay = measure(command, folder, "replay", callers, options.seconds, keys)
                for mode, line in (("first", first), ("replay", replay)):
                    seen[name, mode, callers].append(line)
                    print(json.dumps({"name": name, **line}), file=sys.stderr)
    return seen


def table(seen: dict[tuple[str, str, int], list[dict[str, object]]], names: list[str]) -> None:
    def cell(name: str, mode: str, callers: int, what: str) -> str:
        values = [float(str(line[what])) for line in seen.get((name, mode, callers), []) if line.get(what) is not None]
        return f"{statistics.median(values):,.0f}" if values and what == "per_second" else f"{statistics.median(values):.1f}" if values else "–"

    print("| | first ×1 /s | first ×16 /s | replay ×1 /s | replay ×1 p50 µs | replay ×16 /s |\n|---|---|---|---|---|---|")
    for name in names:
        cells = [cell(name, "first", 1, "per_second"), cell(name, "first", 16, "per_second"), cell(name, "replay", 1, "per_second")]
        cells += [cell(name, "replay", 1, "p50_us"), cell(name, "replay", 16, "per_second")]
        print(f"| {name} | {' | '.join(cells)} |")
    print(f"\nimport onceward: {import_ms():.0f} ms (median of 9, the interpreter's own start not counted); load {os.getloadavg()[0]:.1f}")


def import_ms() -> float:
    clock = "import time; t = time.perf_counter(); import onceward; print((time.perf_counter() - t) * 1000)"
    runs = [subprocess.run([VENV / "bin/python", "-c", clock], capture_output=True, text=True, check=True) for _ in range(9)]
    return statistics.median(float(run.stdout) for run in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="only those whose name holds this")
    parser.add_argument("--quick", action="store_true", help="with the wheel that is there")
    options = parser.parse_args()
    prepare(options.quick)
    sys.path.append(str(next((VENV / "lib").glob("python*/site-packages"))))
    all_ = contestants()
    table(rounds(all_, options), [name for name in all_ if options.only in name])


if __name__ == "__main__":
    main()
