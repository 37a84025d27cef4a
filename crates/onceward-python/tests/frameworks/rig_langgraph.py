"""LangGraph and LangChain with LangChain's fake chat model."""

from typing import Annotated

import rig
from langchain.agents import create_agent
from langchain.agents.middleware import ToolRetryMiddleware
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool, InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, RetryPolicy, interrupt
from rig import Run, scenario

from onceward import InDoubt, NotDispatched
from onceward.langchain import OnceMiddleware, awrap_tool_call, guard, wrap_tool_call

THREAD = {"configurable": {"thread_id": "thread-1"}}
QUICKLY = RetryPolicy(initial_interval=0.01, jitter=False, retry_on=Exception)


class Model(GenericFakeChatModel):
    """A chat model that gives scripted answers, whatever tools it gets."""

    def bind_tools(self, tools, **_):
        return self


def asks(number: int, *calls: tuple[str, dict]) -> AIMessage:
    """The model asks for tools: each time under other ids."""
    made = [{"name": name, "args": args, "id": f"call_{number}_{index}"} for index, (name, args) in enumerate(calls)]
    return AIMessage("", tool_calls=made)


def told(state) -> list[ToolMessage]:
    return [message for message in state["messages"] if isinstance(message, ToolMessage)]


def graph_of(node, retry=None, saver=None):
    """A graph of one node that runs tools."""
    graph = StateGraph(MessagesState)
    graph.add_node("tools", node, retry_policy=retry)
    graph.add_edge(START, "tools")
    graph.add_edge("tools", END)
    return graph.compile(checkpointer=saver)


def charging(run: Run, fails: int = 0) -> BaseTool:
    @tool
    def charge(order: str, note: str = "", call: Annotated[str, InjectedToolCallId] = "") -> str:
        """Charges an order."""
        said = run.world.change(order)
        if run.world.effects <= fails:
            raise TimeoutError("no answer from the bank")
        return said

    return charge


@scenario("a node whose RetryPolicy runs it again: one tool worked, its neighbour failed", bare=3)
def node_retried(run: Run):
    tries = []

    @tool
    def notify(order: str) -> str:
        """Tells the customer."""
        tries.append(order)
        if len(tries) < 3:
            raise NotDispatched("the mail server is down")
        return "told"

    tools = [charging(run), notify]
    node = ToolNode(tools, wrap_tool_call=wrap_tool_call(run.ledger)) if run.guarded else ToolNode(tools)
    asked = asks(1, ("charge", {"order": "o-1"}), ("notify", {"order": "o-1"}))
    state = graph_of(node, QUICKLY).invoke({"messages": [asked]}, THREAD)
    charged, notified = told(state)
    assert notified.content == "told" and "o-1 is number" in charged.content
    if run.guarded:
        assert "Nothing was run now" in charged.content, charged
        assert charged.tool_call_id == "call_1_0"


@scenario("a node whose RetryPolicy runs it again after a tool that raised after its effect", bare=2)
def tool_retried(run: Run):
    charge = charging(run, fails=1)
    node = ToolNode([guard(charge, run.session) if run.guarded else charge])
    state = graph_of(node, QUICKLY).invoke({"messages": [asks(1, ("charge", {"order": "o-1"}))]}, THREAD)
    if run.guarded:
        (message,) = told(state)
        assert message.status == "error" and "Do not call it again" in message.content, message


@scenario("ToolRetryMiddleware runs a tool again that raised after its effect", bare=3)
async def middleware_retried(run: Run):
    model = Model(messages=iter([asks(1, ("charge", {"order": "o-1"})), AIMessage("I asked a person")]))
    again = ToolRetryMiddleware(max_retries=2, initial_delay=0.01, jitter=False)
    middleware = [again, OnceMiddleware(run.ledger)] if run.guarded else [again]
    agent = create_agent(model, [charging(run, fails=9)], middleware=middleware)
    state = await agent.ainvoke({"messages": [("user", "charge o-1")]}, THREAD)
    assert state["messages"][-1].content == "I asked a person"
    if run.guarded:
        (message,) = told(state)
        assert message.status == "error" and "TIMEOUT" in message.content, message


@scenario("a node that is resumed after its neighbour's interrupt runs all its tools again", bare=2)
def resumed(run: Run):
    @tool
    def confirm(order: str) -> str:
        """Asks a person."""
        return interrupt(f"really {order}?")

    tools = [charging(run), confirm]
    node = ToolNode(tools, wrap_tool_call=wrap_tool_call(run.ledger)) if run.guarded else ToolNode(tools)
    graph = graph_of(node, saver=InMemorySaver())
    asked = asks(1, ("charge", {"order": "o-1"}), ("confirm", {"order": "o-1"}))
    stopped = graph.invoke({"messages": [asked]}, THREAD)
    assert "__interrupt__" in stopped, stopped
    state = graph.invoke(Command(resume="yes"), THREAD)
    charged, confirmed = told(state)
    assert confirmed.content == "yes" and "o-1 is number" in charged.content, state


@scenario("the model asks again under another id; a graph in an event loop", bare=2)
async def asked_again(run: Run):
    charge = charging(run)
    node = ToolNode([charge], awrap_tool_call=awrap_tool_call(run.ledger)) if run.guarded else ToolNode([charge])
    graph = graph_of(node)
    for number, args in enumerate(({"order": "o-1"}, {"order": "o-1", "note": ""})):
        state = await graph.ainvoke({"messages": [asks(number, ("charge", args))]}, THREAD)
    if run.guarded:
        (message,) = told(state)
        assert message.tool_call_id == "call_1_0" and "Nothing was run now" in message.content, message


class Shop(MessagesState):
    total: int


@scenario("a tool that changes the graph's state by a command: a replay changes it too, under the new id", bare=2)
def commanded(run: Run):
    @tool
    def charge(order: str, call: Annotated[str, InjectedToolCallId]) -> Command:
        """Charges an order."""
        said = run.world.change(order)
        return Command(update={"total": 5, "messages": [ToolMessage(said, tool_call_id=call)]})

    graph = StateGraph(Shop)
    graph.add_node("tools", ToolNode([guard(charge, run.session) if run.guarded else charge]))
    graph.add_edge(START, "tools")
    for number in range(2):
        state = graph.compile().invoke({"messages": [asks(number, ("charge", {"order": "o-1"}))]}, THREAD)
        (message,) = told(state)
        assert state["total"] == 5 and message.tool_call_id == f"call_{number}_0", state
    assert not run.guarded or "Nothing was run now" in message.content, message


@scenario("a deliberate repeat, requested by the model", bare=None, guarded=2)
def repeated(run: Run):
    charge = guard(charging(run), run.ledger, occurrence_argument="occurrence")
    assert "occurrence" in charge.tool_call_schema.model_json_schema()["properties"], charge.args
    graph = graph_of(ToolNode([charge]))
    for number, args in enumerate([{"order": "o-1"}, {"order": "o-1"}, {"order": "o-1", "occurrence": 2}]):
        state = graph.invoke({"messages": [asks(number, ("charge", args))]}, THREAD)
        (message,) = told(state)
        assert ("call it with occurrence=2" in message.content) == (number == 1), message
    assert message.content == "o-1 is number 2", message


@scenario("a custom tool class; outside a tool call the error is raised", bare=None)
def own_class(run: Run):
    class Charge(BaseTool):
        name: str = "charge"
        description: str = "Charges an order."
        fails: bool = False

        def _run(self, order: str) -> dict:
            said = run.world.change(order)
            if self.fails:
                raise TimeoutError(said)
            return {"said": said}

    charge = guard(Charge(), run.session)
    assert charge.invoke({"order": "o-1"}) == charge.invoke({"order": "o-1"}) == {"said": "o-1 is number 1"}
    assert run.world.effects == 1
    try:
        guard(Charge(fails=True), run.ledger.session("run-2")).invoke({"order": "o-1"})
        raise AssertionError("it should be in doubt")
    except InDoubt:
        run.world.file.write_text("o-1\n")


rig.main("LangGraph")
