"""A store on disk. Looking first and writing after the effect is a race: two processes both look before one writes."""

import sqlite3
import time

from world import folder, happen, happened, in_processes, show

from onceward import Ledger


def naive_subscribe(user: str) -> None:
    with sqlite3.connect(folder / "naive.db") as store:
        store.execute("create table if not exists done (key text primary key)")
        if store.execute("select 1 from done where key = ?", (user,)).fetchone() is None:
            happen("naive subscription")
            time.sleep(0.2)
            store.execute("insert or replace into done values (?)", (user,))


in_processes(*(lambda: naive_subscribe("u1") for _ in range(4)))

# -- with Onceward
ledger = Ledger(folder / "agent.db")


@ledger.once(effect="created")
def subscribe(user: str, plan: str) -> dict[str, str]:
    happen("our subscription")
    time.sleep(0.2)
    return {"user": user, "plan": plan}


# --


in_processes(*(lambda: subscribe("u1", "pro") for _ in range(4)))
receipt = subscribe.receipt("u1", "pro")
assert receipt.replayed and receipt.value == {"user": "u1", "plan": "pro"}
show(happened("naive subscription"), happened("our subscription"), "subscriptions by four processes at once")
