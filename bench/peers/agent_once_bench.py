"""Measures agent-once on SQLite with its default settings: one connection a thread, made by the package."""

from once import Once

import bench

options = bench.arguments().parse_args()
action = bench.Action()
once = Once(options.dir / "agent-once.db")


def place_order(order, amount):
    return action()


def call(number):
    once.execute(place_order, key=f"order-{number:08}", order=number, amount=100)


bench.measure(
    call,
    action,
    options,
    peer="agent-once",
    package="agent-once",
    syncs="first 2, replay 0 (WAL, synchronous=FULL)",
)
once.close()
