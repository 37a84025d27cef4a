"""shop.py LEDGER WORLD PORT-FILE: a FastAPI shop behind uvicorn on loopback. Without a ledger (`-`) it is bare."""

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from rig import World

from onceward import Ledger, NotDispatched
from onceward.asgi import IdempotencyMiddleware

place, world_file, port_file = sys.argv[1:4]
world = World(Path(world_file))
app = FastAPI()


class Charge(BaseModel):
    order: str
    amount: int
    mode: str = "plain"


def required(scope) -> str:
    return "required" if scope["path"] == "/strict" else "optional"


@app.get("/")
def ready() -> str:
    return "ready"


@app.post("/strict")
@app.post("/charges")
async def charge(asked: Charge, response: Response, request: Request) -> dict:
    if asked.mode == "closed":
        raise NotDispatched("the bank is closed")
    if asked.mode == "declined":
        response.status_code = 402
        return {"why": "declined"}
    said = world.change(asked.order)
    if asked.mode == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if asked.mode == "slow":
        while not Path(world_file + ".go").exists():
            await asyncio.sleep(0.01)
    if asked.mode == "breaks":
        response.status_code = 500
        return {"why": "who knows"}
    response.status_code = 201
    response.headers["x-charge"] = said
    response.headers["set-cookie"] = "a=1"
    return {"said": said, "amount": asked.amount}


@app.post("/report")
async def report(size: int) -> StreamingResponse:
    world.change("report")

    async def parts():
        for index in range(size):
            yield f"{index},".encode()
            await asyncio.sleep(0)

    return StreamingResponse(parts(), media_type="text/csv")


if place != "-":
    app.add_middleware(IdempotencyMiddleware, ledger=Ledger(place), key=required, largest_response=10_000)

listener = socket.socket()
listener.bind(("127.0.0.1", 0))
Path(port_file + ".new").write_text(str(listener.getsockname()[1]))
os.rename(port_file + ".new", port_file)
uvicorn.Server(uvicorn.Config(app, log_level="critical")).run(sockets=[listener])
