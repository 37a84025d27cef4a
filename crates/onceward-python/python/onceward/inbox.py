"""Webhook events of a running `once serve`, each once.

    from onceward.inbox import Inbox

    inbox = Inbox("http://127.0.0.1:6270")
    for event in inbox.receive("stripe"):
        book(event.json(), key=event.idempotency_key)

The source needs a handler with `pull = true`; `docs/inbox.md` describes it. An event counts as done when the loop asks
for the next one. An exception, or a `break` without `event.ack()`, leaves it in doubt, because it may have had an
effect. `event.fail("…")` says that it certainly had none. What becomes of a doubt is decided by the handler's class:
`keyed`, the default, delivers the event again with the same `idempotency_key`.
"""

from __future__ import annotations

import base64
import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any

from .errors import InvalidInput, LedgerUnavailable

__all__ = ["Event", "Inbox"]

# How long one request waits for an event, and how long a server that does not answer is waited for before the next try.
_WAIT_S = 20.0
_PAUSE_S = 1.0
_PATIENCE_S = 10.0


class Event:
    """An event that this program has reserved."""

    source: str
    key: str
    id: str | None
    type: str | None
    attempt: int
    idempotency_key: str
    body: bytes
    content_type: str | None
    headers: Mapping[str, str]
    received: str
    occurred: str | None

    def __init__(self, inbox: Inbox, told: Mapping[str, Any]) -> None:
        self._inbox = inbox
        self._operation = str(told["operation"])
        self._token = str(told["token"])
        self._ended = False
        self.source = str(told["source"])
        self.key = str(told["key"])
        self.id = told.get("id")
        self.type = told.get("type")
        self.attempt = int(told["attempt"])
        self.idempotency_key = str(told["idempotency_key"])
        text = told.get("body")
        self.body = text.encode() if text is not None else base64.b64decode(told["body_base64"])
        self.content_type = told.get("content_type")
        self.headers = {str(name): str(value) for name, value in told.get("headers", [])}
        self.received = str(told["received"])
        self.occurred = told.get("occurred")
        self._lease_ms = int(told["lease_ms"])

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    def ack(self) -> None:
        """Say that the event is done. The loop says it too, when the next event is asked for."""
        self._end("finish", {})

    def fail(self, reason: str) -> None:
        """Say that the event certainly had no effect. It is delivered again after a pause."""
        self._end("fail", {"reason": reason, "evidence": "declared"})

    def doubt(self, reason: str) -> None:
        """Say that it is unknown whether the event had an effect. The handler's class decides what follows."""
        self._end("doubt", {"reason": reason})

    def renew(self, lease: float | None = None) -> None:
        """Reserve the event for longer, in seconds. The loop does so too."""
        lease_ms = self._lease_ms if lease is None else int(lease * 1000)
        self._report("renew", {"lease_ms": lease_ms})

    @property
    def ended(self) -> bool:
        """Whether it was reported how the event went."""
        return self._ended

    def _end(self, how: str, more: Mapping[str, Any]) -> None:
        if self._ended:
            return
        self._report(how, more)
        self._ended = True

    def _report(self, how: str, more: Mapping[str, Any]) -> None:
        path = f"/v1/operations/{self._operation}/{how}"
        self._inbox._post(path, {"attempt": self.attempt, "token": self._token, **more})

    def __repr__(self) -> str:
        return f"<Event {self.source} {self.key} {self.type or ''}, attempt {self.attempt}>"


class Inbox:
    """The inbox of a running `once serve`, with the token of a tenant if the server has tenants."""

    def __init__(self, url: str = "http://127.0.0.1:6270", *, token: str | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidInput(f"{url!r} is not the URL of a server")
        self._url = url.rstrip("/")
        self._token = token

    def receive(
        self,
        source: str,
        *,
        handler: str | None = None,
        lease: float = 30.0,
        timeout: float | None = None,
    ) -> Iterator[Event]:
        """The events of a source, one after the other.

        Each event is reserved for `lease` seconds, and its lease is renewed while the loop's body runs. The iterator
        ends when there was no event for `timeout` seconds; without a timeout it waits for ever, also while the server
        restarts.
        """
        last = time.monotonic()
        while True:
            wait = _WAIT_S if timeout is None else max(0.0, min(_WAIT_S, last + timeout - time.monotonic()))
            event = self._receive_one(source, handler, lease, wait, is_patient=timeout is None)
            if event is None:
                if timeout is not None and time.monotonic() - last >= timeout:
                    return
                continue
            yield from self._lend(event, lease)
            last = time.monotonic()

    def _receive_one(
        self, source: str, handler: str | None, lease: float, wait: float, *, is_patient: bool
    ) -> Event | None:
        request: dict[str, Any] = {"max": 1, "lease_ms": int(lease * 1000), "wait_ms": int(wait * 1000)}
        if handler is not None:
            request["handler"] = handler
        path = f"/v1/inbox/{urllib.parse.quote(source, safe='')}/receive"
        try:
            told = self._post(path, request, patience=wait + _PATIENCE_S)
        except LedgerUnavailable:
            if not is_patient:
                raise
            time.sleep(_PAUSE_S)
            return None
        events = told["events"]
        return Event(self, events[0]) if events else None

    def _lend(self, event: Event, lease: float) -> Iterator[Event]:
        """Lends an event to the loop, and reports how its body went."""
        over = threading.Event()

        def renew() -> None:
            while not over.wait(lease / 3):
                try:
                    event.renew(lease)
                except Exception:
                    # A lease that cannot be renewed lapses; the report at the end is still accepted.
                    continue

        keeper = threading.Thread(target=renew, name="onceward-inbox", daemon=True)
        keeper.start()
        try:
            yield event
        except GeneratorExit:
            # An exception in the body of a loop arrives here too.
            over.set()
            event.doubt("the program left the loop before it reported how the event went")
            raise
        finally:
            over.set()
        event.ack()

    def _post(self, path: str, body: Mapping[str, Any], *, patience: float = _PATIENCE_S) -> Any:
        headers = {"Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        request = urllib.request.Request(self._url + path, json.dumps(body).encode(), headers, method="POST")
        try:
            with urllib.request.urlopen(request, timeout=patience) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            told = _problem(error)
            kind = LedgerUnavailable if error.code >= 500 else InvalidInput
            raise kind(f"{self._url} answered with {error.code}: {told}") from None
        except (OSError, ValueError) as error:
            raise LedgerUnavailable(f"{self._url} cannot be reached: {error}") from error


def _problem(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error).get("detail"))
    except ValueError:
        return "no reason"
