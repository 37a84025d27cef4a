"""Hand-written loops with the SDKs of Anthropic and OpenAI, and a model of their protocols on loopback."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import rig
from rig import Run, World, scenario
from scripted import model

from onceward import Ledger
from onceward.anthropic import arun_tools, repeatable, run_tools
from onceward.openai import run_tools as run_openai_tools

ARGUMENTS = {"order": "o-1", "amount": 5}
SCHEMA = {
    "type": "object",
    "properties": {"order": {"type": "string"}, "amount": {"type": "integer"}},
    "required": ["order"],
}
TOOL = {"name": "charge", "description": "Charges an order.", "input_schema": SCHEMA}


def says(*blocks: dict) -> dict:
    """An answer of Anthropic's API."""
    reason = "tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn"
    usage = {"input_tokens": 1, "output_tokens": 1}
    about = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_sequence": None}
    return {**about, "content": list(blocks), "stop_reason": reason, "usage": usage}


def asks(number: int, **arguments) -> dict:
    """The model asks for the tool: each time under another id."""
    return {"type": "tool_use", "id": f"toolu_{number}", "name": "charge", "input": {**ARGUMENTS, **arguments}}


TEXT = {"type": "text", "text": "charged"}


def bare_results(response, charge) -> list[dict]:
    """The usual code without the ledger."""
    made = [block for block in response.content if block.type == "tool_use"]
    return [{"type": "tool_result", "tool_use_id": one.id, "content": charge(**one.input)} for one in made]


def loop(url: str, session, charge, **settings) -> list[dict]:
    """The usual loop; returns the tool results that the model received."""
    import anthropic

    client = anthropic.Anthropic(api_key="k", base_url=url, max_retries=0)
    messages: list = [{"role": "user", "content": "charge o-1"}]
    sent: list[dict] = []
    while True:
        response = client.messages.create(model="m", max_tokens=9, messages=messages, tools=[TOOL])
        if response.stop_reason == "end_turn":
            return sent
        tools = {"charge": charge}
        results = run_tools(session, response, tools, **settings) if session else bare_results(response, charge)
        messages += [{"role": "assistant", "content": response.content}, {"role": "user", "content": results}]
        sent += results


@scenario("Anthropic: the model asks again under another id", bare=2)
def asked_again(run: Run):
    def charge(order: str, amount: int = 1) -> str:
        return run.world.change(order)

    with model(says(asks(1)), says(asks(2)), says(TEXT)) as (url, _):
        sent = loop(url, run.session if run.guarded else None, charge)
    assert [one["tool_use_id"] for one in sent] == ["toolu_1", "toolu_2"]
    if run.guarded:
        assert sent[1]["content"].startswith("o-1 is number 1\n\n[onceward] Nothing was run now"), sent


@scenario("Anthropic: a loop that is restarted after its process was killed after the effect", bare=2)
def killed(run: Run):
    place = str(run.folder / "agent.db") if run.guarded else "-"
    for attempt in ("killed", "again"):
        ended = subprocess.run(
            [sys.executable, __file__, "child", place, str(run.world.file), attempt],
            timeout=60,
            capture_output=True,
            text=True,
        )
        assert ended.returncode == (-signal.SIGKILL if attempt == "killed" else 0), ended
    if run.guarded:
        assert "It may have happened. Do not call it again" in ended.stdout, ended
        assert "'is_error': True" in ended.stdout, ended


def child(place: str, world: str, attempt: str) -> None:
    """The process that is killed, and the one that is started after it."""
    changed = World(Path(world))

    def charge(order: str, amount: int = 1) -> str:
        said = changed.change(order)
        if attempt == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        return said

    # The response as it is sent: the killed process needs no SDK and starts quickly.
    if place == "-":
        charge(**ARGUMENTS)
    else:
        print(
            run_tools(Ledger(place).session("run-1"), says(asks(7 if attempt == "killed" else 8)), {"charge": charge})
        )


@scenario("Anthropic: the same call twice in one answer, in an event loop", bare=2)
async def at_once(run: Run):
    import anthropic

    async def charge(order: str, amount: int = 1) -> str:
        return run.world.change(order)

    response = anthropic.types.Message.model_validate(says(asks(1), asks(2)))
    if run.guarded:
        results = await arun_tools(run.session, response, {"charge": charge})
        assert all("o-1 is number 1" in one["content"] for one in results), results
    else:
        for block in response.content:
            await charge(**block.input)


@scenario("Anthropic: a tool that raised after its effect; the model asks again", bare=2)
def raised(run: Run):
    def charge(order: str, amount: int = 1) -> str:
        run.world.change(order)
        raise TimeoutError("no answer from the bank")

    def told(**arguments) -> str:
        try:
            return charge(**arguments)
        except TimeoutError as error:
            return str(error)

    with model(says(asks(1)), says(asks(2)), says(TEXT)) as (url, _):
        sent = loop(url, run.session if run.guarded else None, charge if run.guarded else told)
    if run.guarded:
        assert all(one["is_error"] and "Do not call it again" in one["content"] for one in sent), sent


@scenario("Anthropic: mistakes of the model are reported, and change nothing", bare=None, guarded=0)
def mistaken(run: Run):
    def charge(order: str, amount: int = 1) -> str:
        return run.world.change(order)

    wrong = {"type": "tool_use", "id": "toolu_1", "name": "chrage", "input": {}}
    response = says(wrong, asks(2, colour="red"))
    results = run_tools(run.session, response, {"charge": charge})
    assert all(one["is_error"] and "INVALID_INPUT" in one["content"] for one in results), results


@scenario("Anthropic: a deliberate repeat, requested by the model", bare=None, guarded=2)
def repeated(run: Run):
    def charge(order: str, amount: int = 1) -> str:
        return run.world.change(order)

    assert "occurrence" in repeatable(TOOL)["input_schema"]["properties"]
    with model(says(asks(1)), says(asks(2)), says(asks(3, occurrence=2)), says(TEXT)) as (url, _):
        sent = loop(url, run.session, charge, occurrence_argument="occurrence")
    assert "call it with occurrence=2" in sent[1]["content"], sent


def calls(number: int) -> dict:
    """An answer of OpenAI's Responses API."""
    call = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}", "name": "charge"}
    about = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "parallel_tool_calls": True}
    made = {**call, "arguments": '{"amount": 5.0, "order": "o-1"}', "status": "completed"}
    return {**about, "output": [made], "tools": [], "tool_choice": "auto", "status": "completed"}


def completes(number: int) -> dict:
    """An answer of OpenAI's Chat Completions API."""
    made = {"name": "charge", "arguments": '{"order": "o-1", "amount": 5}'}
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"call_{number}", "type": "function", "function": made}],
    }
    choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}


@scenario("OpenAI: the model asks again under another id, by Responses and by Chat Completions", bare=3)
def openai_asked_again(run: Run):
    import openai

    def charge(order: str, amount: int = 1) -> dict:
        return {"said": run.world.change(order)}

    with model(calls(1), calls(2), completes(3)) as (url, _):
        client = openai.OpenAI(api_key="k", base_url=url, max_retries=0)
        responses = [client.responses.create(model="m", input="charge o-1") for _ in range(2)]
        responses.append(
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "charge o-1"}])
        )
    if not run.guarded:
        for _ in responses:
            charge(**ARGUMENTS)
        return
    first, second, third = (run_openai_tools(run.session, one, {"charge": charge})[0] for one in responses)
    assert first == {"type": "function_call_output", "call_id": "call_1", "output": '{"said": "o-1 is number 1"}'}, (
        first
    )
    assert second["call_id"] == "call_2" and "Nothing was run now" in second["output"], second
    assert third["role"] == "tool" and third["tool_call_id"] == "call_3" and "Nothing" in third["content"], third


if sys.argv[1:2] == ["child"]:
    child(*sys.argv[2:])
else:
    rig.main("tool loops")
