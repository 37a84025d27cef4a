"""Real servers by real clients: what they are told through the proxy is what they are told without it.

Each server starts from the same folder both times, so that its answers can be compared. The proxy marks the
answers of guarded calls (`_meta` under its own prefix); that is taken off before comparing, and all else must be
equal. Without an SDK the lines themselves are compared, byte for byte, wherever nothing is intercepted.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

from rig import HERE, LEGACY, Row, Wire, run_json

PREFIX = "dev.onceward/"


@dataclass
class Server:
    name: str
    command: list
    calls: list
    env: dict


def run(rig):
    clients = {
        "wire": _wire,
        "Python 1.x": _python("sdk1"),
        "Python 2.x": _python("sdk2"),
        "TypeScript 1.x": _typescript("1"),
        "TypeScript 2.x": _typescript("2"),
    }
    for number, server in enumerate(_servers(rig)):
        # The short run still has every server and every client, each SDK with at least one of the servers.
        chosen = ["wire", list(clients)[1 + number % 4]] if rig.short else clients
        for name in chosen:
            client = clients[name]
            direct, through = (_told(rig, server, client, proxied) for proxied in (False, True))
            for path in _differences(direct, through):
                print(f"  {server.name} by {name}: {path}"[:600], file=sys.stderr)
            case = f"{server.name} by {name}"
            yield Row("servers", case, _size(direct), _size(through), direct == through)


def _told(rig, server, client, proxied):
    _fresh(rig)
    folder = rig.folder("servers")
    command = rig.through(folder, server.command) if proxied else server.command
    return _unmarked(client(rig, command, server))


def _servers(rig):
    node, packages = rig.node()
    play = rig.work / "play"
    git = [rig.python("servers"), "-m", "mcp_server_git", "--repository", str(play / "repository")]
    official = {
        name: [node, str(packages / f"@modelcontextprotocol/server-{name}/dist/index.js")]
        for name in ("filesystem", "memory", "everything")
    }
    note = {"path": str(play / "files/note"), "content": "one"}
    edit = {"path": note["path"], "edits": [{"oldText": "one", "newText": "two"}]}
    entity = {"name": "a", "entityType": "t", "observations": ["o"]}
    repository = {"repo_path": str(play / "repository")}
    noon = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    row = {"query": "INSERT INTO t VALUES (1)"}
    dates = {"GIT_AUTHOR_DATE": "2026-01-01T00:00:00 +0000", "GIT_COMMITTER_DATE": "2026-01-01T00:00:00 +0000"}
    return [
        Server(
            "filesystem",
            [*official["filesystem"], str(play / "files")],
            [
                ["write_file", note],
                ["read_text_file", {"path": note["path"]}],
                ["edit_file", edit],
                ["write_file", note],
                ["move_file", {"source": note["path"], "destination": note["path"] + "2"}],
                ["list_directory", {"path": str(play / "files")}],
                ["read_text_file", {"path": "/nowhere"}],
            ],
            {},
        ),
        Server(
            "memory",
            official["memory"],
            [
                ["create_entities", {"entities": [entity]}],
                ["create_entities", {"entities": [entity]}],
                ["delete_entities", {"entityNames": ["a"]}],
                ["read_graph", {}],
            ],
            {"MEMORY_FILE_PATH": str(play / "memory.jsonl")},
        ),
        Server(
            "everything",
            official["everything"],
            [
                ["echo", {"message": "hi ☃ \u2028"}],
                ["get-sum", {"a": 1, "b": 2}],
                ["get-tiny-image", {}],
                ["get-structured-content", {"location": "Chicago"}],
                ["toggle-simulated-logging", {}],
                ["toggle-simulated-logging", {}],
                ["no-such-tool", {}],
            ],
            {},
        ),
        Server(
            "sqlite",
            [str(rig.cache / "sqlite/bin/mcp-server-sqlite"), "--db-path", str(play / "t.db")],
            [
                ["create_table", {"query": "CREATE TABLE t (x INTEGER)"}],
                ["write_query", row],
                ["write_query", row],
                ["read_query", {"query": "SELECT count(*) FROM t"}],
                ["list_tables", {}],
            ],
            {},
        ),
        Server(
            "git",
            git,
            [
                ["git_status", repository],
                ["git_add", {**repository, "files": ["new"]}],
                ["git_commit", {**repository, "message": "new"}],
                ["git_commit", {**repository, "message": "new"}],
                ["git_log", repository],
            ],
            dates,
        ),
        Server(
            "time",
            [rig.python("servers"), "-m", "mcp_server_time", "--local-timezone", "UTC"],
            [
                ["convert_time", noon],
                ["convert_time", {**noon, "time": "99:99"}],
            ],
            {},
        ),
    ]


def _fresh(rig):
    """The folder the servers work on, as it was."""
    play = rig.work / "play"
    shutil.rmtree(play, ignore_errors=True)
    (play / "files").mkdir(parents=True)
    (play / "repository").mkdir()
    (play / "repository/new").write_text("new\n")
    git = ["git", "-C", play / "repository"]
    subprocess.run([*git, "init", "--quiet", "--initial-branch", "main"], check=True)
    for name, value in {"user.name": "rig", "user.email": "rig@localhost", "commit.gpgsign": "false"}.items():
        subprocess.run([*git, "config", name, value], check=True)


def _python(name):
    return lambda rig, command, server: rig.client(name, f"{name}.py", _spec(command, server))


def _typescript(generation):
    def client(rig, command, server):
        node, packages = rig.node()
        script = [node, HERE / "clients/sdk.mjs", generation, _spec(command, server)]
        return run_json(script, cwd=packages.parent)

    return client


def _spec(command, server):
    # The SDKs hand only part of the environment on; what a server needs is named.
    env = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **server.env}
    return json.dumps({"command": command, "env": env, "calls": server.calls})


def _wire(rig, command, server):
    """Lines in order of asking. The answers of guarded calls carry a mark, so only those are parsed."""
    me = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "wire", "version": "1"}}
    with Wire(command, env=server.env) as client:
        lines = [_answer(client, "initialize", me)]
        client.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        for method in ("tools/list", "resources/list", "prompts/list", "ping", "no/such/method"):
            lines.append(_answer(client, method, {}))
        read = {
            tool["name"]
            for tool in json.loads(lines[1]).get("result", {}).get("tools", [])
            if tool.get("annotations", {}).get("readOnlyHint")
        }
        for name, arguments in server.calls:
            line = _answer(client, "tools/call", {"name": name, "arguments": arguments})
            lines.append(line if name in read else json.loads(line))
    return {"tools": json.loads(lines[1])["result"], "results": lines}


def _answer(client, method, params):
    wanted = client.request(method, params)
    while True:
        line = client.line().decode()
        message = json.loads(line)
        if message.get("id") == wanted and "method" not in message:
            return line


def _unmarked(value):
    """Without the proxy's own marks, and without the `_meta` that held nothing else."""
    if isinstance(value, list):
        return [_unmarked(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {name: _unmarked(item) for name, item in value.items() if not name.startswith(PREFIX)}
    return {name: item for name, item in kept.items() if name != "_meta" or item}


def _differences(direct, through, path=""):
    if direct == through:
        return
    if isinstance(direct, dict) and isinstance(through, dict):
        for name in sorted(direct.keys() | through.keys()):
            yield from _differences(direct.get(name), through.get(name), f"{path}/{name}")
    elif isinstance(direct, list) and isinstance(through, list) and len(direct) == len(through):
        for number, pair in enumerate(zip(direct, through, strict=True)):
            yield from _differences(*pair, f"{path}/{number}")
    else:
        yield f"{path}: {direct!r} became {through!r}"


def _size(told):
    return f"{len(told['tools']['tools'])} tools, {len(told['results'])} answers"
