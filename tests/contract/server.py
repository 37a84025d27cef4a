"""An MCP server with one tool that acts and one that looks."""

import json
import os
import sys
from pathlib import Path

from action import Lost, Refused, act

TOOLS = [
    {"name": "act", "inputSchema": {"type": "object"}},
    {"name": "look", "annotations": {"readOnlyHint": True}, "inputSchema": {"type": "object"}},
]


def answer(method: str, params: dict) -> dict:
    if method == "initialize":
        server = {"name": "contract", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": server}
    if method == "tools/list":
        return {"tools": TOOLS}
    if params["name"] == "look":
        return text("there is nothing")
    try:
        return text(json.dumps(act(Path.cwd())))
    except Refused as error:
        return {**text(str(error)), "isError": True}
    except Lost:
        os._exit(1)


def text(words: str) -> dict:
    return {"content": [{"type": "text", "text": words}]}


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message and "method" in message:
        result = answer(message["method"], message.get("params") or {})
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
