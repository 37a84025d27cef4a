"""Shared code of the rigs: paths, a client without an SDK, and the table."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
LEGACY = "2025-11-25"
# Some runtimes send telemetry; nothing here may leave the machine.
QUIET = {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "OTEL_SDK_DISABLED": "true",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
}


@dataclass
class Row:
    """One row of the table: the result without the proxy, the result through it, and whether they are as expected."""

    rig: str
    case: str
    direct: object
    through: object
    holds: bool


@dataclass
class Rig:
    """One run of the rigs."""

    cache: Path
    once: Path
    short: bool
    work: Path
    wheel: Path | None = None

    def folder(self, name):
        """A fresh folder of this run."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.work))

    def beside(self, trial, front=None):
        """Runs the same trial without the proxy and through it, concurrently. It gets a command factory."""
        with ThreadPoolExecutor(2) as pool:
            direct = pool.submit(trial, lambda folder, server: server)
            through = pool.submit(trial, front or self.through)
            return direct.result(), through.result()

    def python(self, name):
        """The interpreter of one of the virtual environments."""
        return str(self.cache / name / "bin/python")

    def node(self):
        """The pinned node, and the folder with its packages."""
        return str(self.cache / "node/node_modules/.bin/node"), self.cache / "node/node_modules"

    def through(self, folder, server, options=()):
        """The server's command with the proxy in front of it, and the ledger in `folder`."""
        return [str(self.once), "mcp", "--ledger", ledger(folder), "--scope", "rig", *options, "--", *server]

    @contextlib.contextmanager
    def listening(self, folder, url, options=()):
        """The address of the proxy in front of a server over HTTP, with the ledger in `folder`."""
        command = [self.once, "mcp", "--ledger", ledger(folder), "--http", url, "--listen", "127.0.0.1:0", *options]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            said = next(line for line in process.stderr if "listening on" in line)
            # Later output must not fill the pipe.
            threading.Thread(target=process.stderr.read, daemon=True).start()
            yield said.split("listening on ")[1].split()[0].replace("127.0.0.1", "localhost")
        finally:
            process.terminate()
            process.wait(40)

    def counting(self, folder):
        """The counting server's command, and its file."""
        effects = folder / "effects"
        return [sys.executable, str(HERE / "counting.py"), str(effects)], effects

    def ls(self, folder, *options):
        """The operations that `once ls` lists."""
        command = [self.once, "ls", "--json", "--ledger", ledger(folder), "-n", "100000", *options]
        return json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)["data"]

    def client(self, name, script, *arguments, timeout=300):
        """Runs one of clients/ in its virtual environment and returns what it prints, which is JSON."""
        command = [self.python(name), HERE / "clients" / script, *map(str, arguments)]
        return run_json(command, env={**os.environ, **QUIET}, timeout=timeout)


def ledger(folder):
    """The URL of a folder's ledger."""
    return f"sqlite:{folder}/once.db"


def run_json(command, timeout=120, **options):
    """Runs a command that prints JSON on its last line. Its stderr is shown only if it fails."""
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=timeout, **options
    )
    try:
        # Not splitlines: JSON may contain other line separators.
        return json.loads(done.stdout.strip().split("\n")[-1])
    except (IndexError, ValueError):
        said = f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        raise RuntimeError(f"{command[1]} ended with {done.returncode}\n{said}") from None


def counted(effects):
    """How often each operation took effect."""
    return Counter(effects.read_text().splitlines()) if effects.exists() else Counter()


class Wire:
    """A client without an SDK: lines out, lines in. This way bytes can be compared and processes can be killed."""

    def __init__(self, command, env=None, cwd=None, talk=subprocess.DEVNULL):
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=talk,
            cwd=cwd,
            env={**os.environ, **(env or {})},
        )
        self.last = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def hello(self):
        """The handshake of revisions with sessions."""
        me = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "wire", "version": "1"}}
        reply = self.ask("initialize", me)
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return reply

    def send(self, message):
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def line(self):
        """The next line, unchanged; EOFError once the other side is gone."""
        line = self.process.stdout.readline()
        if not line.endswith(b"\n"):
            raise EOFError("the other side hung up")
        return line

    def message(self):
        """The next message."""
        return json.loads(self.line())

    def request(self, method, params):
        """Sends without waiting; returns the id."""
        self.last += 1
        self.send({"jsonrpc": "2.0", "id": self.last, "method": method, "params": params})
        return self.last

    def ask(self, method, params):
        """Sends, and waits for the answer to this request."""
        wanted = self.request(method, params)
        while True:
            message = self.message()
            if message.get("id") == wanted and "method" not in message:
                return message

    def call(self, tool, arguments, **params):
        return self.ask("tools/call", {"name": tool, "arguments": arguments, **params})

    def close(self, patience=30):
        """Closes the connection and waits for the process to end."""
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            self.process.stdout.close()


def text(reply):
    """The text of an answer, or its error."""
    if "error" in reply:
        return f"error {reply['error'].get('code')}: {reply['error'].get('message')}"
    return "\n".join(block.get("text", "") for block in reply["result"].get("content", []))


def children(pid):
    """The processes that this one started."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def kill(pid):
    """kill -9, of one process that a rig started."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def scratch(parent):
    """A folder for one run, on the same file system as the cache."""
    parent.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="run-", dir=parent))
