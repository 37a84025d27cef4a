"""The usual loop with OpenAI's Responses API. The model is scripted here: it asks twice, under two ids."""

import tempfile
from pathlib import Path

from openai.types.responses import ResponseFunctionToolCall

from onceward import Ledger
from onceward.openai import run_tools

charged = []


def charge(order: str, amount: int) -> str:
    charged.append(order)
    return f"charged {amount}"


def find(order: str) -> str:
    return f"{order} is open"


def scripted(number: int) -> dict:
    """What `client.responses.create(model=…, tools=definitions, input=items)` would answer."""
    arguments = '{"order": "o-1", "amount": 5}'
    return {
        "output": [
            ResponseFunctionToolCall(type="function_call", call_id=f"call_{number}", name="charge", arguments=arguments)
        ]
    }


place = Path(tempfile.mkdtemp()) / "agent.db"
items = []
# docs: begin
session = Ledger(place).session("order-flow-17")
tools = {"charge": charge, "find": find}
terms = {"charge": {"key": ["order"], "effect": "created"}, "find": {"class_": "read"}}
for response in (scripted(1), scripted(2)):  # client.responses.create(…), or client.chat.completions.create(…)
    items += response["output"]
    items += run_tools(session, response, tools, terms=terms)
# docs: end
assert charged == ["o-1"], charged
print(items[-1]["output"])
