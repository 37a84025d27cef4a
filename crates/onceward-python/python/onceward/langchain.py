"""Tools of LangChain and LangGraph, each call run once.

    from onceward.langchain import OnceMiddleware, guard, wrap_tool_call

    tool = guard(charge, session)                                         # one tool, anywhere
    node = ToolNode(tools, wrap_tool_call=wrap_tool_call(ledger))         # all tools of a LangGraph node
    agent = create_agent(model, tools, middleware=[OnceMiddleware(ledger)])   # all tools of a LangChain agent

With a ledger instead of a session the run is the graph's `thread_id`. A node that is retried, resumed after an
interrupt or started again from a checkpoint runs its tools again: those that were done are replayed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Awaitable, Callable, Hashable
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from langchain_core.messages import ToolMessage
from langchain_core.messages.tool import ToolOutputMixin
from langchain_core.runnables.config import ensure_config
from langchain_core.tools import BaseTool

from ._tools import Desk, Outcome, Where, codec_of, desk, occurrence_words, with_occurrence
from .errors import InvalidInput, OncewardError

if TYPE_CHECKING:
    from langgraph.prebuilt.tool_node import ToolCallRequest

    Sync = Callable[[ToolCallRequest, Callable[[ToolCallRequest], Any]], Any]
    Async = Callable[[ToolCallRequest, Callable[[ToolCallRequest], Awaitable[Any]]], Awaitable[Any]]

# How the call that runs in this context ended: from the tool's function to the tool's answer.
_ended: ContextVar[list[Outcome]] = ContextVar("onceward_langchain")


def guard(tool: BaseTool, where: Where, **settings: Any) -> BaseTool:
    """The same tool under the ledger's guard.

    - `where`: a session, or a ledger if the graph has a `thread_id`. `scope`: text, or a function of the config.
    - `occurrence_argument`: adds an optional argument of that name, by which the model can say that a repeat is wanted.
    - anything else is an option of `Ledger.once`.

    A certain failure is raised as the tool's own exception, so that retries do what they did. What is in doubt or
    refused is an error message for the model; outside of a tool call it is raised.
    """
    return tool if hasattr(tool, "onceward_desk") else _guarded(tool, desk(where, settings))


def wrap_tool_call(where: Where, **settings: Any) -> Sync:
    """For `ToolNode(tools, wrap_tool_call=…)`: guards every tool of the node.

    `terms`: options of `Ledger.once` by tool name, e.g. `{"charge": {"key": ["order"]}, "find": {"class_": "read"}}`.
    """
    at = desk(where, settings)
    return lambda request, execute: execute(_with_guard(request, at))


def awrap_tool_call(where: Where, **settings: Any) -> Async:
    """For `ToolNode(tools, awrap_tool_call=…)`: the same in an event loop."""
    at = desk(where, settings)
    return lambda request, execute: execute(_with_guard(request, at))


def __getattr__(name: str) -> Any:
    """`OnceMiddleware` needs the package langchain; the rest of this module does with langchain-core."""
    if name != "OnceMiddleware":
        raise AttributeError(name)
    return _middleware()


@functools.cache
def _middleware() -> type:
    from langchain.agents.middleware import AgentMiddleware

    class OnceMiddleware(AgentMiddleware[Any, Any]):
        """Guards every tool of an agent. Takes what `wrap_tool_call` takes."""

        def __init__(self, where: Where, **settings: Any) -> None:
            super().__init__()
            self._desk = desk(where, settings)

        def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
            """Has the guarded tool run in the tool's place, below whatever else retries."""
            return handler(_with_guard(request, self._desk))

        async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
            """The same in an event loop."""
            return await handler(_with_guard(request, self._desk))

    return OnceMiddleware


def _with_guard(request: ToolCallRequest, at: Desk) -> ToolCallRequest:
    tool = request.tool
    if tool is None or hasattr(tool, "onceward_desk"):
        return request
    return request.override(tool=_guarded(tool, at))


def _guarded(tool: BaseTool, at: Desk) -> BaseTool:
    """A tool of a class that is the tool's own, but for how it runs."""
    kind: Any = _kind(cast(Hashable, type(tool)))
    fields = {name: getattr(tool, name) for name in type(tool).model_fields}
    guarded: BaseTool = kind.model_construct(_fields_set=set(tool.model_fields_set), **{**fields, **_schema(tool, at)})
    for name, value in (tool.__pydantic_private__ or {}).items():
        # What BaseTool itself keeps there is made of the schema, which may be another one now.
        if name not in BaseTool.__private_attributes__:
            setattr(guarded, name, value)
    object.__setattr__(guarded, "onceward_desk", at)
    return guarded


@functools.cache
def _kind(kind: Any) -> Any:
    class Guarded(kind):  # type: ignore[misc]
        @functools.wraps(kind._run)
        def _run(self, *args: Any, **kwargs: Any) -> Any:
            at, arguments, own = _asked(self, args, kwargs)
            call = partial(super()._run, *args, **own)
            return _ending(self, at.call(self.name, arguments, lambda: call(), **_about(self)))

        @functools.wraps(kind._arun)
        async def _arun(self, *args: Any, **kwargs: Any) -> Any:
            at, arguments, own = _asked(self, args, kwargs)
            call = partial(super()._arun, *args, **own)
            return _ending(self, await at.acall(self.name, arguments, lambda: call(), **_about(self)))

        def run(self, *args: Any, **kwargs: Any) -> Any:
            ended: list[Outcome] = []
            token = _ended.set(ended)
            try:
                return _told(super().run(*args, **kwargs), ended, kwargs.get("tool_call_id"))
            finally:
                _ended.reset(token)

        async def arun(self, *args: Any, **kwargs: Any) -> Any:
            ended: list[Outcome] = []
            token = _ended.set(ended)
            try:
                return _told(await super().arun(*args, **kwargs), ended, kwargs.get("tool_call_id"))
            finally:
                _ended.reset(token)

    Guarded.__name__, Guarded.__qualname__ = kind.__name__, kind.__qualname__
    return Guarded


def _asked(tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Desk, dict[str, Any], dict[str, Any]]:
    """The desk, what the model said, and what the tool is called with: state, stores and managers are no inputs."""
    at: Desk = tool.onceward_desk
    shown = tool.args
    said = {name: value for name, value in kwargs.items() if name in shown}
    said |= {f"input {index}": value for index, value in enumerate(args)}
    defaults = {name: about["default"] for name, about in shown.items() if "default" in about and name not in said}
    defaults.pop(at.occurrence_argument or "", None)
    return at, {**defaults, **said}, at.own_arguments(kwargs)


def _about(tool: BaseTool) -> dict[str, Any]:
    config = ensure_config()
    function = getattr(tool, "func", None) or getattr(tool, "coroutine", None) or type(tool)._run
    about = {"run_scope": config.get("configurable", {}).get("thread_id"), "context": config, "of": function}
    try:
        from langgraph.errors import GraphBubbleUp
    except ImportError:
        return about
    # An interrupt asks before it acts. LangGraph runs the tool from its top when the answer is there.
    return {**about, "no_effect": (GraphBubbleUp,), "options": {"codec": _Kept(function)}}


class _Kept:
    """Results as they are kept: messages and commands as LangGraph itself keeps them in its checkpoints."""

    def __init__(self, function: Callable[..., Any]) -> None:
        from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

        self._graph = JsonPlusSerializer()
        self._usual = codec_of(function)

    def encode(self, value: Any) -> object:
        """The value as plain data."""
        parts = value if isinstance(value, (list, tuple)) else [value]
        if not any(isinstance(part, ToolOutputMixin) for part in parts):
            return self._usual.encode(value)
        kind, data = self._graph.dumps_typed(value)
        return {"$langgraph": kind, "data": data}

    def decode(self, data: Any) -> object:
        """The value that the data stands for."""
        if isinstance(data, dict) and "$langgraph" in data:
            return self._graph.loads_typed((data["$langgraph"], data["data"]))
        return self._usual.decode(data)


def _ending(tool: BaseTool, outcome: Outcome) -> Any:
    outcome.or_raise()
    _ended.get([]).append(outcome)
    value = outcome.value if outcome.refusal is None else outcome.refusal
    return (value, None) if outcome.refusal is not None and tool.response_format == "content_and_artifact" else value


def _told(answer: Any, ended: list[Outcome], call_id: str | None) -> Any:
    """The answer with the words for the model. Whoever is no model gets the bare value, or the error."""
    if not ended:
        return answer
    outcome = ended[0]
    error: OncewardError | None = outcome.error
    if error is not None and not isinstance(answer, ToolMessage):
        raise error
    if outcome.note is not None and call_id is not None:
        answer = _noted(answer, outcome.note, call_id)
    return answer if error is None else answer.model_copy(update={"status": "error"})


def _noted(answer: Any, note: str, call_id: str) -> Any:
    """The answer with the note in every message, and under the id of this call: the first one had another."""
    if isinstance(answer, ToolMessage):
        content = answer.content
        more = [*content, {"type": "text", "text": note}] if isinstance(content, list) else f"{content}\n\n{note}"
        return answer.model_copy(update={"content": more, "tool_call_id": call_id})
    if isinstance(answer, list):
        return [_noted(part, note, call_id) for part in answer]
    update = getattr(answer, "update", None)
    if isinstance(update, dict) and isinstance(update.get("messages"), list):
        messages = [_noted(part, note, call_id) for part in update["messages"]]
        return dataclasses.replace(answer, update={**update, "messages": messages})
    return answer


def _schema(tool: BaseTool, at: Desk) -> dict[str, Any]:
    """The schema with the argument by which the model says that a repeat is wanted, where it may."""
    argument = at.occurrence_argument
    if argument is None:
        return {}
    if argument in tool.args:
        raise InvalidInput(f"{tool.name} has an argument {argument!r} of its own; give another name")
    if isinstance(tool.args_schema, dict):
        return {"args_schema": with_occurrence(tool.args_schema, argument)}
    from pydantic import Field, create_model

    extra: dict[str, Any] = {argument: (int | None, Field(None, description=occurrence_words(argument)))}
    schema: Any = tool.get_input_schema()
    return {"args_schema": create_model(schema.__name__, __base__=schema, **extra)}
