"""Every SDK against a vendor that fails, directly and through the gateway."""

import contextlib
import json
import os
import socket
import subprocess
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from vendor import Vendor

HERE = Path(__file__).parent
MODES = ["hang", "reset", "close", "cut", "500", "502", "503", "slow"]
SHORT = ["hang", "reset", "502", "cut"]

# The vendor's kind, the client, and how many requests fail: as many as make the SDK give up.
SDKS = {
    "stripe-python": ("stripe", "stripe_python.py", 3),
    "stripe-python with tenacity": ("stripe", "stripe_tenacity.py", 4),
    "stripe-node": ("stripe", "stripe_node.mjs", 3),
    "resend": ("resend", "resend_python.py", 1),
    "square": ("square", "square_python.py", 3),
    "paypal": ("paypal", "paypal_python.py", 2),
    "PyGithub": ("github", "github_python.py", 1000),
}


@dataclass
class Row:
    """What an SDK and the vendor saw, directly and through the gateway."""

    sdk: str
    mode: str
    direct: str
    through: str
    holds: bool

    def line(self):
        mark = "ok" if self.holds else "BROKEN"
        return f"{self.sdk:28} {self.mode:8} {self.direct:42} {self.through:52} {mark}"


def rows(name, once, cache, work, options):
    kind, client, fails = SDKS[name]
    for mode in SHORT if options.short else MODES:
        # A slow vendor is slow every time.
        failing = 1000 if mode == "slow" else fails
        with Vendor(kind, mode, failing) as vendor:
            direct = call(client, cache, vendor.url)
            told = f"{len(vendor.effects)} effects in {len(vendor.requests)} requests, {direct['outcome']}"
            shown = len(vendor.effects) > 1 or direct["outcome"] != "succeeds"
        # The gateway waits for a slow vendor; it gives up on one that hangs.
        patience = "20s" if mode == "slow" else "1s"
        with Vendor(kind, mode, failing) as vendor, gateway(once, work, kind, vendor.url, patience) as urls:
            through = call(client, cache, urls["port"] if client.endswith(".mjs") else urls["path"])
            keys = {request["key"] for request in vendor.requests}
            requests = f"{len(keys)} key in {len(vendor.requests)} requests"
            said = f"{len(vendor.effects)} effect, {requests}, {through['outcome']}"
            one = len(vendor.effects) == 1 and len(keys) == 1 and through["outcome"] == "succeeds"
        # Directly there are duplicates, or the call fails although the effect happened.
        yield Row(name, mode, told, said, one and shown)


def call(client, cache, url):
    """Runs a client program with this base URL."""
    python, node = cache / "python/bin/python", cache / "node/node_modules"
    program = HERE / "clients" / client
    command = ["node", program] if client.endswith(".mjs") else [python, program]
    with tempfile.TemporaryDirectory() as home:
        env = {"PATH": os.environ["PATH"], "HOME": home, "BASE_URL": url, "NODE_MODULES": str(node)}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
    lines = done.stdout.strip().splitlines()
    if not lines:
        raise RuntimeError(f"{client} printed nothing:\n{done.stderr}")
    return json.loads(lines[-1])


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def gateway(once, work, kind, url, patience):
    """A gateway in front of the vendor: its URL with a path, and the one with a port of its own."""
    folder = Path(tempfile.mkdtemp(dir=work))
    port = free_port()
    config = folder / "onceward.toml"
    config.write_text(
        f'[upstream.{kind}]\nurl = "{url}"\nallow_private = true\nport = {port}\n'
        f'timeout = "{patience}"\nbackoff = "50ms"\n'
    )
    process, address = start(once, folder, config)
    try:
        yield {
            "path": f"{address}/gw/{kind}",
            "port": f"http://127.0.0.1:{port}",
            "process": process,
            "folder": folder,
            "config": config,
        }
    finally:
        process.terminate()
        process.wait(20)


def start(once, folder, config, listen="127.0.0.1:0", ledger=None):
    ledger = ledger or f"sqlite:{folder / 'ledger.db'}"
    command = [once, "--config", config, "--ledger", ledger, "serve", "--listen", listen]
    env = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if "listening on" in line:
            address = line.split("listening on ")[1].split()[0]
            # Later output must not fill the pipe.
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return process, address
    raise RuntimeError("once serve did not start")
