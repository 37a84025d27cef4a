"""Middleware for a FastMCP server whose tools run once.

    from onceward.fastmcp import OnceMiddleware

    server = FastMCP("shop", middleware=[RetryMiddleware(), OnceMiddleware(ledger, scope=run_of)])

A client that gives up, reconnects and asks again gets the first result, and so does a retry inside the server. Tools
with `readOnlyHint` are not recorded; tools with `idempotentHint` may run again if they are in doubt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mcp_types
from fastmcp.exceptions import ToolError, ValidationError
from fastmcp.server.middleware import CallNext, Middleware, MiddlewareContext
from fastmcp.tools.base import ToolResult
from pydantic import TypeAdapter

from ._tools import Outcome, Where, tool_context, with_occurrence

_KEY = "dev.onceward/key"
# The names that hosts use for the conversation of a call; the first is ours.
_CONVERSATIONS = (
    "dev.onceward/scope",
    "threadId",
    "vscode.conversationId",
    "ai.opencode/sessionID",
    "antigravity.google/conversation_id",
)
_blocks: TypeAdapter[list[Any]] = TypeAdapter(list[mcp_types.ContentBlock])


class OnceMiddleware(Middleware):
    """Guards every tool of a server. Put it last, so that everything that retries is around it.

    - `where`: a session, or a ledger. With a ledger, the run is what the host says about its conversation in `_meta`
      (`dev.onceward/scope` is ours), or `scope`: text, or a function of the `MiddlewareContext`. The newest version of
      MCP has no sessions that could identify it.
    - `terms`: options of `Ledger.once` by tool name, e.g. `{"charge": {"key": ["order"]}, "find": {"class_": "read"}}`.
    - `occurrence_argument`: adds an optional argument of that name to every tool, by which the model can ask for a
      deliberate repeat. A caller with its own key passes it in `_meta["dev.onceward/key"]`.
    - anything else is an option of `Ledger.once` for all tools.

    If a tool reports an error itself (`ToolError`, `isError`), it declares that it failed, so the next call runs.
    """

    def __init__(self, where: Where, **settings: Any) -> None:
        self._context = tool_context(where, settings)

    async def on_list_tools(self, context: MiddlewareContext[Any], call_next: CallNext[Any, Any]) -> Any:
        """The tools, with the argument for deliberate repeats if there is one."""
        tools = await call_next(context)
        argument = self._context.occurrence_argument
        if argument is None:
            return tools
        return [
            tool if _reads(tool.annotations)
            else tool.model_copy(update={"parameters": with_occurrence(tool.parameters, argument)})
            for tool in tools
        ]  # fmt: skip

    async def on_call_tool(
        self,
        context: MiddlewareContext[mcp_types.CallToolRequestParams],
        call_next: CallNext[mcp_types.CallToolRequestParams, ToolResult],
    ) -> ToolResult:
        """Makes the call once. A doubt or a refusal is a result with `isError`, which nothing retries."""
        message = context.message
        arguments = {**(message.arguments or {}), **_answers(message)}
        own = message.model_copy(update={"arguments": self._context.own_arguments(message.arguments or {})})
        meta = _meta(context)
        outcome = await self._context.acall(
            message.name, arguments, lambda: _acted(call_next, context.copy(message=own)), no_effect=(_Misfit,),
            options=await _options(context, meta), run_scope=_conversation(meta), context=context,
        )  # fmt: skip
        try:
            return _answer_for_model(outcome.or_raise())
        except _Failed as failed:
            return failed.as_it_was()


class _Failed(Exception):
    """The tool failed: what it reported or raised. Its own exception decides whether the failure had no effect."""

    def __init__(self, result: ToolResult | None = None, error: Exception | None = None) -> None:
        super().__init__(str(error) if error is not None else "the tool answered with isError")
        self.result, self.error = result, error
        self.__onceward_about__ = error.__cause__ if error is not None else None

    def as_it_was(self) -> ToolResult:
        if self.result is None:
            assert self.error is not None
            raise self.error
        return self.result


class _Misfit(_Failed):
    """The arguments did not fit, so the tool was not called."""


async def _acted(call_next: CallNext[Any, ToolResult], context: MiddlewareContext[Any]) -> dict[str, Any]:
    """The tool's result as it is sent. FastMCP wraps what a tool raises; the wrapped exception decides."""
    try:
        result = await call_next(context)
    except ValidationError as error:
        # Pydantic calls the tool itself: a validation error of its arguments has the tool's own title.
        raise (_Misfit if error.title.startswith("call[") else _Failed)(error=error) from error
    except ToolError as error:
        raise _Failed(error=error) from error
    if result.is_error:
        raise _Failed(result=result)
    kept: dict[str, Any] = result.model_dump(mode="json")
    return kept


def _answer_for_model(outcome: Outcome) -> ToolResult:
    if outcome.refusal is not None:
        return ToolResult(content=outcome.text, is_error=True)
    kept = outcome.value
    blocks = _blocks.validate_python(kept["content"])
    if outcome.note is not None:
        blocks.append(mcp_types.TextContent(type="text", text=outcome.note))
    return ToolResult(content=blocks, structured_content=kept["structured_content"], meta=kept["meta"])


async def _options(context: MiddlewareContext[Any], meta: dict[str, Any]) -> dict[str, Any]:
    """The tool's own annotations. It is this server's tool, so they are trusted."""
    options: dict[str, Any] = {"key": meta[_KEY]} if meta.get(_KEY) else {}
    server = context.fastmcp_context
    tool = await server.fastmcp.get_tool(context.message.name) if server is not None else None
    annotations = getattr(tool, "annotations", None)
    if _reads(annotations):
        options["class_"] = "read"
    elif annotations is not None and annotations.idempotent_hint:
        options["class_"] = "idempotent"
    return options


def _reads(annotations: Any) -> bool:
    return bool(annotations is not None and annotations.read_only_hint)


def _answers(message: mcp_types.CallToolRequestParams) -> dict[str, Any]:
    """What a person answered in between: each step of such a conversation is a separate call."""
    said = message.model_dump(mode="json", include={"input_responses", "request_state"}, exclude_none=True)
    return {f"_meta {name}": value for name, value in said.items()}


def _meta(context: MiddlewareContext[mcp_types.CallToolRequestParams]) -> dict[str, Any]:
    """The metadata that the host sent with the call."""
    server = context.fastmcp_context
    request = server.request_context if server is not None else None
    meta: Any = context.message.meta or getattr(request, "meta", None)
    return {} if meta is None else dict(meta) if isinstance(meta, Mapping) else meta.model_dump()


def _conversation(meta: dict[str, Any]) -> str | None:
    return next((str(meta[name]) for name in _CONVERSATIONS if meta.get(name)), None)
