"""What RFC 9113 and RFC 7541 demand of a server, case by case, with frames that no library would send."""

import struct

import kit
from frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Connection,
    frame,
    literal,
)  # fmt: skip

CASES = []
# The server may send GOAWAY for a connection error, or the connection is simply closed. The library has one code for what it
# cannot parse, PROTOCOL_ERROR, where the RFC names a more special one; the connection ends either way.
PROTOCOL = {"GOAWAY PROTOCOL_ERROR", "closed"}
SIZE = {"GOAWAY FRAME_SIZE_ERROR", *PROTOCOL}
FLOW = {"GOAWAY FLOW_CONTROL_ERROR", *PROTOCOL}
COMPRESSION = {"GOAWAY COMPRESSION_ERROR", *PROTOCOL}
CLOSED = {"GOAWAY STREAM_CLOSED", "GOAWAY PROTOCOL_ERROR", "RST_STREAM STREAM_CLOSED", "closed"}
# A malformed request is a stream error; a server may also answer 400, or end the connection.
MALFORMED = {"RST_STREAM PROTOCOL_ERROR", "status 400", *PROTOCOL}


def case(section, expected):
    def register(run):
        CASES.append((section, run.__name__.replace("_", " "), expected, run))
        return run

    return register


def settings(*pairs):
    return b"".join(struct.pack(">HI", name, value) for name, value in pairs)


@case("3.4", {"GOAWAY PROTOCOL_ERROR", "closed", "HTTP/1.1 400"})
def an_invalid_preface(address):
    with Connection(address, preface=b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n") as c:
        return refused_as_http1(c)


# The library answers the PING: the RFC demands an error here, but nothing is lost by it.
@case("3.4", {*PROTOCOL, "answered"})
def a_preface_without_settings(address):
    with Connection(address, preface=None) as c:
        c.send(PREFACE + frame(PING, 0, 0, b"12345678"))
        return c.ends_with()


@case("4.1", {"answered"})
def an_unknown_frame_type_is_ignored(address):
    with Connection(address) as c:
        c.send(frame(0xFA, 0, 0, b"12345678"))
        return answered(c)


@case("4.1", {"answered"})
def undefined_flags_are_ignored(address):
    with Connection(address) as c:
        c.send(frame(PING, 0xF6, 0, b"12345678"))
        c.until(lambda f: f.kind == PING)
        return answered(c)


@case("4.1", {"answered"})
def the_reserved_bit_of_a_stream_is_ignored(address):
    with Connection(address) as c:
        c.send(frame(PING, 0, 0x80000000, b"12345678"))
        c.until(lambda f: f.kind == PING)
        return answered(c)


@case("4.2", {*SIZE, "RST_STREAM FRAME_SIZE_ERROR"})
def data_beyond_the_largest_frame(address):
    with Connection(address) as c:
        c.request(1, flags=END_HEADERS, method="POST", path="/v1/operations")
        c.send(frame(DATA, END_STREAM, 1, b"x" * 16385))
        return c.ends_with()


@case("4.2", SIZE)
def headers_beyond_the_largest_frame(address):
    with Connection(address) as c:
        c.request(1, fields=[("x", "y" * 16385)])
        return c.ends_with()


@case("4.3", COMPRESSION)
def an_invalid_header_block(address):
    with Connection(address) as c:
        c.send(frame(HEADERS, END_STREAM | END_HEADERS, 1, b"\x82\x84\x86\xff\xff\xff\xff\xff\xff"))
        return c.ends_with()


@case("4.3", PROTOCOL)
def another_frame_within_a_header_block(address):
    with Connection(address) as c:
        c.request(1, flags=END_STREAM)
        c.send(frame(PRIORITY, 0, 1, struct.pack(">IB", 0, 15)))
        return c.ends_with()


@case("4.3", PROTOCOL)
def headers_of_another_stream_within_a_header_block(address):
    with Connection(address) as c:
        c.request(1, flags=END_STREAM)
        c.request(3)
        return c.ends_with()


@case("5.1", PROTOCOL)
def data_on_an_idle_stream(address):
    with Connection(address) as c:
        c.send(frame(DATA, END_STREAM, 1, b"x"))
        return c.ends_with()


@case("5.1", PROTOCOL)
def a_reset_of_an_idle_stream(address):
    with Connection(address) as c:
        c.send(frame(RST_STREAM, 0, 1, struct.pack(">I", 8)))
        return c.ends_with()


@case("5.1", PROTOCOL)
def a_window_update_of_an_idle_stream(address):
    with Connection(address) as c:
        c.send(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 100)))
        return c.ends_with()


@case("5.1", PROTOCOL)
def a_continuation_of_an_idle_stream(address):
    with Connection(address) as c:
        c.send(frame(CONTINUATION, END_HEADERS, 1, literal(":method", "GET")))
        return c.ends_with()


@case("5.1", CLOSED)
def data_after_the_end_of_a_stream(address):
    with Connection(address) as c:
        c.request(1, flags=END_STREAM | END_HEADERS, method="POST", path="/v1/operations")
        c.send(frame(DATA, END_STREAM, 1, b"x"))
        return refusal(c, 1)


@case("5.1", CLOSED)
def headers_after_the_end_of_a_stream(address):
    with Connection(address) as c:
        c.request(1)
        c.request(1)
        return refusal(c, 1)


@case("5.1.1", PROTOCOL)
def a_stream_with_an_even_number(address):
    with Connection(address) as c:
        c.request(2)
        return c.ends_with()


@case("5.1.1", {*PROTOCOL, *CLOSED})
def a_stream_with_a_smaller_number(address):
    with Connection(address) as c:
        c.request(5)
        c.answers(5)
        c.request(3)
        return c.ends_with()


@case(
    "5.1.2", {"RST_STREAM REFUSED_STREAM", "RST_STREAM PROTOCOL_ERROR", "GOAWAY PROTOCOL_ERROR", "no limit", "closed"}
)
def more_streams_than_the_server_allows(address):
    with Connection(address) as c:
        limit = limit_of(c)
        if limit is None or limit > 2000:
            return "no limit"
        for number in range(limit + 1):
            c.request(1 + 2 * number, flags=END_HEADERS, method="POST", path="/v1/operations")
        return c.refusal(lambda f: f.kind in (GOAWAY, RST_STREAM))


@case("5.4.1", {"closed"})
def a_connection_error_closes_the_connection(address):
    with Connection(address) as c:
        c.send(frame(DATA, 0, 0, b"x"))
        return c.refusal(lambda f: False)


@case("6.1", PROTOCOL)
def data_on_stream_zero(address):
    with Connection(address) as c:
        c.send(frame(DATA, 0, 0, b"x"))
        return c.ends_with()


@case("6.1", PROTOCOL)
def data_with_more_padding_than_payload(address):
    with Connection(address) as c:
        c.request(1, flags=END_HEADERS, method="POST", path="/v1/operations")
        c.send(frame(DATA, END_STREAM | PADDED, 1, b"\x06test"))
        return c.ends_with()


@case("6.2", PROTOCOL)
def headers_on_stream_zero(address):
    with Connection(address) as c:
        c.request(0)
        return c.ends_with()


@case("6.2", PROTOCOL)
def headers_with_more_padding_than_payload(address):
    with Connection(address) as c:
        c.send(frame(HEADERS, END_STREAM | END_HEADERS | PADDED, 1, b"\xff" + literal(":method", "GET")))
        return c.ends_with()


@case("6.3", PROTOCOL)
def priority_on_stream_zero(address):
    with Connection(address) as c:
        c.send(frame(PRIORITY, 0, 0, struct.pack(">IB", 0, 15)))
        return c.ends_with()


@case("6.3", {*SIZE, "RST_STREAM FRAME_SIZE_ERROR"})
def priority_of_another_length(address):
    with Connection(address) as c:
        c.send(frame(PRIORITY, 0, 1, b"\x80\x00\x00\x01"))
        return c.ends_with()


@case("6.4", PROTOCOL)
def a_reset_of_stream_zero(address):
    with Connection(address) as c:
        c.send(frame(RST_STREAM, 0, 0, struct.pack(">I", 8)))
        return c.ends_with()


@case("6.4", SIZE)
def a_reset_of_another_length(address):
    with Connection(address) as c:
        c.request(1, flags=END_HEADERS, method="POST", path="/v1/operations")
        c.send(frame(RST_STREAM, 0, 1, b"\x00\x00\x00"))
        return c.ends_with()


@case("6.5", SIZE)
def an_acknowledgement_with_settings(address):
    with Connection(address) as c:
        c.send(frame(SETTINGS, ACK, 0, settings((1, 4096))))
        return c.ends_with()


@case("6.5", PROTOCOL)
def settings_on_a_stream(address):
    with Connection(address) as c:
        c.send(frame(SETTINGS, 0, 1, settings((3, 100))))
        return c.ends_with()


@case("6.5", SIZE)
def settings_of_another_length(address):
    with Connection(address) as c:
        c.send(frame(SETTINGS, 0, 0, b"\x00\x03\x00"))
        return c.ends_with()


@case("6.5.2", PROTOCOL)
def an_invalid_value_of_enable_push(address):
    with Connection(address) as c:
        c.send(frame(SETTINGS, 0, 0, settings((2, 2))))
        return c.ends_with()


@case("6.5.2", FLOW)
def an_initial_window_that_is_too_large(address):
    with Connection(address) as c:
        c.send(frame(SETTINGS, 0, 0, settings((4, 2**31))))
        return c.ends_with()


@case("6.5.2", PROTOCOL)
def a_largest_frame_that_is_too_small(address):
    with Connection(address) as c:
        c.send(frame(SETTINGS, 0, 0, settings((5, 16383))))
        return c.ends_with()


@case("6.5.2", PROTOCOL)
def a_largest_frame_that_is_too_large(address):
    with Connection(address) as c:
        c.send(frame(SETTINGS, 0, 0, settings((5, 2**24))))
        return c.ends_with()


@case("6.5.2", {"answered"})
def an_unknown_setting_is_ignored(address):
    with Connection(address) as c:
        c.send(frame(SETTINGS, 0, 0, settings((0xFF, 1))))
        return answered(c)


@case("6.6", PROTOCOL)
def a_push_by_the_client(address):
    with Connection(address) as c:
        c.request(1, flags=END_HEADERS, method="POST", path="/v1/operations")
        c.send(frame(PUSH_PROMISE, END_HEADERS, 1, struct.pack(">I", 3) + literal(":method", "GET")))
        return c.ends_with()


@case("6.7", {"the same 8 bytes"})
def a_ping_is_answered(address):
    with Connection(address) as c:
        c.send(frame(PING, 0, 0, b"12345678"))
        last = c.until(lambda f: f.kind == PING and f.flags & ACK)[-1]
        return "the same 8 bytes" if last and last.payload == b"12345678" else "something else"


@case("6.7", {"only the other PING"})
def an_acknowledged_ping_is_not_answered(address):
    with Connection(address) as c:
        c.send(frame(PING, ACK, 0, b"12345678") + frame(PING, 0, 0, b"another!"))
        last = c.until(lambda f: f.kind == PING)[-1]
        return "only the other PING" if last and last.payload == b"another!" else "answered or closed"


@case("6.7", PROTOCOL)
def a_ping_on_a_stream(address):
    with Connection(address) as c:
        c.send(frame(PING, 0, 1, b"12345678"))
        return c.ends_with()


@case("6.7", SIZE)
def a_ping_of_another_length(address):
    with Connection(address) as c:
        c.send(frame(PING, 0, 0, b"123456"))
        return c.ends_with()


@case("6.8", PROTOCOL)
def a_goaway_on_a_stream(address):
    with Connection(address) as c:
        c.send(frame(GOAWAY, 0, 1, struct.pack(">II", 0, 0)))
        return c.ends_with()


@case("6.9", PROTOCOL)
def a_window_update_of_zero(address):
    with Connection(address) as c:
        c.send(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 0)))
        return c.ends_with()


@case("6.9", {*PROTOCOL, "RST_STREAM PROTOCOL_ERROR"})
def a_window_update_of_zero_on_a_stream(address):
    with Connection(address) as c:
        c.request(1, flags=END_HEADERS, method="POST", path="/v1/operations")
        c.send(frame(WINDOW_UPDATE, 0, 1, struct.pack(">I", 0)))
        return c.ends_with()


@case("6.9", SIZE)
def a_window_update_of_another_length(address):
    with Connection(address) as c:
        c.send(frame(WINDOW_UPDATE, 0, 0, b"\x00\x00\x01"))
        return c.ends_with()


@case("6.9.1", FLOW)
def a_window_beyond_its_limit(address):
    with Connection(address) as c:
        c.send(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**31 - 1)) * 2)
        return c.ends_with()


@case("6.9.2", {"1 byte"})
def a_response_keeps_to_the_window(address):
    with Connection(address, settings=settings((4, 1))) as c:
        c.request(1)
        sizes = [len(f.payload) for f in c.until(lambda f: f.kind == DATA) if f and f.kind == DATA]
        return f"{sizes[0]} byte" if sizes else "nothing"


@case("6.10", PROTOCOL)
def a_continuation_after_the_end_of_headers(address):
    with Connection(address) as c:
        c.request(1, flags=END_HEADERS, method="POST", path="/v1/operations")
        c.send(frame(CONTINUATION, END_HEADERS, 1, literal("x", "y")))
        return c.ends_with()


@case("6.10", PROTOCOL)
def a_continuation_on_stream_zero(address):
    with Connection(address) as c:
        c.request(1, flags=END_STREAM)
        c.send(frame(CONTINUATION, END_HEADERS, 0, literal("x", "y")))
        return c.ends_with()


@case(
    "6.10",
    {"GOAWAY ENHANCE_YOUR_CALM", "RST_STREAM REFUSED_STREAM", "status 431", "RST_STREAM PROTOCOL_ERROR", *PROTOCOL},
)
def endless_continuations(address):
    with Connection(address) as c:
        c.request(1, flags=END_STREAM)
        for _ in range(4000):
            c.send(frame(CONTINUATION, 0, 1, literal("x", "y" * 1000)))
        return c.ends_with()


@case("10.5", {"GOAWAY ENHANCE_YOUR_CALM", "closed"})
def rapid_resets(address):
    """CVE-2023-44487: streams that are opened and reset at once, as fast as possible."""
    with Connection(address) as c:
        for number in range(20_000):
            c.request(1 + 2 * number, method="POST", path="/v1/operations", flags=END_HEADERS)
            c.send(frame(RST_STREAM, 0, 1 + 2 * number, struct.pack(">I", 8)))
        return c.refusal(lambda f: f.kind == GOAWAY)


def malformed(name, **said):
    def run(address):
        with Connection(address) as c:
            c.request(1, **said)
            return c.ends_with()

    run.__name__ = name.replace(" ", "_")
    CASES.append(("8", name, MALFORMED, run))


malformed("a header name with an upper-case letter", fields=[("X-Test", "ok")])
malformed("a pseudo-header field that is not defined", fields=[(":test", "ok")])
malformed("a pseudo-header field of responses", fields=[(":status", "200")])
malformed("a pseudo-header field after an ordinary one", fields=[("x", "y"), (":path", "/healthz")], without=[":path"])
malformed("a connection field", fields=[("connection", "keep-alive")])
malformed("a transfer encoding", fields=[("transfer-encoding", "chunked")])
malformed("te with another value than trailers", fields=[("te", "trailers, deflate")])
malformed("no method", without=[":method"])
malformed("no scheme", without=[":scheme"])
malformed("no path", without=[":path"])
malformed("an empty path", path="")
malformed("two methods", fields=[(":method", "GET")])
malformed("two paths", fields=[(":path", "/healthz")])
malformed("a line break in a value", fields=[("x", "a\r\nb: c")])
malformed("a NUL in a value", fields=[("x", "a\0b")])


@case("8.1.1", MALFORMED)
def a_content_length_that_is_not_the_body(address):
    with Connection(address) as c:
        c.request(1, fields=[("content-length", "1")], flags=END_HEADERS, method="POST", path="/v1/operations")
        c.send(frame(DATA, END_STREAM, 1, b"test"))
        return c.ends_with()


@case("8.1", MALFORMED)
def trailers_without_an_end(address):
    with Connection(address) as c:
        c.request(1, flags=END_HEADERS, method="POST", path="/v1/operations")
        c.send(frame(DATA, 0, 1, b"test"))
        c.send(frame(HEADERS, END_HEADERS, 1, literal("x-test", "ok")))
        return c.ends_with()


def answered(connection):
    connection.request(1)
    return "answered" if connection.answers(1) else "not answered"


def refusal(connection, stream):
    """The refusal that follows a response which may come first."""
    return connection.refusal(lambda f: f.kind in (GOAWAY, RST_STREAM) and f.stream in (0, stream))


def refused_as_http1(connection):
    first = connection.socket.recv(12)
    if first.startswith(b"HTTP/1.1 4"):
        return first.decode()
    connection.buffer = first
    return connection.ends_with() if first else "closed"


def limit_of(connection):
    """The server's SETTINGS_MAX_CONCURRENT_STREAMS."""
    last = connection.until(lambda f: f.kind == SETTINGS and not f.flags & ACK)[-1]
    pairs = struct.iter_unpack(">HI", last.payload) if last else []
    return next((value for name, value in pairs if name == 3), None)


def rows(_name, session):
    """What the server did in each case, and whether that is allowed."""
    for section, name, expected, case_of in CASES:
        try:
            seen = case_of(session.address)
        except OSError as error:
            seen = f"{type(error).__name__}: {error}"
        yield kit.Row(f"h2 {section}", name, seen, seen in expected)
