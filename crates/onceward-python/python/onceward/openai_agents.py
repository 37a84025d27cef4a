"""Guards tools of the OpenAI Agents SDK, so that each call runs once.

    from agents import function_tool
    from onceward.openai_agents import once_tool

    @function_tool
    @once_tool(session, key=["order"])
    def charge(order: str, amount: int) -> str: ...

With a ledger instead of a session, the run is `RunConfig(group_id=…)`. When a tool times out, the SDK answers with a
text, and the model asks again under another id: the first call continues, and the second one gets its result.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from functools import partial
from typing import Any

from ._tools import Outcome, ToolContext, Where, defaults_of, in_thread, occurrence_words, tool_context
from .errors import InvalidInput


def once_tool(where: Where, **settings: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Guards a function or coroutine function below `agents.function_tool`.

    - `where`: a session, or a ledger if `RunConfig.group_id` names the run. `scope`: text, or a function of the
      context.
    - `occurrence_argument`: adds an optional argument of that name, by which the model can ask for a deliberate repeat.
    - anything else is an option of `Ledger.once`.

    A failure without effect is raised as the function's own exception. A doubt or a refusal is a text for the model.
    """
    at = tool_context(where, settings)
    return functools.partial(_guarded, at)


def _guarded(at: ToolContext, function: Callable[..., Any]) -> Callable[..., Any]:
    """A coroutine function whose first argument is the SDK's context, whether the function takes it or not."""
    from agents import RunContextWrapper
    from agents.tool_context import ToolContext

    hints = typing.get_type_hints(function, include_extras=True)
    parameters = list(inspect.signature(function).parameters.values())
    first = hints.get(parameters[0].name) if parameters else None
    kind = typing.get_origin(first) or first
    takes_context = isinstance(kind, type) and issubclass(kind, RunContextWrapper)
    own = parameters[1:] if takes_context else parameters
    signature = inspect.Signature(own)

    async def guarded(context: Any, /, *args: Any, **kwargs: Any) -> Any:
        bound = inspect.Signature([*own, *_extra(at)]).bind(*args, **kwargs)
        arguments = bound.arguments
        call = partial(function, context) if takes_context else function
        given = signature.bind(**at.own_arguments(arguments))
        perform = partial(call, *given.args, **given.kwargs)
        if not inspect.iscoroutinefunction(function):
            perform = partial(in_thread, perform)
        outcome = await at.acall(
            function.__name__, arguments, lambda: perform(),
            defaults={name: value for name, value in defaults_of(function).items() if name in signature.parameters},
            run_scope=getattr(getattr(context, "run_config", None), "group_id", None), context=context, of=function,
        )  # fmt: skip
        return _answer_for_model(outcome.or_raise())

    if any(one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD) for one in own):
        raise InvalidInput(f"{function.__name__} takes any arguments; name them, so that a key can be derived")
    dressed: Callable[..., Any] = _dressed(
        guarded, function, [_context(ToolContext), *own, *_extra(at)], hints, ToolContext
    )
    return dressed


def _answer_for_model(outcome: Outcome) -> Any:
    """The value itself, so that typed outputs stay typed; a text if there is a note or a refusal."""
    return outcome.value if outcome.note is None and outcome.refusal is None else outcome.text


def _dressed(guarded: Any, function: Any, parameters: list[inspect.Parameter], hints: dict[str, Any], kind: Any) -> Any:
    """Sets what the SDK derives a tool's schema from: name, docstring, signature and types."""
    functools.update_wrapper(guarded, function)
    del guarded.__wrapped__
    order = sorted(parameters, key=lambda one: one.default is not one.empty)
    guarded.__signature__ = inspect.Signature(order)
    own = {one.name: one.annotation for one in parameters if one.annotation is not one.empty}
    guarded.__annotations__ = {
        **own,
        **{name: hint for name, hint in hints.items() if name in own},
        parameters[0].name: kind,
    }
    return guarded


def _context(kind: Any) -> inspect.Parameter:
    return inspect.Parameter("onceward_context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=kind)


def _extra(at: ToolContext) -> list[inspect.Parameter]:
    """The argument for deliberate repeats, if there is one."""
    if at.occurrence_argument is None:
        return []
    said = typing.Annotated[int | None, occurrence_words(at.occurrence_argument)]
    return [
        inspect.Parameter(
            at.occurrence_argument, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=said
        )
    ]
