"""CrewAI with a scripted language model."""

import os

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true", "CREWAI_TRACING_ENABLED": "false"}

import logging

import rig
from crewai import Agent, Crew, Task
from crewai.llms.base_llm import BaseLLM
from crewai.tools import BaseTool, tool
from rig import Run, scenario

from onceward.crewai import guard

ASKS = 'Thought: charge it.\nAction: charge\nAction Input: {"order": "o-1"}'


class Script(BaseLLM):
    """A model that gives scripted answers in the ReAct form, and remembers what it received."""

    model: str = "scripted"
    steps: list
    told: list

    def call(self, messages, *_, **__):
        self.told.append("\n".join(str(message["content"]) for message in messages))
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    def supports_function_calling(self) -> bool:
        return False


class Native(Script):
    """The same with native tool calls."""

    def supports_function_calling(self) -> bool:
        return True


def calls(number: int) -> list[dict]:
    """The model asks for the tool: each time under another id."""
    return [
        {"id": f"call_{number}", "type": "function", "function": {"name": "charge", "arguments": '{"order": "o-1"}'}}
    ]


def answers(text: str) -> str:
    return f"Thought: I now know the final answer.\nFinal Answer: {text}"


def crew_of(script: Script, *tools, **about) -> Crew:
    agent = Agent(role="clerk", goal="charge", backstory="b", llm=script, tools=list(tools), verbose=False)
    task = Task(description="charge o-1", expected_output="what was done", agent=agent, **about)
    return Crew(agents=[agent], tasks=[task], verbose=False)


def charging(run: Run, fails: int = 0, **settings) -> BaseTool:
    @tool("charge")
    def charge(order: str) -> str:
        """Charges an order."""
        said = run.world.change(order)
        if run.world.effects <= fails:
            raise TimeoutError("no answer from the bank")
        return said

    return guard(charge, run.session, **settings) if run.guarded else charge


@scenario("a tool that raised after its effect is run again by CrewAI itself", bare=6)
def tool_retried(run: Run):
    script = Script(model="scripted", steps=[ASKS, answers("I asked a person")], told=[])
    result = crew_of(script, charging(run, fails=9)).kickoff()
    assert "I asked a person" in result.raw, result
    if run.guarded:
        assert "Do not call it again" in script.told[-1], script.told[-1]


@scenario("a task whose agent failed after its tool is run again", bare=2)
def task_retried(run: Run):
    script = Script(model="scripted", steps=[ASKS, RuntimeError("model overloaded"), ASKS, answers("charged")], told=[])
    result = crew_of(script, charging(run)).kickoff()
    assert "charged" in result.raw, result
    if run.guarded:
        assert "Nothing was run now" in script.told[-1], script.told[-1]


@scenario("a task whose guardrail rejected it runs again, in a restarted crew", bare=4)
def crew_restarted(run: Run):
    class Charge(BaseTool):
        name: str = "charge"
        description: str = "Charges an order."

        def _run(self, order: str) -> str:
            return run.world.change(order)

    def start() -> None:
        charge = guard(Charge(), run.session) if run.guarded else Charge()
        verdicts = [(False, "say more"), (True, "fine")]
        script = Script(model="scripted", steps=[ASKS, answers("done"), ASKS, answers("charged")], told=[])
        result = crew_of(script, charge, guardrail=lambda output: verdicts.pop(0)).kickoff()
        assert result.raw == "fine", result

    start()
    start()


@scenario("the model asks again under another id, by native calls", bare=2)
def asked_again(run: Run):
    script = Native(model="scripted", steps=[calls(1), calls(2), "charged"], told=[])
    result = crew_of(script, charging(run)).kickoff()
    assert result.raw == "charged", result
    if run.guarded:
        assert "Nothing was run now" in script.told[-1], script.told[-1]


@scenario("a deliberate repeat, requested by the model", bare=None, guarded=2)
def repeated(run: Run):
    again = ASKS.replace('"o-1"', '"o-1", "occurrence": 2')
    script = Script(model="scripted", steps=[ASKS, again, answers("twice")], told=[])
    charge = charging(run, occurrence_argument="occurrence")
    assert "occurrence" in charge.args_schema.model_fields
    crew_of(script, charge).kickoff()


logging.disable(logging.CRITICAL)
rig.main("CrewAI")
