"""The tools of an Anthropic model's answer, each run once.

    response = client.messages.create(model=…, tools=definitions, messages=messages)
    messages += [
        {"role": "assistant", "content": response.content},
        {"role": "user", "content": run_tools(session, response, {"charge": charge})},
    ]

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
    """Runs what the model asked for and gives the `tool_result` blocks for the next user message.

    - `where`: a session; its id is the run that a restarted loop belongs to.
    - `tools`: functions by the names that the model knows them by.
    - `terms`: options of `Ledger.once` by tool name, e.g. `{"charge": {"key": ["order"]}, "find": {"class_": "read"}}`.
    - `occurrence_argument`: the argument by which the model may ask for a repeat; see `repeatable`.
    - anything else is an option of `Ledger.once` for all tools.
    """
    at = desk(where, settings)
    return [_block(request.id, run(at, request, tools)) for request in _requests(response)]


async def arun_tools(where: Where, response: Any, tools: Tools, **settings: Any) -> list[dict[str, Any]]:
    """The same for coroutine functions; calls that the model made in one answer run at the same time."""
    at = desk(where, settings)
    asked = _requests(response)
    ended = await asyncio.gather(*(arun(at, request, tools) for request in asked))
    return [_block(request.id, outcome) for request, outcome in zip(asked, ended, strict=True)]


def repeatable(definition: Mapping[str, Any], argument: str = "occurrence") -> dict[str, Any]:
    """The tool's definition with an optional argument by which the model can say that a repeat is wanted.

    Give the same name to `run_tools` as `occurrence_argument`.
    """
    return {**definition, "input_schema": with_occurrence(definition.get("input_schema", {}), argument)}


def _requests(response: Any) -> list[Request]:
    blocks = member(response, "content")
    asked = [block for block in blocks if member(block, "type") == "tool_use"]
    return [Request(member(block, "id"), member(block, "name"), member(block, "input")) for block in asked]


def _block(id: str, outcome: Outcome) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "tool_result", "tool_use_id": id, "content": outcome.text}
    return block if outcome.error is None else {**block, "is_error": True}
