"""sdk2.py SPEC: lists a server's tools and calls some, with the Python SDK 2.x, in its newest revision."""

import asyncio
import json
import sys

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client


async def main(spec):
    server = StdioServerParameters(command=spec["command"][0], args=spec["command"][1:], env=spec["env"])
    async with Client(stdio_client(server, errlog=sys.stderr)) as client:
        tools = await client.list_tools()
        results = [await client.call_tool(name, arguments) for name, arguments in spec["calls"]]
        hello = {"version": client.protocol_version}
    plain = [message.model_dump(mode="json", by_alias=True) for message in (tools, *results)]
    return {"hello": hello, "tools": plain[0], "results": plain[1:]}


print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))
