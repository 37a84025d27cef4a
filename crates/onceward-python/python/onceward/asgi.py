"""The Idempotency-Key header for FastAPI, Starlette and every other ASGI application.

    app.add_middleware(IdempotencyMiddleware, ledger=ledger)

A request with a key is carried out once. A retry gets the same status, headers and body, and the header
`Idempotent-Replayed: true`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ._http import Headers, key_of, missing, problem, too_large
from ._ledger import Ledger
from ._onceward import canonical
from ._tools import detached
from .errors import Failed, InDoubt, InvalidInput, OncewardError, ResultUnavailable

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Outcome = Literal["done", "failed", "in_doubt"]

# Headers between two hops, or that are new for each response.
_NOT_KEPT = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"date", b"server"})

# Headers that say who calls.
_CREDENTIALS = frozenset(
    {
        b"authorization", b"proxy-authorization", b"x-api-key", b"api-key", b"apikey", b"x-api-token", b"x-auth-token",
        b"x-access-token", b"x-auth-key", b"x-goog-api-key", b"x-session-token",
    }
)  # fmt: skip

# What an application can say about one response, in the header `Once-Happened`.
_HAPPENED: dict[bytes, Outcome] = {b"yes": "done", b"no": "failed", b"unknown": "in_doubt"}


class IdempotencyMiddleware:
    """Carries out each request that has a key once.

    - `ledger`: where requests are recorded. Request bodies are not stored; their fingerprint is.
    - `methods`: the HTTP methods that are guarded. `key`: `"optional"` or `"required"` (400 without a key), or a
      function of the ASGI scope that returns one of them.
    - `scope`: a function of the ASGI scope that returns whose key it is, so that callers never see each other's
      responses. By default, requests with the same credentials share a scope: `Authorization` and the headers of API
      keys and tokens (`X-Api-Key`, `X-Auth-Token`, …). A cookie may be new in each response, so it does not count: an
      application that knows its callers by a cookie gives a function.
    - `wait`: how long a second request waits for the first before it gets 409; by default not at all.
    - `outcomes`: what a status of the application means, e.g. `{503: "failed"}`. By default a status below 400 is done;
      4xx has failed without effect, so the same request may be sent again; 5xx is in doubt. The response header
      `Once-Happened` (`yes`, `no` or `unknown`) says it for one response.
    - `largest_request`, `largest_response`: limits in bytes. A larger request is refused with 413. A larger response is
      sent but not kept, and a retry is answered that the request was carried out.
    - anything else is an option of `Ledger.once`: `ttl`, `class_`, `probe`, …

    A response is held back until it is recorded; of a streamed one, only the end. A client that disconnects does not
    cancel the request.
    """

    def __init__(
        self,
        app: App,
        *,
        ledger: Ledger,
        methods: Collection[str] = ("POST", "PATCH"),
        key: Literal["optional", "required"] | Callable[[Scope], str] = "optional",
        scope: Callable[[Scope], str] | None = None,
        wait: float | str = 0,
        outcomes: Mapping[int, Outcome] | None = None,
        header: str = "Idempotency-Key",
        largest_request: int = 8 * 1024 * 1024,
        largest_response: int = 1024 * 1024,
        **options: Any,
    ) -> None:
        if not callable(key) and key not in ("optional", "required"):
            raise InvalidInput(f"key is {key!r}; it is 'optional', 'required' or a function of the request")
        self.app, self.ledger, self.header = app, ledger, header
        self._methods = frozenset(method.upper() for method in methods)
        self._key, self._scope_of, self._outcomes = key, scope or _caller, outcomes or {}
        self._largest_request, self._largest_response = largest_request, largest_response
        self._options = {"wait": wait, "effect": "created", **options}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] != "http" or scope["method"] not in self._methods:
            return await self.app(scope, receive, send)
        try:
            key = key_of(scope["headers"], self.header)
            if key is None:
                asked = self._key(scope) if callable(self._key) else self._key
                if asked == "required":
                    raise missing(self.header)
                return await self.app(scope, receive, send)
            body = await self._body(receive)
        except OncewardError as error:
            return await _refuse(error, send)
        if body is not None:
            await self._once(scope, body, receive, send, key)

    async def _body(self, receive: Receive) -> bytes | None:
        """The request's whole body; `None` if the client disconnected before it was complete."""
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > self._largest_request:
                raise too_large(self._largest_request)
            if not message.get("more_body", False):
                return b"".join(parts)

    async def _once(self, scope: Scope, body: bytes, receive: Receive, send: Send, key: str) -> None:
        answer = _Answer(send, self._largest_response)
        # A file that the server sends directly could not be recorded.
        plain = {**scope, "extensions": {}} if "http.response.pathsend" in scope.get("extensions", ()) else scope

        async def carried_out() -> dict[str, Any]:
            await answer.complete(self.app(plain, _again(body, receive), answer.take))
            return answer.recorded(self._outcome(answer))

        name = f"{scope['method']} {scope['path']}"
        options = {"no_effect": (_Rejected,), **self._options}
        call = self.ledger.acall(
            name, _inputs(scope, body), lambda: carried_out(), key=key, scope=self._scope_of(scope), **options
        )
        try:
            receipt = await detached(call)
        except (Failed, InDoubt) as error:
            await _failed(error, answer, send)
        except OncewardError as error:
            await _refuse(error, send)
        else:
            await (answer.finish() if not receipt.replayed else _replay(receipt, send))
        # What the application does after its response (background tasks), and errors there, are its own concern.
        if answer.work is not None:
            await answer.work

    def _outcome(self, answer: _Answer) -> Outcome:
        said = next((value for name, value in answer.headers if name.lower() == b"once-happened"), b"")
        if said in _HAPPENED:
            return _HAPPENED[said]
        status = answer.status
        usual: Outcome = "done" if status < 400 else "failed" if status < 500 else "in_doubt"
        return self._outcomes.get(status, usual)


@dataclass
class _Answer:
    """The application's response on its way to the client: recorded, and its end held back until then."""

    send: Send
    largest: int
    status: int = 0
    headers: Headers = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    held: list[Message] = field(default_factory=list)
    started: bool = False
    ended: bool = False
    too_large: bool = False
    work: asyncio.Future[None] | None = None
    whole: asyncio.Event = field(default_factory=asyncio.Event)

    async def complete(self, application: Awaitable[None]) -> None:
        """Runs the application until its response is complete. Raises what it raises before that."""
        self.work = asyncio.ensure_future(application)
        self.work.add_done_callback(lambda _: self.whole.set())
        try:
            await self.whole.wait()
        except asyncio.CancelledError:
            self.work.cancel()
            raise
        if not self.ended:
            work, self.work = self.work, None
            await work

    async def take(self, message: Message) -> None:
        """Takes the application's next message."""
        self.held.append(message)
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], list(message.get("headers", ()))
        elif message["type"] == "http.response.body":
            self._record(message.get("body", b""))
            self.ended = not message.get("more_body", False)
            if self.ended:
                self.whole.set()
            else:
                await self.finish()

    async def finish(self) -> None:
        """Sends what was held back. If the client is gone, the response is still recorded."""
        held, self.held = self.held, []
        for message in held:
            self.started = True
            try:
                await self.send(message)
            except OSError:
                return

    def recorded(self, outcome: Outcome) -> dict[str, Any]:
        """The response as it is stored: without its body if that is too large. Raises if it was not a success."""
        if not self.ended:
            raise RuntimeError("the application ended without a response")
        if outcome != "done":
            kind = _Rejected if outcome == "failed" else _Doubtful
            raise kind(f"the application answered {self.status}")
        kept = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in self.headers]
        headers = [[name, value] for name, value in kept if name.lower().encode() not in _NOT_KEPT]
        body = None if self.too_large else bytes(self.body)
        return {"status": self.status, "headers": headers, "body": body}

    def _record(self, part: bytes) -> None:
        self.too_large = self.too_large or len(self.body) + len(part) > self.largest
        if self.too_large:
            self.body.clear()
        else:
            self.body += part


class _Rejected(Exception):
    """The application says that it did nothing."""


class _Doubtful(Exception):
    """The application failed, and it is unknown what it did."""


async def _failed(error: OncewardError, answer: _Answer, send: Send) -> None:
    """Sends the application's response or raises its exception; if it was not called, sends the ledger's refusal."""
    cause = error.__cause__
    if isinstance(cause, (_Rejected, _Doubtful)):
        await answer.finish()
    elif cause is not None:
        raise cause
    else:
        await _refuse(error, send)


async def _replay(receipt: Any, send: Send) -> None:
    try:
        kept = receipt.value
    except ResultUnavailable:
        kept = None
    # A person who settles a doubt as done has no response to give.
    if not isinstance(kept, dict) or kept.get("body") is None:
        error = ResultUnavailable("the request was carried out, and its response was not kept")
        error.operation = receipt.operation
        return await _refuse(error, send)
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in kept["headers"]]
    await _send(kept["status"], [*headers, (b"idempotent-replayed", b"true")], kept["body"], send)


async def _refuse(error: OncewardError, send: Send) -> None:
    await _send(*problem(error), send)


async def _send(status: int, headers: Headers, body: bytes, send: Send) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _again(body: bytes, receive: Receive) -> Receive:
    """Replays the body to the application, followed by the server's messages."""
    given = False

    async def received() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return received


def _inputs(scope: Scope, body: bytes) -> dict[str, Any]:
    """What identifies a request: its target and its content. JSON is compared by meaning."""
    kind = next((value for name, value in scope["headers"] if name.lower() == b"content-type"), b"").decode("latin-1")
    said: Any = hashlib.sha256(body).hexdigest()
    if kind.partition(";")[0].strip().lower().endswith("json"):
        try:
            meaning = json.loads(body.decode(), object_pairs_hook=_members)
            canonical({"body": meaning})  # Refuses what has no single meaning: NaN, endless depth, endless digits.
            said = meaning
        except (ValueError, RecursionError):
            pass
    return {"query": scope.get("query_string", b"").decode("latin-1"), "body": said}


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object. One that names a member twice has no single meaning, so its text is compared."""
    if len(members := dict(pairs)) != len(pairs):
        raise ValueError("a member is given twice")
    return members


def _caller(scope: Scope) -> str:
    """One caller for each set of credentials; the credentials themselves are not stored."""
    headers = sorted((name.lower(), value) for name, value in scope["headers"])
    shown = [(name, value) for name, value in headers if name in _CREDENTIALS]
    if not shown:
        return "http-anonymous"
    said = hashlib.sha256()
    if [name for name, _ in shown] == [b"authorization"]:
        said.update(shown[0][1])
    else:
        for name, value in shown:
            said.update(b"%s:%d:%s" % (name, len(value), value))
    return f"http-{said.hexdigest()[:32]}"
