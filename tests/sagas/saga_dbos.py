"""The booking as a workflow on DBOS: steps, and on a failure the compensating steps of those that ran, in reverse.

saga_dbos.py DATABASE SERVICE FOLDER          works until every trip below FOLDER/limit is in FOLDER/done
saga_dbos.py DATABASE SERVICE FOLDER report   prints what DBOS recorded about each trip
"""

import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

from dbos import DBOS, SetWorkflowID

DATABASE, SERVICE, FOLDER = sys.argv[1], sys.argv[2], Path(sys.argv[3])
STEPS = ["flight", "hotel", "car", "insurance", "payment"]

DBOS(
    config={
        "name": "sagas",
        "system_database_url": f"sqlite:///{DATABASE}",
        "log_level": "ERROR",
        "run_admin_server": False,
        "application_version": "1",
    }
)


class Declined(Exception):
    """The service refused, so nothing happened."""


def send(action, trip, step):
    url = f"{SERVICE}/{action}?trip={trip}&step={step}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=60) as answer:
            return json.load(answer)["id"]
    except urllib.error.HTTPError as error:
        if error.code == 402:
            raise Declined(step) from None
        raise


@DBOS.step()
def book(trip, step):
    return send("book", trip, step)


@DBOS.step()
def cancel(trip, step):
    return send("cancel", trip, step)


@DBOS.workflow()
def booking(trip):
    done = []
    try:
        for step in STEPS:
            book(trip, step)
            done.append(step)
    except Declined:
        for step in reversed(done):
            cancel(trip, step)
        return "declined"
    return "booked"


def report():
    for trip in (FOLDER / "done").read_text().split():
        fates = dict.fromkeys(STEPS, "not done")
        steps = [step["function_name"] for step in DBOS.list_workflow_steps(trip)]
        errors = [step["error"] for step in DBOS.list_workflow_steps(trip)]
        booked = [error is None for name, error in zip(steps, errors, strict=True) if name.endswith("book")]
        for step, happened in zip(STEPS, booked, strict=False):
            fates[step] = "standing" if happened else "failed"
        standing = [step for step in STEPS if fates[step] == "standing"]
        for step, _ in zip(reversed(standing), [name for name in steps if name.endswith("cancel")], strict=False):
            fates[step] = "undone"
        print(json.dumps({"trip": trip, "fates": fates}))


def work():
    done = FOLDER / "done"
    while True:
        known = set(done.read_text().split())
        limit = int((FOLDER / "limit").read_text())
        trips = [f"trip-{number}" for number in range(limit) if f"trip-{number}" not in known]
        if not trips:
            break
        # An unfinished workflow was recovered by the launch: this waits for it.
        with SetWorkflowID(trips[0]):
            booking(trips[0])
        with done.open("a") as file:
            file.write(trips[0] + "\n")


DBOS.launch()
report() if sys.argv[4:] else work()
DBOS.destroy()
