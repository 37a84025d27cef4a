"""Measures exactly-once on SQLite with its default settings. It does not sync each call: synchronous=NORMAL."""

from exactly_once import Store, once

import bench

options = bench.arguments().parse_args()
action = bench.Action()
store = Store.sqlite(str(options.dir / "exactly-once.db"))


@once(store, key=lambda order, amount: f"order-{order:08}")
def place_order(order, amount):
    return action()


def call(number):
    place_order(number, 100)


bench.measure(
    call,
    action,
    options,
    peer="exactly-once on SQLite",
    package="exactly-once",
    syncs="not for each call (WAL, synchronous=NORMAL)",
)
