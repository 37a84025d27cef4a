"""scripts/python-frameworks --wheel FILE [--quick] [--only RIG]: the Python package with real agent frameworks.

Installs pinned versions (versions.toml) into target/python/frameworks, a virtual environment for each rig, runs every
rig without the ledger and with it, and the examples of docs/python-frameworks.md. --quick has one agent loop, and also
installs the environment of `fastapi`, which tests/idempotent-api needs. Needs Python 3.11, and a wheel (scripts/wheel).
"""

import hashlib
import json
import subprocess
import sys
import textwrap
from pathlib import Path

import tomllib

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[3] / "tests"))

import kit  # noqa: E402 (the path comes first)
from kit.install import run as run_installer  # noqa: E402
from kit.install import uv  # noqa: E402

EXAMPLES = kit.ROOT / "examples/python/frameworks"
PAGE = kit.ROOT / "docs/python-frameworks.md"
VERSIONS = HERE / "versions.toml"
QUICK = "pydantic_ai"
LONGEST_S = 600


def main() -> int:
    names = tomllib.loads(VERSIONS.read_text())
    rigs = {
        name: kit.Rig(rows(wanted["examples"]), [name], name == QUICK, [name, "fastapi"] if name == QUICK else None)
        for name, wanted in names.items()
    }
    cache = kit.target() / "python/frameworks"
    return kit.main(__doc__, rigs, ["wheel"], VERSIONS, cache=cache, prepare=install_wheel)


def install_wheel(cache: Path, parts: list[str], options) -> None:
    """Installs the wheel under test into each environment."""
    if options.wheel is None:
        return
    digest = hashlib.sha256(options.wheel.read_bytes()).hexdigest()
    for part in parts:
        stamp = cache / part / "wheel"
        if not stamp.exists() or stamp.read_text() != digest:
            again = ["--reinstall-package", "onceward", "--no-deps", "--offline", options.wheel]
            run_installer(*uv(cache), "pip", "install", "--python", cache / part / "bin/python", *again)
            stamp.write_text(digest)


def rows(examples: list[str]):
    def rig(name: str, session):
        python = session.cache / name / "bin/python"
        yield from rig_rows(name, python, session.cache)
        for example in examples:
            yield example_row(example, python, session.cache)

    return rig


def rig_rows(rig: str, python: Path, cache: Path):
    """The results of the rig's scenarios. A rig that breaks is a row that does not hold."""
    ended = run([python, HERE / f"rig_{rig}.py"], cache)
    found = [json.loads(line[4:]) for line in ended.stdout.splitlines() if line.startswith("ROW ")]
    for row in found:
        counts = f"{row['bare']} effects without, {row['guarded']} with" if "bare" in row else f"{row['guarded']} with"
        yield kit.Row(row["rig"], row["what"], f"{counts} {row['wrong']}".strip(), row["holds"])
    if ended.returncode != 0 or not found or not all(row["holds"] for row in found):
        print(ended.stdout[-4000:], ended.stderr[-4000:], file=sys.stderr)
    if ended.returncode != 0 or not found:
        yield kit.Row(rig, "all scenarios", f"the rig ended with {ended.returncode}", False)


def example_row(name: str, python: Path, cache: Path):
    """An example runs, and the docs show it as it is."""
    ended = run([python, EXAMPLES / name], cache)
    if ended.returncode != 0:
        print(ended.stderr[-4000:], file=sys.stderr)
    _, _, shown = (EXAMPLES / name).read_text().partition("# docs: begin\n")
    shown = textwrap.dedent(shown.partition("# docs: end\n")[0]).strip()
    documented = bool(shown) and f"```python\n{shown}\n```" in PAGE.read_text()
    what = "it runs, and the docs show it" if documented else "the docs do not show the example as it is"
    return kit.Row(name, "example", what, documented and ended.returncode == 0)


def run(command: list, cache: Path) -> subprocess.CompletedProcess:
    # Frameworks are large, so bytecode is kept, but not beside the sources.
    env = {"PYTHONPYCACHEPREFIX": cache / "bytecode", "PYTHONWARNINGS": "ignore"}
    try:
        return kit.execute(command, env=env, timeout=LONGEST_S)
    except subprocess.TimeoutExpired as late:
        return subprocess.CompletedProcess(command, 124, str(late.stdout), f"it took more than {LONGEST_S} s")


if __name__ == "__main__":
    sys.exit(main())
