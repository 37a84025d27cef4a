"""The Idempotency-Key header (draft-ietf-httpapi-idempotency-key-header), and errors as problem details (RFC 9457).

The texts and statuses are the native module's, so that the Rust layer and this middleware answer alike.
"""

from __future__ import annotations

from . import _onceward
from .errors import InvalidInput, KeyMissing, OncewardError

Headers = list[tuple[bytes, bytes]]


class TooLarge(InvalidInput):
    """The request's body is larger than the limit for comparing it."""

    code = "TOO_LARGE"


def key_of(headers: Headers, name: str) -> str | None:
    """The key, quoted or bare; `None` without the header. Raises InvalidInput if the header is malformed."""
    found = [value for field, value in headers if field.decode("latin-1").lower() == name.lower()]
    return _onceward.idempotency_key(name, found)


def missing(name: str) -> KeyMissing:
    """The error for a request without the key that it needs."""
    return KeyMissing(_onceward.key_missing(name))


def too_large(most: int) -> TooLarge:
    """The error for a request whose body is too large to compare."""
    return TooLarge(_onceward.body_too_large(most))


def problem(error: OncewardError) -> tuple[int, Headers, bytes]:
    """The status, headers and body for an error of the ledger."""
    message = str(error.args[0]) if error.args else ""
    operation = None if error.operation is None else error.operation.id
    return _onceward.api_problem(error.code, message, error.happened, error.retryable, operation, list(error.fields))
