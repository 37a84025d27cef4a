"""Every SDK against a vendor that fails, directly and through the gateway."""

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

import kit
from vendor import Vendor

CLIENTS = Path(__file__).parent / "clients"
MODES = ["hang", "reset", "close", "cut", "500", "502", "503", "slow"]
QUICK = ["hang", "reset", "502", "cut"]
# The timeout of an SDK that must not give up.
WAITS_S = 600


@dataclass
class Sdk:
    kind: str
    """The vendor."""
    client: str
    fails: int
    """How many requests fail: as many as make the SDK give up."""
    quick: bool = True
    """One for each dialect is quick."""

    @property
    def is_node(self):
        return self.client.endswith(".mjs")


SDKS = {
    "stripe-python": Sdk("stripe", "stripe_python.py", 3),
    "stripe-python with tenacity": Sdk("stripe", "stripe_tenacity.py", 4, quick=False),
    "stripe-node": Sdk("stripe", "stripe_node.mjs", 3, quick=False),
    "resend": Sdk("resend", "resend_python.py", 1),
    "square": Sdk("square", "square_python.py", 3),
    "paypal": Sdk("paypal", "paypal_python.py", 2),
    "PyGithub": Sdk("github", "github_python.py", 1000),
}


def rows(name, session):
    sdk = SDKS[name]
    for mode in QUICK if session.quick else MODES:
        # A slow vendor is slow every time.
        failing = 1000 if mode == "slow" else sdk.fails
        told, shown = "", True
        if not session.quick:
            with Vendor(sdk.kind, mode, failing) as vendor:
                # The SDK gives up on a vendor that is silent, or slower than this.
                outcome = call(sdk, session.cache, vendor.url, 2 if mode in ("hang", "slow") else WAITS_S)
                told = f"directly {len(vendor.effects)} effects in {len(vendor.requests)} requests, {outcome}; "
            # Directly there are duplicates, or the call fails although the effect happened.
            shown = len(vendor.effects) > 1 or outcome != "succeeds"
        # The gateway gives up on a vendor that hangs. An answer that is not held back takes less than a tenth of this
        # time on a busy machine, and if it is late nevertheless, one more attempt has the same key.
        patience = "2s" if mode == "hang" else "60s"
        with (
            Vendor(sdk.kind, mode, failing) as vendor,
            gateway(session, sdk.kind, vendor.url, patience, port=sdk.is_node) as serve,
        ):
            url = f"http://127.0.0.1:{serve.own_port}" if sdk.is_node else serve.path
            # The gateway answers in the end, so only a slow vendor is too slow for the SDK.
            outcome = call(sdk, session.cache, url, 2 if mode == "slow" else WAITS_S)
        keys = {request["key"] for request in vendor.requests}
        said = f"{len(vendor.effects)} effect, {len(keys)} key in {len(vendor.requests)} requests, {outcome}"
        holds = len(vendor.effects) == 1 and len(keys) == 1 and outcome == "succeeds"
        yield kit.Row(name, mode, told + said, holds and shown)


def call(sdk, cache, url, timeout):
    """Runs a client program with this base URL and timeout, and returns what became of its call."""
    program = ["node"] if sdk.is_node else [cache / "python/bin/python"]
    env = {"BASE_URL": url, "NODE_MODULES": cache / "node/node_modules", "TIMEOUT": timeout}
    done = kit.execute([*program, CLIENTS / sdk.client], env=env)
    lines = done.stdout.strip().splitlines()
    if not lines:
        raise RuntimeError(f"{sdk.client} printed nothing:\n{done.stderr}")
    return json.loads(lines[-1])["outcome"]


@contextlib.contextmanager
def gateway(session, kind, url, patience, port=False):
    """A gateway in front of the vendor: its URL with a path, and the port of its own."""
    own_port = kit.free_port() if port else None
    config = f'[upstream.{kind}]\nurl = "{url}"\nallow_private = true\ntimeout = "{patience}"\nbackoff = "50ms"\n'
    with kit.Serve(session.once, config + (f"port = {own_port}\n" if port else "")) as serve:
        serve.path, serve.own_port = f"{serve.url}/gw/{kind}", own_port
        yield serve
