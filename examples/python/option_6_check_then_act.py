"""Check-then-act. Between the check and the act there is room for another caller, and a lost reply is not seen."""

import time

from world import folder, happen, happened, in_processes, show

from onceward import Ledger


def naive_ensure(user: str) -> None:
    if not happened(f"naive {user}"):
        time.sleep(0.2)
        happen(f"naive {user}")


in_processes(*(lambda: naive_ensure("u1") for _ in range(3)))

# -- with Onceward
ledger = Ledger(folder / "agent.db")


def find(user: str) -> str | None:
    return "active" if happened(f"our {user}") else None


def create(user: str) -> str:
    time.sleep(0.2)
    return happen(f"our {user}") or "active"


ensure = ledger.ensure(find, create)
# --


in_processes(*(lambda: ensure("u1") for _ in range(3)))
assert ensure("u1") == "active"
show(happened("naive u1"), happened("our u1"), "subscriptions by three callers that checked first")
