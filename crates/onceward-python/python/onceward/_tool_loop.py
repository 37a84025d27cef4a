"""One tool call of a model's answer, for loops that a programmer writes himself: whatever goes wrong is a result."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ._tools import Desk, Outcome, defaults_of, in_thread
from .errors import InvalidInput


@dataclass(frozen=True)
class Request:
    """What the model asked for. Its id is only where the answer goes: it is no part of the key."""

    id: str
    name: str
    arguments: Any


def run(at: Desk, request: Request, tools: Mapping[str, Callable[..., Any]]) -> Outcome:
    """Runs one request."""
    try:
        call, arguments = _understood(at, request, tools)
    except InvalidInput as error:
        return _refused(error)
    if inspect.iscoroutinefunction(call.func):
        raise TypeError(f"{request.name} is a coroutine function: use arun_tools")
    return at.call(request.name, arguments, lambda: call(), defaults=defaults_of(call.func), of=call.func)


async def arun(at: Desk, request: Request, tools: Mapping[str, Callable[..., Any]]) -> Outcome:
    """The same for coroutine functions. A plain function runs in a thread."""
    try:
        call, arguments = _understood(at, request, tools)
    except InvalidInput as error:
        return _refused(error)
    perform = call if inspect.iscoroutinefunction(call.func) else partial(in_thread, call)
    return await at.acall(request.name, arguments, lambda: perform(), defaults=defaults_of(call.func), of=call.func)


def member(thing: Any, name: str) -> Any:
    """A member of an SDK's object, or of the dict that it was made of."""
    return thing.get(name) if isinstance(thing, Mapping) else getattr(thing, name, None)


def _understood(
    at: Desk, request: Request, tools: Mapping[str, Callable[..., Any]]
) -> tuple[partial[Any], dict[str, Any]]:
    """The call and all its arguments. What the model got wrong is refused before anything runs."""
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
