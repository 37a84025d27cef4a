"""A LangGraph node that runs its tools again, because one of them failed: the other one has been done."""

import tempfile
from pathlib import Path

from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import RetryPolicy

from onceward import Ledger, NotDispatched
from onceward.langchain import wrap_tool_call

charged, tries = [], []
place = Path(tempfile.mkdtemp()) / "agent.db"


@tool
def charge(order: str) -> str:
    """Charges an order."""
    charged.append(order)
    return "charged"


@tool
def notify(order: str) -> str:
    """Tells the customer."""
    tries.append(order)
    if len(tries) < 3:
        raise NotDispatched("the mail server is down")
    return "told"


calls = [{"name": name, "args": {"order": "o-1"}, "id": f"call_{name}"} for name in ("charge", "notify")]
# docs: begin
ledger = Ledger(place)
tools = ToolNode([charge, notify], wrap_tool_call=wrap_tool_call(ledger, terms={"charge": {"key": ["order"]}}))
graph = StateGraph(MessagesState)
graph.add_node("tools", tools, retry_policy=RetryPolicy(initial_interval=0.01, retry_on=Exception))
graph.add_edge(START, "tools")
thread = {"configurable": {"thread_id": "order-flow-17"}}  # the scope of all keys
state = graph.compile().invoke({"messages": [AIMessage("", tool_calls=calls)]}, thread)
# docs: end
assert charged == ["o-1"] and len(tries) == 3, (charged, tries)
print([message.content for message in state["messages"][1:]])
