"""Folds the measurements of bench/run into the tables of BENCHMARKS.md: medians over rounds, and ratios of one run.

bench/report.py RESULTS     print the tables
bench/report.py --plots     draw the tables of BENCHMARKS.md into docs/bench-*.svg
bench/report.py --check     fail if those pictures do not show what BENCHMARKS.md says
"""

import json
import pathlib
import statistics
import sys

import plots


def lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def median(measured, field):
    return statistics.median(one[field] for one in measured)


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def speed(folder):
    measured = lines(folder / "speed.jsonl")
    peers = [one for one in lines(folder / "peers.jsonl") if one["mode"] == "first"]
    if not measured:
        return

    def of(peer, mode, callers):
        return [one for one in measured if (one["peer"], one["mode"], one["callers"]) == (peer, mode, callers)]

    bare = median(of("bare", "first", 1), "per_second")
    print("| what | callers | a second | p50 µs | p99 µs | beside bare SQLite |")
    print("|---|---|---|---|---|---|")
    for peer, mode, callers in dict.fromkeys((one["peer"], one["mode"], one["callers"]) for one in measured):
        rounds = of(peer, mode, callers)
        rate = median(rounds, "per_second")
        ratio = f"{rate / bare:.2f} ×" if mode == "first" else ""
        print(
            f"| {peer}: {mode} | {callers} | {number(rate)} | {number(median(rounds, 'p50_us'))} "
            f"| {number(median(rounds, 'p99_us'))} | {ratio} |"
        )
    print()
    print("| peer, first call | callers | a second | p50 µs | p99 µs | syncs a call | Onceward is |")
    print("|---|---|---|---|---|---|---|")
    for one in peers:
        ours = median(of("onceward", "first", one["callers"]), "per_second")
        name = one["peer"] + (f" ({one['note']})" if one.get("note") else "")
        print(
            f"| {name} {one['version']} | {one['callers']} | {number(one['per_second'])} | {number(one['p50_us'])} "
            f"| {number(one['p99_us'])} | {one['syncs']} | {ours / one['per_second']:.1f} × |"
        )
    print()


def fleet(folder):
    measured = lines(folder / "fleet.jsonl")
    if not measured:
        return
    kinds = dict.fromkeys((one["peer"], one["mode"], one["callers"]) for one in measured)
    rates = {
        kind: median([one for one in measured if (one["peer"], one["mode"], one["callers"]) == kind], "per_second")
        for kind in kinds
    }
    print("| what | callers | a second | p50 µs | p99 µs | beside the engine's own limit |")
    print("|---|---|---|---|---|---|")
    for peer, mode, callers in kinds:
        rounds = [one for one in measured if (one["peer"], one["mode"], one["callers"]) == (peer, mode, callers)]
        engine = peer.rsplit(" ", 1)[-1].lower()
        # The best of the ways in which the same rows can be written by hand.
        raw = max(
            (
                rate
                for (other, how, many), rate in rates.items()
                if other.startswith(f"{engine} raw") and how == mode and many == callers
            ),
            default=None,
        )
        ratio = f"{rates[peer, mode, callers] / raw:.2f} ×" if raw and "raw" not in peer else ""
        name = f"{peer} {rounds[0]['version']}" if "version" in rounds[0] else peer
        print(
            f"| {name}: {mode} | {callers} | {number(rates[peer, mode, callers])} "
            f"| {number(median(rounds, 'p50_us'))} | {number(median(rounds, 'p99_us'))} | {ratio} |"
        )
    print()


def command(folder):
    file = folder / "command.json"
    if not file.exists():
        return
    results = json.loads(file.read_text())["results"]
    bare = results[0]["median"]
    print("| command | median ms | more than the bare command, ms |")
    print("|---|---|---|")
    for one in results:
        print(f"| {one['command']} | {one['median'] * 1e3:.2f} | {(one['median'] - bare) * 1e3:.2f} |")
    print()


def growth(folder):
    measured = lines(folder / "growth.jsonl")
    if not measured:
        return
    print("| what | p50 µs | p99 µs |")
    print("|---|---|---|")
    for one in measured:
        if "mode" in one:
            engine = one["peer"].removeprefix("onceward").removeprefix(" on ") or "sqlite"
            print(f"| {engine}: {one['mode']} | {number(one['p50_us'])} | {number(one['p99_us'])} |")
        else:
            print(f"| {one['what']} | {one['resident_mib']} MiB resident | |")
    print()


def tables(results):
    speed(results)
    fleet(results)
    command(results)
    growth(results)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if sys.argv[1] == "--plots":
        plots.write()
    elif sys.argv[1] == "--check":
        plots.check()
    else:
        tables(pathlib.Path(sys.argv[1]))
