"""Decides which failures definitely had no effect: what an exception proves, and what else was sent.

An exception of a known client is evidence about one request. It counts only if the guard has observed (`_watch`) that
this was the only request: not after another request, a redirect or a client's own retry, not while a task or thread is
still running, and not if a process was started or a file written. Everything else is in doubt.

Classes are matched by name, so no library is imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, Literal

from .errors import Failed, InvalidInput, KeyMissing, NotDispatched, OncewardError

if TYPE_CHECKING:
    from ._watch import Trace

Verdict = Literal["not_started", "not_sent", "refused", "declared", "in_doubt", "timed_out"]
"""Why a failure certainly had no effect, or that it may have had one."""
Evidence = Literal["unsent", "rejected", "vendor", "before_data", "mail", "rpc", "in_doubt", "timed_out"]

UNSENT: Final = "unsent"
"""The request could not be sent: proof, if no byte was sent."""
REJECTED: Final = "rejected"
"""A status with which a server says that it did nothing: proof, if it answered the only request."""
VENDOR: Final = "vendor"
"""The same, with a vendor's own code."""
BEFORE_DATA: Final = "before_data"
"""A mail server's refusal before a mail was transmitted."""
MAIL: Final = "mail"
"""A mail server's refusal of the mail itself."""
RPC: Final = "rpc"
"""A gRPC status with which a server says that it did nothing."""
IN_DOUBT: Final = "in_doubt"
TIMED_OUT: Final = "timed_out"

# From the name of a class to what it proves. The most specific listed class of an exception decides.
TABLE: dict[str, Evidence] = {
    # Python itself. A refused connection and an unknown host name occur before the first byte.
    "builtins.ConnectionRefusedError": UNSENT,
    "socket.gaierror": UNSENT,
    "builtins.ConnectionResetError": IN_DOUBT,
    "builtins.BrokenPipeError": IN_DOUBT,
    "builtins.TimeoutError": TIMED_OUT,
    "asyncio.exceptions.TimeoutError": TIMED_OUT,
    "ssl.SSLCertVerificationError": UNSENT,
    "http.client.RemoteDisconnected": IN_DOUBT,
    "http.client.InvalidURL": UNSENT,
    # smtplib: an error before DATA was accepted sent no mail.
    "smtplib.SMTPConnectError": BEFORE_DATA,
    "smtplib.SMTPHeloError": BEFORE_DATA,
    "smtplib.SMTPAuthenticationError": BEFORE_DATA,
    "smtplib.SMTPNotSupportedError": BEFORE_DATA,
    "smtplib.SMTPSenderRefused": BEFORE_DATA,
    "smtplib.SMTPRecipientsRefused": BEFORE_DATA,
    "smtplib.SMTPDataError": MAIL,
    "smtplib.SMTPServerDisconnected": IN_DOUBT,
    # urllib3
    "urllib3.exceptions.NewConnectionError": UNSENT,
    "urllib3.exceptions.NameResolutionError": UNSENT,
    "urllib3.exceptions.ConnectTimeoutError": UNSENT,
    "urllib3.exceptions.LocationParseError": UNSENT,
    "urllib3.exceptions.ReadTimeoutError": TIMED_OUT,
    "urllib3.exceptions.ProtocolError": IN_DOUBT,
    # requests
    "requests.exceptions.ConnectTimeout": UNSENT,
    "requests.exceptions.InvalidURL": UNSENT,
    "requests.exceptions.InvalidSchema": UNSENT,
    "requests.exceptions.MissingSchema": UNSENT,
    "requests.exceptions.InvalidHeader": UNSENT,
    "requests.exceptions.ReadTimeout": TIMED_OUT,
    "requests.exceptions.ChunkedEncodingError": IN_DOUBT,
    # httpx and httpcore. If the pool provided no connection in time, nothing was sent.
    "httpx.ConnectError": UNSENT,
    "httpx.ConnectTimeout": UNSENT,
    "httpx.PoolTimeout": UNSENT,
    "httpx.UnsupportedProtocol": UNSENT,
    "httpx.InvalidURL": UNSENT,
    "httpx.ReadTimeout": TIMED_OUT,
    "httpx.WriteTimeout": TIMED_OUT,
    "httpx.NetworkError": IN_DOUBT,
    "httpx.RemoteProtocolError": IN_DOUBT,
    "httpcore.ConnectError": UNSENT,
    "httpcore.ConnectTimeout": UNSENT,
    "httpcore.PoolTimeout": UNSENT,
    # aiohttp
    "aiohttp.client_exceptions.ClientConnectorError": UNSENT,
    "aiohttp.client_exceptions.ConnectionTimeoutError": UNSENT,
    "aiohttp.client_exceptions.InvalidURL": UNSENT,
    "aiohttp.client_exceptions.ServerTimeoutError": TIMED_OUT,
    "aiohttp.client_exceptions.SocketTimeoutError": TIMED_OUT,
    "aiohttp.client_exceptions.ServerDisconnectedError": IN_DOUBT,
    "aiohttp.client_exceptions.ClientOSError": IN_DOUBT,
    # botocore
    "botocore.exceptions.EndpointConnectionError": UNSENT,
    "botocore.exceptions.ConnectTimeoutError": UNSENT,
    "botocore.exceptions.NoCredentialsError": UNSENT,
    "botocore.exceptions.PartialCredentialsError": UNSENT,
    "botocore.exceptions.NoRegionError": UNSENT,
    "botocore.exceptions.ParamValidationError": UNSENT,
    "botocore.exceptions.ReadTimeoutError": TIMED_OUT,
    "botocore.exceptions.ConnectionClosedError": IN_DOUBT,
    # Stripe documents that these were rejected before execution. It does not say so about an API error.
    "stripe._error.CardError": VENDOR,
    "stripe._error.InvalidRequestError": VENDOR,
    "stripe._error.AuthenticationError": VENDOR,
    "stripe._error.PermissionError": VENDOR,
    "stripe._error.RateLimitError": VENDOR,
    "stripe._error.APIError": IN_DOUBT,
}
# The same classes under the names of the library's next generation.
TABLE |= {
    name.replace("httpx.", "httpx2.").replace("httpcore.", "httpcore2."): evidence
    for name, evidence in list(TABLE.items())
    if name.startswith(("httpx.", "httpcore."))
}

UNOBSERVED: set[str] = {
    # Clients of HTTP with curl, or with a stack in Rust or Go.
    "curl_cffi", "httpr", "hrequests", "primp", "pycurl", "pyreqwest", "rnet", "tls_client", "wreq",
    # Queues, workflows and stores.
    "awscrt", "confluent_kafka", "glide", "glide_shared", "obstore", "opendal", "pulsar", "temporalio", "zmq",
    # Databases that write without Python's files and sockets.
    "chdb", "deltalake", "duckdb", "kuzu", "lancedb", "libsql", "rocksdict",
}  # fmt: skip
"""Modules that send or write without the interpreter's sockets. While one of them is loaded, a failure of another
client proves nothing, unless `known_failures=True` is given: the function may have used both. Add your own."""

# Statuses which say that nothing was executed, from any server. 408 and 409 prove nothing.
_REJECTED = frozenset({400, 401, 403, 404, 405, 406, 410, 411, 413, 414, 415, 416, 417, 422, 426, 428, 429, 431})

# AWS error codes of requests that were rejected before execution.
_AWS_REJECTED = frozenset(
    {
        "AccessDenied",
        "AccessDeniedException",
        "ExpiredToken",
        "InvalidSignatureException",
        "SignatureDoesNotMatch",
        "ThrottlingException",
        "Throttling",
        "TooManyRequestsException",
        "UnrecognizedClientException",
        "ValidationException",
    }
)

# gRPC statuses of rejected calls. RESOURCE_EXHAUSTED and UNIMPLEMENTED may come from the client, for a response that
# it cannot handle, and UNAVAILABLE may occur after the request was sent.
_GRPC: dict[str, Evidence] = {
    "INVALID_ARGUMENT": RPC,
    "FAILED_PRECONDITION": RPC,
    "OUT_OF_RANGE": RPC,
    "UNAUTHENTICATED": RPC,
    "PERMISSION_DENIED": RPC,
    "NOT_FOUND": RPC,
    "DEADLINE_EXCEEDED": TIMED_OUT,
}


def judge(
    error: BaseException,
    trace: Trace,
    *,
    no_effect: tuple[type[BaseException], ...] = (),
    known_failures: bool | None = None,
    marked: bool = False,
) -> Verdict:
    """Whether the function had an effect, from what it raised and what it sent.

    `known_failures` is what the function's options say. If they say nothing, a loaded module of `UNOBSERVED` means no.
    `marked` says that the function declared its dispatch: then only its own declaration counts.
    """
    if isinstance(error, NotDispatched) or (no_effect and isinstance(error, no_effect)):
        return "declared"
    # Frameworks wrap what a tool raises.
    error = getattr(error, "__onceward_about__", None) or error
    if isinstance(error, NotDispatched) or (no_effect and isinstance(error, no_effect)):
        return "declared"
    if isinstance(error, OncewardError):
        # From an inner guarded call, which did nothing. Neither did this one, if nothing else was sent.
        nothing = isinstance(error, (Failed, InvalidInput, KeyMissing)) and error.happened in ("no", None)
        return "refused" if nothing and not marked and trace.quiet and counts(known_failures) else "in_doubt"
    evidence = classify(error)
    if evidence == TIMED_OUT:
        return "timed_out"
    if evidence is None or not counts(known_failures) or marked or not _proves(evidence, error, trace):
        return "in_doubt"
    return "not_sent" if evidence in (UNSENT, BEFORE_DATA) else "refused"


def is_certain(verdict: Verdict) -> bool:
    """Whether there was certainly no effect."""
    return verdict not in ("in_doubt", "timed_out")


def counts(known_failures: bool | None) -> bool:
    """Whether the failures of known clients count."""
    from . import _clients

    return known_failures if known_failures is not None else not _clients.unobserved()


def _proves(evidence: Evidence, error: BaseException, trace: Trace) -> bool:
    from . import _clients

    if not trace.known or _clients.blind():
        return False
    if evidence == UNSENT:
        return trace.begun > 0 and trace.quiet
    if evidence == BEFORE_DATA:
        return trace.begun > 0 and not trace.sent and len(trace.sockets) <= 1
    if len(trace.sent) != 1 or len(trace.sockets) > 1:
        return False
    (wire,) = trace.sent
    if evidence == MAIL:
        return wire.method == "MAIL"
    if evidence == RPC:
        return wire.method == "RPC" and wire.plain and not trace.sockets
    if wire.status is None:
        # No response was received, or none that could be parsed.
        return False
    if evidence == REJECTED:
        return wire.status in _REJECTED and wire.status == status_of(error)
    return evidence == VENDOR and 400 <= wire.status < 500 and wire.status not in (408, 409)


def classify(error: BaseException) -> Evidence | None:
    """What the exception proves about its request; `None` if it proves nothing."""
    if getattr(error, "__onceward_unsent__", False):
        return UNSENT
    for kind in type(error).__mro__:
        name = f"{kind.__module__}.{kind.__qualname__}"
        look = _LOOK_INSIDE.get(name)
        evidence = look(error) if look is not None else TABLE.get(name)
        if evidence is not None:
            return evidence
    return None


def status_of(error: BaseException) -> int | None:
    """The status of the response that the exception is about."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is None:
        status = getattr(error, "status", None)
    return status if isinstance(status, int) else None


def _by_status(error: BaseException) -> Evidence | None:
    return REJECTED if status_of(error) in _REJECTED else IN_DOUBT


def _by_aws_code(error: BaseException) -> Evidence | None:
    said = getattr(error, "response", None)
    code = said.get("Error", {}).get("Code") if isinstance(said, dict) else None
    return VENDOR if code in _AWS_REJECTED else IN_DOUBT


def _by_grpc_code(error: BaseException) -> Evidence | None:
    code = getattr(error, "code", None)
    name = getattr(code() if callable(code) else code, "name", "")
    return _GRPC.get(name, IN_DOUBT)


def _by_reason(error: BaseException) -> Evidence | None:
    """What the wrapped error proves, for a wrapper around another error."""
    for inner in _inner(error):
        evidence = classify(inner)
        if evidence is not None:
            return evidence
    return IN_DOUBT


def _inner(error: BaseException) -> Iterator[BaseException]:
    """The errors from which another library's error was made."""
    candidates = [getattr(error, "reason", None), *error.args, error.__cause__, error.__context__]
    for candidate in candidates:
        if isinstance(candidate, BaseException) and candidate is not error:
            yield candidate


_LOOK_INSIDE: dict[str, Callable[[BaseException], Evidence | None]] = {
    "requests.exceptions.HTTPError": _by_status,
    "httpx.HTTPStatusError": _by_status,
    "httpx2.HTTPStatusError": _by_status,
    "stripe._error.APIConnectionError": _by_reason,
    "aiohttp.client_exceptions.ClientResponseError": _by_status,
    "urllib.error.HTTPError": _by_status,
    "urllib.error.URLError": _by_reason,
    "requests.exceptions.SSLError": _by_reason,
    "requests.exceptions.ProxyError": _by_reason,
    "requests.exceptions.ConnectionError": _by_reason,
    "urllib3.exceptions.MaxRetryError": _by_reason,
    "urllib3.exceptions.SSLError": _by_reason,
    "botocore.exceptions.ClientError": _by_aws_code,
    "grpc.RpcError": _by_grpc_code,
    "grpc.aio._call.AioRpcError": _by_grpc_code,
}
