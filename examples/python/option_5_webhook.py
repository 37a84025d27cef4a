"""Events that come twice. Marking an event as seen before it is handled loses it when the handler fails."""

from world import folder, happen, happened, show

from onceward import Ledger

seen: set[str] = set()


class DatabaseAway(Exception):
    """Raised before anything is done."""


def naive_handler(event: dict[str, str], *, fails: bool = False) -> None:
    if event["id"] in seen:
        return
    seen.add(event["id"])
    if fails:
        raise DatabaseAway("the database is away")
    happen("naive order shipped")


EVENT = {"id": "evt_12345", "type": "payment.succeeded"}
for fails in (True, False, False):
    try:
        naive_handler(EVENT, fails=fails)
    except DatabaseAway:
        pass

# -- with Onceward
ledger = Ledger(folder / "agent.db")


def handler(event: dict[str, str], *, fails: bool = False) -> None:
    with ledger.dedupe(event["id"], source="stripe", no_effect=DatabaseAway) as delivery:
        if delivery.new and fails:
            raise DatabaseAway("the database is away")
        if delivery.new:
            happen("our order shipped")


# --


for fails in (True, False, False):
    try:
        handler(EVENT, fails=fails)
    except DatabaseAway as error:
        print(f"first delivery: {error}")
show(
    happened("naive order shipped"),
    happened("our order shipped"),
    "orders shipped after three deliveries, the first of which failed",
)
