"""A FastMCP server, in process, with FastMCP's client."""

import asyncio
import logging

import rig
from fastmcp import Client, FastMCP
from fastmcp.server.middleware.error_handling import RetryMiddleware
from rig import Run, scenario

from onceward import NotDispatched
from onceward.fastmcp import OnceMiddleware


def server_of(run: Run, function, *around, **settings) -> FastMCP:
    server = FastMCP("shop", middleware=list(around))
    if run.guarded:
        server.add_middleware(OnceMiddleware(settings.pop("where", run.session), **settings))
    server.tool(function)
    return server


def texts(result) -> list[str]:
    return [block.text for block in result.content]


@scenario("RetryMiddleware runs a tool again that raised after its effect", bare=4)
async def retried(run: Run):
    def charge(order: str) -> str:
        run.world.change(order)
        raise TimeoutError("no answer from the bank")

    async with Client(server_of(run, charge, RetryMiddleware(base_delay=0.01))) as client:
        result = await client.call_tool("charge", {"order": "o-1"}, raise_on_error=False)
        assert result.is_error
        if run.guarded:
            assert "Do not call it again" in texts(result)[0], result


@scenario("a client that gives up and asks again", bare=2)
async def gave_up(run: Run):
    finished = asyncio.Event()

    async def charge(order: str) -> str:
        said = run.world.change(order)
        if run.world.effects == 1:
            await finished.wait()
        return said

    async with Client(server_of(run, charge)) as client:
        try:
            await client.call_tool("charge", {"order": "o-1"}, timeout=0.3)
            raise AssertionError("the first call should have timed out")
        except Exception as error:
            assert not isinstance(error, AssertionError), error
        asyncio.get_running_loop().call_later(0.1, finished.set)
        result = await client.call_tool("charge", {"order": "o-1"})
        if run.guarded:
            assert result.data == "o-1 is number 1", result
            assert "Nothing was run now" in texts(result)[-1], result


@scenario("a restarted server, and a client that reconnects", bare=2)
async def restarted(run: Run):
    def charge(order: str, amount: int = 1) -> dict:
        return {"said": run.world.change(order), "amount": amount}

    for _ in range(2):
        settings = {"where": run.ledger} if run.guarded else {}
        async with Client(server_of(run, charge, **settings)) as client:
            result = await client.call_tool("charge", {"order": "o-1"}, meta={"threadId": "t-1"})
    if run.guarded:
        assert result.data == {"said": "o-1 is number 1", "amount": 1}, result


@scenario("a tool that reports its own refusal, and bad arguments, may be retried", bare=None)
async def own_word(run: Run):
    tries = []

    def charge(order: str) -> str:
        tries.append(order)
        if len(tries) == 1:
            raise NotDispatched("the card is locked")
        return run.world.change(order)

    async with Client(server_of(run, charge)) as client:
        for arguments in ({"wrong": 1}, {"order": "o-1"}):
            assert (await client.call_tool("charge", arguments, raise_on_error=False)).is_error
        assert (await client.call_tool("charge", {"order": "o-1"})).data == "o-1 is number 1"


@scenario("tools that only read are not recorded; a call without a scope is refused", bare=None, guarded=0)
async def reads(run: Run):
    server = FastMCP("shop", middleware=[OnceMiddleware(run.ledger, occurrence_argument="occurrence")])
    looks = []

    @server.tool(annotations={"readOnlyHint": True})
    def look(order: str) -> int:
        looks.append(order)
        return len(looks)

    @server.tool
    def charge(order: str) -> str:
        return run.world.change(order)

    async with Client(server) as client:
        for expected in (1, 2):
            assert (await client.call_tool("look", {"order": "o-1"}, meta={"threadId": "t"})).data == expected
        refused = await client.call_tool("charge", {"order": "o-1"}, raise_on_error=False)
        assert refused.is_error and "not known which run" in texts(refused)[0], refused
        schemas = {tool.name: tool.input_schema["properties"] for tool in await client.list_tools()}
        assert "occurrence" in schemas["charge"] and "occurrence" not in schemas["look"], schemas


@scenario("a deliberate repeat, requested by the model", bare=None, guarded=2)
async def repeated(run: Run):
    def charge(order: str) -> str:
        return run.world.change(order)

    async with Client(server_of(run, charge, occurrence_argument="occurrence")) as client:
        await client.call_tool("charge", {"order": "o-1"})
        again = await client.call_tool("charge", {"order": "o-1"})
        assert "call it with occurrence=2" in texts(again)[-1], again
        await client.call_tool("charge", {"order": "o-1", "occurrence": 2})


logging.disable(logging.CRITICAL)
rig.main("FastMCP")
