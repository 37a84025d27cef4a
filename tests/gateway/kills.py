"""`kill -9` of the gateway while clients call it: nothing is lost, nothing happens twice, every doubt is listed.

Each client makes one payment after the other and repeats it until it is answered: with no key, with the same key every
time, or with a new key for every try. The vendor takes up to 20 ms, so that kills hit every phase of a call: before the
request was sent, while the vendor works, and after its answer. Two gateways on one PostgreSQL ledger are killed in
turn, and a client goes to the other one when its gateway does not answer.
"""

import contextlib
import http.client
import json
import random
import subprocess
import threading
import time
import urllib.parse
import uuid
from dataclasses import dataclass, field

from postgres import postgres
from sdks import Row, free_port, start
from vendor import Vendor

KEYS = ["no key", "same key", "new keys"]
# A lease on PostgreSQL is this long, in the rig: a gateway that was killed is noticed after it.
LEASE = "1s"


def rows(name, once, _cache, work, options):
    kills = options.kills or (10 if options.short else 60)
    if name == "kill -9 on PostgreSQL":
        with postgres() as ledger:
            yield run(once, work, "stripe", ledger, kills, options.seed, 2)
        with postgres() as ledger:
            yield run(once, work, "plain", ledger, kills, options.seed, 2)
        return
    for kind in ("stripe", "plain"):
        folder = work / f"kills-{kind}"
        folder.mkdir()
        yield run(once, work, kind, f"sqlite:{folder / 'ledger.db'}", kills, options.seed, 1)


@dataclass
class World:
    """What clients saw."""

    addresses: list
    stop: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)
    answers: dict = field(default_factory=dict)
    """Amount to status and operation."""
    broken: list = field(default_factory=list)
    """Tries without an answer: the amount, and what the vendor knew of it."""
    finished: set = field(default_factory=set)


def run(once, work, kind, ledger, kills, seed, gateways):
    """Clients repeat each payment until it is answered, while gateways are killed again and again."""
    keyed = kind == "stripe"
    chance = random.Random(seed)
    with Vendor("stripe", "pause", 10**9) as vendor, contextlib.ExitStack() as ends:
        if not keyed:
            # The same vendor, but it knows no keys.
            vendor.key = lambda *_: None
        config = work / f"kills-{kind}-{gateways}.toml"
        config.write_text(
            f'[upstream.api]\nurl = "{vendor.url}"\npreset = "{"stripe" if keyed else "none"}"\n'
            'allow_private = true\nbackoff = "10ms"\nattempts = 500\nwait = "5s"\n'
            f'[operation."api *"]\nlease = "{LEASE}"\n'
        )
        listens = [f"127.0.0.1:{free_port()}" for _ in range(gateways)]
        processes = [start(once, work, config, listen, ledger)[0] for listen in listens]
        ends.callback(lambda: [process.kill() for process in processes])
        world = World(listens)
        clients = [threading.Thread(target=pay, args=(world, vendor, number)) for number in range(6)]
        for client in clients:
            client.start()
        begun = time.monotonic()
        for number in range(kills):
            time.sleep(chance.uniform(0.01, 0.12))
            at = number % gateways
            processes[at].kill()
            processes[at].wait()
            processes[at] = start(once, work, config, listens[at], ledger)[0]
        took = time.monotonic() - begun
        time.sleep(3 if gateways > 1 else 1)
        world.stop.set()
        for client in clients:
            client.join()
        records = listing(once, work, ledger)
    return judge(kind, gateways, kills, took, world, vendor, records)


def judge(kind, gateways, kills, took, world, vendor, records):
    effects = [effect["amount"] for effect in vendor.effects]
    twice = len(effects) - len(set(effects))
    done = {amount for amount, (status, _) in world.answers.items() if status == 200}
    lost = done - set(effects)
    doubts = {operation for status, operation in world.answers.values() if status == 424}
    listed = {record["id"] for record in records if record["state"] == "in_doubt"}
    unlisted = doubts - listed
    # An effect that the ledger does not know: neither done nor in doubt.
    known = sum(record["state"] in ("done", "in_doubt", "running") for record in records)
    unknown = max(0, len(set(effects)) - known)
    phases = {word: sum(found == word for _, found in world.broken) for word in ("before", "during", "after")}
    cut = ", ".join(f"{count} {word}" for word, count in phases.items())
    direct = f"{kills} kills in {took:.0f} s; tries cut {cut}"
    through = (
        f"{len(world.answers)} answered, {len(effects)} effects, {twice} twice, {len(lost)} lost, {unknown} unknown, "
        f"{len(doubts)} in doubt, {len(unlisted)} not listed"
    )
    # A few kills need not hit every phase.
    enough = len(world.answers) > kills / 4 and done and (kills < 200 or all(phases.values()))
    holds = twice == 0 and not lost and not unknown and not unlisted and enough and not (kind == "stripe" and doubts)
    name = f"kill -9, {kind}" + (f", {gateways} gateways" if gateways > 1 else "")
    return Row(name, str(kills), direct, through, holds)


def listing(once, work, ledger):
    """Every operation, without further keys."""
    found = []
    command = [once, "--ledger", ledger, "ls", "--json", "--limit", "100000"]
    env = {"PATH": "/usr/bin:/bin", "HOME": str(work)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    for line in done.stdout.splitlines():
        answer = json.loads(line)
        data = answer.get("data", answer)
        found += data if isinstance(data, list) else data.get("operations", [data])
    if not found:
        raise RuntimeError(f"once ls printed no operations: {done.stdout[-500:]} {done.stderr[-500:]}")
    return [record for record in found if not (record.get("reason") or "").startswith("another key")]


def pay(world, vendor, number):
    """Payments one after the other, each with its own amount, repeated until there is an answer."""
    style, count, at = KEYS[number % len(KEYS)], 0, number % len(world.addresses)
    while not world.stop.is_set():
        count += 1
        amount = (number + 1) * 1_000_000 + count
        while not world.stop.is_set():
            key = {"no key": None, "same key": f"pay-{amount}", "new keys": str(uuid.uuid4())}[style]
            status, operation = post(world.addresses[at], amount, key)
            if status in (200, 424):
                world.answers[amount] = (status, operation)
                break
            if status is None:
                world.broken.append((amount, vendor.phase(amount)))
                at = (at + 1) % len(world.addresses)
            time.sleep(0.01)


def post(listen, amount, key):
    body = urllib.parse.urlencode({"amount": amount})
    headers = {"content-type": "application/x-www-form-urlencoded", "authorization": "Bearer t"}
    if key is not None:
        headers["idempotency-key"] = key
    try:
        connection = http.client.HTTPConnection(listen, timeout=20)
        connection.request("POST", "/gw/api/v1/charges", body, headers)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer.status, answer.headers.get("once-operation")
    except ConnectionRefusedError:
        # No gateway was there, so nothing was cut.
        return 0, None
    except (OSError, http.client.HTTPException):
        return None, None
