"""The usual loop with Anthropic's SDK. The model is scripted here: it asks for the same charge twice, under two ids."""

import tempfile
from pathlib import Path

from anthropic.types import Message

from onceward import Ledger
from onceward.anthropic import repeatable, run_tools

charged = []


def charge(order: str, amount: int) -> str:
    charged.append(order)
    return f"charged {amount}"


def scripted(number: int) -> Message:
    """What `client.messages.create(model=…, tools=definitions, messages=messages)` would answer."""
    block = {"type": "tool_use", "id": f"toolu_{number}", "name": "charge", "input": {"order": "o-1", "amount": 5}}
    content = [block] if number < 3 else [{"type": "text", "text": "done"}]
    about = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_sequence": None}
    usage = {"input_tokens": 1, "output_tokens": 1}
    return Message.model_validate(
        {**about, "content": content, "stop_reason": "tool_use" if number < 3 else "end_turn", "usage": usage}
    )


schema = {"type": "object", "properties": {"order": {"type": "string"}, "amount": {"type": "integer"}}}
place = Path(tempfile.mkdtemp()) / "agent.db"
messages = [{"role": "user", "content": "charge o-1"}]
answers = iter([scripted(1), scripted(2), scripted(3)])
# docs: begin
session = Ledger(place).session("order-flow-17")  # a loop that is started again has the same id again
definitions = [repeatable({"name": "charge", "input_schema": schema})]
while (response := next(answers)).stop_reason == "tool_use":  # client.messages.create(tools=definitions, …)
    results = run_tools(session, response, {"charge": charge}, occurrence_argument="occurrence")
    messages += [{"role": "assistant", "content": response.content}, {"role": "user", "content": results}]
# docs: end
assert charged == ["o-1"], charged
print(messages[-1]["content"][0]["content"])
