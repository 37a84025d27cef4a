"""The official conformance suite, with and without the proxy: every check must end the same.

The suite and its server use HTTP, with `once mcp --http` between them, and every check counts. Through the gateway
both are also tested over stdio. Checks that the gateway itself does not support (header validation) fail on both
sides alike.
"""

import contextlib
import functools
import itertools
import json
import re
import subprocess
import sys

import kit
from rig import HERE, compared

REQUIREMENTS = ["2025-11-25", "2026-07-28"]
# What differs in `strict`, and why that is right.
EXPLAINED = {
    # It calls test_trigger_tool_change once more with the same arguments, in the same scope. That is a replay: the
    # tools do not change again, and no notification is sent (a SHOULD, so a warning).
    "server-stateless",
}


def run(rig):
    program = "from mcp_everything_server.server import mcp; mcp.run('stdio')"
    everything = [rig.python("sdk2"), "-W", "ignore", "-c", program]
    policies = ["auto", "strict"]
    for revision, policy in itertools.product(REQUIREMENTS, policies):
        yield _row(f"http, {revision}, {policy}", *_by_http(rig, revision, policy), policy)
    for revision, policy in itertools.product(REQUIREMENTS, policies):
        front = functools.partial(rig.through, options=("--keys", policy))
        seen = rig.beside(functools.partial(_behind_gateway, rig, everything, revision), front)
        yield _row(f"stdio, {revision}, {policy}", *seen, policy)


def _row(case, direct, through, policy):
    """In `auto` nothing may differ. In `strict` a repeat is a replay: differences are printed and explained."""
    other = sorted(check for check in direct.keys() | through.keys() if direct.get(check) != through.get(check))
    for check in other:
        print(f"  {case}: {check}: {direct.get(check)} became {through.get(check)}", file=sys.stderr)
    holds = not set(other) - (EXPLAINED if policy == "strict" else set())
    return compared("conformance", case, _score(direct), _score(through), holds)


def _score(checks):
    passed = sum(one for one, _ in checks.values())
    return f"{passed} passed, {sum(other for _, other in checks.values())} failed"


def _behind_gateway(rig, server, revision, front):
    with _gateway(rig, front(rig.folder("ledger"), server)) as url:
        return _suite(rig, url, revision)


@contextlib.contextmanager
def _gateway(rig, command):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = kit.launch([sys.executable, HERE / "gateway.py", "0", "--", *command], env=_environment(rig), **pipes)
    try:
        yield f"http://localhost:{json.loads(process.stdout.readline())['port']}/mcp"
    finally:
        process.terminate()
        process.wait(20)


def _by_http(rig, revision, policy):
    port = kit.free_port()
    direct = f"http://localhost:{port}/mcp"
    everything = [rig.python("sdk2"), "-W", "ignore", "-m", "mcp_everything_server", "--port", str(port)]
    with (
        _running(everything, port, _environment(rig)),
        rig.listening(rig.folder("ledger"), direct, ("--keys", policy)) as through,
    ):
        return tuple(_suite(rig, url, revision) for url in (direct, through))


@contextlib.contextmanager
def _running(command, port, environment):
    process = kit.launch(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        kit.until("the server listens", lambda: kit.listens(port))
        yield
    finally:
        process.terminate()
        process.wait(60)


def _suite(rig, url, revision):
    """Runs the suite and returns, for each scenario, how many of its checks passed and failed."""
    node, packages = rig.node()
    suite = packages / "@modelcontextprotocol/conformance/dist/index.js"
    command = [node, suite, "server", "--url", url, "--requirements", revision]
    # On a busy machine, a scenario with many requests takes longer than the suite's default timeout.
    command += ["--timeout", "120000", "-o", rig.folder("conformance")]
    said = kit.execute(command, timeout=600).stdout
    lines = re.findall(r"^[✓✗] (\S+): (\d+) passed, (\d+) failed", said, re.MULTILINE)
    if not lines:
        raise RuntimeError(f"the suite did not run: {said[-2000:]}")
    return {name: (int(passed), int(failed)) for name, passed, failed in lines}


def _environment(rig):
    (package,) = (rig.cache / "mcp-source").glob("mcp-*/examples/servers/everything-server")
    return {"PYTHONPATH": package}
