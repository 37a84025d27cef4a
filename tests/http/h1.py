"""HTTP/1.1 that two readers could read in two ways (request smuggling), and clients that are slow on purpose."""

import socket
import time

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
    "chunked before an encoding": LINE + b"Host: %h\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + SMUGGLED,
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
    "an upgrade to another protocol": LINE + b"Host: %h\r\nConnection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 0\r\n\r\n",
    "a header that connection names": LINE + b"Host: %h\r\nConnection: authorization\r\nAuthorization: Bearer x\r\nContent-Length: 0\r\n\r\n",
    "a method with a space": b"POST X /gw/counted/one HTTP/1.1\r\nHost: %h\r\nContent-Length: 0\r\n\r\n",
    "dots that leave the upstream": b"POST /gw/counted/../../v1/operations HTTP/1.1\r\nHost: %h\r\nContent-Length: 0\r\n\r\n",
    "encoded dots that leave the upstream": b"POST /gw/counted/%2e%2e/%2e%2e/v1/operations HTTP/1.1\r\nHost: %h\r\nContent-Length: 0\r\n\r\n",
}


def smuggling(address, origin):
    """Yields (case, what happened, whether it is safe)."""
    host = b"%s:%d" % (address[0].encode(), address[1])
    for name, request in AMBIGUOUS.items():
        origin.taken()
        statuses = exchange(address, request.replace(b"%h", host))
        time.sleep(0.1)
        seen = origin.taken()
        lines = [line for line in seen.split(b"\n") if line.rstrip().endswith((b"HTTP/1.1", b"HTTP/1.0"))]
        # A second request may only be answered as a request of its own to this server: 404, since there is no such route.
        safe = b"/smuggled" not in seen and len(lines) <= 1
        yield name, f"answered {' '.join(statuses) or 'by closing'}; {len(lines)} reached the upstream", safe


def exchange(address, request, patience=1.5):
    """The statuses that come back on one connection."""
    with socket.create_connection(address, timeout=patience) as connection:
        connection.sendall(request)
        received = b""
        try:
            while data := connection.recv(65536):
                received += data
        except OSError:
            pass
    return [line.split(b" ")[1].decode() for line in received.split(b"\r\n") if line.startswith(b"HTTP/1.")]


def slow(address, seconds=45):
    """Yields (case, what happened, whether the server freed itself in time)."""
    head = b"POST /v1/operations HTTP/1.1\r\nHost: %s:%d\r\nContent-Type: application/json\r\n" % (
        address[0].encode(),
        address[1],
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
    for name, pieces in cases.items():
        took = drip(address, pieces)
        yield name, "still open" if took is None else f"closed after {took:.0f} s", took is not None


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


def crowd(address, count=300):
    """Many silent clients do not keep another one out: how long a request takes beside them."""
    silent = []
    try:
        for _ in range(count):
            silent.append(socket.create_connection(address, timeout=2))
            silent[-1].sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
        start = time.monotonic()
        statuses = exchange(address, b"GET /healthz HTTP/1.1\r\nHost: %s:%d\r\nConnection: close\r\n\r\n" % (
            address[0].encode(), address[1]), patience=5)
        return statuses[:1] == ["200"], time.monotonic() - start
    finally:
        for connection in silent:
            connection.close()
