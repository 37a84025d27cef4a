"""An agent that can be killed after any step and started again: it repeats no effect and pays for no answer twice.

    agent.py SCOPE PROMPT

Its model calls go through the gateway of `once serve` (OPENAI_BASE_URL), and its tools run under `once run`, both in
one scope. Every start is a new run of that scope: the n-th equal model call of a run is the n-th of the scope, so a
second start gets the recorded answers, with the same ids of tool calls, and these ids are the keys of the effects.
"""

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

from openai import OpenAI

SHOP = Path(__file__).with_name("shop.py")
TOOLS = {
    "reserve": {"order": "string", "seats": "integer"},
    "charge": {"order": "string", "amount": "integer"},
    "mail": {"order": "string", "to": "string"},
}


def main(scope: str, prompt: str) -> None:
    # docs: begin
    client = OpenAI(default_headers={"Once-Scope": scope, "Once-Run": uuid.uuid4().hex})
    # docs: end
    tools = [definition(name, fields) for name, fields in TOOLS.items()]
    messages: list = [{"role": "user", "content": prompt}]
    while True:
        model = os.environ.get("MODEL", "gpt-5")
        answer = client.chat.completions.create(model=model, messages=messages, tools=tools).choices[0].message
        step(f"the model answered: {answer.content}")
        if not answer.tool_calls:
            return
        messages.append(answer.model_dump(exclude_none=True))
        for call in answer.tool_calls:
            output = run_tool(scope, call.id, call.function.name, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": output})
            step(f"{call.function.name}: {output}")


# docs: begin
def run_tool(scope: str, call_id: str, name: str, arguments: str) -> str:
    """Runs a tool. A second run with the same id gets the output of the first."""
    once = [os.environ.get("ONCE", "once"), "run", "--quiet", "--scope", scope, "--key", call_id, "--name", name]
    return subprocess.run(
        [*once, "--", sys.executable, SHOP, name, arguments], check=True, capture_output=True, text=True
    ).stdout


# docs: end


def definition(name: str, fields: dict[str, str]) -> dict:
    properties = {field: {"type": kind} for field, kind in fields.items()}
    return {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": properties, "required": [*fields]}},
    }


def step(text: str) -> None:
    """Prints a step. With KILL_AFTER, the process is killed after that many: no handler and no `finally` runs."""
    step.count += 1
    print(json.dumps({"step": step.count, "text": text}), flush=True)
    if step.count == int(os.environ.get("KILL_AFTER", "-1")):
        os.kill(os.getpid(), 9)


step.count = 0

if __name__ == "__main__":
    main(*sys.argv[1:])
