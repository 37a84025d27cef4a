"""Measures the Python package of this repository on SQLite with its default settings."""

import bench
from onceward import Ledger

parser = bench.arguments()
parser.add_argument("--url", help="a ledger on a server; a file in DIR by default")
options = parser.parse_args()
action = bench.Action()
ledger = Ledger(options.url or options.dir / "onceward.db")


@ledger.once(key=["order"], effect="created")
def place_order(order, amount):
    return action()


def call(number):
    place_order(number, 100)


where = options.url.partition(":")[0] if options.url else "SQLite"
bench.measure(
    call,
    action,
    options,
    peer=f"onceward (Python) on {where}",
    package="onceward",
    syncs="first 2, shared by callers that wait together; replay 0",
)
ledger.close()
