"""Runs the tool calls of an OpenAI response, each once: Chat Completions and Responses.

    response = client.responses.create(model=…, tools=definitions, input=items)
    items += response.output
    items += run_tools(session, response, {"charge": charge})

A restarted loop, or a model that asks again under another id, gets the first result. Errors become results that the
model can read: what happened, and what to do. No other package is needed: responses may be dicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._tool_loop import Answer, Request, Tools, arun, member, run
from ._tools import Outcome, Where, with_occurrence


def run_tools(where: Where, response: Any, tools: Tools, **settings: Any) -> list[dict[str, Any]]:
    """Runs the tool calls and returns what to send back: `tool` messages, or `function_call_output` items.

    - `where`: a session; its id is the run that a restarted loop belongs to.
    - `tools`: functions by the names that the model uses.
    - `terms`: options of `Ledger.once` by tool name, e.g. `{"charge": {"key": ["order"]}, "find": {"class_": "read"}}`.
    - `occurrence_argument`: the argument by which the model may ask for a deliberate repeat; see `repeatable`.
    - anything else is an option of `Ledger.once` for all tools.
    """
    return run(where, *_requests(response), tools, settings)


async def arun_tools(where: Where, response: Any, tools: Tools, **settings: Any) -> list[dict[str, Any]]:
    """The same for coroutine functions; the calls of one response run concurrently."""
    return await arun(where, *_requests(response), tools, settings)


def repeatable(definition: Mapping[str, Any], argument: str = "occurrence") -> dict[str, Any]:
    """The tool's definition with an optional argument by which the model can ask for a deliberate repeat.

    Pass the same name to `run_tools` as `occurrence_argument`. Strict schemas have no optional arguments, so the
    definition is no longer strict.
    """
    if "function" in definition:
        return {**definition, "function": repeatable(definition["function"], argument)}
    return {**definition, "strict": False, "parameters": with_occurrence(definition.get("parameters", {}), argument)}


def _requests(response: Any) -> tuple[list[Request], Answer]:
    """The tool calls, and how they are answered in the API that they came from."""
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
