"""failing.py FILE: a server whose tools append a line to FILE and then fail, each in another way.

It runs with the Python SDK 1.x and 2.x and with FastMCP, whichever is installed. None of these failures says that
nothing happened, although some look like an SDK's own rejection of a call.
"""

import os
import sys

from pydantic import BaseModel

try:
    from fastmcp import Context
    from fastmcp import FastMCP as Server
except ImportError:
    try:
        from mcp.server.mcpserver import Context
        from mcp.server.mcpserver import MCPServer as Server
    except ImportError:  # the SDK before 2
        from mcp.server.fastmcp import Context
        from mcp.server.fastmcp import FastMCP as Server
try:
    from mcp.shared.exceptions import MCPError

    def error(code, message):
        return MCPError(code=code, message=message)
except ImportError:  # the SDK before 2
    from mcp.shared.exceptions import McpError
    from mcp.types import ErrorData

    def error(code, message):
        return McpError(ErrorData(code=code, message=message))


server = Server("failing")


class Receipt(BaseModel):
    total: int


class Question(BaseModel):
    answer: str


def act(tool):
    effects = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(effects, f"{tool}\n".encode())
    os.close(effects)


@server.tool()
def raises(n: int) -> str:
    """Pays, and loses the answer."""
    act("raises")
    raise TimeoutError("read timed out")


@server.tool()
def own_validation(n: int) -> str:
    """Pays, and cannot read the receipt."""
    act("own_validation")
    return str(Receipt.model_validate({"total": "?"}))


@server.tool()
def invalid_params(n: int) -> str:
    """Pays, and reports a protocol error."""
    act("invalid_params")
    raise error(-32602, "Invalid params: the card has expired")


@server.tool()
def bad_request(n: int) -> str:
    """Pays, and passes an error of its own server on."""
    act("bad_request")
    raise error(-32600, "Bad Request: said the bank")


@server.tool()
async def asks_the_client(n: int, context: Context) -> str:
    """Pays, and asks a client that does not support questions."""
    act("asks_the_client")
    return str(await context.elicit("A receipt?", Question))


@server.tool()
def accepts_numbers(n: int) -> str:
    """Pays."""
    act("accepts_numbers")
    return str(n)


server.run()
