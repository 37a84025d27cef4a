"""One call through the Python package, as a process: reads what to do from its argument, prints the answer."""

import json
import sys
from pathlib import Path

from action import Refused, act

from onceward import Ledger, OncewardError


def main(job: dict) -> dict:
    folder = Path(job["folder"])
    try:
        ledger = Ledger(job["ledger"], policy=job["policy"])
        if job["do"] == "call":
            return call(ledger, folder, **job["call"])
        if job["do"] == "settle":
            ledger.settle(job["id"], job["verdict"])
        else:
            getattr(ledger, job["do"])(job["id"])
        return {"ok": True}
    except OncewardError as error:
        return told(error)


def call(ledger: Ledger, folder: Path, key, amount, probe, verify, wait, dry) -> dict:
    def charge(amount):
        if (folder / "how").read_text() == "stall":
            raise TimeoutError("no answer within 5 s")
        return act(folder)

    options = {"no_effect": Refused, "wait": wait, "name": "act"}
    if key is not None:
        options["key"] = lambda amount: key
    if probe:
        options["probe"] = lambda amount: None
    if verify:
        options["verify"] = lambda result, amount: False
    guarded = ledger.once(**options)(charge)
    done = guarded.plan(amount) if dry else guarded.receipt(amount)
    answer = json.loads(done.to_json())
    agrees(answer, done)
    return answer


def agrees(answer: dict, done) -> None:
    """The properties of a receipt or plan say what its envelope says."""
    error = answer.get("error") or {}
    said = (answer["ran"], answer["effect"])
    assert said == (done.ran, done.effect), (said, done)
    if hasattr(done, "decision"):
        options = [(option["if"], option["command"]) for option in error.get("options", [])]
        said = (answer["decision"], answer.get("happened"), error.get("code"), error.get("retryable", False))
        assert said == (done.decision, done.happened, done.code, done.retryable), (said, done)
        said = (error.get("next"), error.get("fix_command"), options)
        assert said == (done.next, done.fix_command, list(done.options)), (said, done)


def told(error: OncewardError) -> dict:
    """An exception as the envelope that other surfaces give."""
    options = [{"if": found, "command": command} for found, command in error.options]
    view = {name: getattr(error, name) for name in ("code", "happened", "retryable", "next", "fix_command")}
    answer = {
        "ok": False,
        "effect": error.effect,
        "ran": error.ran,
        "happened": error.happened,
        "error": {**view, "options": options},
    }
    if error.operation is not None:
        answer["operation"] = {"id": error.operation.id}
    return answer


print(json.dumps(main(json.loads(sys.argv[1]))))
