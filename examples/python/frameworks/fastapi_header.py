"""The Idempotency-Key header for a FastAPI application. httpx calls it in process."""

import asyncio
import tempfile
from pathlib import Path

import httpx
from fastapi import FastAPI

from onceward import Ledger, current_operation
from onceward.asgi import IdempotencyMiddleware

charged = []
place = Path(tempfile.mkdtemp()) / "agent.db"
# docs: begin
app = FastAPI()
app.add_middleware(IdempotencyMiddleware, ledger=Ledger(place), key="required", ttl="24h")


@app.post("/charges", status_code=201)
async def charge(order: str) -> dict:
    operation = current_operation()
    charged.append(operation.downstream_key("stripe"))  # the same for every attempt at this request
    return {"order": order}


# docs: end


async def main() -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        for _ in range(2):
            response = await client.post("/charges?order=o-1", headers={"Idempotency-Key": "o-1"})
        print(response.status_code, response.json(), response.headers["idempotent-replayed"])


asyncio.run(main())
assert len(charged) == 1, charged
