"""Tools of CrewAI, each call run once.

    from onceward.crewai import guard

    agent = Agent(…, tools=[guard(charge, session, terms={"charge": {"key": ["order"]}})])

CrewAI runs a tool again that raised, and a whole task again whose agent failed or whose guardrail said no.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ._tools import Desk, Outcome, Where, desk, occurrence_words
from .errors import InvalidInput

if TYPE_CHECKING:
    from crewai.tools import BaseTool


def guard(tool: BaseTool, where: Where, **settings: Any) -> BaseTool:
    """The same tool under the ledger's guard: a tool class, or what `@tool` made of a function.

    - `where`: a session; its id is what a restarted crew has again, e.g. the id of the job.
    - `occurrence_argument`: adds an optional argument of that name, by which the model can say that a repeat is wanted.
    - anything else is an option of `Ledger.once`.

    A certain failure is raised as the tool's own exception, so CrewAI tries again. What is in doubt or refused is text.
    """
    at = desk(where, settings)
    fields = _schema(tool, at)
    # CrewAI keeps results by arguments for one crew. The ledger does that better, and says so to the model.
    guarded = tool.model_copy(update={**fields, "cache_function": _never_cached})
    function = getattr(guarded, "func", None)
    if function is not None:
        object.__setattr__(guarded, "func", _guarded(at, tool, function))
    else:
        # The methods of this one tool: a class of its own would change what CrewAI calls the tool's type.
        object.__setattr__(guarded, "_run", _guarded(at, tool, guarded._run))
        object.__setattr__(guarded, "_arun", _guarded_async(at, tool, guarded._arun))
    return guarded


def _guarded(at: Desk, tool: BaseTool, function: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):
        return _guarded_async(at, tool, function)

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        arguments = _arguments(tool, args, kwargs)
        call = partial(function, **at.own_arguments(arguments))
        return _told(at.call(tool.name, arguments, lambda: call(), of=function).or_raise())

    return guarded


def _guarded_async(at: Desk, tool: BaseTool, function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def guarded(*args: Any, **kwargs: Any) -> Any:
        arguments = _arguments(tool, args, kwargs)
        call = partial(function, **at.own_arguments(arguments))
        return _told((await at.acall(tool.name, arguments, lambda: call(), of=function)).or_raise())

    return guarded


def _told(outcome: Outcome) -> Any:
    return outcome.value if outcome.note is None and outcome.refusal is None else outcome.text


def _arguments(tool: BaseTool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments by name. CrewAI gives them by name; a programmer may give them in order."""
    names = list(tool.args_schema.model_fields)
    if len(args) > len(names):
        raise InvalidInput(f"{tool.name} takes {len(names)} arguments, not {len(args)}; nothing was run")
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _schema(tool: BaseTool, at: Desk) -> dict[str, Any]:
    """The schema with the argument by which the model says that a repeat is wanted, where it may."""
    if at.occurrence_argument is None:
        return {}
    from pydantic import Field, create_model

    schema = tool.args_schema
    if at.occurrence_argument in schema.model_fields:
        raise InvalidInput(f"{tool.name} has an argument {at.occurrence_argument!r} of its own; give another name")
    said = Field(None, description=occurrence_words(at.occurrence_argument))
    extra: dict[str, Any] = {at.occurrence_argument: (int | None, said)}
    return {"args_schema": create_model(schema.__name__, __base__=schema, **extra)}


def _never_cached(*_: object) -> bool:
    return False
