"""Programs with a home of their own, waiting for events, free ports, and `once serve`."""

import contextlib
import json
import os
import random
import re
import socket
import subprocess
import tempfile
import time
from pathlib import Path

# Only a program that hangs takes this long, also on a machine that is a hundred times slower than usual.
PATIENCE = 900
RESERVED = []  # one socket for each port that this process has reserved


def folder(name="home"):
    """A new folder, which is removed at the end."""
    return Path(tempfile.mkdtemp(prefix=f"{re.sub(r'[^a-zA-Z0-9]+', '-', name)}-"))


def environment(home, **more):
    """The environment of a program: its home and its temporary files are in this folder."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
    return {**kept, "HOME": str(home), "TMPDIR": str(home), **{name: str(value) for name, value in more.items()}}


def launch(command, home=None, env=None, **options):
    """Starts a program with a home of its own."""
    words = [str(word) for word in command]
    return subprocess.Popen(words, env=environment(home or folder(), **(env or {})), **options)


def execute(command, home=None, env=None, timeout=PATIENCE, **options):
    """Runs a program with a home of its own to its end, and returns what it printed."""
    words = [str(word) for word in command]
    whole = environment(home or folder(), **(env or {}))
    return subprocess.run(words, env=whole, capture_output=True, text=True, timeout=timeout, **options)


def until(what, holds, seconds=PATIENCE, pause=0.02):
    """Waits for an event, and returns what `holds` returned. The time limit only ends what would never end."""
    end = time.monotonic() + seconds
    while not (found := holds()):
        if time.monotonic() > end:
            raise TimeoutError(f"waited {seconds} s: {what}")
        time.sleep(pause)
    return found


def free_port():
    """A port for a program that cannot choose one (0), or that must have the same one again after a kill.

    The kernel gives none of these to a connection, and no other test takes it while the program is down: the name of a
    socket, which Rust's `onceward-testkit` uses as well, reserves it for as long as this process lives.
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


def listens(port):
    """Whether a server accepts connections there."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


class Serve:
    """`once serve`, which can be killed and started again at the same address."""

    def __init__(self, once, config, home=None, ledger=None, listen="127.0.0.1:0", **env):
        self.once, self.listen, self.env = once, listen, env
        # Servers in one folder share a ledger.
        self.folder = home or folder("serve")
        self.config = self.folder / "onceward.toml"
        self.config.write_text(config)
        self.ledger = ledger or f"sqlite:{self.folder / 'ledger.db'}"
        self.log = Path(tempfile.mkstemp(prefix="serve-", suffix=".log", dir=self.folder)[1])
        self.kills = 0
        self.start()

    def start(self):
        command = [self.once, "--config", self.config, "--ledger", self.ledger, "serve", "--listen", self.listen]
        at = self.log.stat().st_size
        with self.log.open("ab") as log:
            quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": log}
            self.process = launch(command, self.folder, self.env, **quiet)
        self.url = until("once serve listens", lambda: self._address(at), pause=0.01)
        self.listen = self.url.removeprefix("http://")
        self.port = int(self.listen.rpartition(":")[2])

    def _address(self, at):
        said = self.log.read_bytes()[at:].decode(errors="replace")
        if found := re.search(r"listening on (http://\S+)\n", said):
            return found[1]
        if self.process.poll() is not None:
            raise RuntimeError(f"once serve ended with {self.process.returncode}: {said}")
        return None

    def kill(self):
        self.process.kill()
        self.process.wait()

    def restart(self):
        """`kill -9`, and a new process at the same address."""
        self.kill()
        self.kills += 1
        self.start()

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(60)
        finally:
            self.kill()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def command(self, *words):
        """Runs `once` on the ledger, and returns what it prints as JSON."""
        done = execute([self.once, "--ledger", self.ledger, *words, "--json"], self.folder)
        if done.returncode:
            raise RuntimeError(f"once {' '.join(words)} failed:\n{done.stdout}{done.stderr}")
        return json.loads(done.stdout)

    def ls(self, *words):
        """Every operation of the ledger."""
        return self.command("ls", "--limit", "100000", *words)["data"]
