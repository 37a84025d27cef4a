"""`kill -9` of the gateway while clients call it: nothing is lost, nothing happens twice, every doubt is listed.

Each client makes one payment after the other and repeats it until it is answered: with no key, with the same key every
time, or with a new key for every try. The vendor takes up to 20 ms, so that kills hit every phase of a call: before the
request was sent, while the vendor works, and after its answer. Two gateways on one PostgreSQL ledger are killed in
turn, and a client goes to the other one when its gateway does not answer.
"""

import contextlib
import http.client
import random
import time
import urllib.parse
import uuid
from collections import Counter
from dataclasses import dataclass, field

import kit
from kit.servers import postgres
from vendor import Vendor

KEYS = ["no key", "same key", "new keys"]
CLIENTS = 6
# A lease on PostgreSQL is this long, in the rig: a gateway that was killed is noticed after it.
LEASE = "1s"


def rows(name, session):
    for kind in ("stripe", "plain"):
        with postgres() if "PostgreSQL" in name else contextlib.nullcontext() as ledger:
            yield run(name, session, kind, ledger)


@dataclass
class World:
    """What clients saw."""

    addresses: list
    answers: dict = field(default_factory=dict)
    """Amount to status and operation."""
    broken: list = field(default_factory=list)
    """Tries without an answer: what the vendor knew of the payment."""


def run(name, session, kind, ledger):
    """Clients repeat each payment until it is answered, while gateways are killed again and again."""
    dice, kills = random.Random(session.options.seed), session.options.kills
    with Vendor("stripe", "pause", 10**9) as vendor, contextlib.ExitStack() as ends:
        if kind == "plain":
            # The same vendor, but it knows no keys.
            vendor.key = lambda *_: None
        config = (
            f'[upstream.api]\nurl = "{vendor.url}"\npreset = "{"stripe" if kind == "stripe" else "none"}"\n'
            'allow_private = true\nbackoff = "10ms"\nattempts = 500\nwait = "5s"\n'
            f'[operation."api *"]\nlease = "{LEASE}"\n'
        )
        listens = [f"127.0.0.1:{kit.free_port()}" for _ in range(2 if ledger else 1)]
        gateways = [
            ends.enter_context(kit.Serve(session.once, config, ledger=ledger, listen=listen)) for listen in listens
        ]
        world = World(listens)
        clients = [lambda over, number=number: pay(world, vendor, number, over) for number in range(CLIENTS)]
        victims = {f"gateway {number}": gateway.restart for number, gateway in enumerate(gateways)}
        toll = kit.torment(victims, clients, dice, lambda: dice.uniform(0.01, 0.12), kills)
        # Later keys of the same payment are records, too.
        records = [one for one in gateways[0].ls() if not (one.get("reason") or "").startswith("another key")]
    return judge(name, kind, toll.total(), world, vendor, records)


def judge(name, kind, kills, world, vendor, records):
    effects = Counter(effect["amount"] for effect in vendor.effects)
    done = {amount for amount, (status, _) in world.answers.items() if status == 200}
    doubts = {operation for status, operation in world.answers.values() if status == 424}
    listed = {record["id"] for record in records if record["state"] == "in_doubt"}
    known = sum(record["state"] in ("done", "in_doubt", "running") for record in records)
    phases = Counter(world.broken)
    wrong = {
        "twice": [amount for amount, times in effects.items() if times > 1],
        "lost": done - effects.keys(),
        # Neither done nor in doubt.
        "effects that the ledger does not know": range(len(effects) - known),
        "in doubt but not listed": doubts - listed,
        "in doubt although the vendor has keys": doubts if kind == "stripe" else (),
        "hardly any answer": () if len(done) > kills / 4 else (len(done),),
        # A few kills need not hit every phase.
        "a phase without a kill": () if kills < 200 or len(phases) == 3 else (dict(phases),),
    }
    told = f"{len(world.answers)} answered, {len(effects)} effects, {len(doubts)} in doubt; tries cut {dict(phases)}"
    return kit.judged(name, f"{kind}, {kills} kills", told, wrong)


def pay(world, vendor, number, over):
    """Payments one after the other, each with its own amount, repeated until there is an answer."""
    style, count, at = KEYS[number % len(KEYS)], 0, number % len(world.addresses)
    while not over.is_set():
        count += 1
        amount = (number + 1) * 1_000_000 + count
        end = time.monotonic() + kit.processes.PATIENCE
        while amount not in world.answers:
            key = {"no key": None, "same key": f"pay-{amount}", "new keys": str(uuid.uuid4())}[style]
            status, operation = post(world.addresses[at], amount, key)
            if status in (200, 424):
                world.answers[amount] = (status, operation)
                break
            if status is None:
                world.broken.append(vendor.phase(amount))
                at = (at + 1) % len(world.addresses)
            if time.monotonic() > end:
                raise TimeoutError(f"the payment of {amount} is not answered, the last status is {status}")
            time.sleep(0.01)


def post(listen, amount, key):
    body = urllib.parse.urlencode({"amount": amount})
    headers = {"content-type": "application/x-www-form-urlencoded", "authorization": "Bearer t"}
    if key is not None:
        headers["idempotency-key"] = key
    try:
        connection = http.client.HTTPConnection(listen, timeout=60)
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
