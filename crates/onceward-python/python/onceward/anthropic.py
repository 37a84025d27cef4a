"""Runs the tool calls of an Anthropic response, each once.

    response = client.messages.create(model=…, tools=definitions, messages=messages)
    messages += [
        {"role": "assistant", "content": response.content},
        {"role": "user", "content": run_tools(session, response, {"charge": charge})},
    ]

A restarted loop, or a model that asks again under another id, gets the first result. Errors become results that the
model can read: what happened, and what to do. No other package is needed: responses may be dicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ._tool_loop import Request, Tools, arun, member, run
from ._tools import Outcome, Where, with_occurrence


def run_tools(where: Where, response: Any, tools: Tools, **settings: Any) -> list[dict[str, Any]]:
    """Runs the tool calls and returns the `tool_result` blocks for the next user message.

    - `where`: a session; its id is the run that a restarted loop belongs to.
    - `tools`: functions by the names that the model uses.
    - `terms`: options of `Ledger.once` by tool name, e.g. `{"charge": {"key": ["order"]}, "find": {"class_": "read"}}`.
    - `occurrence_argument`: the argument by which the model may ask for a deliberate repeat; see `repeatable`.
    - anything else is an option of `Ledger.once` for all tools.
    """
    return run(where, _requests(response), _block, tools, settings)


async def arun_tools(where: Where, response: Any, tools: Tools, **settings: Any) -> list[dict[str, Any]]:
    """The same for coroutine functions; the calls of one response run concurrently."""
    return await arun(where, _requests(response), _block, tools, settings)


def repeatable(definition: Mapping[str, Any], argument: str = "occurrence") -> dict[str, Any]:
    """The tool's definition with an optional argument by which the model can ask for a deliberate repeat.

    Pass the same name to `run_tools` as `occurrence_argument`.
    """
    return {**definition, "input_schema": with_occurrence(definition.get("input_schema", {}), argument)}


def _requests(response: Any) -> list[Request]:
    blocks = member(response, "content")
    asked = [block for block in blocks if member(block, "type") == "tool_use"]
    return [Request(member(block, "id"), member(block, "name"), member(block, "input")) for block in asked]


def _block(id: str, outcome: Outcome) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": id, "content": outcome.text}
    return block if outcome.error is None else {**block, "is_error": True}
