"""A private PostgreSQL server on a free port. It refuses to run as root, so it does not."""

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from sdks import free_port


@contextlib.contextmanager
def postgres():
    """The URL of a new, empty ledger."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    found = shutil.which("postgres")
    if not programs and not found:
        raise RuntimeError("PostgreSQL is needed: install the package postgresql")
    bin_ = programs[-1] if programs else Path(found).parent
    folder = Path(tempfile.mkdtemp(prefix="gateway-pg-"))
    user = {}
    if os.getuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
        user = {"user": nobody.pw_uid, "group": nobody.pw_gid}
    data, port = folder / "data", free_port()
    make = [bin_ / "initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale", "C", "--no-sync", "-D", data]
    subprocess.run(make, check=True, stdout=subprocess.DEVNULL, cwd=folder, **user)
    run = [bin_ / "postgres", "-D", data, "-p", str(port)]
    run += ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(run, stdout=log, stderr=subprocess.STDOUT, cwd=folder, **user)
    try:
        until = time.monotonic() + 30
        ready = [bin_ / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)]
        while subprocess.run(ready, check=False).returncode != 0:
            if time.monotonic() > until or server.poll() is not None:
                raise RuntimeError((folder / "log").read_text()[-2000:])
            time.sleep(0.05)
        yield f"postgres://postgres@127.0.0.1:{port}/postgres"
    finally:
        server.terminate()
        server.wait(30)
        shutil.rmtree(folder, ignore_errors=True)
