"""sdk1.py SPEC: lists a server's tools and calls some, with the Python SDK 1.x. Prints all answers."""

import asyncio
import json
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


async def main(spec):
    server = StdioServerParameters(command=spec["command"][0], args=spec["command"][1:], env=spec["env"])
    async with (
        stdio_client(server, errlog=sys.stderr) as (read, write),
        ClientSession(read, write) as session,
    ):
        hello = await session.initialize()
        tools = await session.list_tools()
        results = [await session.call_tool(name, arguments) for name, arguments in spec["calls"]]
    plain = [message.model_dump(mode="json", by_alias=True) for message in (hello, tools, *results)]
    return {"hello": plain[0], "tools": plain[1], "results": plain[2:]}


print(json.dumps(asyncio.run(main(json.loads(sys.argv[1])))))
