"""Runs the rigs, each in its own virtual environment, and prints what held. Started by scripts/python-frameworks."""

import argparse
import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import tomllib

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[3]
EXAMPLES = ROOT / "examples/python/frameworks"
TARGET = Path(os.environ["CARGO_TARGET_DIR"])
UV = TARGET / "python/tools/bin/uv"
RIGS = tomllib.loads((HERE / "versions.toml").read_text())
LONGEST_S = 300


def main() -> int:
    options = arguments()
    wheel = options.wheel or build()
    rows = []
    for rig in options.only or RIGS:
        python = installed(rig, wheel)
        rows += rig_rows(rig, python)
        rows += [example_row(name, python) for name in RIGS[rig]["examples"]]
    print()
    table(rows)
    return 0 if all(row["holds"] for row in rows) else 1


def arguments():
    parser = argparse.ArgumentParser(prog="scripts/python-frameworks", description=__doc__)
    parser.add_argument("--only", action="append", choices=RIGS, help="run only this rig; may be repeated")
    parser.add_argument("--wheel", type=lambda name: Path(name).resolve(), help="the wheel under test")
    return parser.parse_args()


def build() -> Path:
    """The wheel of this tree."""
    made = subprocess.run([ROOT / "scripts/wheel"], check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    return Path(made.stdout.split()[-1])


def installed(rig: str, wheel: Path) -> Path:
    """The interpreter of an environment with the rig's framework and the wheel."""
    place = TARGET / "python/frameworks" / rig
    python = place / "bin/python"
    needs = "\n".join(RIGS[rig]["needs"])
    marker = place / "needs"
    if not marker.exists() or marker.read_text() != needs:
        say(f"installing {', '.join(RIGS[rig]['needs'])}")
        subprocess.run([UV, "venv", "--quiet", "--clear", "--python", sys.executable, place], check=True)
        subprocess.run([UV, "pip", "install", "--quiet", "--python", python, *RIGS[rig]["needs"]], check=True)
        marker.write_text(needs)
    again = ["--reinstall-package", "onceward", "--no-deps", "--offline"]
    subprocess.run([UV, "pip", "install", "--quiet", "--python", python, *again, wheel], check=True)
    return python


def rig_rows(rig: str, python: Path) -> list[dict]:
    """The results of the rig's scenarios. A rig that breaks is a row that does not hold."""
    say(rig)
    ended = run([python, HERE / f"rig_{rig}.py"])
    rows = [json.loads(line[4:]) for line in ended.stdout.splitlines() if line.startswith("ROW ")]
    if ended.returncode != 0 or not all(row["holds"] for row in rows):
        print(ended.stdout[-4000:], ended.stderr[-4000:], file=sys.stderr)
    if ended.returncode != 0 or not rows:
        rows.append({"rig": rig, "what": f"the rig ended with {ended.returncode}", "holds": False, "seconds": 0})
    return rows


def example_row(name: str, python: Path) -> dict:
    """An example runs, and the docs show it as it is."""
    start = time.monotonic()
    ended = run([python, EXAMPLES / name])
    if ended.returncode != 0:
        print(ended.stderr[-4000:], file=sys.stderr)
    _, _, shown = (EXAMPLES / name).read_text().partition("# docs: begin\n")
    shown = textwrap.dedent(shown.partition("# docs: end\n")[0]).strip()
    documented = bool(shown) and f"```python\n{shown}\n```" in (ROOT / "docs/python-frameworks.md").read_text()
    what = "the example runs, and the docs show it" if documented else "the docs do not show the example as it is"
    return {
        "rig": name, "what": what, "holds": documented and ended.returncode == 0,
        "seconds": round(time.monotonic() - start, 1),
    }  # fmt: skip


def run(command: list) -> subprocess.CompletedProcess:
    # Frameworks are large, so bytecode is kept, but not beside the sources.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(TARGET / "python/cache"), "PYTHONWARNINGS": "ignore"}
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, env=environment)
    except subprocess.TimeoutExpired as late:
        return subprocess.CompletedProcess(command, 124, str(late.stdout), f"it took more than {LONGEST_S} s")


def table(rows: list[dict]) -> None:
    width = max(len(row["what"]) for row in rows)
    print(f"{'':22} {'':{width}} without   with  seconds")
    for row in rows:
        bare, guarded = row.get("bare", ""), row.get("guarded", "")
        holds = "" if row["holds"] else f"  DOES NOT HOLD {row.get('wrong', '')}"
        print(f"{row['rig']:22} {row['what']:{width}} {bare!s:>7} {guarded!s:>6} {row['seconds']:8}{holds}")


def say(text: str) -> None:
    print(f"== {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
