"""HTTP/1.1 that two readers could read in two ways (request smuggling), and clients that are slow on purpose."""

import contextlib
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import kit

# Each is one request to the gateway. None of them may reach the upstream as more than one request, nor with a
# second request line in its body; a refusal is the best answer.
SMUGGLED = b"POST /smuggled HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"
LINE = b"POST /gw/counted/one HTTP/1.1\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
AMBIGUOUS = {
    "content-length and chunked": LINE + b"Host: %h\r\nContent-Length: 6\r\n" + CHUNKED + b"\r\n0\r\n\r\n" + SMUGGLED,
    "chunked and content-length": LINE + b"Host: %h\r\n" + CHUNKED + b"Content-Length: 5\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "two different content-lengths": LINE + b"Host: %h\r\nContent-Length: 0\r\nContent-Length: 44\r\n\r\n" + SMUGGLED,
    "a list of content-lengths": LINE + b"Host: %h\r\nContent-Length: 0, 44\r\n\r\n" + SMUGGLED,
    "a signed content-length": LINE + b"Host: %h\r\nContent-Length: +0\r\n\r\n" + SMUGGLED,
    "a negative content-length": LINE + b"Host: %h\r\nContent-Length: -1\r\n\r\n" + SMUGGLED,
    "a hexadecimal content-length": LINE + b"Host: %h\r\nContent-Length: 0x0\r\n\r\n" + SMUGGLED,
    "a content-length that overflows": LINE + b"Host: %h\r\nContent-Length: 18446744073709551616\r\n\r\n" + SMUGGLED,
    "a space before the colon": LINE + b"Host: %h\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "a folded header": LINE + b"Host: %h\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "an encoding before chunked": LINE + b"Host: %h\r\nTransfer-Encoding: x, chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "chunked before an encoding": LINE
    + b"Host: %h\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"
    + SMUGGLED,
    "two transfer encodings": LINE + b"Host: %h\r\n" + CHUNKED + b"Transfer-Encoding: x\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "a vertical tab in the encoding": LINE + b"Host: %h\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
    "a bare line feed": LINE + b"Host: %h\nContent-Length: 0\n\n" + SMUGGLED,
    "a bare carriage return": LINE + b"Host: %h\r\nX: a\rContent-Length: 44\r\n\r\n" + SMUGGLED,
    "a NUL in a header": LINE + b"Host: %h\r\nX: a\0b\r\nContent-Length: 0\r\n\r\n",
    "a chunk of a negative size": LINE + b"Host: %h\r\n" + CHUNKED + b"\r\n-1\r\nx\r\n0\r\n\r\n",
    "a chunk of a size that overflows": LINE + b"Host: %h\r\n" + CHUNKED + b"\r\nffffffffffffffff1\r\nx\r\n0\r\n\r\n",
    "a chunk with a bare line feed": LINE + b"Host: %h\r\n" + CHUNKED + b"\r\n1;a\nb\r\nx\r\n0\r\n\r\n",
    "chunked in HTTP/1.0": b"POST /gw/counted/one HTTP/1.0\r\nHost: %h\r\n" + CHUNKED + b"\r\n0\r\n\r\n" + SMUGGLED,
    "a line break in the path": b"POST /gw/counted/one%0d%0aX:%20y HTTP/1.1\r\nHost: %h\r\nContent-Length: 0\r\n\r\n",
    "an absolute target of another host": b"POST http://other/gw/counted/one HTTP/1.1\r\nHost: %h\r\nContent-Length: 0\r\n\r\n",
    "two hosts": LINE + b"Host: %h\r\nHost: other\r\nContent-Length: 0\r\n\r\n",
    "no host": LINE + b"Content-Length: 0\r\n\r\n",
    "an upgrade to another protocol": LINE
    + b"Host: %h\r\nConnection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 0\r\n\r\n",
    "a header that connection names": LINE
    + b"Host: %h\r\nConnection: authorization\r\nAuthorization: Bearer x\r\nContent-Length: 0\r\n\r\n",
    "a method with a space": b"POST X /gw/counted/one HTTP/1.1\r\nHost: %h\r\nContent-Length: 0\r\n\r\n",
    "dots that leave the upstream": b"POST /gw/counted/../../v1/operations HTTP/1.1\r\nHost: %h\r\nContent-Length: 0\r\n\r\n",
    "encoded dots that leave the upstream": b"POST /gw/counted/%2e%2e/%2e%2e/v1/operations HTTP/1.1\r\nHost: %h\r\nContent-Length: 0\r\n\r\n",
}


# A well-formed request after each of them: its answer shows that the server is done with what came before.
LAST = b"GET /healthz HTTP/1.1\r\nHost: %h\r\nConnection: close\r\n\r\n"
# Only a server that waits for more of a body is silent for so long, and then it has passed nothing on.
SILENCE_S = 4


def rows(_name, session):
    """What each request became, and whether that is safe."""
    with ThreadPoolExecutor(len(AMBIGUOUS)) as pool:
        told = list(pool.map(lambda case: smuggled(session.address, *case), enumerate(AMBIGUOUS.values())))
    seen = session.origin.taken()
    for number, (name, statuses) in enumerate(zip(AMBIGUOUS, told, strict=True)):
        lines = [line for line in seen if mark(number) in line]
        # A second request may only be answered as one of its own to this server: 404, since there is no such route.
        safe = b"/smuggled" not in b"".join(lines) and len(lines) <= 1
        told = f"answered {' '.join(statuses) or 'by closing'}; {len(lines)} reached the upstream"
        yield kit.Row("h1", name, told, safe)


def smuggled(address, number, request):
    """Sends a request whose lines have its number."""
    return exchange(address, request.replace(b" HTTP/1", mark(number) + b" HTTP/1") + LAST, SILENCE_S)


def mark(number):
    return b"?case=%d&" % number


def exchange(address, request, patience=120):
    """The statuses that come back on one connection."""
    host = b"%s:%d" % (address[0].encode(), address[1])
    with socket.create_connection(address, timeout=120) as connection:
        connection.settimeout(patience)
        received = b""
        try:
            connection.sendall(request.replace(b"%h", host))
            while data := connection.recv(65536):
                received += data
        except OSError:
            pass
    return [line.split(b" ")[1].decode() for line in received.split(b"\r\n") if line.startswith(b"HTTP/1.")]


def crowd(_name, session, count=300):
    """Many silent clients do not keep another one out."""
    with contextlib.ExitStack() as silent:
        for _ in range(count):
            one = silent.enter_context(socket.create_connection(session.address, timeout=120))
            one.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
        start = time.monotonic()
        statuses = exchange(session.address, LAST)
        took = (time.monotonic() - start) * 1000
    yield kit.Row("crowd", f"{count} silent clients", f"a request beside them took {took:.0f} ms", statuses == ["200"])


def slow(_name, session, seconds=45):
    """Whether the server frees itself from clients that are slow on purpose."""
    head = b"POST /v1/operations HTTP/1.1\r\nHost: %s:%d\r\nContent-Type: application/json\r\n" % (
        session.address[0].encode(),
        session.address[1],
    )
    gateway = head.replace(b"/v1/operations", b"/gw/counted/one")
    cases = {
        "a head that never ends": [head] + [b"X: y\r\n"] * seconds,
        "a body that never comes": [head + b"Content-Length: 100\r\n\r\n"] + [b""] * seconds,
        "a byte of the body each second": [head + b"Content-Length: 1000\r\n\r\n"] + [b" "] * seconds,
        "a body for an upstream that never comes": [gateway + b"Content-Length: 100\r\n\r\n"] + [b""] * seconds,
        "a byte for an upstream each second": [gateway + b"Content-Length: 1000\r\n\r\n"] + [b" "] * seconds,
        "an idle connection": [b""] * seconds,
    }
    with ThreadPoolExecutor(len(cases)) as pool:
        times = pool.map(lambda pieces: drip(session.address, pieces), cases.values())
        for name, took in zip(cases, times, strict=True):
            told = "still open" if took is None else f"closed after {took:.0f} s"
            yield kit.Row("slow", name, told, took is not None)


def drip(address, pieces):
    """Sends a piece each second. How long the server kept the connection open, or None if for the whole time."""
    start = time.monotonic()
    with socket.create_connection(address, timeout=1) as connection:
        for piece in pieces:
            try:
                connection.sendall(piece)
                if connection.recv(65536) == b"":
                    return time.monotonic() - start
            except TimeoutError:
                continue
            except OSError:
                return time.monotonic() - start
    return None
