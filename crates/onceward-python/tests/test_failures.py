"""Failures without effect: real libraries against servers that refuse, stay silent, reset or answer."""

from __future__ import annotations

import asyncio
import http.client
import importlib
import smtplib
import socket
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import aiohttp
import boto3
import botocore.config
import botocore.exceptions
import grpc
import httpx
import pytest
import requests
import stripe
import urllib3
from loopback import failing
from loopback import http as http_answer

from onceward import Failed, InDoubt, Ledger, OncewardError
from onceward.failures import TABLE, classify

# How long a client waits for an answer, and for one that never comes.
WAIT_S, SILENCE_S = 60.0, 2.0

# Otherwise the first request of a user writes a file with an id, and a function that wrote one may have had an effect.
stripe.enable_telemetry = False


def by_requests(port: int) -> None:
    requests.post(f"http://127.0.0.1:{port}/", data=b"x", timeout=WAIT_S).raise_for_status()


def by_httpx(port: int) -> None:
    httpx.post(f"http://127.0.0.1:{port}/", content=b"x", timeout=WAIT_S, trust_env=False).raise_for_status()


def by_urllib3(port: int) -> None:
    with urllib3.PoolManager() as pool:
        pool.request("POST", f"http://127.0.0.1:{port}/", body=b"x", timeout=WAIT_S, retries=False)


def by_urllib3_with_retries(port: int) -> None:
    with urllib3.PoolManager() as pool:
        pool.request("POST", f"http://127.0.0.1:{port}/", body=b"x", timeout=WAIT_S, retries=1)


def by_urllib(port: int) -> None:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", data=b"x", timeout=WAIT_S).close()
    except urllib.error.HTTPError as answer:
        answer.close()
        raise


def by_http_client(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    try:
        connection.request("POST", "/", b"x")
        connection.getresponse()
    finally:
        connection.close()


def by_aiohttp(port: int) -> None:
    async def post() -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60, sock_read=WAIT_S)) as session:
            async with session.post(f"http://127.0.0.1:{port}/", data=b"x") as response:
                response.raise_for_status()

    asyncio.run(post())


def by_boto3(port: int) -> None:
    config = botocore.config.Config(read_timeout=WAIT_S, connect_timeout=WAIT_S, retries={"total_max_attempts": 1})
    client = boto3.client(
        "sqs", region_name="eu-central-1", endpoint_url=f"http://127.0.0.1:{port}", config=config,
        aws_access_key_id="test", aws_secret_access_key="test",
    )  # fmt: skip
    try:
        client.send_message(QueueUrl=f"http://127.0.0.1:{port}/q", MessageBody="x")
    finally:
        client.close()


def by_stripe(port: int) -> None:
    # The library wraps every error of its transport in one class, whether a byte was sent or not.
    requestor = stripe.RequestsClient(timeout=WAIT_S)
    client = stripe.StripeClient(
        "sk_test_x", http_client=requestor, base_addresses={"api": f"http://127.0.0.1:{port}"}, max_network_retries=0
    )
    try:
        client.v1.customers.create({"name": "x"})
    finally:
        requestor.close()


def by_smtplib(port: int) -> None:
    with smtplib.SMTP("127.0.0.1", port, timeout=WAIT_S) as smtp:
        smtp.sendmail("a@example.com", ["b@example.com"], "x")


def by_grpc(port: int) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/a/b", request_serializer=bytes, response_deserializer=bytes)
        call(b"x", timeout=WAIT_S * 2)


def by_socket(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as connection:
        connection.sendall(b"x")
        if not connection.recv(1):
            raise ConnectionResetError("closed")


HTTP = [by_requests, by_httpx, by_urllib3, by_urllib, by_http_client, by_aiohttp]
ALL = [*HTTP, by_urllib3_with_retries, by_boto3, by_smtplib, by_stripe, by_socket]


def outcome(ledger: Ledger, send: Callable[[int], None], how: str, answer: bytes = b"") -> OncewardError:
    """What the ledger records for a call that ends in this way."""
    global WAIT_S
    WAIT_S = SILENCE_S if how == "silence" else 60.0
    with failing(how, answer) as port:
        guarded = ledger.once(name=send.__name__, volatile=["port"])(send)
        with pytest.raises(OncewardError) as ended:
            guarded(port)
    return ended.value


@pytest.mark.parametrize("send", ALL)
def test_a_refused_connection_had_no_effect(ledger: Ledger, send: Callable[[int], None]) -> None:
    ended = outcome(ledger, send, "refused")
    assert isinstance(ended, Failed) and ended.retryable, repr(ended.__cause__)


@pytest.mark.parametrize("send", [*ALL, by_grpc])
def test_silence_after_the_request_is_in_doubt(ledger: Ledger, send: Callable[[int], None]) -> None:
    ended = outcome(ledger, send, "silence")
    if send is by_smtplib:
        # The server sent no greeting, so it cannot have accepted a mail; in doubt is correct as well.
        assert isinstance(ended, (InDoubt, Failed))
        return
    assert isinstance(ended, InDoubt) and not ended.retryable, repr(ended.__cause__)


@pytest.mark.parametrize("send", [*HTTP, by_boto3, by_stripe, by_grpc, by_socket])
@pytest.mark.parametrize("how", ["reset", "close"])
def test_a_connection_lost_after_the_request_is_in_doubt(ledger: Ledger, send: Callable[[int], None], how: str) -> None:
    ended = outcome(ledger, send, how)
    assert isinstance(ended, InDoubt), repr(ended.__cause__)


@pytest.mark.parametrize("send", [by_requests, by_httpx, by_aiohttp, by_urllib])
@pytest.mark.parametrize(
    ("status", "certain"),
    [(400, True), (403, True), (422, True), (429, True), (500, False), (503, False), (408, False), (409, False)],
)
def test_a_status_says_what_it_says(ledger: Ledger, send: Callable[[int], None], status: int, certain: bool) -> None:
    ended = outcome(ledger, send, "answer", http_answer(status))
    assert isinstance(ended, Failed if certain else InDoubt), repr(ended.__cause__)


def test_a_name_that_is_not_found_had_no_effect(ledger: Ledger) -> None:
    @ledger.once
    def send() -> None:
        socket.getaddrinfo("nowhere.invalid", 80)

    with pytest.raises(Failed):
        send()


def test_tls_that_fails_had_no_effect(ledger: Ledger) -> None:
    error = ssl.SSLCertVerificationError("self-signed certificate")
    wrapped = requests.exceptions.SSLError(
        urllib3.exceptions.MaxRetryError(None, "/", urllib3.exceptions.SSLError(error))
    )  # type: ignore[arg-type]
    assert classify(error) == classify(wrapped) == "unsent"
    assert classify(ssl.SSLError("bad record mac")) is None


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (stripe.CardError("declined", None, "card_declined"), "vendor"),
        (stripe.RateLimitError("slow down"), "vendor"),
        (stripe.APIConnectionError("lost"), "in_doubt"),
        (stripe.APIError("500"), "in_doubt"),
        (botocore.exceptions.ClientError({"Error": {"Code": "ThrottlingException"}}, "Send"), "vendor"),
        (botocore.exceptions.ClientError({"Error": {"Code": "InternalError"}}, "Send"), "in_doubt"),
        (botocore.exceptions.NoCredentialsError(), "unsent"),
        (smtplib.SMTPRecipientsRefused({}), "before_data"),
        (smtplib.SMTPServerDisconnected("gone"), "in_doubt"),
        (httpx.PoolTimeout("full"), "unsent"),
        (TimeoutError(), "timed_out"),
        (ValueError("anything"), None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)  # fmt: skip
def test_what_an_exception_says(error: Exception, verdict: str | None) -> None:
    assert classify(error) == verdict


def test_every_class_in_the_table_exists() -> None:
    """Otherwise a library that renames a class would silently put everything in doubt."""
    missing = []
    for name in TABLE:
        module, _, kind = name.rpartition(".")
        if module in ("httpx2", "httpcore2"):
            # The same classes as those of httpx and httpcore.
            continue
        if name == "asyncio.exceptions.TimeoutError":
            # Python's own from 3.11 on.
            continue
        found: Any = getattr(importlib.import_module(module), kind, None)
        if found is None or f"{found.__module__}.{found.__qualname__}" != name:
            missing.append((name, found))
    assert not missing


def test_the_next_generation_of_httpx_is_known(ledger: Ledger) -> None:
    if sys.version_info < (3, 11):
        # It does not support older versions.
        return
    httpx2 = importlib.import_module("httpx2")

    def send(port: int) -> None:
        httpx2.post(f"http://127.0.0.1:{port}/", content=b"x", timeout=WAIT_S, trust_env=False).raise_for_status()

    assert isinstance(outcome(ledger, send, "refused"), Failed)
    assert isinstance(outcome(Ledger("memory:"), send, "answer", http_answer(429)), Failed)
    assert isinstance(outcome(Ledger("memory:"), send, "answer", http_answer(500)), InDoubt)
    for name, evidence in TABLE.items():
        module, _, kind = name.rpartition(".")
        if module == "httpx2" and evidence == "unsent":
            assert classify(getattr(httpx2, kind)("x")) == "unsent", name
