"""Unmodified runtimes that retry: how many effects one call has, without the proxy and through it."""

import contextlib
import json
import subprocess
import sys
from dataclasses import dataclass

import kit
from rig import HERE, Wire, compared, counted, text


@dataclass
class Case:
    """One call by one runtime. `runs` is the number of effects without the proxy."""

    name: str
    runtime: str
    wish: dict
    timeout: float
    runs: int
    succeeds: bool = True


# The server is healthy: it does its work and answers, but later than the runtime waits. If it answers with an error
# after the effect, the outcome is unknown, so the call must neither succeed nor run again.
CASES = [
    Case("CrewAI, timeout", "crewai", {"after": 4}, 2, runs=3),
    Case("CrewAI, answer comes between two tries", "crewai", {"after": 6.5}, 6, runs=3),
    Case("CrewAI, error after the effect", "crewai", {"then": "error"}, 5, runs=3, succeeds=False),
    Case("OpenAI Agents, timeout", "openai", {"after": 2.5}, 1, runs=3),
    Case("OpenAI Agents, answer comes between two tries", "openai", {"after": 1.5}, 1, runs=3),
    Case("FastMCP retry middleware, timeout", "fastmcp", {"after": 2.5}, 1, runs=4),
]


def run(rig):
    for case in CASES:
        seen = rig.beside(lambda front, case=case: _once(rig, case, front))
        yield _row(case.name, *seen, case.runs, case.succeeds)
    seen = rig.beside(lambda front: _remote(rig, front))
    yield _row("mcp-remote, session forgotten", *seen, 2, succeeds=True)
    # In front of the gateway the outcome of the call is unknown, so it must neither succeed nor run again.
    seen = _remote(rig, None), _remote(rig, None, by_http=True)
    yield _row("mcp-remote, session forgotten, by HTTP", *seen, 2, succeeds=False)


def _row(name, direct, through, runs, succeeds):
    holds = direct[0] == runs and through[0] == 1 and through[1] == succeeds
    if not holds:
        print(f"  {name}: told {through[2]!r}", file=sys.stderr)
    return compared("runtimes", name, _said(direct), _said(through), holds)


def _said(seen):
    return f"{seen[0]} effects, {'succeeds' if seen[1] else 'fails'}"


def _once(rig, case, front):
    folder = rig.folder("runtime")
    server, effects = rig.counting(folder)
    command = json.dumps(front(folder, server))
    wish = json.dumps({"op": "charge", **case.wish})
    told = rig.client(case.runtime, f"{case.runtime}_client.py", command, "count", wish, case.timeout)
    return counted(effects)["charge"], told["ok"], told["text"]


def _remote(rig, front, by_http=False):
    """mcp-remote in front of a gateway that forgets the session after forwarding the call."""
    folder = rig.folder("remote")
    server, effects = rig.counting(folder)
    behind = front(folder, server) if front else server
    node, packages = rig.node()
    command = [sys.executable, HERE / "gateway.py", "0", "--forget", "count", "--", *behind]
    gateway = kit.launch(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        port = json.loads(gateway.stdout.readline())["port"]
        url = f"http://localhost:{port}/mcp"
        with rig.listening(folder, url) if by_http else contextlib.nullcontext(url) as url:
            remote = [node, str(packages / "mcp-remote/dist/proxy.js"), url, "--allow-http"]
            home = {"MCP_REMOTE_CONFIG_DIR": str(folder / "remote")}
            with Wire([*remote, "--transport", "http-only"], env=home) as client:
                client.hello()
                reply = client.call("count", {"op": "charge", "after": 1})
                answer = "result" in reply and not reply["result"].get("isError"), text(reply)
    finally:
        gateway.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            gateway.wait(20)
    return counted(effects)["charge"], *answer
