"""The Idempotency-Key header with a bare ASGI application: keys, limits, streams, and clients that disconnect."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest

from onceward import InvalidInput, Ledger
from onceward._http import key_of
from onceward.asgi import IdempotencyMiddleware, _caller

Sent = list[dict[str, Any]]


async def asked(app: Any, body: bytes = b"{}", *, key: str | None = "k", path: str = "/pay", send: Any = None) -> Sent:
    """Sends one request; returns the messages of the response."""
    headers = [(b"content-type", b"application/json"), *([(b"idempotency-key", key.encode())] if key else [])]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    parts = [{"type": "http.request", "body": body[:1], "more_body": True}, {"type": "http.request", "body": body[1:]}]
    sent: Sent = []

    async def receive() -> dict[str, Any]:
        return parts.pop(0) if parts else {"type": "http.disconnect"}

    async def collect(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send or collect)
    return sent


def answering(*parts: bytes, status: int = 200) -> tuple[Any, list[bytes]]:
    """An application that answers with these parts, and the bodies that it received."""
    seen: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((await receive())["body"])
        await send({"type": "http.response.start", "status": status, "headers": [(b"x-a", b"1"), (b"date", b"then")]})
        for index, part in enumerate(parts):
            await send({"type": "http.response.body", "body": part, "more_body": index + 1 < len(parts)})

    return app, seen


@pytest.mark.parametrize(
    ("header", "key"),
    [
        ("abc", "abc"), ('"abc"', "abc"), ('"a\\"b"', 'a"b'), ('"abc";v=1', "abc"), (" abc ", "abc"),
        ("a" * 255, "a" * 255),
        ("", None), ('""', None), ("a b", None), ('"a b"', None), ("ü", None), ("a" * 256, None),
    ],
)  # fmt: skip
def test_a_key_is_taken_quoted_and_bare(header: str, key: str | None) -> None:
    headers = [(b"Idempotency-Key", header.encode("latin-1"))]
    if key is None:
        with pytest.raises(InvalidInput):
            key_of(headers, "idempotency-key")
    else:
        assert key_of(headers, "idempotency-key") == key
    with pytest.raises(InvalidInput, match="2 times"):
        key_of(headers * 2, "idempotency-key")


def test_a_replay_is_the_first_answer(ledger: Ledger) -> None:
    inner, seen = answering(b"paid")
    app = IdempotencyMiddleware(inner, ledger=ledger)
    first, again = asyncio.run(asked(app, b'{"a": 1}')), asyncio.run(asked(app, b'{"a":1.0}'))
    assert seen == [b'{"a": 1}']
    assert first[1]["body"] == again[1]["body"] == b"paid" and again[0]["status"] == 200
    assert again[0]["headers"] == [(b"x-a", b"1"), (b"idempotent-replayed", b"true")]
    other = asyncio.run(asked(app, b'{"a": 2}'))
    assert other[0]["status"] == 422 and json.loads(other[1]["body"])["fields"] == ["/body/a"]


def test_without_a_key_nothing_is_recorded(ledger: Ledger) -> None:
    inner, seen = answering(b"paid")
    app = IdempotencyMiddleware(inner, ledger=ledger)
    for _ in range(2):
        asyncio.run(asked(app, key=None))
    # The application decides how much of the body it reads: here only the first part.
    assert seen == [b"{", b"{"] and list(ledger.operations()) == []
    strict = IdempotencyMiddleware(inner, ledger=ledger, key="required")
    assert asyncio.run(asked(strict, key=None))[0]["status"] == 400 and len(seen) == 2
    with pytest.raises(InvalidInput):
        IdempotencyMiddleware(inner, ledger=ledger, key="always")  # type: ignore[arg-type]


def test_the_end_of_a_stream_is_held_back_until_it_is_recorded(ledger: Ledger) -> None:
    inner, _ = answering(b"a", b"b", b"c")
    app = IdempotencyMiddleware(inner, ledger=ledger)
    states: list[tuple[bytes, str]] = []

    async def send(message: dict[str, Any]) -> None:
        (record,) = ledger.operations()
        states.append((message.get("body", b"start"), record.state))

    asyncio.run(asked(app, send=send))
    assert states == [(b"start", "running"), (b"a", "running"), (b"b", "running"), (b"c", "done")]
    assert asyncio.run(asked(app))[1]["body"] == b"abc"


def test_a_client_that_left_does_not_break_the_request_off(ledger: Ledger) -> None:
    inner, seen = answering(b"a", b"b")
    app = IdempotencyMiddleware(inner, ledger=ledger)

    async def gone(message: dict[str, Any]) -> None:
        raise OSError("the client is gone")

    asyncio.run(asked(app, send=gone))
    assert asyncio.run(asked(app))[1]["body"] == b"ab" and len(seen) == 1


@pytest.mark.parametrize(
    ("status", "outcomes", "again", "runs"),
    [
        (302, {}, 302, 1),
        (404, {}, 404, 2),
        (500, {}, 424, 1),
        (503, {503: "failed"}, 503, 2),
        (409, {409: "done"}, 409, 1),
    ],
)
def test_what_a_status_means(ledger: Ledger, status: int, outcomes: Any, again: int, runs: int) -> None:
    inner, seen = answering(b"said", status=status)
    app = IdempotencyMiddleware(inner, ledger=ledger, outcomes=outcomes)
    assert asyncio.run(asked(app))[0]["status"] == status
    assert asyncio.run(asked(app))[0]["status"] == again and len(seen) == runs


def test_what_is_too_large_says_so_and_does_not_run_again(ledger: Ledger) -> None:
    inner, seen = answering(b"x" * 11)
    app = IdempotencyMiddleware(inner, ledger=ledger, largest_request=10, largest_response=10)
    assert asyncio.run(asked(app, b"y" * 11))[0]["status"] == 413 and seen == []
    first, again = asyncio.run(asked(app)), asyncio.run(asked(app))
    assert first[1]["body"] == b"x" * 11 and again[0]["status"] == 410 and len(seen) == 1
    assert json.loads(again[1]["body"])["happened"] == "yes"


def test_what_comes_after_the_answer_does_not_hold_it_back(ledger: Ledger) -> None:
    heard: list[str] = []

    async def main() -> None:
        sent = asyncio.Event()

        async def inner(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 202, "headers": []})
            await send({"type": "http.response.body", "body": b"accepted"})
            await sent.wait()
            heard.append("background")

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.body":
                heard.append(message["body"].decode())
                sent.set()

        await asyncio.wait_for(asked(IdempotencyMiddleware(inner, ledger=ledger), send=send), 20)

    asyncio.run(main())
    assert heard == ["accepted", "background"]


def test_an_exception_of_the_application_is_its_own(ledger: Ledger) -> None:
    async def inner(scope: Any, receive: Any, send: Any) -> None:
        with socket.socket() as line:
            line.connect(("127.0.0.1", 1))

    app = IdempotencyMiddleware(inner, ledger=ledger)
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            asyncio.run(asked(app))
    (record,) = ledger.operations()
    assert record.state == "failed" and record.attempt == 2


def test_callers_are_told_apart_by_every_credential() -> None:
    def caller(*headers: tuple[str, str]) -> str:
        return _caller({"headers": [(name.encode(), value.encode()) for name, value in headers]})

    alice, bob = (("x-api-key", "alice"), ("x-api-key", "bob"))
    everyone = [
        caller(),
        caller(alice),
        caller(bob),
        caller(("authorization", "Bearer a")),
        caller(("authorization", "Bearer a"), alice),
        caller(("authorization", "Bearer a"), bob),
    ]
    assert len(set(everyone)) == len(everyone)
    assert caller(alice, ("cookie", "seen=1")) == caller(("cookie", "seen=2"), ("X-Api-Key", "alice"))
    # A response may set a cookie, so a retry may bring one that the first request did not have.
    assert caller(("accept", "text/html")) == caller(("cookie", "sid=alice")) == caller()
