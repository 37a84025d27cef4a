"""A key for the vendor. One that is made of a clock is another one on the retry, so the vendor charges again."""

import time

from world import folder, happen, show

from onceward import Ledger, Timeout, current_operation

seen: dict[str, str] = {}


def vendor(who: str, idempotency_key: str) -> str:
    """Honours keys, as payment vendors do; its first reply to each caller is lost."""
    first = not any(key.startswith(who) for key in seen)
    if who + idempotency_key not in seen:
        seen[who + idempotency_key] = f"charge {len(seen)}"
        happen(f"{who} charge")
    if first:
        raise TimeoutError("the reply was lost")
    return seen[who + idempotency_key]


for _ in range(2):
    try:
        vendor("naive", f"txn_{time.time_ns()}")
    except TimeoutError:
        pass

# -- with Onceward
ledger = Ledger(folder / "agent.db")


@ledger.once(class_="keyed", effect="created")
def charge(customer: str, cents: int) -> str:
    return vendor("ours", current_operation().downstream_key("stripe"))


# --


try:
    charge("c1", 100)
    raise SystemExit("the reply was to be lost")
except Timeout as doubt:
    print(f"first call: {doubt}")
print(f"retry: {charge('c1', 100)}")
charges = {who: sum(key.startswith(who) for key in seen) for who in ("naive", "ours")}
show(charges["naive"], charges["ours"], "charges at the vendor after a lost reply")
