"""Guards tools of Pydantic AI, so that each call runs once.

    from onceward.pydantic_ai import OnceToolset

    agent = Agent(model, toolsets=[OnceToolset(FunctionToolset([charge]), session)])

With a ledger instead of a session, the run is its `conversation_id`: pass one to `agent.run`, and a restarted run is
the same run. A tool that Pydantic AI times out continues, and the model that asks again gets its result.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
from pydantic_ai import RunContext, ToolReturn
from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, ToolFailed
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool, WrapperToolset

from ._tools import Outcome, ToolContext, Where, tool_context, with_occurrence

# Pydantic AI cancels a tool at its timeout and then runs it again.
_NEVER_S = 10 * 365 * 24 * 3600.0
# With these a tool says that it has not acted: the arguments are wrong, or it needs an approval first.
_NOT_YET = (ModelRetry, CallDeferred, ApprovalRequired)


@dataclass
class OnceToolset(WrapperToolset[Any]):
    """A toolset whose calls happen once. It replaces the toolset that it wraps.

    - `where`: a session, or a ledger. `scope`: text, or a function of the `RunContext`.
    - `terms`: options of `Ledger.once` by tool name, e.g. `{"charge": {"key": ["order"]}, "find": {"class_": "read"}}`.
    - `options`: options of `Ledger.once` for all tools.
    - `occurrence_argument`: adds an optional argument of that name to every tool, by which the model can ask for a
      deliberate repeat.
    """

    where: Where
    scope: str | Callable[[RunContext[Any]], str] | None = None
    terms: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    occurrence_argument: str | None = None

    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        """The tools, with the argument for deliberate repeats if there is one."""
        tools = await super().get_tools(ctx)
        argument = self.occurrence_argument
        return tools if argument is None else {name: _repeatable(tool, argument) for name, tool in tools.items()}

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
    ) -> Any:
        """Makes the call once. A doubt or a refusal is a failed tool result that the model can read."""
        at = self._context()
        wrapped: AbstractToolset[Any] = self.wrapped
        own = at.own_arguments(tool_args)
        call = at.acall(
            name, tool_args, lambda: _unhurried(wrapped, name, own, ctx, tool),
            no_effect=_NOT_YET, run_scope=ctx.conversation_id, context=ctx, of=_function_of(name, tool),
        )  # fmt: skip
        outcome = await _within(tool, call)
        return _answer_for_model(outcome.or_raise())

    def _context(self) -> ToolContext:
        own = {"scope": self.scope, "terms": self.terms, "occurrence_argument": self.occurrence_argument}
        return tool_context(self.where, {**self.options, **own})


async def _unhurried(
    wrapped: AbstractToolset[Any], name: str, arguments: dict[str, Any], ctx: RunContext[Any], tool: ToolsetTool[Any]
) -> Any:
    """Calls the tool without its timeout. Pydantic AI treats every TimeoutError as its own; here it is the tool's."""
    if _timeout_of(tool) is None:
        return await wrapped.call_tool(name, arguments, ctx, tool)
    patient = replace(tool, tool_def=replace(tool.tool_def, timeout=_NEVER_S))
    try:
        return await wrapped.call_tool(name, arguments, ctx, patient)
    except ModelRetry as error:
        if error.message == f"Timed out after {_NEVER_S} seconds.":
            raise TimeoutError("the tool raised TimeoutError") from None
        raise


async def _within(tool: ToolsetTool[Any], call: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Applies the tool's own timeout around the guard: a running call continues, and the retry gets its result."""
    timeout = _timeout_of(tool)
    with anyio.move_on_after(timeout):
        return await call
    raise ModelRetry(f"Timed out after {timeout} seconds.")


def _function_of(name: str, tool: ToolsetTool[Any]) -> Callable[..., Any] | None:
    """The tool's function, whose annotation says what a replay returns; `None` if the toolset has no functions."""
    tools = getattr(tool.toolset, "tools", None)
    function = getattr(tools.get(name), "function", None) if isinstance(tools, Mapping) else None
    return function if callable(function) else None


def _timeout_of(tool: ToolsetTool[Any]) -> float | None:
    own = tool.tool_def.timeout
    return own if own is not None else getattr(tool.toolset, "timeout", None)


def _answer_for_model(outcome: Outcome) -> Any:
    if outcome.refusal is not None:
        raise ToolFailed(outcome.text)
    if outcome.note is None:
        return outcome.value
    # The value is unchanged; the note is beside it.
    return ToolReturn(outcome.value, content=outcome.note)


class _Validator:
    """The tool's own validator, without the argument for deliberate repeats."""

    def __init__(self, own: Any, argument: str) -> None:
        self._own = own
        self._argument = argument

    def validate_python(self, input: Any, **about: Any) -> Any:
        """Validates parsed arguments."""
        said = dict(input)
        occurrence = said.pop(self._argument, None)
        return self._with(self._own.validate_python(said, **about), occurrence)

    def validate_json(self, input: Any, **about: Any) -> Any:
        """Validates arguments in the JSON text that the model wrote."""
        from pydantic_core import from_json

        said = from_json(input or "{}", allow_partial=about.get("allow_partial", False))
        return self.validate_python(said, **about)

    def _with(self, arguments: Any, occurrence: object) -> Any:
        return arguments if occurrence is None else {**arguments, self._argument: occurrence}


def _repeatable(tool: ToolsetTool[Any], argument: str) -> ToolsetTool[Any]:
    schema = with_occurrence(tool.tool_def.parameters_json_schema, argument)
    definition = replace(tool.tool_def, parameters_json_schema=schema)
    return replace(tool, tool_def=definition, args_validator=_Validator(tool.args_validator, argument))
