"""What the errors of real SDKs prove: a tool fails after its effect, and the same call is made again.

Each failure happens once through the proxy, and the repeat is answered that it is in doubt. A rejection of the input by
the SDK is certain, so it leaves no doubt.
"""

from rig import HERE, Wire, compared, counted, text

FAILURES = ["raises", "own_validation", "invalid_params", "bad_request", "asks_the_client"]
REJECTED = "accepts_numbers"
SDKS = {"sdk1": "Python SDK 1.x", "sdk2": "Python SDK 2.x", "fastmcp": "FastMCP"}


def run(rig):
    for sdk, title in SDKS.items():
        if rig.quick and sdk == "fastmcp":
            continue
        direct, through = rig.beside(lambda front, sdk=sdk: _all(rig, front, sdk))
        for tool in FAILURES:
            cells = [f"{seen[tool][0]} effects" for seen in (direct, through)]
            holds = (direct[tool][0], through[tool][0]) == (2, 1) and "IN_DOUBT" in through[tool][1]
            yield compared("evidence", f"{title}: {tool}, then the same call", *cells, holds)
        cells = [f"{seen[REJECTED][0]} effects" for seen in (direct, through)]
        holds = direct[REJECTED] == through[REJECTED] and through[REJECTED][0] == 0
        yield compared("evidence", f"{title}: an argument of another type, twice", *cells, holds)


def _all(rig, front, sdk):
    """For each tool, the number of effects of two equal calls, and the text of the second answer."""
    folder = rig.folder("evidence")
    effects = folder / "effects"
    server = [rig.python(sdk), str(HERE / "failing.py"), str(effects)]
    said = {}
    with Wire(front(folder, server)) as client:
        client.hello()
        for tool in [*FAILURES, REJECTED]:
            for _ in range(2):
                said[tool] = _call(client, tool, "x" if tool == REJECTED else 1)
    return {tool: (counted(effects)[tool], words) for tool, words in said.items()}


def _call(client, tool, n):
    """The text of the answer to a call by a client that supports no requests of a server."""
    wanted = client.request("tools/call", {"name": tool, "arguments": {"n": n}})
    while True:
        message = client.message()
        if "method" in message and "id" in message:
            error = {"code": -32601, "message": "Method not found"}
            client.send({"jsonrpc": "2.0", "id": message["id"], "error": error})
        elif message.get("id") == wanted:
            return text(message)
