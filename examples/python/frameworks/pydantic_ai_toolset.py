"""A toolset of Pydantic AI whose tool takes longer than its timeout. The model is scripted: it asks until done."""

import asyncio
import tempfile
from pathlib import Path

from pydantic_ai import Agent, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.toolsets import FunctionToolset

from onceward import Ledger
from onceward.pydantic_ai import OnceToolset

charged = []
place = Path(tempfile.mkdtemp()) / "agent.db"


async def charge(order: str, amount: int) -> str:
    """Charges an order."""
    charged.append(order)
    await asyncio.sleep(0.3)
    return f"charged {amount}"


def scripted(messages, info) -> ModelResponse:
    if "charged 5" in str(messages[-1]):
        return ModelResponse(parts=[TextPart("done")])
    return ModelResponse(parts=[ToolCallPart("charge", {"order": "o-1", "amount": 5})])


model = FunctionModel(scripted)
# docs: begin
tools = FunctionToolset([charge], timeout=0.2, max_retries=5)
once = OnceToolset(tools, Ledger(place), terms={"charge": {"key": ["order"]}}, occurrence_argument="occurrence")
agent = Agent(model, toolsets=[once])
result = agent.run_sync("charge o-1", conversation_id="order-flow-17")  # the scope of all keys
# docs: end
assert charged == ["o-1"], charged
print(result.output)
