"""An agent of LangChain whose middleware retries tools. The tool fails after its effect."""

import tempfile
from pathlib import Path

from langchain.agents import create_agent
from langchain.agents.middleware import ToolRetryMiddleware
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool

from onceward import Ledger
from onceward.langchain import OnceMiddleware, guard

charged = []
place = Path(tempfile.mkdtemp()) / "agent.db"


class Model(GenericFakeChatModel):
    def bind_tools(self, tools, **_):
        return self


@tool
def charge(order: str) -> str:
    """Charges an order."""
    charged.append(order)
    raise TimeoutError("no answer from the bank")


asks = AIMessage("", tool_calls=[{"name": "charge", "args": {"order": "o-1"}, "id": "call_1"}])
model = Model(messages=iter([asks, AIMessage("I asked a person")]))
# docs: begin
ledger = Ledger(place)
retries = ToolRetryMiddleware(max_retries=2, initial_delay=0.01)
agent = create_agent(model, [charge], middleware=[retries, OnceMiddleware(ledger)])
state = agent.invoke({"messages": [("user", "charge o-1")]}, {"configurable": {"thread_id": "order-flow-17"}})

# One tool, with an argument by which the model can ask for a repeat:
repeatable = guard(charge, ledger, occurrence_argument="occurrence")
# docs: end
assert charged == ["o-1"], charged
assert "occurrence" in repeatable.args
print(state["messages"][-2].content)
