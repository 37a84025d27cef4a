"""A FastMCP server with built-in retries, and a client that asks twice."""

import asyncio
import logging
import tempfile
from pathlib import Path

from fastmcp import Client, FastMCP
from fastmcp.server.middleware.error_handling import RetryMiddleware

from onceward import Ledger
from onceward.fastmcp import OnceMiddleware

charged = []
place = Path(tempfile.mkdtemp()) / "agent.db"
logging.disable(logging.CRITICAL)
# docs: begin
once = OnceMiddleware(Ledger(place), terms={"charge": {"key": ["order"]}}, occurrence_argument="occurrence")
server = FastMCP("shop", middleware=[RetryMiddleware(base_delay=0.01), once])


@server.tool
def charge(order: str) -> str:
    """Charges an order."""
    charged.append(order)
    return f"charged {order}"


@server.tool(annotations={"readOnlyHint": True})  # not recorded
def find(order: str) -> str:
    """Finds an order."""
    return f"{order} is open"


# docs: end


async def main() -> None:
    async with Client(server) as client:
        for _ in range(2):
            result = await client.call_tool("charge", {"order": "o-1"}, meta={"dev.onceward/scope": "order-flow-17"})
        print(result.content[-1].text)


asyncio.run(main())
assert charged == ["o-1"], charged
