"""Pydantic AI with its own function model."""

import asyncio

import rig
from pydantic import BaseModel
from pydantic_ai import Agent, ModelResponse, ModelRetry, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.messages import RetryPromptPart, UserPromptPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.toolsets import FunctionToolset
from rig import Run, scenario

from onceward.pydantic_ai import OnceToolset


class Script:
    """A model that gives scripted answers, each tool call under another id, and remembers what it received."""

    def __init__(self, *steps):
        self.steps = list(steps)
        self.told: list[str] = []

    def __call__(self, messages, info):
        for part in getattr(messages[-1], "parts", []):
            if isinstance(part, (ToolReturnPart, RetryPromptPart, UserPromptPart)):
                self.told.append(str(part.content))
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        if isinstance(step, dict):
            return ModelResponse(parts=[ToolCallPart("charge", step, tool_call_id=f"call_{len(self.steps)}")])
        return ModelResponse(parts=[TextPart(step)])


def agent_of(run: Run, script: Script, function, **settings) -> Agent:
    timeout = settings.pop("timeout", None)
    tools = FunctionToolset([function], timeout=timeout)
    where = settings.pop("where", None) or (run.session if run.guarded else None)
    return Agent(FunctionModel(script), toolsets=[OnceToolset(tools, where, **settings) if where else tools])


@scenario("a tool that takes longer than its timeout: the framework asks the model to retry", bare=2)
async def timed_out(run: Run):
    finished = asyncio.Event()

    async def charge(order: str) -> str:
        said = run.world.change(order)
        if run.world.effects == 1:
            await finished.wait()
        return said

    loop = asyncio.get_running_loop()

    class Asked(Script):
        """The tool ends when the model is asked again."""

        def __call__(self, messages, info):
            if len(self.steps) == 2:
                loop.call_soon_threadsafe(finished.set)
            return super().__call__(messages, info)

    script = Asked({"order": "o-1"}, {"order": "o-1"}, "charged")
    result = await agent_of(run, script, charge, timeout=5).run("charge o-1")
    assert result.output == "charged"
    if run.guarded:
        assert "Timed out after 5 seconds" in script.told[1], script.told
        assert "o-1 is number 1" in script.told[2], script.told
        assert "Nothing was run now" in script.told[3], script.told


@scenario("a tool that raised after its effect ends the run; it is run again", bare=2)
async def raised(run: Run):
    def charge(order: str) -> str:
        run.world.change(order)
        raise TimeoutError("no answer from the bank")

    for _ in range(2):
        script = Script({"order": "o-1"}, "I asked a person")
        try:
            result = await agent_of(run, script, charge).run("charge o-1")
        except TimeoutError:
            assert not run.guarded
        else:
            assert result.output == "I asked a person"
    if run.guarded:
        assert "Do not call it again" in script.told[1], script.told


class Charge(BaseModel):
    id: int
    order: str


@scenario("a run that failed after its tool is run again in its conversation", bare=2)
async def restarted(run: Run):
    def charge(order: str, note: str = "") -> Charge:
        run.world.change(order)
        return Charge(id=7, order=order)

    where = run.ledger if run.guarded else None
    try:
        script = Script({"order": "o-1"}, RuntimeError("model overloaded"))
        await agent_of(run, script, charge, where=where).run("charge o-1", conversation_id="job-17")
        raise AssertionError("the first run should have failed")
    except RuntimeError:
        pass
    script = Script({"order": "o-1", "note": ""}, "charged")
    result = await agent_of(run, script, charge, where=where).run("charge o-1", conversation_id="job-17")
    assert result.output == "charged"
    if run.guarded:
        assert "id=7" in script.told[1] and "Nothing was run now" in script.told[2], script.told


@scenario("a tool that wants other arguments is asked again, and runs", bare=None)
async def corrected(run: Run):
    def charge(order: str) -> str:
        if order == "1":
            raise ModelRetry("an order begins with o-")
        return run.world.change(order)

    script = Script({"order": "1"}, {"order": "o-1"}, "charged")
    result = await agent_of(run, script, charge).run("charge 1")
    assert result.output == "charged" and "an order begins with o-" in script.told[1], script.told


@scenario("a deliberate repeat, requested by the model", bare=None, guarded=2)
async def repeated(run: Run):
    def charge(order: str) -> str:
        return run.world.change(order)

    first, again = {"order": "o-1"}, {"order": "o-1", "occurrence": 2}
    script = Script(first, first, again, again, "twice")
    result = await agent_of(run, script, charge, occurrence_argument="occurrence").run("charge o-1 twice")
    assert result.output == "twice"
    assert "call it with occurrence=2" in script.told[3], script.told


rig.main("Pydantic AI")
