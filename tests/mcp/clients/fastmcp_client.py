"""fastmcp_client.py COMMAND TOOL ARGUMENTS TIMEOUT: one call through a FastMCP proxy with FastMCP's retry middleware.

The middleware runs in front of the server, like a gateway's, and retries calls that time out.
"""

import asyncio
import json
import sys

from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from fastmcp.server import create_proxy
from fastmcp.server.middleware.error_handling import RetryMiddleware


async def main(command, tool, arguments, timeout):
    upstream = Client(StdioTransport(command[0], command[1:]), timeout=timeout, mode="legacy")
    gateway = create_proxy(upstream)
    # By default it retries ConnectionError and TimeoutError; a proxied timeout arrives as the SDK's own error.
    gateway.add_middleware(RetryMiddleware(base_delay=0.5, retry_exceptions=(Exception,)))
    async with Client(gateway, mode="legacy") as client:
        try:
            result = await client.call_tool(tool, arguments)
            return {"ok": True, "text": str(result.content)}
        except Exception as error:
            return {"ok": False, "text": f"{type(error).__name__}: {error}"}


command, tool, arguments, timeout = sys.argv[1:]
print(json.dumps(asyncio.run(main(json.loads(command), tool, json.loads(arguments), float(timeout)))))
