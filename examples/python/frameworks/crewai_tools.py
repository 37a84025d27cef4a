"""A crew whose tool fails after its effect. CrewAI runs such a tool again automatically. The model is scripted."""

import os
import tempfile
from pathlib import Path

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "OTEL_SDK_DISABLED": "true", "CREWAI_TRACING_ENABLED": "false"}

from crewai import Agent, Crew, Task
from crewai.llms.base_llm import BaseLLM
from crewai.tools import tool

from onceward import Ledger
from onceward.crewai import guard

charged = []
place = Path(tempfile.mkdtemp()) / "agent.db"


class Script(BaseLLM):
    steps: list

    def call(self, messages, *_, **__):
        return self.steps.pop(0)

    def supports_function_calling(self) -> bool:
        return False


asks = 'Thought: charge it.\nAction: charge\nAction Input: {"order": "o-1"}'
model = Script(model="scripted", steps=[asks, "Thought: done.\nFinal Answer: I asked a person"])
# docs: begin
session = Ledger(place).session("order-flow-17")


@tool("charge")
def charge(order: str) -> str:
    """Charges an order."""
    charged.append(order)
    raise TimeoutError("no answer from the bank")


agent = Agent(role="clerk", goal="charge", backstory="a clerk", llm=model, tools=[guard(charge, session)])
task = Task(description="charge o-1", expected_output="what was done", agent=agent)
result = Crew(agents=[agent], tasks=[task]).kickoff()
# docs: end
assert charged == ["o-1"], charged
print(result.raw)
