"""mcp_server.py FILE: the tools of tests/mcp/counting.py over streamable HTTP, on connections that stay open. Prints its port.

For measurements: it answers each request immediately with JSON, as fast as Python can, without sessions.
"""

import asyncio
import json
import os
import sys

TOOLS = [
    {"name": "count", "description": "Appends a line to the file.", "inputSchema": {"type": "object"}},
    {"name": "peek", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
]


async def main():
    effects = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    server = await asyncio.start_server(lambda *ends: serve(effects, *ends), "127.0.0.1", 0)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    await server.serve_forever()


async def serve(effects, reader, writer):
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = next(
                int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
            )
            result = answer(json.loads(await reader.readexactly(length)), effects)
            body = b"" if result is None else json.dumps(result).encode()
            status = b"202 Accepted" if result is None else b"200 OK"
            writer.write(
                b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                % (status, len(body), body)
            )
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


def answer(message, effects):
    if "id" not in message:
        return None
    params = message.get("params") or {}
    if message["method"] == "initialize":
        info = {"name": "quick", "version": "1"}
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    elif message["method"] == "tools/list":
        result = {"tools": TOOLS}
    else:
        op = params["arguments"]["op"]
        if params["name"] == "count":
            os.write(effects, f"{op}\n".encode())
        result = {"content": [{"type": "text", "text": f"counted {op}"}]}
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


asyncio.run(main())
