"""A key from the inputs. The cache in memory forgets on a crash, and answers another payload with the wrong result."""

import json

from world import crash, folder, happen, happened, in_processes, show

from onceward import KeyReused, Ledger, Yes

cache: dict[str, dict[str, object]] = {}


def naive_charge(customer: str, amount: int, note: str = "", *, crashes: bool = False) -> dict[str, object]:
    key = json.dumps([customer, amount])
    if key not in cache:
        happen("naive charge")
        if crashes:
            crash()
        cache[key] = {"charged": amount, "note": note}
    return cache[key]


in_processes(lambda: naive_charge("c1", 100, crashes=True))
in_processes(lambda: naive_charge("c1", 100))
naive_charge("c2", 100, "for Ann")
wrong = naive_charge("c2", 100, "for Bob")
assert wrong["note"] == "for Ann", "the caller of Bob is told that Bob's is done"

# -- with Onceward
ledger = Ledger(folder / "agent.db")


def find_charge(customer: str, amount: int, note: str = "", crashes: bool = False) -> object:
    return Yes({"charged": amount}) if happened("our charge") else False


@ledger.once(key=["customer", "amount"], volatile=["crashes"], effect="created", probe=find_charge)
def charge(customer: str, amount: int, note: str = "", crashes: bool = False) -> dict[str, object]:
    happen("our charge")
    return crash() or {"charged": amount} if crashes else {"charged": amount}


# --


in_processes(lambda: charge("c1", 100, crashes=True))
assert charge("c1", 100) == {"charged": 100}, "found by asking, not by running again"
try:
    charge("c1", 100, note="another order")
    raise SystemExit("another payload was taken for a retry")
except KeyReused as refused:
    print(f"another payload: {refused}")
show(happened("naive charge") - 1, happened("our charge"), "charges after a crash between effect and record")
