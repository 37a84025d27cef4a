"""Measures idempotent-tools on SQLite with its default settings."""

from idempotent_tools import SQLiteBackend, idempotent

import bench

options = bench.arguments().parse_args()
action = bench.Action()


@idempotent(backend=SQLiteBackend(str(options.dir / "idempotent-tools.db")))
def place_order(order, amount):
    return action()


def call(number):
    place_order(number, 100)


bench.measure(
    call,
    action,
    options,
    peer="idempotent-tools on SQLite",
    package="idempotent-tools",
    syncs="first 8, replay 0 (rollback journal)",
)
