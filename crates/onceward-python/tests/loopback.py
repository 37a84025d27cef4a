"""Servers on this machine that fail in a known way, to test how clients react."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from servers import free_port


class Server:
    """Accepts connections, reads the first bytes, and fails in the requested way."""

    def __init__(self, how: str, answer: bytes = b"") -> None:
        self.how = how
        self.answer = answer
        self.requests: list[bytes] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.open: list[socket.socket] = []
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.open.append(connection)
            threading.Thread(target=self.fail, args=(connection,), daemon=True).start()

    def fail(self, connection: socket.socket) -> None:
        try:
            self.requests.append(connection.recv(65536))
            if self.how == "reset":
                # Without lingering, closing sends a reset.
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()
            elif self.how == "close":
                connection.close()
            elif self.how == "answer":
                connection.sendall(self.answer)
                connection.close()
            # "silence": nothing more is ever sent.
        except OSError:
            pass

    def close(self) -> None:
        # Wakes the thread that waits in accept.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()
        for connection in self.open:
            connection.close()


@contextmanager
def failing(how: str, answer: bytes = b"") -> Iterator[int]:
    """The port of a server that fails in that way."""
    if how == "refused":
        yield free_port()
        return
    server = Server(how, answer)
    try:
        yield server.port
    finally:
        server.close()


def http(status: int) -> bytes:
    """An HTTP answer without a body."""
    return f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
