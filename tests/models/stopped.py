"""Agents that the user stops at a random moment of "write an invoice and send it": what the settlement says is what the
mail server saw, and no layer says anything else."""

import json
import random
import sys
import time
from collections import Counter

import kit
from mail import MailServer
from parts import HERE, serving

# An unbroken run takes about this long, so stops come before, during and after the mail.
LONGEST = 3.0


RUNS = 200


def rows(_name, session):
    once, cache, count = session.once, session.cache, RUNS
    with serving(session) as (_, gateway), MailServer(gateway.folder / "mails.txt") as mail:
        chance = random.Random(11)
        jobs = [{"order": f"order-{number}", "stop_after": chance.uniform(0.0, LONGEST)} for number in range(count)]
        told = run(once, cache, gateway, mail, jobs)
        runs = [Run(once, gateway, mail, one) for one in told]
        fates = Counter(fate for one in runs for fate in one.first_fates)
        sent = sum(one.seen for one in runs)
        wrong = [f"{one.order}: {one.wrong}" for one in runs if one.wrong]
        # A run in which all stops came before, or after, the mail shows nothing.
        faults = {"disagree": wrong, "no stop before, or after, the mail": () if 0 < sent < count else (sent,)}
        told = f"{len(runs)} stops, first settlement {dict(fates)}, {sent} mails seen"
        yield kit.judged("stop", "an agent that sends an invoice", told, faults)


def run(once, cache, gateway, mail, jobs):
    lines = "".join(json.dumps(job) + "\n" for job in jobs)
    command = [cache / "python/bin/python", HERE / "clients/invoice_agent.py"]
    done = kit.execute(command, gateway.folder, environment(once, gateway, mail), 900, input=lines)
    if done.returncode:
        raise RuntimeError(f"the agents ended with {done.returncode}:\n{done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def environment(once, gateway, mail):
    return {
        "ONCE": str(once),
        "ONCE_LEDGER": gateway.ledger,
        "OPENAI_BASE_URL": f"{gateway.url}/gw/openai/v1",
        "OPENAI_API_KEY": "k",
        "MAIL_PORT": str(mail.port),
        "MAIL_FILE": str(mail.file),
    }


class Run:
    """One stopped run: what its layers say, and what is wrong about that."""

    def __init__(self, once, gateway, mail, told):
        self.once, self.env = once, environment(once, gateway, mail)
        self.gateway, self.told, self.order = gateway, told, told["order"]
        self.first_fates = [line["fate"] for line in mails(told["settlement"])]
        last = self.settled()
        self.seen = mail.subjects().count(f"invoice {self.order}")
        self.wrong = "; ".join(self.faults(last))

    def settled(self):
        """The settlement after the probe has settled what is in doubt."""
        until = time.monotonic() + kit.processes.PATIENCE
        while True:
            settlement = {"data": self.gateway.command("report", "--scope", self.order)["data"]["settlement"]}
            doubts = [line for line in mails(settlement) if line["fate"] == "in_doubt"]
            if not doubts or time.monotonic() > until:
                return settlement
            for line in doubts:
                probe = f"{sys.executable} {HERE / 'clients/was_sent.py'} {self.order}"
                command = [self.once, "settle", line["operation"], "--probe", probe, "--json"]
                kit.execute(command, self.gateway.folder, self.env)
            # A "no" counts after the quarantine.
            time.sleep(0.3)

    def faults(self, last):
        settlement, again = self.told["settlement"], self.told["again"]
        if settlement["data"]["sums"] != again["data"]["sums"]:
            yield f"the second stop says {again['data']['sums']}, the first {settlement['data']['sums']}"
        for one in (settlement, again, last):
            sums = one["data"]["sums"]
            parts = ("done", "not_done", "in_doubt", "held", "running")
            if sums["intended"] != sum(sums[part] for part in parts) or sums["running"]:
                yield f"the sum is {sums}"
        done = sum(line["fate"] == "standing" for line in mails(last))
        if done != self.seen:
            yield f"the settlement has {done} mails, the server {self.seen}"
        for before, after in zip(mails(settlement), mails(last), strict=True):
            if before["fate"] not in ("in_doubt", after["fate"]):
                yield f"first {before['fate']}, then {after['fate']}"
        if self.told["exit"] == 0 and done != 1:
            yield "the tool says sent, the settlement does not"
        answers = [line["fate"] for line in settlement["data"]["lines"] if line not in mails(settlement)]
        if answers.count("standing") < self.told["streams"].count("ended"):
            yield f"{self.told['streams'].count('ended')} streams ended, the settlement has {answers}"


def mails(settlement):
    return [line for line in settlement["data"]["lines"] if line["name"] == "send_invoice_email"]
