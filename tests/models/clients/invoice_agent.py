"""Agents that stream their model calls and send an invoice, each stopped at some moment: one JSON line per agent.

Every line of stdin is a job: its order, which is its scope, and the moment of the stop in seconds. The user's stop does
two things, as in most products: it cancels the task that reads the stream, and it stops the run. The tool is a process
of its own, which a cancelled stream does not end.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from openai import APIError, AsyncOpenAI

HERE = Path(__file__).parent
ONCE = os.environ["ONCE"]
# How many agents run at the same time.
TOGETHER = 6
TOOL = {
    "type": "function",
    "function": {
        "name": "send_invoice_email",
        "parameters": {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]},
    },
}


async def main() -> None:
    limit = asyncio.Semaphore(TOGETHER)

    async def limited(job: dict) -> None:
        async with limit:
            print(json.dumps(await Agent(job["order"]).run(job["stop_after"])), flush=True)

    await asyncio.gather(*(limited(json.loads(line)) for line in sys.stdin))


class Agent:
    """One run, and what each of its layers says happened."""

    def __init__(self, order: str) -> None:
        self.order = order
        self.streams: list[str] = []
        self.tool: asyncio.subprocess.Process | None = None

    async def run(self, stop_after: float) -> dict:
        talk = asyncio.create_task(self.talk())
        await asyncio.wait([talk], timeout=stop_after)
        stopping = asyncio.create_task(once("stop", self.order, "--wait", "20s", "--note", "the user pressed stop"))
        talk.cancel()
        await asyncio.wait([talk])
        stopped = await stopping
        exit_code = await self.tool.wait() if self.tool else None
        again = await once("stop", self.order, "--wait", "20s")
        return {
            "order": self.order,
            "streams": self.streams,
            "exit": exit_code,
            "settlement": stopped,
            "again": again,
        }

    async def talk(self) -> None:
        client = AsyncOpenAI(default_headers={"Once-Scope": self.order, "Once-Run": self.order}, max_retries=0)
        messages: list = [{"role": "user", "content": f"invoice {self.order}"}]
        try:
            while calls := await self.answer(client, messages):
                messages.append({"role": "assistant", "content": "", "tool_calls": calls})
                for call in calls:
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": await self.send(call)})
        except APIError as refused:
            self.streams.append(f"refused: {getattr(refused, 'status_code', None)}")

    async def answer(self, client: AsyncOpenAI, messages: list) -> list:
        """One streamed answer: the tool calls in it."""
        self.streams.append("cancelled")
        calls: dict[int, dict] = {}
        async with await client.chat.completions.create(
            model="m", messages=messages, tools=[TOOL], stream=True
        ) as stream:
            async for chunk in stream:
                for delta in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
                    calls[delta.index] = delta.model_dump(include={"id", "type", "function"})
        self.streams[-1] = "ended"
        return list(calls.values())

    async def send(self, call: dict) -> str:
        order = json.loads(call["function"]["arguments"])["order"]
        probe = f"{sys.executable} {HERE / 'was_sent.py'} {order}"
        guard = [ONCE, "run", "--quiet", "--scope", order, "--key", call["id"], "--name", "send_invoice_email"]
        guard += ["--quarantine", "2s", "--probe", probe]
        self.tool = await asyncio.create_subprocess_exec(
            *guard, "--", sys.executable, str(HERE / "send_invoice.py"), order, stdout=asyncio.subprocess.PIPE
        )
        # Nothing but the end of the process is waited for: a cancelled task must not lose it.
        await self.tool.wait()
        return "sent" if self.tool.returncode == 0 else "not known"


async def once(*arguments: str) -> dict:
    process = await asyncio.create_subprocess_exec(
        ONCE, *arguments, "--json", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, errors = await process.communicate()
    if not out:
        raise RuntimeError(f"once {' '.join(arguments)} said nothing on stdout:\n{errors.decode()}")
    return json.loads(out)


if __name__ == "__main__":
    asyncio.run(main())
