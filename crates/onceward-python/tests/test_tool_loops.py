"""Tool loops without any SDK: the outcome of a model's call, and the message for the model."""

from __future__ import annotations

import asyncio
import socket
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import pytest

from onceward import InvalidInput, Ledger
from onceward.anthropic import arun_tools, repeatable, run_tools
from onceward.openai import repeatable as openai_repeatable
from onceward.openai import run_tools as run_openai_tools


def asks(number: int = 1, name: str = "charge", **arguments: object) -> dict[str, Any]:
    block = {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": arguments}
    return {"content": [{"type": "text", "text": "I charge."}, block]}


def test_the_id_of_a_call_is_no_part_of_its_key_and_defaults_are(ledger: Ledger) -> None:
    charged: list[str] = []

    def charge(order: str, note: str = "") -> str:
        charged.append(order)
        return "charged"

    session, tools = ledger.session("run-1"), {"charge": charge}
    (first,) = run_tools(session, asks(1, order="o"), tools)
    (again,) = run_tools(session, asks(2, order="o", note=""), tools)
    assert first == {"type": "tool_result", "tool_use_id": "toolu_1", "content": "charged"}
    assert again["tool_use_id"] == "toolu_2" and "is_error" not in again
    assert again["content"].startswith("charged\n\n[onceward] Nothing was run now: already done")
    assert "it cannot be done from here" in again["content"]
    run_tools(session, asks(3, order="o", note="gift"), tools)
    run_tools(ledger.session("run-2"), asks(1, order="o"), tools)
    assert charged == ["o", "o", "o"]


def test_a_repeat_is_wanted_only_if_it_is_said(ledger: Ledger) -> None:
    charged: list[str] = []

    def charge(order: str) -> int:
        charged.append(order)
        return len(charged)

    session, tools = ledger.session("run-1"), {"charge": charge}
    said = [{}, {"occurrence": 1}, {"occurrence": 2}, {"occurrence": 2}, {"occurrence": "gift"}]
    results = [
        run_tools(session, asks(order="o", **one), tools, occurrence_argument="occurrence")[0]["content"]
        for one in said
    ]
    assert [text.partition("\n")[0] for text in results] == ["1", "1", "2", "2", "3"]
    assert "occurrence=2." in results[1] and "occurrence=3." in results[3]
    # Without the option it is a mistake, and nothing runs.
    (refused,) = run_tools(session, asks(order="p", occurrence=2), tools)
    assert refused["is_error"] and "INVALID_INPUT" in refused["content"] and len(charged) == 3


@pytest.mark.parametrize(
    ("raised", "words", "runs"),
    [
        (None, "It is safe to call it again with the same arguments", 2),
        (TimeoutError("late"), "Do not call it again", 1),
        (ValueError("?"), "Do not call it again", 1),
    ],
)
def test_an_error_says_what_happened_and_what_to_do(
    ledger: Ledger, raised: Exception | None, words: str, runs: int
) -> None:
    tried: list[int] = []

    def charge() -> None:
        tried.append(1)
        if raised is not None:
            raise raised
        with socket.socket() as line:
            line.connect(("127.0.0.1", 1))

    for _ in range(2):
        (result,) = run_tools(ledger.session("run-1"), asks(), {"charge": charge})
        assert result["is_error"] and words in result["content"], result
    assert len(tried) == runs


def test_terms_are_by_tool_and_reads_are_not_recorded(ledger: Ledger) -> None:
    looks: list[str] = []
    terms: dict[str, dict[str, Any]] = {"find": {"class_": "read"}, "charge": {"key": ["order"]}}
    tools: dict[str, Any] = {"find": lambda order: looks.append(order), "charge": lambda order, amount: amount}
    session = ledger.session("run-1")
    for number in range(2):
        run_tools(session, asks(number, "find", order="o"), tools, terms=terms)
    assert looks == ["o", "o"]
    run_tools(session, asks(order="o", amount=1), tools, terms=terms)
    (reused,) = run_tools(session, asks(order="o", amount=2), tools, terms=terms)
    assert reused["is_error"] and "KEY_REUSED" in reused["content"]


def test_calls_of_one_answer_run_at_once_and_the_same_ones_once(ledger: Ledger) -> None:
    charged: list[str] = []
    together = asyncio.Event()

    async def charge(order: str) -> str:
        charged.append(order)
        if len(charged) == 2:
            together.set()
        await together.wait()
        return order

    response = {
        "content": [*asks(1, order="a")["content"], *asks(2, order="b")["content"], *asks(3, order="a")["content"]]
    }
    results = asyncio.run(arun_tools(ledger.session("run-1"), response, {"charge": charge}))
    assert [one["tool_use_id"] for one in results] == ["toolu_1", "toolu_2", "toolu_3"]
    assert sorted(charged) == ["a", "b"]


def test_a_call_that_is_given_up_goes_on_and_is_replayed(ledger: Ledger) -> None:
    charged: list[str] = []

    async def main() -> str:
        began, go = asyncio.Event(), asyncio.Event()

        async def charge(order: str) -> str:
            charged.append(order)
            began.set()
            await go.wait()
            return "charged"

        call = asyncio.ensure_future(arun_tools(ledger.session("run-1"), asks(order="o"), {"charge": charge}))
        await began.wait()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(call, 0.01)
        go.set()
        (result,) = await arun_tools(ledger.session("run-1"), asks(2, order="o"), {"charge": charge})
        return str(result["content"])

    assert asyncio.run(main()).startswith("charged\n\n[onceward] Nothing was run now")
    assert charged == ["o"]


def test_both_apis_of_openai_and_mistakes(ledger: Ledger) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "charge", "arguments": '{"order": "o"}'}
    broken = {**call, "call_id": "c2", "arguments": '{"order": '}
    session, tools = ledger.session("run-1"), {"charge": lambda order: {"charged": order}}
    first, mistake = run_openai_tools(session, {"output": [call, broken]}, tools)
    assert first == {"type": "function_call_output", "call_id": "c1", "output": '{"charged": "o"}'}
    assert "not JSON" in mistake["output"]
    message = {"tool_calls": [{"id": "c3", "function": {"name": "charge", "arguments": '{"order": "o"}'}}]}
    (third,) = run_openai_tools(session, {"choices": [{"message": message}]}, tools)
    assert third["role"] == "tool" and third["tool_call_id"] == "c3" and "Nothing was run now" in third["content"]


def test_a_definition_gets_the_argument_for_repeats() -> None:
    schema = {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]}
    made = repeatable({"name": "charge", "input_schema": schema})
    assert list(made["input_schema"]["properties"]) == ["order", "occurrence"] and made["input_schema"]["required"] == [
        "order"
    ]
    strict = openai_repeatable(
        {"type": "function", "function": {"name": "charge", "strict": True, "parameters": schema}}
    )
    assert strict["function"]["strict"] is False and "occurrence" in strict["function"]["parameters"]["properties"]
    assert list(schema["properties"]) == ["order"]
    with pytest.raises(ValueError, match="already has an argument"):
        repeatable(made)


@pytest.mark.parametrize("wrong", [1.5, [], {}, 0, "0", -1, "-1", True, ""])
def test_a_wrong_occurrence_is_a_result_and_not_an_exception(ledger: Ledger, wrong: Any) -> None:
    charged: list[str] = []
    tools = {"charge": lambda order: charged.append(order)}
    blocks = [asks(number, order=f"o-{number}")["content"][1] for number in (1, 2)]
    blocks[1]["input"]["occurrence"] = wrong
    results = run_tools(ledger.session("run-1"), {"content": blocks}, tools, occurrence_argument="occurrence")
    assert "is_error" not in results[0] and charged == ["o-1"]
    assert results[1]["is_error"] and "whole number from 1 on" in results[1]["content"]


def test_terms_for_a_tool_that_does_not_exist_are_refused(ledger: Ledger) -> None:
    tools = {"charge": lambda order: pytest.fail("it must not run")}
    for run in (run_tools, run_openai_tools):
        with pytest.raises(InvalidInput, match="did you mean 'charge'"):
            run(ledger.session("run-1"), asks(order="o"), tools, terms={"chrage": {"key": ["order"]}})


def test_the_model_reads_plain_json(ledger: Ledger) -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    tools = {"charge": lambda order: {"amount": Decimal("1.50"), "when": when, "tags": {"b", "a"}, "pair": (1, 2)}}
    said = [run_tools(ledger.session("run-1"), asks(order="o"), tools)[0]["content"] for _ in range(2)]
    text = '{"amount": "1.50", "when": "2026-01-02 03:04:05+00:00", "tags": ["a", "b"], "pair": [1, 2]}'
    assert [one.partition("\n")[0] for one in said] == [text, text]
