"""Webhook events that a program fetches from a running `once serve`."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import OnceServe

from onceward import InvalidInput
from onceward.inbox import Inbox

SECRET = base64.b64encode(b"a secret of these tests").decode()
POLICY = """
[hook.orders]
preset = "standard-webhooks"
secrets = ["@{file}"]
[hook.orders.handler.app]
pull = true
backoff = "10ms"
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OnceServe]:
    secret = tmp_path / "secret"
    secret.write_text(f"whsec_{SECRET}\n")
    started = OnceServe.start(tmp_path, policy=POLICY.format(file=secret))
    yield started
    started.stop()


def send(url: str, name: str, body: dict[str, object]) -> str:
    """Sends an event as the vendor does, and returns what the inbox says about it."""
    content = json.dumps(body).encode()
    timestamp = str(int(time.time()))
    signed = b".".join([name.encode(), timestamp.encode(), content])
    signature = base64.b64encode(hmac.new(base64.b64decode(SECRET), signed, hashlib.sha256).digest()).decode()
    headers = {
        "Content-Type": "application/json",
        "webhook-id": name,
        "webhook-timestamp": timestamp,
        "webhook-signature": f"v1,{signature}",
    }
    request = urllib.request.Request(f"{url}/hooks/orders", content, headers, method="POST")
    with urllib.request.urlopen(request) as response:
        return str(response.headers["Once-Result"])


def test_each_event_is_handled_once(server: OnceServe) -> None:
    inbox = Inbox(server.url)
    for n in range(3):
        assert send(server.url, f"msg_{n}", {"type": "order", "n": n}) == "accepted"
        assert send(server.url, f"msg_{n}", {"type": "order", "n": n}) == "duplicate"
    seen = [(event.id, event.type, event.json()["n"]) for event in inbox.receive("orders", timeout=5)]
    assert seen == [("msg_0", "order", 0), ("msg_1", "order", 1), ("msg_2", "order", 2)]
    assert list(inbox.receive("orders", timeout=0.2)) == []


def test_a_failure_and_an_exception_bring_the_event_again_under_the_same_key(server: OnceServe) -> None:
    inbox = Inbox(server.url)
    send(server.url, "msg_1", {"n": 1})
    keys: list[tuple[int, str]] = []
    for event in inbox.receive("orders", timeout=60):
        keys.append((event.attempt, event.idempotency_key))
        event.fail("the database was locked")
        break
    with pytest.raises(ZeroDivisionError):
        for event in inbox.receive("orders", timeout=60):
            keys.append((event.attempt, event.idempotency_key))
            raise ZeroDivisionError
    for event in inbox.receive("orders", timeout=60):
        keys.append((event.attempt, event.idempotency_key))
        event.ack()
        break
    assert [attempt for attempt, _ in keys] == [1, 2, 3]
    assert len({key for _, key in keys}) == 1


def test_what_cannot_be_fetched_is_refused(server: OnceServe) -> None:
    with pytest.raises(InvalidInput):
        next(iter(Inbox(server.url).receive("nothing", timeout=30)))
    with pytest.raises(InvalidInput):
        Inbox("once.db")
