"""The packages for npm and PyPI, as built by the scripts, between real clients and a real server.

A client gets the same answers through them as without, and the ledger has the calls, which proves that the program
was reached. The npm package contains the program under test, the wheel is given (--wheel).
"""

import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

import kit
from kit.install import environment
from kit.install import run as run_installer
from rig import HERE, Wire, compared, ledger, run_json
from servers import differences, fresh, official, spec, unmarked

ROOT = kit.ROOT


@dataclass
class Launcher:
    """The command before `mcp -- SERVER`, and the working folder of the client."""

    name: str
    command: list
    folder: Path


def run(rig):
    npm = _npm(rig)
    yield _exit_codes(rig, npm)
    yield _terminated(rig, npm)
    yield _told(rig, npm, "sdk2", "the Python SDK 2.x")
    if not rig.wheel:
        raise RuntimeError("--wheel FILE is needed; a rig builds nothing (scripts/wheel does)")
    for launcher in _python(rig):
        yield _told(rig, launcher, "sdk1", "the Python SDK 1.x")


def _npm(rig):
    """`npx onceward`, with both packages installed from their files."""
    packed, folder = rig.folder("npm"), rig.folder("npx")
    platform = subprocess.run(["node", "-p", "process.platform + '-' + process.arch"], check=True, capture_output=True)
    run_installer(
        ROOT / "scripts/npm", f"{platform.stdout.decode().strip()}={rig.once}", env={"CARGO_TARGET_DIR": str(packed)}
    )
    (folder / "package.json").write_text('{"private": true}')
    run_installer(
        "npm", "install", "--silent", "--no-audit", "--no-fund", *sorted(packed.glob("npm/*.tgz")), cwd=folder
    )
    shutil.rmtree(packed)
    return Launcher("npx onceward", ["npx", "--no-install", "onceward"], folder)


def _python(rig):
    """The commands of the wheel: directly, with the interpreter, and with uvx."""
    wheel, folder = rig.wheel, rig.folder("pip")
    environment(rig.cache, folder, [wheel])
    uvx = [rig.cache / "uv/bin/uvx", "--quiet", "--cache-dir", rig.cache / "uv/cache", "--from", wheel, "onceward"]
    yield Launcher("once (PyPI)", [folder / "bin/once"], folder)
    yield Launcher("python -m onceward (PyPI)", [folder / "bin/python", "-m", "onceward"], folder)
    yield Launcher("uvx onceward", uvx, folder)


def _told(rig, launcher, sdk, client):
    """A whole session of the filesystem server, without the launcher and through it."""
    server = official(rig)[0]
    folder = rig.folder("launchers")
    through = [*launcher.command, "mcp", "--ledger", ledger(folder), "--scope", "rig", "--", *server.command]
    said = []
    for command in (server.command, through):
        fresh(rig)
        script = [rig.python(sdk), HERE / "clients" / f"{sdk}.py", spec([str(part) for part in command], server)]
        said.append(unmarked(run_json(script, cwd=launcher.folder)))
    for path in differences(*said):
        print(f"  {launcher.name}: {path}"[:600])
    written = len(rig.ls(folder))
    cells = [f"{len(each['results'])} answers" for each in said]
    return compared(
        "launchers",
        f"{launcher.name} mcp -- server-filesystem, by {client}",
        cells[0],
        f"{cells[1]}, {written} operations in the ledger",
        said[0] == said[1] and written > 0,
    )


def _exit_codes(rig, launcher):
    """A program's own exit code, and a signal that ended it."""
    seen, place = [], ledger(rig.folder("launchers"))
    for script in ("exit 0", "exit 7", "kill -9 $PPID"):
        command = [*_direct(launcher), "run", "--ledger", place, "--fail-exit", "7", "--", "sh", "-c", script]
        seen.append(subprocess.run(command, cwd=launcher.folder, capture_output=True, timeout=300).returncode)
    return compared("launchers", "exit 0, exit 7, kill -9 of the program", "0, 7, -9", str(seen), seen == [0, 7, -9])


def _terminated(rig, launcher):
    """SIGTERM of the launcher also ends the program, gracefully."""
    folder = rig.folder("launchers")
    server, _ = rig.counting(folder)
    with Wire([*_direct(launcher), "mcp", "--ledger", ledger(folder), "--", *server], cwd=launcher.folder) as client:
        client.hello()
        client.process.send_signal(signal.SIGTERM)
        ended = client.process.wait(300)
        # The pipe ends only after the program has ended, too.
        closed = client.process.stdout.read() == b""
    return compared("launchers", "SIGTERM reaches the program", "", f"exit {ended}", closed)


def _direct(launcher):
    """The script itself, because npx changes signals and exit codes."""
    return ["node", str(launcher.folder / "node_modules/onceward/once.js")]
