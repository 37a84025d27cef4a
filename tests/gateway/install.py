"""Installs what versions.toml names into a cache folder, once for each change of that file."""

import fcntl
import json
import shutil
import subprocess
import sys
from pathlib import Path

import tomllib

VERSIONS = Path(__file__).with_name("versions.toml")


def install(cache, versions=VERSIONS, without=()):
    """Brings the cache to the pinned versions, without these parts. A stamp in each part makes a second run free.

    A part of the file with `packages` is a Python environment; any other one is a folder of npm packages.
    """
    cache.mkdir(parents=True, exist_ok=True)
    parts = tomllib.loads(versions.read_text())
    with (cache / "lock").open("w") as lock:
        # Two runs may start at once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name, wanted in parts.items():
            if name in without:
                continue
            _once(cache / name, wanted, _python if "packages" in wanted else _node)


def _once(folder, wanted, make):
    stamp = folder / "stamp.json"
    if stamp.exists() and json.loads(stamp.read_text()) == wanted:
        return
    print(f"installing {folder.name}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    make(folder, wanted)
    stamp.write_text(json.dumps(wanted))


def _python(folder, wanted):
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *wanted["packages"]], check=True)


def _node(folder, wanted):
    packages = [f"{name}@{version}" for name, version in wanted.items()]
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", folder, *packages]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
