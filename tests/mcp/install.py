"""Installs what versions.toml names into a cache folder, once for each change of that file."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

VERSIONS = Path(__file__).with_name("versions.toml")


def install(cache):
    """Brings the cache to the pinned versions. A stamp in each part makes a second run free."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        # Two runs may start at once.
        fcntl.flock(lock, fcntl.LOCK_EX)
        _install(cache)


def _install(cache):
    wanted = tools(cache)
    _python(cache, wanted["python"])
    for name, version in wanted["source"].items():
        _once(
            cache / "source" / name,
            version,
            lambda folder, pin=f"{name}=={version}": _source(cache, folder, pin),
        )


def tools(cache):
    """uv, and node with its packages; everything else needs these."""
    wanted = tomllib.loads(VERSIONS.read_text())
    cache.mkdir(parents=True, exist_ok=True)
    _once(cache / "uv", wanted["installer"], lambda folder: _installer(folder, wanted["installer"]))
    _once(cache / "node", wanted["node"], lambda folder: _node(folder, wanted["node"]))
    return wanted


def hosts(cache, names):
    """These hosts, each in its own folder, and the SDK of one of their servers."""
    wanted = tools(cache)
    _python(cache, {"sdk2": wanted["python"]["sdk2"]})
    for name in names:
        packages = wanted["hosts"][name]
        _once(cache / "hosts" / name, packages, lambda folder, packages=packages: _node(folder, packages))


def host_version(name):
    """The pinned version of a host: the first package that is named for it."""
    return next(iter(tomllib.loads(VERSIONS.read_text())["hosts"][name].values()))


def peers(cache):
    """Other proxies for comparison. Building them takes minutes, so the short run skips them."""
    for name, version in tomllib.loads(VERSIONS.read_text())["peers"].items():
        _once(cache / name, version, lambda folder, pin=f"{name}@{version}": _crate(folder, pin))


def _once(folder, wanted, make):
    stamp = folder / "stamp.json"
    if stamp.exists() and json.loads(stamp.read_text()) == wanted:
        return
    print(f"installing {folder.name}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    make(folder)
    stamp.write_text(json.dumps(wanted))


def _python(cache, environments):
    for name, packages in environments.items():
        _once(cache / name, packages, lambda folder, packages=packages: venv(cache, folder, packages))


def _installer(folder, pins):
    execute(sys.executable, "-m", "venv", folder)
    pins = [f"{name}=={version}" for name, version in pins.items()]
    execute(folder / "bin/pip", "install", "--quiet", "--disable-pip-version-check", *pins)


def venv(cache, folder, packages):
    """Uses uv, which takes seconds where pip takes minutes."""
    uv = [cache / "uv/bin/uv", "--quiet", "--cache-dir", cache / "uv/cache"]
    execute(*uv, "venv", "--allow-existing", "--python", sys.executable, folder)
    execute(*uv, "pip", "install", "--python", folder / "bin/python", *packages)


def _source(cache, folder, pin):
    pip = cache / "uv/bin/pip"
    execute(pip, "download", "--quiet", "--no-deps", "--no-binary", ":all:", pin, "--dest", folder)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")


def _node(folder, packages):
    (folder / "package.json").write_text(json.dumps({"private": True, "dependencies": packages}))
    execute("npm", "install", "--silent", "--no-audit", "--no-fund", cwd=folder)


def _crate(folder, pin):
    execute("cargo", "install", "--quiet", "--locked", "--root", folder, pin)


def execute(*command, cwd=None, env=None):
    env = {**os.environ, **(env or {})}
    subprocess.run([str(part) for part in command], check=True, cwd=cwd, env=env, timeout=900)
