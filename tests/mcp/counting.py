"""counting.py FILE: an MCP server whose effects can be counted.

Each run of `count` appends one line to FILE, even if its answer is lost. It is written without an SDK, so that it
can fail like real servers: answer late, answer with an error after the effect, or die. It ignores cancellations,
like every server whose tool is a plain function.
"""

import asyncio
import json
import os
import sys

WIDE = 256 << 20  # a line may be this long: a result of 64 MiB must pass

SCHEMA = {
    "type": "object",
    "properties": {
        "op": {"type": "string"},
        "before": {"type": "number", "description": "seconds before the effect"},
        "after": {"type": "number", "description": "seconds between the effect and the answer"},
        "then": {"enum": ["answer", "error", "die"]},
        "size": {"type": "integer", "description": "how many bytes of text the answer carries"},
    },
}
TOOLS = [
    {"name": "count", "description": "Appends a line to the file.", "inputSchema": SCHEMA},
    {"name": "discard", "description": "Appends another line to the file.", "inputSchema": SCHEMA},
    {
        "name": "peek",
        "description": "Changes nothing.",
        "inputSchema": SCHEMA,
        "annotations": {"readOnlyHint": True},
    },
]


def main():
    asyncio.run(serve(os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)))


async def serve(effects):
    lines = asyncio.StreamReader(limit=WIDE)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    calls = set()
    while line := await lines.readline():
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue
        call = asyncio.create_task(answer(message, effects))
        calls.add(call)
        call.add_done_callback(calls.discard)
    # The client has disconnected. The request is still executed, as in a threaded server.
    await asyncio.gather(*calls)


async def answer(message, effects):
    method, params = message["method"], message.get("params") or {}
    if method == "initialize":
        capabilities, info = {"tools": {}}, {"name": "counting", "version": "1"}
        reply(
            message,
            result={
                "protocolVersion": params["protocolVersion"],
                "capabilities": capabilities,
                "serverInfo": info,
            },
        )
    elif method == "ping":
        reply(message, result={})
    elif method == "tools/list":
        reply(message, result={"tools": TOOLS})
    elif method == "tools/call":
        await call(message, params["name"], params.get("arguments") or {}, effects)
    else:
        reply(message, error={"code": -32601, "message": f"unknown method {method}"})


async def call(message, name, wish, effects):
    await asyncio.sleep(wish.get("before", 0))
    if name != "peek":
        os.write(effects, f"{'' if name == 'count' else name + ' '}{wish.get('op', '')}\n".encode())
    await asyncio.sleep(wish.get("after", 0))
    if wish.get("then") == "die":
        os._exit(9)
    if wish.get("then") == "error":
        reply(message, error={"code": -32603, "message": "the answer was lost"})
        return
    text = "x" * wish["size"] if "size" in wish else f"counted {wish.get('op', '')}"
    reply(message, result={"content": [{"type": "text", "text": text}]})


def reply(message, **outcome):
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **outcome}) + "\n")
    sys.stdout.flush()


main()
