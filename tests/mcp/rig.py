"""Shared code of the rigs: paths, a client without an SDK, and the table."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import kit

HERE = Path(__file__).parent
LEGACY = "2025-11-25"
# Some runtimes send telemetry; nothing here may leave the machine.
QUIET = {
    "CREWAI_DISABLE_TELEMETRY": "true",
    "OTEL_SDK_DISABLED": "true",
    "OPENAI_AGENTS_DISABLE_TRACING": "1",
}


def compared(rig, case, direct, through, holds):
    """A row with the result without the proxy and the one through it."""
    return kit.Row(rig, case, f"{direct} | {through}", holds)


class Rig:
    """One run of the rigs."""

    def __init__(self, session):
        self.cache, self.once, self.quick, self.work = session.cache, session.once, session.quick, session.work
        self.wheel = getattr(session.options, "wheel", None)

    def folder(self, name):
        """A fresh folder of this run."""
        return kit.folder(name)

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
        process = kit.launch(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
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
        done = kit.execute(command)
        done.check_returncode()
        return json.loads(done.stdout)["data"]

    def client(self, name, script, *arguments):
        """Runs one of clients/ in its virtual environment and returns what it prints, which is JSON."""
        return run_json([self.python(name), HERE / "clients" / script, *arguments], env=QUIET)


def ledger(folder):
    """The URL of a folder's ledger."""
    return f"sqlite:{folder}/once.db"


def run_json(command, **options):
    """Runs a command that prints JSON on its last line. Its stderr is shown only if it fails."""
    done = kit.execute(command, **options)
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
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": talk}
        self.process = kit.launch(command, env=env, cwd=cwd, **pipes)
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

    def close(self, patience=kit.processes.PATIENCE):
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
