"""Real servers and real clients: the answers through the proxy equal the answers without it.

Each server starts from the same folder in both runs, so that its answers can be compared. The proxy marks the answers
of guarded calls (`_meta` with its own prefix); the marks are removed, and everything else must be equal. Without an
SDK the lines of other messages are compared byte for byte.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

from rig import HERE, LEGACY, Wire, compared, run_json

PREFIX = "dev.onceward/"
PARTS = ["node", "sdk1", "sdk2", "servers", "sqlite"]
# A client and a server of each SDK.
QUICK = {"filesystem": ["wire", "Python 2.x"], "sqlite": ["TypeScript 2.x"], "everything": ["Python 1.x"]}


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
    for server in official(rig):
        for name in QUICK.get(server.name, []) if rig.quick else clients:
            client = clients[name]
            direct, through = (_told(rig, server, client, proxied) for proxied in (False, True))
            for path in differences(direct, through):
                print(f"  {server.name} by {name}: {path}"[:600], file=sys.stderr)
            case = f"{server.name} by {name}"
            yield compared("servers", case, _size(direct), _size(through), direct == through)


def _told(rig, server, client, proxied):
    fresh(rig)
    folder = rig.folder("servers")
    command = rig.through(folder, server.command) if proxied else server.command
    return unmarked(client(rig, command, server))


def official(rig):
    node, packages = rig.node()
    play = rig.work / "play"
    git = [rig.python("servers"), "-m", "mcp_server_git", "--repository", str(play / "repository")]
    scripts = {
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
            [*scripts["filesystem"], str(play / "files")],
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
            scripts["memory"],
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
            scripts["everything"],
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


def fresh(rig):
    """The initial folder that the servers work on."""
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
    return lambda rig, command, server: rig.client(name, f"{name}.py", spec(command, server))


def _typescript(generation):
    def client(rig, command, server):
        node, packages = rig.node()
        script = [node, HERE / "clients/sdk.mjs", generation, spec(command, server)]
        return run_json(script, cwd=packages.parent)

    return client


def spec(command, server):
    # The SDKs pass on only part of the environment, so the variables a server needs are named.
    env = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], **server.env}
    return json.dumps({"command": command, "env": env, "calls": server.calls})


def _wire(rig, command, server):
    """Lines in the order of the requests. The answers of guarded calls carry a mark, so only those are parsed."""
    me = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "wire", "version": "1"}}
    with Wire(command, env=server.env) as client:
        lines = [json.loads(_answer(client, "initialize", me))]
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


def unmarked(value):
    """Removes the proxy's own marks, and a `_meta` that holds nothing else. Through the proxy each server declares that
    its list of tools may change."""
    if isinstance(value, list):
        return [unmarked(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept = {name: unmarked(item) for name, item in value.items() if not name.startswith(PREFIX)}
    if isinstance(able := kept.get("capabilities"), dict) and "tools" in able:
        able["tools"]["listChanged"] = True
    return {name: item for name, item in kept.items() if name != "_meta" or item}


def differences(direct, through, path=""):
    if direct == through:
        return
    if isinstance(direct, dict) and isinstance(through, dict):
        for name in sorted(direct.keys() | through.keys()):
            yield from differences(direct.get(name), through.get(name), f"{path}/{name}")
    elif isinstance(direct, list) and isinstance(through, list) and len(direct) == len(through):
        for number, pair in enumerate(zip(direct, through, strict=True)):
            yield from differences(*pair, f"{path}/{number}")
    else:
        yield f"{path}: {direct!r} became {through!r}"


def _size(told):
    return f"{len(told['tools']['tools'])} tools, {len(told['results'])} answers"
