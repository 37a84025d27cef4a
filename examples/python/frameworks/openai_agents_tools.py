"""A tool of the OpenAI Agents SDK. The model is scripted: it sees a timeout and asks again under another id."""

import asyncio
import tempfile
from pathlib import Path

from agents import Agent, RunConfig, Runner, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call

from onceward import Ledger
from onceward.openai_agents import once_tool

set_tracing_disabled(True)
charged = []
place = Path(tempfile.mkdtemp()) / "agent.db"
# docs: begin
ledger = Ledger(place)


@function_tool(timeout=0.2)
@once_tool(ledger, key=["order"], effect="created")
async def charge(order: str, amount: int) -> str:
    """Charges an order."""
    charged.append(order)
    await asyncio.sleep(0.4)  # the SDK gives up; the call continues, and the next one gets its result
    return f"charged {amount}"


async def main(model) -> str:
    agent = Agent("clerk", model=model, tools=[charge])
    result = await Runner.run(agent, "charge o-1", run_config=RunConfig(group_id="order-flow-17"))
    return result.final_output


# docs: end


asks = ['{"order": "o-1", "amount": 5}'] * 3
steps = [[function_call("charge", said, call_id=f"call_{index}")] for index, said in enumerate(asks)]
print(asyncio.run(main(ScriptedModel([*steps, [assistant_message("done")]]))))
assert charged == ["o-1"], charged
