"""A check of a reported success that a `kill -9` interrupted: the next server resumes it."""

import json
import urllib.request

import kit
from vendor import Vendor


def rows(_name, session):
    for end, expected in (("succeeded", "confirmed"), ("failed", "refuted")):
        with Vendor("stripe", "none", 0) as vendor:
            vendor.refund = "pending"
            yield run(session, vendor, end, expected)


def run(session, vendor, end, expected):
    config = (
        f'[upstream.api]\nurl = "{vendor.url}"\npreset = "none"\nallow_private = true\n'
        'check_headers = { authorization = "Bearer server" }\n'
        'verify = { get = "/v1/refunds/{id}", expect = "$.status == \'succeeded\'", '
        'refute = "$.status == \'failed\'", every = "50ms" }\n'
    )
    with kit.Serve(session.once, config) as serve:
        request = urllib.request.Request(f"{serve.url}/gw/api/v1/refunds", data=b"amount=5", method="POST")
        request.add_header("idempotency-key", "k")
        with urllib.request.urlopen(request, timeout=kit.processes.PATIENCE) as answer:
            before, operation = answer.headers["once-verified"], answer.headers["once-operation"]
        serve.kill()
        vendor.refund = end
        serve.start()
        found = kit.until("the check has ended", lambda: verified(serve, operation), pause=0.1)
    requests = len(vendor.requests)
    holds = (before, found, requests) == ("pending", expected, 1)
    seen = f"before the kill: {before}, after it: {found}, {requests} request"
    return kit.Row("checks", f"kill -9, then {end}", seen, holds)


def verified(serve, operation):
    """What the ledger says about the check, as soon as it is not pending."""
    text = json.dumps(serve.command("show", operation))
    return next((word for word in ("confirmed", "refuted") if f'"verified": "{word}"' in text), None)
