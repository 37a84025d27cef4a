"""Guards tools of LangChain and LangGraph, so that each call runs once.

    from onceward.langchain import OnceMiddleware, guard, wrap_tool_call

    tool = guard(charge, session)                                         # one tool, anywhere
    node = ToolNode(tools, wrap_tool_call=wrap_tool_call(ledger))         # all tools of a LangGraph node
    agent = create_agent(model, tools, middleware=[OnceMiddleware(ledger)])   # all tools of a LangChain agent

With a ledger instead of a session, the run is the graph's `thread_id`. A node that is retried, resumed after an
interrupt or restarted from a checkpoint runs its tools again: calls that were done are replayed.
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

from ._tools import Outcome, ToolContext, Where, codec_of, occurrence_words, tool_context, with_occurrence
from .errors import InvalidInput, OncewardError

if TYPE_CHECKING:
    from langgraph.prebuilt.tool_node import ToolCallRequest

    Sync = Callable[[ToolCallRequest, Callable[[ToolCallRequest], Any]], Any]
    Async = Callable[[ToolCallRequest, Callable[[ToolCallRequest], Awaitable[Any]]], Awaitable[Any]]

# How the call in this context ended: passed from the tool's function to the tool's answer.
_ended: ContextVar[list[Outcome]] = ContextVar("onceward_langchain")


def guard(tool: BaseTool, where: Where, **settings: Any) -> BaseTool:
    """The same tool, guarded by the ledger.

    - `where`: a session, or a ledger if the graph has a `thread_id`. `scope`: text, or a function of the config.
    - `occurrence_argument`: adds an optional argument of that name, by which the model can ask for a deliberate repeat.
    - anything else is an option of `Ledger.once`.

    A failure without effect is raised as the tool's own exception, so that retries work as before. A doubt or a refusal
    is an error message for the model; outside a tool call it is raised.
    """
    return tool if hasattr(tool, "onceward_context") else _guarded(tool, tool_context(where, settings))


def wrap_tool_call(where: Where, **settings: Any) -> Sync:
    """For `ToolNode(tools, wrap_tool_call=…)`: guards every tool of the node.

    `terms`: options of `Ledger.once` by tool name, e.g. `{"charge": {"key": ["order"]}, "find": {"class_": "read"}}`.
    """
    at = tool_context(where, settings)
    return lambda request, execute: execute(_with_guard(request, at))


def awrap_tool_call(where: Where, **settings: Any) -> Async:
    """For `ToolNode(tools, awrap_tool_call=…)`: the same in an event loop."""
    at = tool_context(where, settings)
    return lambda request, execute: execute(_with_guard(request, at))


def __getattr__(name: str) -> Any:
    """`OnceMiddleware` needs the package langchain; the rest of this module needs only langchain-core."""
    if name != "OnceMiddleware":
        raise AttributeError(name)
    return _middleware()


@functools.cache
def _middleware() -> type:
    from langchain.agents.middleware import AgentMiddleware

    class OnceMiddleware(AgentMiddleware[Any, Any]):
        """Guards every tool of an agent. Takes the same settings as `wrap_tool_call`."""

        def __init__(self, where: Where, **settings: Any) -> None:
            super().__init__()
            self._context = tool_context(where, settings)

        def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
            """Runs the guarded tool instead of the tool, inside everything that retries."""
            return handler(_with_guard(request, self._context))

        async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
            """The same in an event loop."""
            return await handler(_with_guard(request, self._context))

    return OnceMiddleware


def _with_guard(request: ToolCallRequest, at: ToolContext) -> ToolCallRequest:
    tool = request.tool
    if tool is None or hasattr(tool, "onceward_context"):
        return request
    return request.override(tool=_guarded(tool, at))


def _guarded(tool: BaseTool, at: ToolContext) -> BaseTool:
    """A tool of a subclass of the tool's class, which runs guarded."""
    kind: Any = _kind(cast(Hashable, type(tool)))
    fields = {name: getattr(tool, name) for name in type(tool).model_fields}
    guarded: BaseTool = kind.model_construct(_fields_set=set(tool.model_fields_set), **{**fields, **_schema(tool, at)})
    for name, value in (tool.__pydantic_private__ or {}).items():
        # Leave out what BaseTool caches there: it is derived from the schema, which may have changed.
        if name not in BaseTool.__private_attributes__:
            setattr(guarded, name, value)
    object.__setattr__(guarded, "onceward_context", at)
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
                return _answer_for_model(super().run(*args, **kwargs), ended, kwargs.get("tool_call_id"))
            finally:
                _ended.reset(token)

        async def arun(self, *args: Any, **kwargs: Any) -> Any:
            ended: list[Outcome] = []
            token = _ended.set(ended)
            try:
                return _answer_for_model(await super().arun(*args, **kwargs), ended, kwargs.get("tool_call_id"))
            finally:
                _ended.reset(token)

    Guarded.__name__, Guarded.__qualname__ = kind.__name__, kind.__qualname__
    return Guarded


def _asked(
    tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[ToolContext, dict[str, Any], dict[str, Any]]:
    """The context, the model's arguments, and the tool's arguments: state, stores and managers are not inputs."""
    at: ToolContext = tool.onceward_context
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
    # An interrupt asks before it acts. LangGraph runs the tool from the start when it has the answer.
    return {**about, "no_effect": (GraphBubbleUp,), "options": {"codec": _Kept(function)}}


class _Kept:
    """How results are stored: messages and commands in the format of LangGraph's checkpoints."""

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
        """The value for that plain data."""
        if isinstance(data, dict) and "$langgraph" in data:
            return self._graph.loads_typed((data["$langgraph"], data["data"]))
        return self._usual.decode(data)


def _ending(tool: BaseTool, outcome: Outcome) -> Any:
    outcome.or_raise()
    _ended.get([]).append(outcome)
    value = outcome.value if outcome.refusal is None else outcome.refusal
    return (value, None) if outcome.refusal is not None and tool.response_format == "content_and_artifact" else value


def _answer_for_model(answer: Any, ended: list[Outcome], call_id: str | None) -> Any:
    """The answer with the note for the model. Any other caller gets the bare value, or the error."""
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
    """The answer with the note in every message, under the id of this call instead of the first one's."""
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


def _schema(tool: BaseTool, at: ToolContext) -> dict[str, Any]:
    """The schema, with the argument for deliberate repeats if there is one."""
    argument = at.occurrence_argument
    if argument is None:
        return {}
    if argument in tool.args:
        raise InvalidInput(f"{tool.name} already has an argument {argument!r}; choose another name")
    if isinstance(tool.args_schema, dict):
        return {"args_schema": with_occurrence(tool.args_schema, argument)}
    from pydantic import Field, create_model

    extra: dict[str, Any] = {argument: (int | None, Field(None, description=occurrence_words(argument)))}
    schema: Any = tool.get_input_schema()
    return {"args_schema": create_model(schema.__name__, __base__=schema, **extra)}
