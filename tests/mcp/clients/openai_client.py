"""openai_client.py COMMAND TOOL ARGUMENTS TIMEOUT: one run of an OpenAI agent that calls the tool once.

The model is scripted: it calls the tool, then repeats the result. Everything else is the SDK.
"""

import asyncio
import json
import sys

from agents import Agent, Model, ModelResponse, Runner, Usage
from agents.mcp import MCPServerStdio
from openai.types.responses import (
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseOutputText,
)


class Scripted(Model):
    def __init__(self, tool, arguments):
        self.call = ResponseFunctionToolCall(
            type="function_call", id="f1", call_id="c1", name=tool, arguments=arguments, status="completed"
        )
        self.told = None

    async def get_response(self, system_instructions, input, *rest, **more):
        told = [
            item["output"] for item in input if isinstance(item, dict) and item.get("type") == "function_call_output"
        ]
        if not told:
            return ModelResponse(output=[self.call], usage=Usage(), response_id=None)
        self.told = told[0]
        said = ResponseOutputText(type="output_text", text="done", annotations=[])
        message = ResponseOutputMessage(id="m1", type="message", role="assistant", status="completed", content=[said])
        return ModelResponse(output=[message], usage=Usage(), response_id=None)

    def stream_response(self, *rest, **more):
        raise NotImplementedError("the rig does not stream")


async def main(command, tool, arguments, timeout):
    model = Scripted(tool, arguments)
    server = MCPServerStdio(
        params={"command": command[0], "args": command[1:]},
        client_session_timeout_seconds=timeout,
        max_retry_attempts=2,
    )
    async with server:
        await Runner.run(Agent(name="rig", model=model, mcp_servers=[server]), "count once")
    told = json.dumps(model.told)
    return {"ok": "counted" in told, "text": told}


command, tool, arguments, timeout = sys.argv[1:]
print(json.dumps(asyncio.run(main(json.loads(command), tool, arguments, float(timeout)))))
