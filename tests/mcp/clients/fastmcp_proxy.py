"""fastmcp_proxy.py COMMAND: FastMCP's own proxy over stdio, to compare ours with it."""

import json
import sys

from fastmcp import Client
from fastmcp.client.transports import StdioTransport
from fastmcp.server import create_proxy

command = json.loads(sys.argv[1])
create_proxy(Client(StdioTransport(command[0], command[1:]), mode="legacy")).run(show_banner=False)
