"""The Idempotency-Key header: a real FastAPI application on uvicorn, with httpx as the client."""

import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import rig
from rig import Run, scenario

SHOP = Path(__file__).with_name("shop.py")
KEY = {"Idempotency-Key": "k-1"}
ORDER = {"order": "o-1", "amount": 5}


@contextmanager
def shop(run: Run):
    """The shop in a separate process: a client for it, and the process."""
    port = run.folder / f"port-{time.monotonic_ns()}"
    place = str(run.folder / "agent.db") if run.guarded else "-"
    process = subprocess.Popen([sys.executable, str(SHOP), place, str(run.world.file), str(port)])
    try:
        until(port.exists, process)
        with httpx.Client(base_url=f"http://127.0.0.1:{port.read_text()}", timeout=20) as client:
            until(lambda: ready(client), process)
            yield client, process
    finally:
        process.kill()
        process.wait()


def until(holds, process=None) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert process is None or process.poll() is None, "the shop ended"
        assert time.monotonic() < deadline, "it took too long"
        time.sleep(0.01)


def ready(client) -> bool:
    try:
        return client.get("/").status_code == 200
    except httpx.TransportError:
        return False


def problem(response, status: int, code: str) -> dict:
    """Checks that the response is this problem, and returns it."""
    assert response.status_code == status, (response, response.text)
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["code"] == code, response.json()
    if status in (409, 503):
        assert int(response.headers["retry-after"]) >= 1 and "x-should-retry" not in response.headers
    else:
        assert response.headers["x-should-retry"] == "false" and "retry-after" not in response.headers
    return response.json()


@scenario("a retry gets the same status, headers and body; the key quoted or bare", bare=3)
def replayed(run: Run):
    with shop(run) as (client, _):
        first = client.post("/charges", json=ORDER, headers=KEY)
        second = client.post("/charges", json=ORDER, headers={"idempotency-key": '"k-1"'})
        # Equivalent: fields in another order, other white space.
        body = b'{ "amount": 5.0, "order":"o-1" }'
        third = client.post("/charges", content=body, headers={**KEY, "content-type": "application/json"})
    assert first.status_code == 201
    if run.guarded:
        for again in (second, third):
            assert (again.status_code, again.content) == (201, first.content)
            assert again.headers["x-charge"] == "o-1 is number 1" and again.headers["set-cookie"] == "a=1"
            assert again.headers["idempotent-replayed"] == "true"
        assert "idempotent-replayed" not in first.headers


@scenario("two requests at once: the second is told to retry, and then gets the answer", bare=2)
def at_once(run: Run):
    answers = []
    slow = {**ORDER, "mode": "slow"}
    with shop(run) as (client, _):
        thread = threading.Thread(target=lambda: answers.append(client.post("/charges", json=slow, headers=KEY)))
        thread.start()
        until(lambda: run.world.effects == 1)
        go = Path(f"{run.world.file}.go")
        if run.guarded:
            told = problem(client.post("/charges", json=slow, headers=KEY), 409, "IN_PROGRESS")
            assert told["title"] == "A request is outstanding for this Idempotency-Key"
        go.touch()
        thread.join()
        again = client.post("/charges", json=slow, headers=KEY)
    assert again.status_code == answers[0].status_code == 201
    assert not run.guarded or again.content == answers[0].content


@scenario("a server that is killed between the effect and the answer", bare=2)
def killed(run: Run):
    dies = {**ORDER, "mode": "dies"}
    with shop(run) as (client, process):
        try:
            client.post("/charges", json=dies, headers=KEY)
            raise AssertionError("the server should be dead")
        except httpx.RemoteProtocolError:
            process.wait()
    with shop(run) as (client, _):
        try:
            again = client.post("/charges", json=dies, headers=KEY)
        except httpx.RemoteProtocolError:
            assert not run.guarded
        else:
            told = problem(again, 424, "IN_DOUBT")
            assert told["happened"] == "unknown" and not told["retryable"]


@scenario("a client that gives up: its request is carried out, and its retry gets the answer", bare=2)
def gave_up(run: Run):
    slow = {**ORDER, "mode": "slow"}
    with shop(run) as (client, _):
        try:
            client.post("/charges", json=slow, headers=KEY, timeout=0.3)
            raise AssertionError("it should have timed out")
        except httpx.ReadTimeout:
            pass
        until(lambda: run.world.effects == 1)
        Path(f"{run.world.file}.go").touch()
        # A 409 says when to retry.
        for _ in range(500):
            again = client.post("/charges", json=slow, headers=KEY)
            if again.status_code != 409:
                break
            time.sleep(0.01)
    assert again.status_code == 201, again.text


@scenario("another body or caller with the same key; a key that is missing or none", bare=None, guarded=2)
def refused(run: Run):
    with shop(run) as (client, _):
        client.post("/charges", json=ORDER, headers=KEY)
        told = problem(client.post("/charges", json={**ORDER, "amount": 6}, headers=KEY), 422, "KEY_REUSED")
        assert told["fields"] == ["/body/amount"] and told["title"] == "Idempotency-Key is already used"
        missing = problem(client.post("/strict", json=ORDER), 400, "KEY_MISSING")
        assert missing["title"] == "Idempotency-Key is missing"
        for wrong in ("", '""', "a b", '"é"'.encode("latin-1"), "x" * 256):
            problem(client.post("/charges", json=ORDER, headers={"Idempotency-Key": wrong}), 400, "INVALID_INPUT")
        other = client.post("/charges", json=ORDER, headers={**KEY, "authorization": "Bearer other"})
        assert other.status_code == 201 and "idempotent-replayed" not in other.headers


@scenario("what the application's own failures mean", bare=None, guarded=1)
def failures(run: Run):
    with shop(run) as (client, _):

        def post(key: str, mode: str):
            return client.post("/charges", json={**ORDER, "mode": mode}, headers={"Idempotency-Key": key})

        # The application says that nothing happened: the same request may be sent again.
        assert [post("k-2", "declined").status_code for _ in range(2)] == [402, 402]
        assert [post("k-3", "closed").status_code for _ in range(2)] == [500, 500]
        assert run.world.effects == 0
        # A 500 proves nothing: it is forwarded, and not retried.
        assert post("k-4", "breaks").status_code == 500
        problem(post("k-4", "breaks"), 424, "IN_DOUBT")


@scenario("a streamed response is replayed; one that is too large is not carried out again", bare=None, guarded=2)
def streamed(run: Run):
    with shop(run) as (client, _):
        first, second = (client.post("/report?size=100", headers=KEY) for _ in range(2))
        assert first.content == second.content and second.headers["idempotent-replayed"] == "true"
        assert len(first.content) == 290 and second.headers["content-type"].startswith("text/csv")
        large = client.post("/report?size=9000", headers={"Idempotency-Key": "k-2"})
        assert large.status_code == 200 and len(large.content) > 10_000
        again = client.post("/report?size=9000", headers={"Idempotency-Key": "k-2"})
        assert problem(again, 410, "RESULT_UNAVAILABLE")["happened"] == "yes"


rig.main("FastAPI")
