"""Installs what a `versions.toml` names into a cache folder, once for each change of that file."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tarfile

import tomllib

UV = "uv==0.13.7"


def install(cache, versions, parts=None):
    """Brings these parts of the cache to the pinned versions, or all. A stamp in each makes a second run free.

    A part with `packages` is a Python environment, one with `source` an unpacked Python package, and any other one a
    folder of npm packages.
    """
    wanted = tomllib.loads(versions.read_text())
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        # Two runs may start at once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in wanted if parts is None else parts:
            _once(cache, cache / name, wanted[name])


def _once(cache, folder, wanted):
    stamp = folder / "stamp.json"
    if stamp.exists() and json.loads(stamp.read_text()) == wanted:
        return
    print(f"installing {folder.name}", file=sys.stderr, flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if "packages" in wanted:
        environment(cache, folder, wanted["packages"])
    elif "source" in wanted:
        _source(cache, folder, wanted["source"])
    else:
        npm(folder, wanted)
    stamp.write_text(json.dumps(wanted))


def uv(cache):
    """The installer of Python packages: it takes seconds where pip takes minutes."""
    folder = cache / "uv"
    if not (folder / "bin/uv").exists():
        run(sys.executable, "-m", "venv", "--clear", folder)
        run(folder / "bin/pip", "install", "--quiet", "--disable-pip-version-check", UV)
    return [folder / "bin/uv", "--quiet", "--cache-dir", folder / "cache"]


def environment(cache, folder, packages):
    """A Python environment with these packages."""
    run(*uv(cache), "venv", "--allow-existing", "--python", sys.executable, folder)
    run(*uv(cache), "pip", "install", "--python", folder / "bin/python", *packages)


def npm(folder, packages):
    """A folder with these npm packages."""
    (folder / "package.json").write_text(json.dumps({"private": True, "dependencies": packages}))
    run("npm", "install", "--silent", "--no-audit", "--no-fund", cwd=folder)


def _source(cache, folder, pin):
    uv(cache)
    run(cache / "uv/bin/pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", pin, "--dest", folder)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")


def run(*command, cwd=None, env=None):
    words = [str(part) for part in command]
    subprocess.run(words, check=True, cwd=cwd, env={**os.environ, **(env or {})}, stdout=sys.stderr, timeout=1800)
