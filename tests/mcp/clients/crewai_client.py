"""crewai_client.py COMMAND TOOL ARGUMENTS TIMEOUT: one call by CrewAI's MCP client, with its default retries.

CrewAI's timeout is 30 s by default; a shorter one only makes the rig shorter.
"""

import asyncio
import json
import sys

from crewai.mcp.client import MCPClient
from crewai.mcp.transports.stdio import StdioTransport


async def main(command, tool, arguments, timeout):
    transport = StdioTransport(command=command[0], args=command[1:])
    client = MCPClient(transport, execution_timeout=timeout)
    await client.connect()
    try:
        result = await client.call_tool_result(tool, arguments)
        answer = {"ok": not result.is_error, "text": result.content}
    except Exception as error:
        answer = {"ok": False, "text": str(error)}
    await client.disconnect()
    return answer


command, tool, arguments, timeout = sys.argv[1:]
print(json.dumps(asyncio.run(main(json.loads(command), tool, json.loads(arguments), int(timeout)))))
