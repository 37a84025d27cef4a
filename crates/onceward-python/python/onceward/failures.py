"""Which failures are certain: what an exception of a known library says of the effect.

Classes are matched by their names, so no library is imported. The rule is the contract's: before the first byte was
sent nothing happened; a timeout or a reset after that leaves it in doubt; a 429 and what a vendor documents as rejected
before execution did nothing. Whatever is not listed here is in doubt, unless nothing was dispatched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Literal

from .errors import NotDispatched

Verdict = Literal["no_effect", "in_doubt", "timed_out"]

# From the name of a class to what it says. The most specific class of an exception that is listed decides.
NO_EFFECT: Final = "no_effect"
IN_DOUBT: Final = "in_doubt"
TIMED_OUT: Final = "timed_out"

TABLE: dict[str, Verdict] = {
    # Python itself. A refused connection and a name that is not found come before the first byte.
    "builtins.ConnectionRefusedError": NO_EFFECT,
    "socket.gaierror": NO_EFFECT,
    "builtins.ConnectionResetError": IN_DOUBT,
    "builtins.BrokenPipeError": IN_DOUBT,
    "builtins.TimeoutError": TIMED_OUT,
    "asyncio.exceptions.TimeoutError": TIMED_OUT,
    "ssl.SSLCertVerificationError": NO_EFFECT,
    "http.client.RemoteDisconnected": IN_DOUBT,
    "http.client.InvalidURL": NO_EFFECT,
    # smtplib: an error before DATA was accepted sent no mail.
    "smtplib.SMTPConnectError": NO_EFFECT,
    "smtplib.SMTPHeloError": NO_EFFECT,
    "smtplib.SMTPAuthenticationError": NO_EFFECT,
    "smtplib.SMTPNotSupportedError": NO_EFFECT,
    "smtplib.SMTPSenderRefused": NO_EFFECT,
    "smtplib.SMTPRecipientsRefused": NO_EFFECT,
    "smtplib.SMTPDataError": NO_EFFECT,
    "smtplib.SMTPServerDisconnected": IN_DOUBT,
    # urllib3
    "urllib3.exceptions.NewConnectionError": NO_EFFECT,
    "urllib3.exceptions.NameResolutionError": NO_EFFECT,
    "urllib3.exceptions.ConnectTimeoutError": NO_EFFECT,
    "urllib3.exceptions.LocationParseError": NO_EFFECT,
    "urllib3.exceptions.ReadTimeoutError": TIMED_OUT,
    "urllib3.exceptions.ProtocolError": IN_DOUBT,
    # requests
    "requests.exceptions.ConnectTimeout": NO_EFFECT,
    "requests.exceptions.InvalidURL": NO_EFFECT,
    "requests.exceptions.InvalidSchema": NO_EFFECT,
    "requests.exceptions.MissingSchema": NO_EFFECT,
    "requests.exceptions.InvalidHeader": NO_EFFECT,
    "requests.exceptions.ReadTimeout": TIMED_OUT,
    "requests.exceptions.ChunkedEncodingError": IN_DOUBT,
    # httpx and httpcore. A pool that gave no connection in time sent nothing.
    "httpx.ConnectError": NO_EFFECT,
    "httpx.ConnectTimeout": NO_EFFECT,
    "httpx.PoolTimeout": NO_EFFECT,
    "httpx.UnsupportedProtocol": NO_EFFECT,
    "httpx.InvalidURL": NO_EFFECT,
    "httpx.ReadTimeout": TIMED_OUT,
    "httpx.WriteTimeout": TIMED_OUT,
    "httpx.NetworkError": IN_DOUBT,
    "httpx.RemoteProtocolError": IN_DOUBT,
    "httpcore.ConnectError": NO_EFFECT,
    "httpcore.ConnectTimeout": NO_EFFECT,
    "httpcore.PoolTimeout": NO_EFFECT,
    # aiohttp
    "aiohttp.client_exceptions.ClientConnectorError": NO_EFFECT,
    "aiohttp.client_exceptions.ConnectionTimeoutError": NO_EFFECT,
    "aiohttp.client_exceptions.InvalidURL": NO_EFFECT,
    "aiohttp.client_exceptions.ServerTimeoutError": TIMED_OUT,
    "aiohttp.client_exceptions.SocketTimeoutError": TIMED_OUT,
    "aiohttp.client_exceptions.ServerDisconnectedError": IN_DOUBT,
    "aiohttp.client_exceptions.ClientOSError": IN_DOUBT,
    # botocore
    "botocore.exceptions.EndpointConnectionError": NO_EFFECT,
    "botocore.exceptions.ConnectTimeoutError": NO_EFFECT,
    "botocore.exceptions.NoCredentialsError": NO_EFFECT,
    "botocore.exceptions.PartialCredentialsError": NO_EFFECT,
    "botocore.exceptions.NoRegionError": NO_EFFECT,
    "botocore.exceptions.ParamValidationError": NO_EFFECT,
    "botocore.exceptions.ReadTimeoutError": TIMED_OUT,
    "botocore.exceptions.ConnectionClosedError": IN_DOUBT,
    # stripe: it says itself that these were rejected before execution. Of an API error it does not.
    "stripe._error.CardError": NO_EFFECT,
    "stripe._error.InvalidRequestError": NO_EFFECT,
    "stripe._error.AuthenticationError": NO_EFFECT,
    "stripe._error.PermissionError": NO_EFFECT,
    "stripe._error.RateLimitError": NO_EFFECT,
    "stripe._error.APIConnectionError": IN_DOUBT,
    "stripe._error.APIError": IN_DOUBT,
}

# Statuses that say that nothing was executed, from whoever sends them. 408 and 409 say nothing for certain.
_REJECTED = frozenset({400, 401, 403, 404, 405, 406, 410, 411, 413, 414, 415, 416, 417, 422, 426, 428, 429, 431})

# Codes of AWS by which a request was turned away at the door.
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

# gRPC's word for: the call was turned away. UNAVAILABLE may come after the request was sent.
_GRPC: dict[str, Verdict] = {
    "INVALID_ARGUMENT": NO_EFFECT,
    "FAILED_PRECONDITION": NO_EFFECT,
    "OUT_OF_RANGE": NO_EFFECT,
    "UNAUTHENTICATED": NO_EFFECT,
    "PERMISSION_DENIED": NO_EFFECT,
    "UNIMPLEMENTED": NO_EFFECT,
    "RESOURCE_EXHAUSTED": NO_EFFECT,
    "NOT_FOUND": NO_EFFECT,
    "DEADLINE_EXCEEDED": TIMED_OUT,
}


def classify(error: BaseException, no_effect: tuple[type[BaseException], ...] = ()) -> Verdict | None:
    """What the exception says of the effect; `None` where it says nothing."""
    if isinstance(error, NotDispatched) or (no_effect and isinstance(error, no_effect)):
        return "no_effect"
    for kind in type(error).__mro__:
        name = f"{kind.__module__}.{kind.__qualname__}"
        look = _LOOK_INSIDE.get(name)
        verdict = look(error) if look is not None else TABLE.get(name)
        if verdict is not None:
            return verdict
    return None


def _by_status(error: BaseException) -> Verdict | None:
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if status is None:
        status = getattr(error, "status", None)
    return "no_effect" if status in _REJECTED else "in_doubt"


def _by_aws_code(error: BaseException) -> Verdict | None:
    said = getattr(error, "response", None)
    code = said.get("Error", {}).get("Code") if isinstance(said, dict) else None
    return "no_effect" if code in _AWS_REJECTED else "in_doubt"


def _by_grpc_code(error: BaseException) -> Verdict | None:
    code = getattr(error, "code", None)
    name = getattr(code() if callable(code) else code, "name", "")
    details = getattr(error, "details", None)
    said = details() if callable(details) else details
    # Refused before a byte left; any other UNAVAILABLE may have been sent.
    if name == "UNAVAILABLE" and "Connection refused" in str(said):
        return "no_effect"
    return _GRPC.get(name, "in_doubt")


def _by_reason(error: BaseException) -> Verdict | None:
    """Of a wrapper around another error: what that one says."""
    for inner in _inner(error):
        verdict = classify(inner)
        if verdict is not None:
            return verdict
    return "in_doubt"


def _inner(error: BaseException) -> Iterator[BaseException]:
    """The errors that another library's error was made of."""
    candidates = [getattr(error, "reason", None), *error.args, error.__cause__, error.__context__]
    for candidate in candidates:
        if isinstance(candidate, BaseException) and candidate is not error:
            yield candidate


_LOOK_INSIDE: dict[str, Callable[[BaseException], Verdict | None]] = {
    "requests.exceptions.HTTPError": _by_status,
    "httpx.HTTPStatusError": _by_status,
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
