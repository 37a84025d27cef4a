"""The tools of an OpenAI model's answer, each run once: Chat Completions and Responses.

    response = client.responses.create(model=…, tools=definitions, input=items)
    items += response.output
    items += run_tools(session, response, {"charge": charge})

A loop that is started again, or a model that asks again under another id, gets the first result. An error comes back as
a result that the model reads: what happened, and what to do. Needs no package but this one: answers may be dicts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from ._tool_loop import Request, arun, member, run
from ._tools import Outcome, Where, desk, with_occurrence

Tools = Mapping[str, Callable[..., Any]]


def run_tools(where: Where, response: Any, tools: Tools, **settings: Any) -> list[dict[str, Any]]:
    """Runs what the model asked for and gives what is sent back: `tool` messages, or `function_call_output` items.

    - `where`: a session; its id is the run that a restarted loop belongs to.
    - `tools`: functions by the names that the model knows them by.
    - `terms`: options of `Ledger.once` by tool name, e.g. `{"charge": {"key": ["order"]}, "find": {"class_": "read"}}`.
    - `occurrence_argument`: the argument by which the model may ask for a repeat; see `repeatable`.
    - anything else is an option of `Ledger.once` for all tools.
    """
    at = desk(where, settings)
    asked, answer = _requests(response)
    return [answer(request.id, run(at, request, tools)) for request in asked]


async def arun_tools(where: Where, response: Any, tools: Tools, **settings: Any) -> list[dict[str, Any]]:
    """The same for coroutine functions; calls that the model made in one answer run at the same time."""
    at = desk(where, settings)
    asked, answer = _requests(response)
    ended = await asyncio.gather(*(arun(at, request, tools) for request in asked))
    return [answer(request.id, outcome) for request, outcome in zip(asked, ended, strict=True)]


def repeatable(definition: Mapping[str, Any], argument: str = "occurrence") -> dict[str, Any]:
    """The tool's definition with an optional argument by which the model can say that a repeat is wanted.

    Give the same name to `run_tools` as `occurrence_argument`. Strict schemas know no optional arguments, so the
    definition is no longer strict.
    """
    if "function" in definition:
        return {**definition, "function": repeatable(definition["function"], argument)}
    return {**definition, "strict": False, "parameters": with_occurrence(definition.get("parameters", {}), argument)}


Answer = Callable[[str, Outcome], dict[str, Any]]


def _requests(response: Any) -> tuple[list[Request], Answer]:
    """What was asked, and how it is answered in the API that it came by."""
    output = member(response, "output")
    if output is not None:
        asked = [item for item in output if member(item, "type") == "function_call"]
        return [
            Request(member(item, "call_id"), member(item, "name"), member(item, "arguments")) for item in asked
        ], _item
    choices = member(response, "choices")
    message = member(choices[0], "message") if choices else response
    calls = [(call, member(call, "function")) for call in member(message, "tool_calls") or ()]
    made = [(call, made) for call, made in calls if made is not None]
    return [
        Request(member(call, "id"), member(made, "name"), member(made, "arguments")) for call, made in made
    ], _message


def _item(id: str, outcome: Outcome) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id, "output": outcome.text}


def _message(id: str, outcome: Outcome) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": outcome.text}
