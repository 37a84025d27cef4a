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
from dataclasses import dataclass, field

from rig import HERE, Row, children, counted, kill
from repeats import KEY

LIMIT = 900  # seconds; a rig that takes longer has hung


@dataclass
class Fleet:
    """The agents of one case, and the kills."""

    commands: list
    victims: list
    files: list
    dice: random.Random
    agents: list = field(default_factory=list)
    kills: dict = field(default_factory=dict)
    seen: set = field(default_factory=set)

    def work(self):
        """Runs the agents, killing and restarting parts at random, until every operation has an outcome."""
        self.agents = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for command in self.commands]
        deadline = time.monotonic() + LIMIT
        while any(agent.poll() != 0 for agent in self.agents):
            if time.monotonic() > deadline:
                raise TimeoutError("the agents do not finish")
            self._lurk()
            self._strike()
            for number, agent in enumerate(self.agents):
                if agent.poll() not in (None, 0):
                    self.agents[number] = subprocess.Popen(self.commands[number], stderr=subprocess.DEVNULL)
        self._settle()

    def _lurk(self):
        """Usually waits for progress first, so that kills hit calls and not only starts, even on a slow machine."""
        before, patience = self._marks(), 0 if self.dice.random() < 0.1 else 100
        while self._marks() == before and patience and all(agent.poll() is None for agent in self.agents):
            patience -= 1
            time.sleep(0.05)
        time.sleep(self.dice.uniform(0, 0.4))

    def _marks(self):
        return [file.stat().st_size for file in self.files if file.exists()]

    def _strike(self):
        agent = self.dice.choice(self.agents)
        proxies = children(agent.pid) if agent.poll() is None else []
        servers = [server for proxy in proxies for server in children(proxy)]
        self.seen.update(proxies, servers)
        victim = self.dice.choice(self.victims)
        chosen = {"client": [agent.pid] if agent.poll() is None else [], "proxy": proxies, "server": servers}[
            victim
        ]
        for pid in chosen:
            kill(pid)
            self.kills[victim] = self.kills.get(victim, 0) + 1

    def _settle(self):
        """A proxy whose client died finishes its calls; the ledger is read after that."""
        for _ in range(600):
            if not any(_alive(pid) for pid in self.seen):
                return
            time.sleep(0.1)
        raise TimeoutError("a process outlived its client by a minute")


def run(rig):
    calls = 60 if rig.short else 1000
    yield _case(
        rig, "with keys, two agents", calls // 2, agents=2, key=KEY, victims=["client", "proxy", "server"]
    )
    yield _case(rig, "without keys, one agent", calls // 2, agents=1, key=None, victims=["proxy", "server"])


def _case(rig, name, calls, agents, key, victims):
    seed = random.randrange(1 << 32)
    print(f"  kills: {name}: seed {seed}", file=sys.stderr)
    dice = random.Random(seed)
    folder = rig.folder("kills")
    server, effects = rig.counting(folder)
    logs = [folder / f"told-{number}" for number in range(agents)]
    # A short list of fast calls would be done before the first kill.
    pace = 0.25 if rig.short else 0.08
    spans = [{"before": dice.uniform(0, pace), "after": dice.uniform(0, pace)} for _ in range(calls)]
    wishes = [{"op": f"op-{number}", **span} for number, span in enumerate(spans)]
    commands = []
    for log in logs:
        spec = {"command": rig.through(folder, server), "log": str(log), "key": key}
        spec["operations"] = dice.sample(wishes, calls)
        commands.append([sys.executable, str(HERE / "clients/stubborn.py"), json.dumps(spec)])
    fleet = Fleet(commands, victims, [effects, *logs], dice)
    fleet.work()
    return _judge(rig, name, folder, wishes, logs, counted(effects), fleet.kills, key)


def _judge(rig, name, folder, wishes, logs, effects, kills, key):
    told = [dict(line.split() for line in log.read_text().splitlines()) for log in logs]
    done = {op for log in told for op, verdict in log.items() if verdict == "done"}
    doubt = {op for log in told for op, verdict in log.items() if verdict == "in_doubt"}
    listed = rig.ls(folder, "--state", "in_doubt")
    running = rig.ls(folder, "--state", "running")
    wrong = {
        "killed nobody": [] if kills else [0],
        "twice": [op for op, times in effects.items() if times > 1],
        "done without an effect": [op for op in done if effects[op] != 1],
        "told both": sorted(done & doubt),
        "never told": [wish["op"] for wish in wishes if wish["op"] not in done | doubt],
        "still running": [record["key"] for record in running],
        "in doubt but not listed": sorted(doubt - {record["key"] for record in listed}) if key else [],
        "lists differ in length": [] if len(listed) == len(doubt) else [len(listed), len(doubt)],
    }
    for what, which in wrong.items():
        if which:
            print(f"  kills: {name}: {what}: {len(which)}: {which[:5]}", file=sys.stderr)
    struck = ", ".join(f"{times} {victim}" for victim, times in sorted(kills.items()))
    seen = f"{len(done)} done, {len(doubt)} in doubt and listed, {len(wrong['twice'])} twice; killed {struck}"
    return Row("kills", f"{len(wishes)} operations {name}", "", seen, not any(wrong.values()))


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
