"""A check of a reported success that a `kill -9` interrupted: the next server resumes it."""

import json
import subprocess
import time
import urllib.request

from sdks import Row, free_port, start
from vendor import Vendor


def rows(_name, once, _cache, work, _options):
    for end, expected in (("succeeded", "confirmed"), ("failed", "refuted")):
        yield run(once, work, end, expected)


def run(once, work, end, expected):
    folder = work / f"checks-{end}"
    folder.mkdir()
    with Vendor("stripe", "none", 0) as vendor:
        config, listen = folder / "onceward.toml", f"127.0.0.1:{free_port()}"
        config.write_text(
            f'[upstream.api]\nurl = "{vendor.url}"\npreset = "none"\nallow_private = true\n'
            'check_headers = { authorization = "Bearer server" }\n'
            'verify = { get = "/v1/refunds/{id}", expect = "$.status == \'succeeded\'", '
            'refute = "$.status == \'failed\'", every = "50ms" }\n'
        )
        vendor.refund = "pending"
        process, _ = start(once, folder, config, listen)
        request = urllib.request.Request(f"http://{listen}/gw/api/v1/refunds", data=b"amount=5", method="POST")
        request.add_header("idempotency-key", "k")
        with urllib.request.urlopen(request, timeout=20) as answer:
            before, operation = answer.headers["once-verified"], answer.headers["once-operation"]
        process.kill()
        process.wait()
        vendor.refund = end
        process, _ = start(once, folder, config, listen)
        try:
            found = wait(once, folder, operation)
        finally:
            process.kill()
            process.wait()
        requests = len(vendor.requests)
    holds = (before, found, requests) == ("pending", expected, 1)
    return Row("check, kill -9", end, f"before the kill: {before}", f"after it: {found}, {requests} request", holds)


def wait(once, folder, operation):
    """What the ledger says about the check, as soon as it is not pending."""
    command = [once, "--ledger", f"sqlite:{folder / 'ledger.db'}", "show", "--json", operation]
    for _ in range(100):
        env = {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        text = json.dumps(json.loads(done.stdout))
        for word in ("confirmed", "refuted"):
            if f'"verified": "{word}"' in text:
                return word
        time.sleep(0.05)
    return "pending"
