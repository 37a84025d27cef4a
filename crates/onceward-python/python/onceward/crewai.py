"""Guards tools of CrewAI, so that each call runs once.

    from onceward.crewai import guard

    agent = Agent(…, tools=[guard(charge, session, terms={"charge": {"key": ["order"]}})])

CrewAI runs a tool again if it raised, and a whole task again if its agent failed or its guardrail rejected the result.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ._tools import Outcome, ToolContext, Where, occurrence_words, tool_context
from .errors import InvalidInput

if TYPE_CHECKING:
    from crewai.tools import BaseTool


def guard(tool: BaseTool, where: Where, **settings: Any) -> BaseTool:
    """The same tool, guarded by the ledger: an instance of a tool class, or the result of `@tool`.

    - `where`: a session; its id is one that a restarted crew uses again, e.g. the id of the job.
    - `occurrence_argument`: adds an optional argument of that name, by which the model can ask for a deliberate repeat.
    - anything else is an option of `Ledger.once`.

    A failure without effect is raised as the tool's own exception, so that CrewAI tries again. A doubt or a refusal is
    returned as text.
    """
    at = tool_context(where, settings)
    fields = _schema(tool, at)
    # CrewAI caches results by arguments within one crew. The ledger replaces that, and tells the model about replays.
    guarded = tool.model_copy(update={**fields, "cache_function": _never_cached})
    function = getattr(guarded, "func", None)
    if function is not None:
        object.__setattr__(guarded, "func", _guarded(at, tool, function))
    else:
        # Replace the methods of this one tool: a new class would change what CrewAI reports as the tool's type.
        object.__setattr__(guarded, "_run", _guarded(at, tool, guarded._run))
        object.__setattr__(guarded, "_arun", _guarded_async(at, tool, guarded._arun))
    return guarded


def _guarded(at: ToolContext, tool: BaseTool, function: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):
        return _guarded_async(at, tool, function)

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        arguments = _arguments(tool, args, kwargs)
        call = partial(function, **at.own_arguments(arguments))
        return _answer_for_model(at.call(tool.name, arguments, lambda: call(), of=function).or_raise())

    return guarded


def _guarded_async(at: ToolContext, tool: BaseTool, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def guarded(*args: Any, **kwargs: Any) -> Any:
        arguments = _arguments(tool, args, kwargs)
        call = partial(function, **at.own_arguments(arguments))
        return _answer_for_model((await at.acall(tool.name, arguments, lambda: call(), of=function)).or_raise())

    return guarded


def _answer_for_model(outcome: Outcome) -> Any:
    return outcome.value if outcome.note is None and outcome.refusal is None else outcome.text


def _arguments(tool: BaseTool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments by name. CrewAI passes them by name; other callers may pass them by position."""
    names = list(tool.args_schema.model_fields)
    if len(args) > len(names):
        raise InvalidInput(f"{tool.name} takes {len(names)} arguments, not {len(args)}; nothing was run")
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _schema(tool: BaseTool, at: ToolContext) -> dict[str, Any]:
    """The schema, with the argument for deliberate repeats if there is one."""
    if at.occurrence_argument is None:
        return {}
    from pydantic import Field, create_model

    schema = tool.args_schema
    if at.occurrence_argument in schema.model_fields:
        raise InvalidInput(f"{tool.name} already has an argument {at.occurrence_argument!r}; choose another name")
    said = Field(None, description=occurrence_words(at.occurrence_argument))
    extra: dict[str, Any] = {at.occurrence_argument: (int | None, said)}
    return {"args_schema": create_model(schema.__name__, __base__=schema, **extra)}


def _never_cached(*_: object) -> bool:
    return False
