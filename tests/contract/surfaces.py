"""The four surfaces, each as a program that is run: how a call is made with it, and what it answers."""

from __future__ import annotations

import json
import resource
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import kit

HERE = Path(__file__).resolve().parent
PATIENCE = kit.processes.PATIENCE
NOBODY = "op_" + "a" * 32
# What makes the shop do that (`SHOP_TROUBLE`).
TROUBLE = {"lose": "lost-reply", "stall": "stall", "hold": "stall"}
OWN = {"how", "amount", "probe", "verify", "key"}
BASE = {"effect": "created", "no_effect_exits": [3], "on_tool_error": "no_effect", "quarantine": "0s"}


class Surface:
    """One surface in a folder of its own, with a ledger of its own."""

    name = ""

    def __init__(self, programs: Programs, folder: Path) -> None:
        self.programs, self.folder = programs, folder
        self.file = folder / "ledger.db"
        self.ledger = f"sqlite:{self.file}"
        self.policy = folder / "policy.toml"
        self.held: subprocess.Popen | None = None
        # Whether the disk of the program under test is to be full at some point.
        self.fills = False

    def call(self, call: dict, dry: bool = False) -> tuple[dict, int | None]:
        """Makes a call and gives its answer, and what the program exited with."""
        return self.finish(self.start(call, dry))

    def hold(self, call: dict) -> None:
        """Makes a call that runs until it is released."""
        self.held = self.start(call, False)
        kit.until("the call is running", lambda: self.state() == "running" and self.is_held())

    def is_held(self) -> bool:
        return (self.folder / "held").exists()

    def release(self) -> None:
        if self.held is not None:
            (self.folder / "go").touch()
            self.finish(self.held)

    def call_unrecorded(self) -> tuple[dict, int | None]:
        """Makes a call that is done, and whose outcome cannot be written."""
        self.fills = True
        process = self.start({"how": "hold"}, False)
        kit.until("the action is under way", self.is_held)
        fill_disk(process)
        (self.folder / "go").touch()
        return self.finish(process)

    def start(self, call: dict, dry: bool) -> subprocess.Popen:
        (self.folder / "how").write_text(call.get("how", "ok"))
        settings = {**BASE, **{name: value for name, value in call.items() if name not in OWN}}
        lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items() if name != "wait"]
        self.policy.write_text("\n".join(['[operation."*"]', *lines, *self.asks(call), ""]))
        wait = call.get("wait", "60s")
        return self.begin(call.get("key", "k"), call.get("amount", 1), call, wait, dry)

    def asks(self, call: dict) -> list[str]:
        """Lines of the policy for its probe and its check."""
        return []

    def begin(self, key: str | None, amount: int, call: dict, wait: str, dry: bool) -> subprocess.Popen:
        raise NotImplementedError

    def finish(self, process: subprocess.Popen) -> tuple[dict, int | None]:
        out, err = process.communicate(timeout=PATIENCE)
        try:
            return json.loads(out), process.returncode
        except ValueError:
            raise AssertionError(f"no answer, exit {process.returncode}: {out!r} {err!r}") from None

    def popen(self, *words: object, **env: str) -> subprocess.Popen:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        # SIGXFSZ stays ignored, as Python has it: a write that is over the limit fails and does not kill.
        pipes["restore_signals"] = not self.fills
        return kit.launch(words, self.folder, env, cwd=self.folder, text=True, **pipes)

    def once(self, *words: object) -> dict:
        """A command of `once` about this ledger."""
        return self.finish(self.popen(self.programs.once, "--ledger", self.ledger, "--json", *words))[0]

    def operation(self) -> dict | None:
        """The newest operation. A ledger that is not there yet has none."""
        listed = self.once("ls").get("data") or []
        return listed[0] if listed else None

    def records(self) -> list[tuple]:
        """What is recorded of all operations."""
        return [(line["id"], line["state"], line["attempt"]) for line in self.once("ls").get("data") or []]

    def state(self) -> str | None:
        operation = self.operation()
        return operation and operation["state"]

    def id(self) -> str:
        operation = self.operation()
        assert operation is not None, "there is no operation"
        return operation["id"]

    def cancel(self) -> None:
        answer = self.once("cancel", self.id())
        assert answer["ok"], answer

    def admin(self, what: str, verdict: str | None) -> tuple[dict, int | None]:
        raise NotImplementedError

    def break_ledger(self) -> None:
        self.file.mkdir()


class Cli(Surface):
    """`once run --json`."""

    name = "cli"

    def begin(self, key, amount, call, wait, dry):
        options = ["--ledger", self.ledger, "--config", self.policy, "--name", "act", "--wait", wait]
        options += ["--input", json.dumps({"amount": amount})]
        options += ["--key", key] if key is not None else []
        options += ["--probe", "exit 1"] if call.get("probe") else []
        options += ["--verify", "exit 10"] if call.get("verify") else []
        options += ["--dry-run"] if dry else []
        return self.popen(self.programs.once, "run", "--json", *options, "--", sys.executable, HERE / "action.py")

    def admin(self, what, verdict):
        operation = NOBODY if verdict is None else self.id()
        words = ["settle", operation, "--as", verdict or "failed"] if what == "settle" else ["show", operation]
        return self.finish(
            self.popen(self.programs.once, "--ledger", self.ledger, "--config", self.policy, "--json", *words)
        )


class Clap(Surface):
    """The example tool `shop`, whose answers are those of every tool on onceward-clap."""

    name = "clap"

    def begin(self, key, amount, call, wait, dry):
        how = call.get("how", "ok")
        self.close_shop("orders" if call.get("probe") else "emails", how == "refuse")
        options = ["--ledger", self.ledger, "--policy", self.policy, "--json", "--wait", wait]
        options += ["--idempotency-key", key] if key is not None else []
        options += ["--dry-run"] if dry else []
        if call.get("probe"):
            words = ["create-order", "--customer", "ada", "--amount", amount]
            # An order that is gone and a quarantine that is not over: the probe's "no" does not count yet.
            self.policy.write_text(self.policy.read_text().replace('quarantine = "0s"', 'quarantine = "1h"'))
            self.forget_orders()
        else:
            words = ["send-email", "--to", "ada@example.com", "--subject", f"{amount} due"]
        trouble = {"SHOP_TROUBLE": TROUBLE[how]} if how in TROUBLE else {}
        return self.popen(self.programs.shop, *words, *options, SHOP_DATABASE=str(self.shop_file), **trouble)

    @property
    def shop_file(self) -> Path:
        return self.folder / "shop.db"

    def close_shop(self, table: str, closed: bool) -> None:
        """A trigger that refuses each change: the shop reports that nothing was done."""
        if not self.shop_file.exists():
            self.finish(self.popen(self.programs.shop, "get-order", 1, "--json", SHOP_DATABASE=str(self.shop_file)))
            self.seed()
        with closing(sqlite3.connect(self.shop_file)) as shop, shop:
            shop.execute("DROP TRIGGER IF EXISTS closed")
            if closed:
                shop.execute(
                    f"CREATE TRIGGER closed BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'declined'); END"
                )

    def seed(self) -> None:
        """The shop makes its tables when it is first opened for a change."""
        seeds = self.folder / "seed.db"
        words = ["increment-counter", "--key", "seed", "--ledger", f"sqlite:{seeds}", "--json"]
        answer, _ = self.finish(self.popen(self.programs.shop, *words, SHOP_DATABASE=str(self.shop_file)))
        assert answer["ok"], answer

    def forget_orders(self) -> None:
        with closing(sqlite3.connect(self.shop_file)) as shop, shop:
            shop.execute("DELETE FROM orders")

    def is_held(self) -> bool:
        return True

    def release(self) -> None:
        if self.held is not None:
            self.held.kill()
            self.held.communicate(timeout=PATIENCE)

    def admin(self, what, verdict):
        operation = NOBODY if verdict is None else self.id()
        words = ["settle", operation, "--as", verdict or "failed"] if what == "settle" else ["show", operation]
        options = ["--ledger", self.ledger, "--policy", self.policy, "--json"]
        return self.finish(self.popen(self.programs.shop, *options, *words))


class Mcp(Surface):
    """`once mcp` before a server, over stdio: one process for each call."""

    name = "mcp"

    def asks(self, call):
        lines = []
        if call.get("probe"):
            lines.append('probe = {tool = "look", args = {}, expect = "a charge", missing = "no charge"}')
        if call.get("verify"):
            lines.append('verify = {tool = "look", args = {}, expect = "a charge", missing = "nothing"}')
        return lines

    def begin(self, key, amount, call, wait, dry):
        options = ["--ledger", self.ledger, "--config", self.policy, "--scope", "default", "--server", "s"]
        server = [sys.executable, HERE / "server.py"]
        process = self.popen(self.programs.once, "mcp", *options, "--wait", wait, "--", *server)
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
        meta = {} if key is None else {"dev.onceward/key": key}
        meta.update({"dev.onceward/dry_run": True} if dry else {})
        params = {"name": "act", "arguments": {"amount": amount}, "_meta": meta}
        self.send(process, {"id": 0, "method": "initialize", "params": hello})
        self.receive(process, 0)
        self.send(process, {"method": "notifications/initialized"})
        if self.fills and call.get("how") != "hold":
            fill_disk(process)
        self.send(process, {"id": 1, "method": "tools/call", "params": params})
        return process

    def break_ledger(self) -> None:
        """Without its ledger the proxy does not start, so the disk is full as soon as it has."""
        self.fills = True

    def finish(self, process):
        if "mcp" not in process.args:
            return super().finish(process)
        message = self.receive(process, 1)
        process.stdin.close()
        process.wait(timeout=PATIENCE)
        process.stdout.close()
        process.stderr.close()
        result = message.get("result") or {"error": message.get("error")}
        return result.get("_meta", {}).get("dev.onceward/effect") or {"passed on": result}, None

    @staticmethod
    def send(process, message: dict) -> None:
        process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        process.stdin.flush()

    @staticmethod
    def receive(process, id: int) -> dict:
        for line in process.stdout:
            message = json.loads(line)
            if message.get("id") == id and "method" not in message:
                return message
        raise AssertionError(f"once mcp ended without an answer: {process.stderr.read()}")


class Python(Surface):
    """The Python package, in a process for each call."""

    name = "python"

    def begin(self, key, amount, call, wait, dry):
        how = {"probe": bool(call.get("probe")), "verify": bool(call.get("verify")), "wait": wait, "dry": dry}
        return self.job({"do": "call", "call": {"key": key, "amount": amount, **how}})

    def job(self, job: dict) -> subprocess.Popen:
        job = {"folder": str(self.folder), "ledger": self.ledger, "policy": str(self.policy), **job}
        return self.popen(self.programs.python, HERE / "caller.py", json.dumps(job))

    def admin(self, what, verdict):
        operation = NOBODY if verdict is None else self.id()
        return self.finish(self.job({"do": what, "id": operation, "verdict": verdict or "failed"}))

    def finish(self, process):
        """An exit code says nothing: it is not the package's."""
        return super().finish(process)[0], None

    def cancel(self):
        answer, _ = self.finish(self.job({"do": "cancel", "id": self.id()}))
        assert answer["ok"], answer


class Programs:
    """What is under test."""

    def __init__(self, once: Path, shop: Path, python: Path) -> None:
        self.once, self.shop, self.python = once, shop, python


SURFACES = {surface.name: surface for surface in (Cli, Clap, Mcp, Python)}


def fill_disk(process: subprocess.Popen) -> None:
    """Lets every further write to a file fail."""
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, 0))
