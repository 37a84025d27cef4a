"""An MCP server whose tools leave a line in the file `effects`. It refuses a payment before it does anything."""

import json
import os
import sys

SCHEMA = {"type": "object", "properties": {"step": {"type": "string"}}, "required": ["step"]}
TOOLS = [{"name": name, "description": name, "inputSchema": SCHEMA} for name in ("book", "cancel")]


def call(name, step):
    if name == "book" and step == "payment":
        return {"error": {"code": -32602, "message": "declined"}}
    line = step if name == "book" else f"un-{step}"
    file = os.open("effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"{line}\n".encode())
    os.close(file)
    told = {"step": step}
    return {"result": {"content": [{"type": "text", "text": json.dumps(told)}], "structuredContent": told}}


for text in sys.stdin:
    message = json.loads(text)
    method, params = message.get("method"), message.get("params", {})
    if "id" not in message:
        continue
    if method == "initialize":
        answer = {
            "result": {
                "protocolVersion": params["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "trips", "version": "1"},
            }
        }
    elif method == "tools/list":
        answer = {"result": {"tools": TOOLS}}
    elif method == "tools/call":
        answer = call(params["name"], params["arguments"]["step"])
    else:
        answer = {"error": {"code": -32601, "message": "unknown"}}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)
