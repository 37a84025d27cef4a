"""The agent of examples/resumable-agent, killed and started again: it ends as if it had not been killed."""

import json
import signal
import subprocess

import kit
from parts import serving

AGENT = kit.ROOT / "examples/resumable-agent/agent.py"


def rows(_name, session):
    with serving(session) as (scripted, gateway):
        world = World(session.once, session.cache, scripted, gateway)
        unbroken = world.start("unbroken")
        expected = world.effects("unbroken")
        steps = len(unbroken)
        holds = steps == 8 and len(expected) == 4 and world.generations("unbroken") == [1, 1, 1, 1]
        yield kit.Row("agent", "not killed", world.told("unbroken"), holds)
        for number in range(1, steps + 1):
            cells = {}
            for way in ("direct", "once"):
                order = f"{way}-{number}"
                killed = world.start(order, kill_after=number)
                resumed = world.start(order)
                cells[way] = world.told(order)
            # The killed start and the next one have the same answers, and the same output of tools.
            is_same = killed == resumed[:number] and len(resumed) == steps
            seen = "; ".join(f"{way}: {cell}" for way, cell in cells.items())
            yield kit.Row("agent", f"killed after step {number}", seen, is_same and world.is_right(order, expected))
        for answer in range(4):
            order = f"slow-{answer}"
            world.start(order, kill_during=answer)
            resumed = world.start(order)
            holds = len(resumed) == steps and world.is_right(order, expected)
            yield kit.Row("agent", f"killed during answer {answer + 1}", world.told(order), holds)
        again = world.start("once-1")
        holds = again == world.start("once-1") and world.is_right("once-1", expected)
        yield kit.Row("agent", "started twice more", world.told("once-1"), holds)


class World:
    """What the agents change."""

    def __init__(self, once, cache, scripted, gateway):
        self.once, self.python = once, cache / "python/bin/python"
        self.scripted, self.gateway = scripted, gateway
        self.file = gateway.folder / "effects.jsonl"

    def start(self, order, kill_after=None, kill_during=None):
        """Starts the agent and returns its steps. Each order is a scope."""
        base = self.scripted.url if order.startswith("direct") else f"{self.gateway.url}/gw/openai"
        env = {
            "ONCE": str(self.once),
            "ONCE_LEDGER": self.gateway.ledger,
            "OPENAI_BASE_URL": f"{base}/v1",
            "OPENAI_API_KEY": "k",
            "SHOP_FILE": str(self.file),
        }
        if kill_after:
            env["KILL_AFTER"] = str(kill_after)
        command = [self.python, AGENT, order, f"agent {order}"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = kit.launch(command, env=env, **pipes)
        if kill_during is not None:
            self.wait_for(order, kill_during)
            process.kill()
        out, errors = process.communicate(timeout=kit.processes.PATIENCE)
        is_killed = kill_after is not None or kill_during is not None
        if process.returncode != (-signal.SIGKILL if is_killed else 0):
            raise RuntimeError(f"the agent ended with {process.returncode}:\n{errors}")
        return [json.loads(line) for line in out.splitlines()]

    def wait_for(self, order, answer):
        """Waits until the model generates this answer."""
        kit.until("the agent gets that far", lambda: f"agent {order} {answer}" in self.scripted.counts())

    def effects(self, order):
        """The effects for an order, without its name."""
        lines = [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []
        return [{**line, "order": ""} for line in lines if line["order"] == order]

    def generations(self, order):
        counts = self.scripted.counts()
        return [counts[prompt] for prompt in sorted(counts) if prompt.startswith(f"agent {order} ")]

    def told(self, order):
        return f"{len(self.effects(order))} effects, {sum(self.generations(order))} generations"

    def is_right(self, order, expected):
        return self.effects(order) == expected and self.generations(order) == [1, 1, 1, 1]
