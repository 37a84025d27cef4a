"""stubborn.py SPEC: an agent that repeats each operation of a list until it knows the outcome.

It survives restarts of its peer and its own: outcomes are stored in a file, from which a new agent continues.
"""

import json
import sys
from pathlib import Path

sys.path[:0] = map(str, Path(__file__).resolve().parents[1:3])
from rig import Wire, text  # noqa: E402 - the path comes first

IN_FLIGHT = 4


def main(spec):
    log = Path(spec["log"])
    known = {line.split()[0] for line in log.read_text().splitlines()} if log.exists() else set()
    todo = [operation for operation in spec["operations"] if operation["op"] not in known]
    with log.open("a", buffering=1) as told:
        while todo:
            try:
                ask(spec, todo, told)
            except (EOFError, OSError):
                continue  # it died; the next one is asked for what is still open


def ask(spec, todo, told):
    """Keeps a few calls in flight until nothing is left to do."""
    with Wire(spec["command"]) as client:
        client.hello()
        waiting, open_ = {}, list(todo)
        while waiting or open_:
            while open_ and len(waiting) < IN_FLIGHT:
                operation = open_.pop(0)
                waiting[client.request("tools/call", params(spec, operation))] = operation
            reply = json.loads(client.line())
            if reply.get("id") in waiting and (verdict := read(reply)):
                operation = waiting.pop(reply["id"])
                told.write(f"{operation['op']} {verdict}\n")
                todo.remove(operation)
            else:
                waiting.pop(reply.get("id"), None)  # it stays on the list, and is asked for again


def params(spec, operation):
    meta = {"_meta": {spec["key"]: operation["op"]}} if spec["key"] else {}
    return {"name": "count", "arguments": operation, **meta}


def read(reply):
    """What this answer says: done, in doubt, or nothing that could be relied on."""
    said = json.dumps(reply)
    if "result" in reply and not reply["result"].get("isError"):
        return "done" if "counted" in text(reply) else None
    return "in_doubt" if "in_doubt" in said or "IN_DOUBT" in said else None


main(json.loads(sys.argv[1]))
