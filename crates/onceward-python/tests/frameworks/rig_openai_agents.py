"""The OpenAI Agents SDK with its own scripted model."""

import asyncio
import threading

import rig
from agents import Agent, RunConfig, Runner, function_tool, set_tracing_disabled
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from rig import Run, scenario

from onceward import NotDispatched
from onceward.openai_agents import once_tool

set_tracing_disabled(True)


def asks(number: int, arguments: str = '{"order": "o-1"}'):
    """The model asks for the tool: each time under another id."""
    return [function_call("charge", arguments, call_id=f"call_{number}")]


def outputs(result) -> list[str]:
    return [str(item.output) for item in result.new_items if item.type == "tool_call_output_item"]


def tool_of(run: Run, function, **settings):
    framework = settings.pop("framework", {})
    where = settings.pop("where", None) or (run.session if run.guarded else None)
    return function_tool(once_tool(where, **settings)(function) if where else function, **framework)


@scenario("the SDK reports a tool's timeout to the model, which asks again", bare=2)
async def timed_out(run: Run):
    finished = asyncio.Event()

    async def charge(order: str) -> str:
        """Charges an order."""
        said = run.world.change(order)
        if run.world.effects == 1:
            await finished.wait()
        return said

    model = ScriptedModel([asks(1), asks(2), [assistant_message("charged")]])
    agent = Agent("clerk", model=model, tools=[tool_of(run, charge, framework={"timeout": 0.3})])
    # The first call continues without the SDK; it is released when the model asks for the second time.
    asyncio.get_running_loop().call_later(0.45, finished.set)
    result = await Runner.run(agent, "charge o-1")
    assert result.final_output == "charged"
    if run.guarded:
        assert "o-1 is number 1" in outputs(result)[-1], outputs(result)
        run.notes.append(outputs(result)[-1])


@scenario("a tool that raised after its effect; the model asks again", bare=2)
async def raised(run: Run):
    def charge(order: str) -> str:
        """Charges an order."""
        run.world.change(order)
        raise TimeoutError("no answer from the bank")

    model = ScriptedModel([asks(1), asks(2), [assistant_message("I asked a person")]])
    result = await Runner.run(Agent("clerk", model=model, tools=[tool_of(run, charge)]), "charge o-1")
    assert result.final_output == "I asked a person"
    if run.guarded:
        assert "Do not call it again" in outputs(result)[0], outputs(result)
        assert "IN_DOUBT" in outputs(result)[1], outputs(result)


@scenario("a run that failed after its tool is run again", bare=2)
async def restarted(run: Run):
    def charge(order: str, note: str = "") -> str:
        """Charges an order."""
        return run.world.change(order)

    where = run.ledger if run.guarded else None
    config = RunConfig(group_id="job-17")
    broken = ScriptedModel([asks(1), ModelStep.raise_error(RuntimeError("model overloaded"))])
    try:
        await Runner.run(
            Agent("clerk", model=broken, tools=[tool_of(run, charge, where=where)]), "go", run_config=config
        )
        raise AssertionError("the first run should have failed")
    except RuntimeError:
        pass
    # The model passes an argument that it left out before: it is the same call.
    model = ScriptedModel([asks(9, '{"order": "o-1", "note": ""}'), [assistant_message("charged")]])
    result = await Runner.run(
        Agent("clerk", model=model, tools=[tool_of(run, charge, where=where)]), "go", run_config=config
    )
    assert result.final_output == "charged"
    if run.guarded:
        assert "Nothing was run now" in outputs(result)[0], outputs(result)


@scenario("a deliberate repeat, requested by the model", bare=None, guarded=2)
async def repeated(run: Run):
    def charge(order: str) -> str:
        """Charges an order."""
        return run.world.change(order)

    tool = tool_of(run, charge, occurrence_argument="occurrence")
    assert "occurrence" in tool.params_json_schema["properties"], tool.params_json_schema
    again = '{"order": "o-1", "occurrence": 2}'
    first = '{"order": "o-1", "occurrence": null}'
    model = ScriptedModel(
        [asks(1, first), asks(2, first), asks(3, again), asks(4, again), [assistant_message("twice")]]
    )
    result = await Runner.run(Agent("clerk", model=model, tools=[tool]), "charge o-1 twice")
    assert "call it with occurrence=2" in outputs(result)[1], outputs(result)
    assert outputs(result)[2] == "o-1 is number 2", outputs(result)


@scenario("a failure without effect; the model asks again and it runs", bare=None)
async def refused(run: Run):
    tries = []

    def charge(order: str) -> str:
        """Charges an order."""
        tries.append(threading.current_thread())
        if len(tries) == 1:
            raise NotDispatched("the bank is closed")
        return run.world.change(order)

    model = ScriptedModel([asks(1), asks(2), [assistant_message("charged")]])
    result = await Runner.run(Agent("clerk", model=model, tools=[tool_of(run, charge)]), "charge o-1")
    assert "o-1 is number 1" == outputs(result)[1], outputs(result)


rig.main("OpenAI Agents")
