"""Installs what versions.toml names into a cache folder, once for each change of that file."""

import json
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

VERSIONS = Path(__file__).with_name("versions.toml")


def install(cache):
    """Brings the cache to the pinned versions. A stamp in each part says what it holds: a second run is free."""
    wanted = tomllib.loads(VERSIONS.read_text())
    cache.mkdir(parents=True, exist_ok=True)
    _once(cache / "uv", wanted["installer"], lambda folder: _installer(folder, wanted["installer"]))
    for name, packages in wanted["python"].items():
        _once(cache / name, packages, lambda folder, packages=packages: _venv(cache, folder, packages))
    for name, version in wanted["source"].items():
        _once(
            cache / "source" / name,
            version,
            lambda folder, pin=f"{name}=={version}": _source(cache, folder, pin),
        )
    _once(cache / "node", wanted["node"], lambda folder: _node(folder, wanted["node"]))


def peers(cache):
    """The proxies to be measured beside. Building them takes minutes, so the short run goes without."""
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


def _installer(folder, pins):
    _run(sys.executable, "-m", "venv", folder)
    pins = [f"{name}=={version}" for name, version in pins.items()]
    _run(folder / "bin/pip", "install", "--quiet", "--disable-pip-version-check", *pins)


def _venv(cache, folder, packages):
    """By uv, which takes seconds where pip takes minutes."""
    uv = [cache / "uv/bin/uv", "--quiet", "--cache-dir", cache / "uv/cache"]
    _run(*uv, "venv", "--allow-existing", "--python", sys.executable, folder)
    _run(*uv, "pip", "install", "--python", folder / "bin/python", *packages)


def _source(cache, folder, pin):
    pip = cache / "uv/bin/pip"
    _run(pip, "download", "--quiet", "--no-deps", "--no-binary", ":all:", pin, "--dest", folder)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")


def _node(folder, packages):
    (folder / "package.json").write_text(json.dumps({"private": True, "dependencies": packages}))
    _run("npm", "install", "--silent", "--no-audit", "--no-fund", cwd=folder)


def _crate(folder, pin):
    _run("cargo", "install", "--quiet", "--locked", "--root", folder, pin)


def _run(*command, cwd=None):
    subprocess.run([str(part) for part in command], check=True, cwd=cwd, timeout=900)
