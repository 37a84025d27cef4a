"""The Idempotency-Key header (draft-ietf-httpapi-idempotency-key-header), and errors as problem details (RFC 9457)."""

from __future__ import annotations

import json
import re
from typing import Any

from .errors import InvalidInput, KeyMissing, OncewardError

Headers = list[tuple[bytes, bytes]]

_QUOTED = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"(?:;.*)?\Z')
_VISIBLE = re.compile(r"[!-~]{1,255}\Z")

# The statuses of the contract. Those where a blind retry must not come are ones that no SDK retries by itself.
_STATUS = {
    "INVALID_INPUT": 400, "KEY_MISSING": 400, "NOT_FOUND": 404, "IN_PROGRESS": 409, "KEY_EXPIRED": 410,
    "CANCELLED": 410,
    "RESULT_UNAVAILABLE": 410, "KEY_REUSED": 422, "WRONG_STATE": 422, "BUDGET_EXHAUSTED": 424, "TIMEOUT": 424,
    "IN_DOUBT": 424, "UNVERIFIED": 424, "FAILED": 502, "LEDGER_UNAVAILABLE": 503, "TOO_LARGE": 413,
}  # fmt: skip
# The titles of the draft, and for the rest our own.
_TITLE = {
    "KEY_MISSING": "Idempotency-Key is missing",
    "INVALID_INPUT": "Idempotency-Key is not valid",
    "KEY_REUSED": "Idempotency-Key is already used",
    "IN_PROGRESS": "A request is outstanding for this Idempotency-Key",
    "IN_DOUBT": "It is not known whether this request was carried out",
    "TIMEOUT": "It is not known whether this request was carried out",
    "RESULT_UNAVAILABLE": "This request was carried out, and its response was not kept",
    "KEY_EXPIRED": "Idempotency-Key has expired",
    "LEDGER_UNAVAILABLE": "Nothing was carried out: the ledger is not available",
}


class TooLarge(InvalidInput):
    """The request's body is larger than what may be held to compare it."""

    code = "TOO_LARGE"


def key_of(headers: Headers, name: str) -> str | None:
    """The key, quoted or bare; `None` where there is none. Raises InvalidInput for what is no key."""
    found = [value for field, value in headers if field.decode("latin-1").lower() == name.lower()]
    if not found:
        return None
    if len(found) > 1:
        raise InvalidInput(f"the header {name} is given {len(found)} times; nothing was carried out")
    said = found[0].decode("latin-1").strip()
    quoted = _QUOTED.match(said)
    key = re.sub(r'\\(["\\])', r"\1", quoted.group(1)) if quoted else said
    if not _VISIBLE.match(key):
        raise InvalidInput(f"the header {name} must be 1 to 255 visible ASCII characters; nothing was carried out")
    return key


def missing(name: str) -> KeyMissing:
    """The error for a request without the key that it needs."""
    said = f"this request needs the header {name}, with a value of your own that a retry sends again"
    return KeyMissing(f"{said}; nothing was carried out")


def problem(error: OncewardError) -> tuple[int, Headers, bytes]:
    """The status, headers and body for an error of the ledger's."""
    status = _STATUS.get(error.code, 500)
    about: dict[str, Any] = {
        "type": f"urn:onceward:{error.code.lower().replace('_', '-')}",
        "title": _TITLE.get(error.code, "The request was refused"),
        "status": status,
        "detail": error.args[0] if error.args else "",
        "code": error.code,
        "happened": error.happened,
        "retryable": error.retryable,
        "retry_after_ms": error.retry_after_ms,
    }
    if error.operation is not None:
        about["operation"] = error.operation.id
    if error.fields:
        about["fields"] = list(error.fields)
    body = json.dumps(about, ensure_ascii=False).encode()
    fields = [(b"content-type", b"application/problem+json"), (b"content-language", b"en")]
    fields += [(b"content-length", str(len(body)).encode()), *_advice(status, error)]
    return status, fields, body


def _advice(status: int, error: OncewardError) -> Headers:
    """What clients that retry by themselves are told."""
    if status in (409, 503):
        seconds = max(1, -(-(error.retry_after_ms or 1000) // 1000))
        return [(b"retry-after", str(seconds).encode())]
    return [(b"x-should-retry", b"false"), (b"stripe-should-retry", b"false")]
