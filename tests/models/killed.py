"""`kill -9` of the gateway in the middle of streams: the ledger tells the truth, and every retry gets one answer."""

import asyncio
import itertools
import random

import kit
import model
from leaving import Answer, Leave, exchange
from parts import serving

# How many streams are under way at a kill.
STREAMS = 5


KILLS = 20


def rows(rig, session):
    with serving(session) as (scripted, gateway):
        dice = random.Random(7)
        # A stream takes about two seconds.
        found = [
            call
            for number in range(KILLS)
            for call in killed(gateway, scripted, number, dice, lambda: dice.uniform(0.05, 2.6))
        ]
    cut = [call for call in found if call["is_cut"]]
    facts = {"is_true": "not told truly", "is_right": "not one answer", "is_next": "not followed by a new one"}
    wrong = {what: [call["facts"] for call in found if not call[fact]] for fact, what in facts.items()}
    wrong["kills that met no stream"] = () if len(cut) >= KILLS else (len(cut),)
    told = f"{len(cut)} of {len(found)} streams cut"
    yield kit.judged(rig, f"{KILLS} kills, {STREAMS} streams at each", told, wrong)
    for is_killed, retries in itertools.product((False, True), (0, 1)):
        with serving(session) as (scripted, gateway), gateway.beside() as other:
            ends = asyncio.run(elsewhere(gateway, other, scripted, is_killed, retries))
        generations = sum(count for _, count in ends)
        right = sum(is_right for is_right, _ in ends)
        told = f"{right} of {STREAMS} have one answer, {generations} generations"
        # Without the kill, the other gateway has the answer of the first. With it, it makes the next attempt.
        expected = 2 * STREAMS if is_killed else STREAMS
        known = " that the SDK reports" if retries else ""
        case = f"retries{known} at another gateway{', and the first is killed' if is_killed else ''}"
        yield kit.Row(rig, case, told, (right, generations) == (STREAMS, expected))


async def elsewhere(gateway, other, scripted, is_killed, retries):
    """Clients leave in the middle of their streams and ask another gateway, which waits for the first one."""
    calls = [Call(f"elsewhere-{retries}", stream) for stream in range(STREAMS)]
    leave = Leave(1000, random.Random(7))
    await asyncio.gather(*(exchange(gateway.listen, call.body, 0, leave) for call in calls))
    asked = [asyncio.create_task(call.ask(other.listen, retries)) for call in calls]
    # The other gateway has read that the generations run.
    await asyncio.sleep(0.3)
    if is_killed:
        await asyncio.to_thread(gateway.kill)
    answers = await asyncio.gather(*asked)
    counts = scripted.counts()
    return [
        (answer.body == call.answers(counts[call.prompt])[-1], counts[call.prompt])
        for call, answer in zip(calls, answers, strict=True)
    ]


def killed(gateway, scripted, number, dice, pause):
    """Kills the gateway at some moment of some streams, and asks again for what was cut."""
    calls = [Call(number, stream) for stream in range(STREAMS)]
    firsts = {}

    def asks(index):
        return lambda _: firsts.update({index: asyncio.run(calls[index].ask(gateway.listen, after=0.1 * index))})

    kit.torment({"gateway": gateway.restart}, map(asks, range(STREAMS)), dice, pause, kills=1)
    return asyncio.run(checked(gateway, scripted, calls, [firsts[index] for index in range(STREAMS)]))


async def checked(gateway, scripted, calls, firsts):
    before = await at_rest(scripted)
    checks = (again(gateway, scripted, *one, before) for one in zip(calls, firsts, strict=True))
    return await asyncio.gather(*checks)


async def at_rest(scripted):
    """The counts of generations once the model has read every request that left before the kill."""
    counts = None
    while counts != (counts := scripted.counts()):
        await asyncio.sleep(0.2)
    return counts


async def again(gateway, scripted, call, first, before):
    """What the ledger says about a call after the restart, and what its retries get."""
    generations = before.get(call.prompt, 0)
    is_cut = first.body not in call.answers(generations)
    told = await asyncio.to_thread(shown, gateway, first.operation)
    second = await call.ask(gateway.listen) if is_cut else first
    after = scripted.counts().get(call.prompt, 0)
    later = await asyncio.to_thread(shown, gateway, second.operation)
    # That answer was read, so the next call is a new one, even if the SDK reports a retry: its first try may have met
    # the gateway while it was down. If the gateway was killed just after an answer was read, it may not know that.
    third = await call.ask(gateway.listen, retries=1)
    nexts = [call.answers(after + 1)[-1], *([] if is_cut else [first.body])]
    # If the answer was complete, its delivery was cut, and the retry gets that answer.
    was_done = told is not None and told["state"] == "done"
    is_further = is_cut and not was_done
    ends = [one["ended"] for one in later["detail"].get("history", [])]
    # If nothing was sent, the first attempt definitely failed; the ledger may know that, or be in doubt.
    may_end = {"in_doubt"} if generations else {"in_doubt", "failed"}
    facts = f"{call.prompt}: {generations} then {after} generations, first {told and told['state']}, then {ends}"
    return {
        "facts": facts,
        "is_cut": is_cut and generations > 0,
        # Without a head of the first answer, its operation is that of the second.
        "is_true": later["state"] == "done"
        and (told is None or told["state"] == ("in_doubt" if is_further else "done"))
        and (told is None or told["id"] == later["id"])
        and len(ends) <= 1
        and set(ends) <= may_end
        and (bool(ends) == is_further or first.operation is None),
        "is_right": second.body in call.answers(after) and after <= generations + int(is_further),
        "is_next": third.body in nexts,
    }


def shown(gateway, operation):
    return operation and gateway.command("show", operation)["data"]


class Call:
    """One prompt."""

    def __init__(self, number, stream):
        self.prompt = f"drip kill-{number}-{stream}"
        self.body = {"model": "m", "messages": [{"role": "user", "content": self.prompt}], "stream": True}

    async def ask(self, address, retries=0, after=0.0):
        await asyncio.sleep(after)
        try:
            return await exchange(address, self.body, retries, None)
        except ConnectionError:
            # The gateway is not there any more.
            return Answer()

    def answers(self, generations):
        """The bytes of all generations."""
        numbers = range(1, generations + 1)
        return ["".join(model.chat(self.body, one, model.words(one, self.prompt))[1]).encode() for one in numbers]
