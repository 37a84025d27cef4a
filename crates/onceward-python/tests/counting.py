"""A server that counts its effects, and then answers in every way that servers do."""

from __future__ import annotations

import socket
import struct
import threading
from collections import Counter
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc

REFUSED = "http://127.0.0.1:1"
"""A port on which nothing listens."""
BEFORE = frozenset({"400", "403", "404", "422", "429"})
"""Responses that are sent instead of the effect."""
AFTER = (
    "201", "500", "503", "408", "409", "reset", "close", "garbage", "header", "chunk", "short", "303-404", "303-429",
    "303-refused", "302-scheme", "303-dns", "silence",
)  # fmt: skip
"""Responses that are sent after the effect."""
RETRIED = ("500-429", "503-403", "reset-429", "reset-403", "reset-404")
"""An effect and a failure; a client that asks again is refused."""


class Handler(BaseHTTPRequestHandler):
    """The path is `/run/behaviour`. Requests with a body, and deletions, are executed and counted."""

    protocol_version = "HTTP/1.1"
    server: Server

    def act(self) -> None:
        _, run, how, *_ = self.path.split("?")[0].split("/")
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.headers.get("transfer-encoding"):
            while self.rfile.readline() not in (b"0\r\n", b""):
                pass
            self.rfile.readline()
        first, _, later = how.partition("-")
        if how in RETRIED:
            seen = self.server.asked[run, how]
            self.server.asked[run, how] += 1
            first = later if seen else first
        elif first in ("302", "303"):
            return self.redirect(run, first, later)
        if first not in BEFORE and (self.command != "GET" or body):
            self.server.effects[run] += 1
        self.answer(first)

    def redirect(self, run: str, status: str, where: str) -> None:
        self.server.effects[run] += 1
        target = {
            "refused": f"{REFUSED}/", "scheme": "foo://x/", "dns": "http://nowhere.invalid/"
        }.get(where, f"/{run}/{where}")  # fmt: skip
        self.raw(f"HTTP/1.1 {status} X\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n")

    def answer(self, how: str) -> None:
        if how.isdigit():
            self.raw(f"HTTP/1.1 {how} X\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}")
        elif how == "garbage":
            self.raw("HTTQ/banana\r\n\r\n", close=True)
        elif how == "header":
            self.raw(f"HTTP/1.1 201 X\r\nX-Policy: {'a' * 70000}\r\nContent-Length: 0\r\n\r\n", close=True)
        elif how == "chunk":
            self.raw("HTTP/1.1 201 X\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", close=True)
        elif how == "short":
            self.raw("HTTP/1.1 201 X\r\nContent-Length: 100\r\n\r\n{", close=True)
        elif how == "silence":
            self.server.over.wait(30)
            self.close_connection = True
        else:
            if how == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()

    def raw(self, text: str, *, close: bool = False) -> None:
        self.wfile.write(text.encode())
        self.close_connection = close

    def finish(self) -> None:
        try:
            super().finish()
        except (OSError, ValueError):
            pass

    def log_message(self, *_: Any) -> None:
        pass

    do_GET = do_POST = do_PUT = do_DELETE = act


class Server(ThreadingHTTPServer):
    """Counts effects by run."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.effects: Counter[str] = Counter()
        self.asked: Counter[tuple[str, str]] = Counter()
        self.over = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def handle_error(self, *_: Any) -> None:
        pass

    def stop(self) -> None:
        self.over.set()
        self.shutdown()
        self.server_close()
        self.thread.join()


class Rpc(grpc.GenericRpcHandler):
    """The same for gRPC: the method is `/run/behaviour`."""

    AFTER = ("OK", "large", "UNAVAILABLE", "INTERNAL", "RESOURCE_EXHAUSTED", "ABORTED")
    BEFORE = ("INVALID_ARGUMENT", "PERMISSION_DENIED")

    def __init__(self, effects: Counter[str]) -> None:
        self.effects = effects
        self.server = grpc.server(futures.ThreadPoolExecutor(4))
        self.server.add_generic_rpc_handlers((self,))
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        _, run, how = details.method.split("/")

        def act(_request: bytes, context: grpc.ServicerContext) -> bytes:
            if how not in self.BEFORE:
                self.effects[run] += 1
            if how in ("OK", "large"):
                return b"x" * (5_000_000 if how == "large" else 1)
            said = "failed to connect to all addresses; last error: Connection refused"
            context.abort(grpc.StatusCode[how], said)
            raise AssertionError("abort raises")

        return grpc.unary_unary_rpc_method_handler(act)

    def stop(self) -> None:
        self.server.stop(0).wait()
