"""A vendor that counts effects and fails after them."""

import contextlib
import json
import random
import socket
import struct
import threading
import time
import urllib.parse
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Vendor:
    """What the vendor does and has done."""

    kind: str
    """`stripe`, `resend`, `square`, `paypal` (with keys) or `github` (without)."""
    mode: str
    """How it fails: hang, reset, close, cut, slow, 500, 502, 503 or none. `pause`: it takes up to 20 ms."""
    fails: int
    """How many mutating requests fail."""
    effects: list = field(default_factory=list)
    requests: list = field(default_factory=list)
    by_key: dict = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    refund: str = "succeeded"
    """The state of every refund."""
    begun: set = field(default_factory=set)
    answered: set = field(default_factory=set)
    """The amounts of requests that have arrived, and of those that have been answered."""

    def __enter__(self):
        vendor = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                with vendor.lock:
                    found = list(reversed(vendor.effects))
                if "refunds" in self.path:
                    return self.answer(200, {"status": vendor.refund})
                if "issues" in self.path:
                    return self.answer(200, found)
                return self.answer(200, {"full_name": "o/r", "name": "r", "url": "/repos/o/r"})

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                if self.path.endswith("/oauth2/token"):
                    return self.answer(200, {"access_token": "t", "token_type": "Bearer", "expires_in": 32000})
                result, failing = vendor.receive(self.path, self.headers, body)
                mode = vendor.mode if failing else "none"
                if mode == "hang":
                    # Until the other side gives up.
                    with contextlib.suppress(OSError):
                        self.connection.recv(1)
                    self.close_connection = True
                elif mode == "pause":
                    vendor.begun.add(result["amount"])
                    time.sleep(random.uniform(0, 0.02))
                    vendor.answered.add(result["amount"])
                    self.answer(200, result)
                elif mode == "slow":
                    # An SDK that gives up after 2 s has begun to count before this.
                    time.sleep(4)
                    self.answer(200, result)
                elif mode in ("reset", "close"):
                    if mode == "reset":
                        linger = struct.pack("ii", 1, 0)
                        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    # Later writes of the handler must not fail loudly.
                    self.close_connection = True
                    self.connection.close()
                elif mode == "cut":
                    text = json.dumps(result).encode()
                    self.send_response(200)
                    self.send_header("content-type", "application/json")
                    self.send_header("content-length", str(len(text)))
                    self.end_headers()
                    self.wfile.write(text[: len(text) // 2])
                    self.wfile.flush()
                    self.close_connection = True
                elif mode.isdigit():
                    self.answer(int(mode), {"message": "broken", "error": {"type": "api_error"}})
                else:
                    self.answer(201 if vendor.kind in ("github", "paypal") else 200, result)

            def answer(self, status, value):
                text = json.dumps(value).encode()
                try:
                    self.send_response(status)
                    self.send_header("content-type", "application/json")
                    self.send_header("content-length", str(len(text)))
                    self.end_headers()
                    self.wfile.write(text)
                except OSError:
                    self.close_connection = True

            def finish(self):
                try:
                    super().finish()
                except OSError:
                    pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def receive(self, path, headers, body):
        """The effect of a request, and whether its answer is lost. A known key has no further effect."""
        key = self.key(headers, body)
        with self.lock:
            self.requests.append({"path": path, "key": key})
            failing = len(self.requests) <= self.fails
            if key is not None and key in self.by_key:
                return self.by_key[key], failing
            number = len(self.effects) + 1
            result = self.result(number, path, headers, body)
            self.effects.append(result)
            if key is not None:
                self.by_key[key] = result
            return result, failing

    def phase(self, amount):
        """How far the vendor is with the payment of this amount."""
        if amount not in self.begun:
            return "before"
        return "after" if amount in self.answered else "during"

    def key(self, headers, body):
        if self.kind in ("stripe", "resend"):
            return headers.get("Idempotency-Key")
        if self.kind == "paypal":
            return headers.get("PayPal-Request-Id")
        if self.kind == "square":
            return json.loads(body).get("idempotency_key")
        return None

    def result(self, number, path, headers, body):
        if self.kind == "stripe":
            fields = dict(urllib.parse.parse_qsl(body.decode()))
            amount = int(fields.get("amount", 0))
            return {"id": f"ch_{number}", "object": "charge", "amount": amount, "status": "succeeded"}
        if self.kind == "resend":
            return {"id": f"mail_{number}"}
        if self.kind == "square":
            return {"payment": {"id": f"pay_{number}", "status": "COMPLETED"}}
        if self.kind == "paypal":
            return {"id": f"order_{number}", "status": "CREATED"}
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        title = json.loads(body)["title"]
        return {"number": number, "title": title, "created_at": now, "url": f"{self.url}/repos/o/r/issues/{number}"}
