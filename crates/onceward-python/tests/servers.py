"""Private servers for tests, on free ports of this machine. PostgreSQL refuses to run as root, so it does not."""

from __future__ import annotations

import os
import pwd
import random
import shutil
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

READY_S = 30.0


RESERVED: list[socket.socket] = []


def free_port() -> int:
    """A port that nothing listens on until the caller does.

    The kernel gives it to no connection, and no other test takes it: the name of a socket, which Rust's
    `onceward-testkit` uses as well, reserves it while this process lives.
    """
    while True:
        port = random.SystemRandom().randrange(10_300, 22_000)
        reserved = socket.socket(socket.AF_UNIX)
        try:
            reserved.bind(f"\0onceward-port-{port}")
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            reserved.close()
            continue
        RESERVED.append(reserved)
        return port


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Returns when the server listens."""
    until = time.monotonic() + READY_S
    while time.monotonic() < until and process.poll() is None:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise AssertionError(f"the server does not start: {log.read_text()[-2000:]}")


@dataclass
class Postgres:
    """A PostgreSQL server that accepts every client as `postgres`."""

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
        """The URL of a new, empty ledger."""
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
        """The URL of a new, empty ledger."""
        self.ledgers += 1
        return f"redis://127.0.0.1:{self.port}/0?prefix=ledger{self.ledgers}"

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(READY_S)


def once_program() -> str:
    """The program under test."""
    built = Path(__file__).parents[3] / "target" / "debug" / "once"
    once = os.environ.get("ONCE_BIN") or (str(built) if built.exists() else shutil.which("once"))
    assert once, "`once` is needed: run cargo build -p onceward-cli, or set ONCE_BIN"
    return once


@dataclass
class OnceServe:
    """A `once serve` with a ledger in a file, on TCP and on a Unix socket."""

    port: int
    process: subprocess.Popen[bytes]
    folder: Path

    @classmethod
    def start(cls, folder: Path, policy: str = "") -> OnceServe:
        port, log, config = free_port(), folder / "log", folder / "policy.toml"
        config.write_text(policy)
        run = [once_program(), "--ledger", f"sqlite:{folder / 'once.db'}", "--config", str(config)]
        run += ["serve", "--listen", f"127.0.0.1:{port}"]
        run += ["--socket", str(folder / "once.sock")]
        with log.open("wb") as said:
            process = subprocess.Popen(run, stdout=said, stderr=subprocess.STDOUT, cwd=folder, env=_private(folder))
        wait_for(port, process, log)
        return cls(port, process, folder)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def socket_url(self) -> str:
        return f"unix:{self.folder / 'once.sock'}"

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(READY_S)


def _private(folder: Path) -> dict[str, str]:
    """An environment without the user's own ledger and settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ONCE", "XDG"))}
    return {**kept, "HOME": str(folder)}


def _not_root(folder: Path) -> dict[str, int]:
    """The user to run as if we are root: it gets the folder, and access to the folders above it."""
    if os.getuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    for above in folder.parents:
        if above.stat().st_mode & 0o001 == 0:
            above.chmod(above.stat().st_mode | 0o011)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid}
