"""Runs the jobs that arrive on stdin, one JSON object in each line, all at the same time, and prints their results.

A job is one prompt: `base` is the base URL, `timeout` the SDK's timeout in seconds, `tries` how often tenacity calls
the SDK, `samples` how many answers are wanted, `together` whether they are wanted at once, `headers` further headers.
"""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import tenacity


def serve(ask):
    with ThreadPoolExecutor(64) as pool:
        for line in sys.stdin:
            pool.submit(_run, ask, json.loads(line))


def _run(ask, job):
    try:
        if job["together"]:
            with ThreadPoolExecutor(job["samples"]) as pool:
                answers = list(pool.map(lambda _: _answer(ask, job), range(job["samples"])))
        else:
            answers = [_answer(ask, job) for _ in range(job["samples"])]
    except BaseException as error:
        answers = [{"error": f"the client failed: {error!r}"}]
    print(json.dumps({"id": job["id"], "answers": answers}), flush=True)


def _answer(ask, job):
    retrying = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(job["tries"]), wait=tenacity.wait_fixed(0.2), reraise=True
    )
    try:
        return {"text": retrying(ask, job)}
    except Exception as error:
        status = getattr(error, "status_code", None) or getattr(error, "code", None)
        return {"error": f"{type(error).__name__}: {error}"[:300], "status": status}
