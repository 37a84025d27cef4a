"""Measures DBOS on PostgreSQL: one workflow a key, the effect as its one step, with its default settings."""

from dbos import DBOS, SetWorkflowID

import bench

parser = bench.arguments()
parser.add_argument("--url", required=True, help="an empty PostgreSQL database")
options = parser.parse_args()
action = bench.Action()

DBOS(config={"name": "bench", "system_database_url": options.url, "log_level": "ERROR", "run_admin_server": False})


@DBOS.step()
def charge():
    return action()


@DBOS.workflow()
def place_order(order, amount):
    return charge()


DBOS.launch()


def call(number):
    with SetWorkflowID(f"order-{number:08}"):
        place_order(number, 100)


bench.measure(call, action, options, peer="DBOS on PostgreSQL", package="dbos", syncs="one a commit")
DBOS.destroy()
