"""raising.py FILE: a server of the Python SDK whose tool raises after its effect.

Every tool that loses the answer to its own request behaves like this. The SDK turns it into an `isError` result.
"""

import os
import sys

try:
    from mcp.server.mcpserver import MCPServer as Server
except ImportError:  # the SDK before 2
    from mcp.server.fastmcp import FastMCP as Server

server = Server("counting")


@server.tool()
def count(op: str) -> str:
    """Appends a line to the file."""
    effects = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(effects, f"{op}\n".encode())
    os.close(effects)
    raise TimeoutError("read timed out after the request was sent")


server.run()
