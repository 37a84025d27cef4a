"""HTTP/2 frames by hand: a client that can say what a correct library would refuse to say."""

import socket
import struct
from dataclasses import dataclass

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 0x1
END_HEADERS, PADDED, PRIORITY_FLAG = 0x4, 0x8, 0x20
ERRORS = {
    0: "NO_ERROR", 1: "PROTOCOL_ERROR", 2: "INTERNAL_ERROR", 3: "FLOW_CONTROL_ERROR", 4: "SETTINGS_TIMEOUT",
    5: "STREAM_CLOSED", 6: "FRAME_SIZE_ERROR", 7: "REFUSED_STREAM", 8: "CANCEL", 9: "COMPRESSION_ERROR",
    10: "CONNECT_ERROR", 11: "ENHANCE_YOUR_CALM", 12: "INADEQUATE_SECURITY", 13: "HTTP_1_1_REQUIRED",
}  # fmt: skip


@dataclass
class Frame:
    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def error(self):
        """The error code of RST_STREAM or GOAWAY, by name."""
        at = 4 if self.kind == GOAWAY else 0
        return ERRORS.get(struct.unpack_from(">I", self.payload, at)[0], "?")


def frame(kind, flags=0, stream=0, payload=b"", length=None):
    size = len(payload) if length is None else length
    return struct.pack(">I", size)[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name, value):
    """A header field, never indexed and without Huffman coding, so that any bytes can be said."""
    name, value = (part.encode() if isinstance(part, str) else part for part in (name, value))
    return b"\x10" + integer(len(name)) + name + integer(len(value)) + value


def integer(number):
    """An HPACK integer with a prefix of seven bits."""
    if number < 127:
        return bytes([number])
    out, number = bytearray([127]), number - 127
    while number >= 128:
        out.append(number % 128 + 128)
        number //= 128
    return bytes([*out, number])


class Connection:
    """One connection. It answers SETTINGS, and keeps every other frame for the case to look at."""

    def __init__(self, address, timeout=120.0, settings=b"", preface=PREFACE):
        self.socket = socket.create_connection(address, timeout=timeout)
        self.host = "%s:%d" % address
        self.buffer = b""
        self.is_silent = False
        if preface is not None:
            self.send(preface + frame(SETTINGS, payload=settings))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data):
        try:
            self.socket.sendall(data)
        except OSError:
            pass  # The server has closed: the case reads what it said before.

    def request(self, stream, fields=(), flags=END_STREAM | END_HEADERS, method="GET", path="/healthz", without=()):
        """A HEADERS frame with the pseudo-header fields and others."""
        usual = [(":method", method), (":scheme", "http"), (":authority", self.host), (":path", path)]
        block = b"".join(literal(n, v) for n, v in [*[f for f in usual if f[0] not in without], *fields])
        self.send(frame(HEADERS, flags, stream, block))

    def read(self):
        """The next frame, or None when the server closed the connection, or is silent for much too long."""
        try:
            while len(self.buffer) < 9 or len(self.buffer) < 9 + self.size():
                data = self.socket.recv(65536)
                if not data:
                    return None
                self.buffer += data
        except OSError as error:
            self.is_silent = isinstance(error, TimeoutError)
            return None
        size = self.size()
        kind, flags = self.buffer[3], self.buffer[4]
        stream = struct.unpack_from(">I", self.buffer, 5)[0] & 0x7FFFFFFF
        payload, self.buffer = self.buffer[9 : 9 + size], self.buffer[9 + size :]
        if kind == SETTINGS and not flags & ACK:
            self.send(frame(SETTINGS, ACK))
        return Frame(kind, flags, stream, payload)

    def size(self):
        return int.from_bytes(self.buffer[:3], "big")

    def until(self, wanted):
        """All frames up to the first that is wanted; the last is None if none came."""
        seen = []
        while True:
            seen.append(self.read())
            if seen[-1] is None or wanted(seen[-1]):
                return seen

    def ends_with(self):
        """How the server refuses: `GOAWAY x`, `RST_STREAM x`, `closed` or a status; `answered` if a PING is."""
        return self.refusal(lambda f: f.kind in (GOAWAY, RST_STREAM, HEADERS) or (f.kind == PING and f.flags & ACK))

    def refusal(self, wanted):
        """What the first frame that is wanted says."""
        last = self.until(wanted)[-1]
        if last is None:
            return "silent" if self.is_silent else "closed"
        if last.kind == HEADERS:
            return "status " + status(last.payload)
        if last.kind == PING:
            return "answered"
        return f"{'GOAWAY' if last.kind == GOAWAY else 'RST_STREAM'} {last.error}"

    def answers(self, stream):
        """Whether a response on this stream ends."""
        frames = self.until(lambda f: f.stream == stream and f.flags & END_STREAM and f.kind in (HEADERS, DATA))
        return frames[-1] is not None


# The static table's entries for :status, RFC 7541 appendix A.
STATUSES = {8: "200", 9: "204", 10: "206", 11: "304", 12: "400", 13: "404", 14: "500"}


def status(block):
    """The status at the start of a header block, as servers write it."""
    # A change of the table's size may come first.
    while block and block[0] & 0xE0 == 0x20:
        block = block[1:]
    first = block[0]
    if first & 0x80:
        return STATUSES.get(first & 0x7F, "?")
    value = block[2:5]
    return value.decode("ascii", "replace") if not block[1] & 0x80 else "huffman"
