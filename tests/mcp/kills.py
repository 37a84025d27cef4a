"""kill -9 of proxy, server and client at random: never two effects for one operation, and every doubt is listed.

Two agents with keys work through the same list at the same time, and any process may die. Without keys one
agent works alone and is not killed: if it died with the answer already in its pipe, only it could know that it
never read the answer, and a repeat would count as wanted. Keys solve this.
"""

import json
import random
import subprocess
import sys
import time

import kit
from repeats import KEY
from rig import HERE, children, counted, kill


class Fleet:
    """The agents of one case, which are started again until they have an outcome for every operation."""

    def __init__(self, commands, files, dice):
        self.commands, self.files, self.dice = commands, files, dice
        self.agents = [None] * len(commands)

    def client(self, number):
        def work(_over):
            ended = None
            while ended != 0:
                self.agents[number] = kit.launch(self.commands[number], stderr=subprocess.DEVNULL)
                ended = self.agents[number].wait()

        return work

    def lurk(self):
        """Usually waits for progress first, so that kills hit calls and not only starts, even on a slow machine."""
        before, patience = self._marks(), 0 if self.dice.random() < 0.1 else 100
        while self._marks() == before and patience and all(self._running()):
            patience -= 1
            time.sleep(0.05)
        return self.dice.uniform(0, 0.4)

    def _marks(self):
        return [file.stat().st_size for file in self.files if file.exists()]

    def _running(self):
        return [agent is not None and agent.poll() is None for agent in self.agents]

    def strike(self, victim):
        """Kills a part of one agent's chain, if it is there."""
        agent = self.dice.choice(self.agents)
        if agent is None or agent.poll() is not None:
            return False
        proxies = children(agent.pid)
        servers = [server for proxy in proxies for server in children(proxy)]
        chosen = {"client": [agent.pid], "proxy": proxies, "server": servers}[victim]
        for pid in chosen:
            kill(pid)
        return bool(chosen)


def run(rig):
    calls = 1000
    yield _case(rig, "with keys, two agents", calls // 2, agents=2, key=KEY, victims=["client", "proxy", "server"])
    yield _case(rig, "without keys, one agent", calls // 2, agents=1, key=None, victims=["proxy", "server"])


def _case(rig, name, calls, agents, key, victims):
    seed = random.randrange(1 << 32)
    print(f"  kills: {name}: seed {seed}", file=sys.stderr)
    dice = random.Random(seed)
    folder = rig.folder("kills")
    server, effects = rig.counting(folder)
    logs = [folder / f"told-{number}" for number in range(agents)]
    pace = 0.08
    spans = [{"before": dice.uniform(0, pace), "after": dice.uniform(0, pace)} for _ in range(calls)]
    wishes = [{"op": f"op-{number}", **span} for number, span in enumerate(spans)]
    commands = []
    for log in logs:
        spec = {"command": rig.through(folder, server), "log": str(log), "key": key}
        spec["operations"] = dice.sample(wishes, calls)
        commands.append([sys.executable, str(HERE / "clients/stubborn.py"), json.dumps(spec)])
    fleet = Fleet(commands, [effects, *logs], dice)
    strikes = {victim: lambda victim=victim: fleet.strike(victim) for victim in victims}
    toll = kit.torment(strikes, [fleet.client(number) for number in range(agents)], dice, fleet.lurk)
    # A proxy whose client died finishes its calls; the ledger is read after that.
    kit.until("everything has ended", lambda: not kit.descendants())
    return _judge(rig, f"{calls} operations {name}", folder, wishes, logs, counted(effects), toll, key)


def _judge(rig, case, folder, wishes, logs, effects, toll, key):
    told = [dict(line.split() for line in log.read_text().splitlines()) for log in logs]
    done = {op for log in told for op, verdict in log.items() if verdict == "done"}
    doubt = {op for log in told for op, verdict in log.items() if verdict == "in_doubt"}
    listed = rig.ls(folder, "--state", "in_doubt")
    running = rig.ls(folder, "--state", "running")
    wrong = {
        "killed nobody": [] if toll else [0],
        "twice": [op for op, times in effects.items() if times > 1],
        "done without an effect": [op for op in done if effects[op] != 1],
        "told both": sorted(done & doubt),
        "never told": [wish["op"] for wish in wishes if wish["op"] not in done | doubt],
        "still running": [record["key"] for record in running],
        "in doubt but not listed": sorted(doubt - {record["key"] for record in listed}) if key else [],
        "lists differ in length": [] if len(listed) == len(doubt) else [len(listed), len(doubt)],
    }
    struck = ", ".join(f"{times} {victim}" for victim, times in sorted(toll.items()))
    seen = f"{len(done)} done, {len(doubt)} in doubt and listed; killed {struck}"
    return kit.judged("kills", case, seen, wrong)
