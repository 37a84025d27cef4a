"""Runs the tool calls of a model's response, for hand-written loops: every error becomes a tool result."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ._tools import Outcome, ToolContext, Where, defaults_of, in_thread, refuse_unknown_terms, tool_context
from .errors import InvalidInput


@dataclass(frozen=True)
class Request:
    """A tool call of the model. Its id is only the address of the answer; it is not part of the key."""

    id: str
    name: str
    arguments: Any


Tools = Mapping[str, Callable[..., Any]]
Answer = Callable[[str, Outcome], dict[str, Any]]


def run(
    where: Where, asked: list[Request], answer: Answer, tools: Tools, settings: dict[str, Any]
) -> list[dict[str, Any]]:
    """Runs the requests of one response, one after another, and returns their answers."""
    at = tool_context(where, settings)
    refuse_unknown_terms(at, tools)
    return [answer(request.id, _run(at, request, tools)) for request in asked]


async def arun(
    where: Where, asked: list[Request], answer: Answer, tools: Tools, settings: dict[str, Any]
) -> list[dict[str, Any]]:
    """The same for coroutine functions, concurrently. A plain function runs in a thread."""
    at = tool_context(where, settings)
    refuse_unknown_terms(at, tools)
    ended = await asyncio.gather(*(_arun(at, request, tools) for request in asked))
    return [answer(request.id, outcome) for request, outcome in zip(asked, ended, strict=True)]


def _run(at: ToolContext, request: Request, tools: Tools) -> Outcome:
    try:
        call, arguments = _understood(at, request, tools)
    except InvalidInput as error:
        return _refused(error)
    if inspect.iscoroutinefunction(call.func):
        raise TypeError(f"{request.name} is a coroutine function: use arun_tools")
    return at.call(request.name, arguments, lambda: call(), defaults=defaults_of(call.func), of=call.func)


async def _arun(at: ToolContext, request: Request, tools: Tools) -> Outcome:
    try:
        call, arguments = _understood(at, request, tools)
    except InvalidInput as error:
        return _refused(error)
    perform = call if inspect.iscoroutinefunction(call.func) else partial(in_thread, call)
    return await at.acall(request.name, arguments, lambda: perform(), defaults=defaults_of(call.func), of=call.func)


def member(thing: Any, name: str) -> Any:
    """A member of an SDK's object, or of an equivalent dict."""
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


def _understood(at: ToolContext, request: Request, tools: Tools) -> tuple[partial[Any], dict[str, Any]]:
    """The call and all its arguments. Mistakes of the model are refused before anything runs."""
    function = tools.get(request.name)
    if function is None:
        raise InvalidInput(f"there is no tool {request.name!r}; there are {', '.join(sorted(tools))}")
    arguments = request.arguments
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError as error:
            raise InvalidInput(f"the arguments of {request.name} are not JSON: {error}") from None
    if not isinstance(arguments, Mapping):
        raise InvalidInput(f"the arguments of {request.name} are not an object")
    own = at.own_arguments(arguments)
    try:
        inspect.signature(function).bind(**own)
    except TypeError as error:
        raise InvalidInput(f"{request.name}: {error}") from None
    return partial(function, **own), dict(arguments)


def _refused(error: InvalidInput) -> Outcome:
    return Outcome(error=error, refusal=f"[onceward] {error}. Nothing was run. Correct the call.")
