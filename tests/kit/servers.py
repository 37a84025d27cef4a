"""Private PostgreSQL and Redis servers on loopback."""

import contextlib
import os
import pwd
import shutil
import subprocess
from pathlib import Path

from .processes import environment, folder, free_port, listens, until


@contextlib.contextmanager
def postgres():
    """The URL of a new, empty ledger. PostgreSQL refuses to run as root, so it does not."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    found = shutil.which("postgres")
    if not programs and not found:
        raise RuntimeError("PostgreSQL is needed: install the package postgresql")
    bin_ = programs[-1] if programs else Path(found).parent
    home, user = folder("postgres"), {}
    if os.getuid() == 0:
        nobody = pwd.getpwnam("nobody")
        # The server must be able to reach its folder.
        home.parent.chmod(0o711)
        os.chown(home, nobody.pw_uid, nobody.pw_gid)
        user = {"user": nobody.pw_uid, "group": nobody.pw_gid}
    data, port = home / "data", free_port()
    make = [bin_ / "initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale", "C", "--no-sync", "-D", data]
    common = {"cwd": home, "env": environment(home), **user}
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL, **common)
    run = [bin_ / "postgres", "-D", data, "-p", str(port)]
    run += ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
    with (home / "log").open("wb") as log:
        server = subprocess.Popen(run, stdout=log, stderr=subprocess.STDOUT, **common)
    try:
        ready = [bin_ / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
        until("PostgreSQL is ready", lambda: subprocess.run(ready, check=False).returncode == 0)
        yield f"postgres://postgres@127.0.0.1:{port}/postgres"
    finally:
        # SIGINT ends it without waiting for connections.
        server.send_signal(2)
        server.wait(60)


@contextlib.contextmanager
def redis():
    """The URL of a new, empty ledger on a server that syncs every write."""
    home, port = folder("redis"), free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"]
    command += ["--appendfsync", "always", "--maxmemory-policy", "noeviction", "--dir", str(home)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment(home))
    try:
        until("Redis listens", lambda: listens(port))
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        server.terminate()
        server.wait(60)
