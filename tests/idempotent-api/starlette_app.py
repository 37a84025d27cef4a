"""starlette_app.py LEDGER WORLD PORT-FILE OPTIONS: the API of crates/onceward-http/examples/axum.rs on Starlette."""

import asyncio
import json
import os
import socket
import sys
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from onceward import Ledger, current_operation
from onceward.asgi import IdempotencyMiddleware

place, world, port_file, options = sys.argv[1], Path(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])


def change(what: str) -> int:
    """One line of a file for each effect. Returns how many there are."""
    with world.open("a") as file:
        file.write(f"{what}\n")
    return len(world.read_text().splitlines())


def said(status: int, answer: dict, headers: dict | None = None) -> Response:
    text = json.dumps(answer, sort_keys=True, separators=(",", ":"))
    return Response(text, status, headers, media_type="application/json")


async def charge(request) -> Response:
    asked = await request.json()
    mode = asked.get("mode", "")
    if mode == "declined":
        return said(402, {"why": "declined"})
    if mode == "closed":
        return said(503, {"why": "closed"}, {"once-happened": "no"})
    if mode == "unavailable":
        return said(502, {"why": "unavailable"})
    number = change(asked["order"])
    if mode == "dies":
        os.abort()
    if mode == "slow":
        while not Path(f"{world}.go").exists():
            await asyncio.sleep(0.01)
    if mode == "breaks":
        return said(500, {"why": "broken"})
    if mode == "done, and a 500":
        return said(500, {"why": "broken later"}, {"once-happened": "yes"})
    if mode == "raises":
        raise RuntimeError("the secret reason of the panic")
    answer = said(201, {"amount": asked["amount"], "number": number, "order": asked["order"]})
    answer.headers["x-charge"] = f"{asked['order']} is number {number}"
    answer.headers.append("set-cookie", "a=1")
    answer.headers.append("set-cookie", "b=2")
    try:
        answer.headers["x-downstream"] = current_operation().downstream_key()
    except LookupError:
        pass  # Sent without a key.
    return answer


async def echo(request) -> Response:
    body = await request.body()
    change("echo")
    return Response(body, media_type="application/octet-stream")


async def report(request) -> Response:
    change("report")
    size = int(request.query_params["size"])

    async def lines():
        for index in range(size):
            yield f"{index},".encode()
            await asyncio.sleep(0)

    return StreamingResponse(lines(), media_type="text/csv")


async def cut(request) -> Response:
    change("cut")

    async def parts():
        yield b"a part"
        raise RuntimeError("the secret reason of the failure")

    return StreamingResponse(parts())


async def ready(request) -> Response:
    return PlainTextResponse("ready")


def required(scope) -> str:
    return "required" if scope["path"] == "/strict" else "optional"


app = Starlette(
    routes=[
        Route("/charges", charge, methods=["POST", "PUT", "PATCH"]),
        Route("/strict", charge, methods=["POST"]),
        Route("/echo", echo, methods=["POST"]),
        Route("/report", report, methods=["POST"]),
        Route("/cut", cut, methods=["POST"]),
        Route("/", ready),
    ]
)
terms = {"wait": f"{options.get('wait_ms', 0)}ms"}
if "ttl_ms" in options:
    terms["ttl"] = f"{options['ttl_ms']}ms"
if options.get("unavailable_means_no"):
    terms["outcomes"] = {502: "failed"}
app.add_middleware(
    IdempotencyMiddleware,
    ledger=Ledger(place),
    key=required,
    largest_request=100_000,
    largest_response=10_000,
    **terms,
)

listener = socket.socket()
listener.bind(("127.0.0.1", 0))
Path(f"{port_file}.new").write_text(str(listener.getsockname()[1]))
os.rename(f"{port_file}.new", port_file)
uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[listener])
