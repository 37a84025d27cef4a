"""Private servers for tests, on free ports of this machine. PostgreSQL refuses to run as root, so it does not."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

READY_S = 30.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Returns when somebody listens there."""
    until = time.monotonic() + READY_S
    while time.monotonic() < until and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError(f"the server does not start: {log.read_text()[-2000:]}")


@dataclass
class Postgres:
    """A PostgreSQL server that lets everybody in as `postgres`."""

    port: int
    process: subprocess.Popen[bytes]
    ledgers: int = 0

    @classmethod
    def start(cls, folder: Path) -> Postgres:
        programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
        found = shutil.which("postgres")
        assert programs or found, "PostgreSQL is needed: install the package postgresql"
        bin_ = programs[-1] if programs else Path(found or "").parent
        data, log = folder / "data", folder / "log"
        user = _not_root(folder)
        make = [
            bin_ / "initdb",
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale",
            "C",
            "--no-sync",
            "-D",
            data,
        ]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL, cwd=folder, **user)
        port = free_port()
        run = [
            bin_ / "postgres",
            "-D",
            data,
            "-p",
            str(port),
            "-c",
            "listen_addresses=127.0.0.1",
            "-c",
            "unix_socket_directories=",
        ]
        with log.open("wb") as said:
            process = subprocess.Popen(run, stdout=said, stderr=subprocess.STDOUT, cwd=folder, **user)
        wait_for(port, process, log)
        server = cls(port, process)
        server.wait_until_it_answers()
        return server

    def wait_until_it_answers(self) -> None:
        import psycopg

        until = time.monotonic() + READY_S
        while True:
            try:
                psycopg.connect(self.dsn).close()
                return
            except psycopg.OperationalError:
                assert time.monotonic() < until, "PostgreSQL does not answer"
                time.sleep(0.05)

    @property
    def dsn(self) -> str:
        return f"postgres://postgres@127.0.0.1:{self.port}/postgres"

    def fresh(self) -> str:
        """The URL of an empty ledger of its own."""
        self.ledgers += 1
        return f"{self.dsn}?schema=ledger_{self.ledgers}"

    def stop(self) -> None:
        self.process.send_signal(2)
        self.process.wait(READY_S)


@dataclass
class Redis:
    """A Redis that syncs what it writes."""

    port: int
    process: subprocess.Popen[bytes]
    ledgers: int = 0

    @classmethod
    def start(cls, folder: Path) -> Redis:
        port, log = free_port(), folder / "log"
        run = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"]
        run += ["--appendfsync", "always", "--maxmemory-policy", "noeviction", "--dir", str(folder)]
        with log.open("wb") as said:
            process = subprocess.Popen(run, stdout=said, stderr=subprocess.STDOUT)
        wait_for(port, process, log)
        return cls(port, process)

    def fresh(self) -> str:
        """The URL of an empty ledger of its own."""
        self.ledgers += 1
        return f"redis://127.0.0.1:{self.port}/0?prefix=ledger{self.ledgers}"

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(READY_S)


def _not_root(folder: Path) -> dict[str, int]:
    """Whom to run as, where we are root: the folder is made theirs, and those above it are opened to them."""
    if os.getuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    for above in folder.parents:
        if above.stat().st_mode & 0o001 == 0:
            above.chmod(above.stat().st_mode | 0o011)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid}
