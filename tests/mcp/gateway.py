"""gateway.py PORT [--forget TOOL] -- COMMAND…: a stdio server, served over streamable HTTP, with or without sessions.

The conformance suite and mcp-remote support only HTTP. This runs between them and a command, which is the server or
the proxy in front of it. It is the same in both cases, so any difference comes from the proxy. Each session has its
own process; requests without a session share one. Request ids are made unique and restored in the answers.

With --forget it simulates a failing gateway: it forwards the first call of TOOL, forgets the session, and answers 404.
"""

import itertools
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

IDLE = 60  # seconds a stream may be silent before it is closed


class Server:
    """One process of the command, and the requests that wait for it."""

    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.lock = threading.Lock()
        self.numbers = itertools.count(1)
        self.waiting = {}  # our id -> (their id, progress token, their stream)
        self.aside = queue.Queue()  # for the stream that belongs to no request
        self.woken, self.waker = os.pipe()
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, message):
        with self.lock:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()

    def request(self, message):
        """Forwards a request; its messages arrive in the queue."""
        stream = queue.Queue()
        token = ((message.get("params") or {}).get("_meta") or {}).get("progressToken")
        number = next(self.numbers)
        self.waiting[number] = (message["id"], token, stream)
        self.send({**message, "id": number})
        return number, stream

    def cancel(self, message):
        """A cancel names an id, so it needs ours."""
        theirs = (message.get("params") or {}).get("requestId")
        for number, (known, _, _) in list(self.waiting.items()):
            if known == theirs:
                message = {**message, "params": {**message["params"], "requestId": number}}
        self.send(message)

    def close(self):
        """Closes both pipes at once, as if the gateway had died: a later answer is lost."""
        self.process.stdin.close()
        os.write(self.waker, b"x")

    def _read(self):
        # A blocked read cannot be interrupted, so it starts only when there is something to read.
        pipe, rest = self.process.stdout.fileno(), b""
        while self.woken not in (ready := select.select([pipe, self.woken], [], [])[0]) and ready:
            if not (more := os.read(pipe, 1 << 16)):
                break
            *lines, rest = (rest + more).split(b"\n")
            for line in lines:
                self._route(json.loads(line))
        self.process.stdout.close()
        for _, _, stream in list(self.waiting.values()):
            stream.put(None)

    def _route(self, message):
        if "method" not in message:
            known = self.waiting.pop(message.get("id"), None)
            if known:
                known[2].put({**message, "id": known[0]})
                known[2].put(None)
            return
        params = message.get("params") or {}
        for _, token, stream in list(self.waiting.values()):
            if token is not None and token == params.get("progressToken"):
                stream.put(message)
                return
        # A message without a request id is attributed to the latest request.
        subscription = (params.get("_meta") or {}).get("io.modelcontextprotocol/subscriptionId")
        if subscription is not None and int(subscription) in self.waiting:
            theirs, _, stream = self.waiting[int(subscription)]
            params["_meta"]["io.modelcontextprotocol/subscriptionId"] = str(theirs)
            stream.put(message)
        elif self.waiting:
            list(self.waiting.values())[-1][2].put(message)
        else:
            self.aside.put(message)


class Gateway(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    behind, forget = [], None
    servers, lock = {}, threading.Lock()

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if (self.headers.get("Host") or "").split(":")[0] not in ("localhost", "127.0.0.1"):
            return self._empty(403)
        session = self.headers.get("Mcp-Session-Id")
        server, session = self._server(message, session)
        if server is None:
            return self._empty(404)
        if "method" not in message or "id" not in message:
            (server.cancel if message.get("method") == "notifications/cancelled" else server.send)(message)
            return self._empty(202)
        number, stream = server.request(message)
        if self._forgets(message):
            del self.servers[session]
            server.close()
            return self._empty(404)
        self._stream(stream, session)
        server.waiting.pop(number, None)

    def do_GET(self):
        server = self.servers.get(self.headers.get("Mcp-Session-Id") or "")
        if server is None:
            return self._empty(405)
        self._stream(server.aside, None)

    def do_DELETE(self):
        server = self.servers.pop(self.headers.get("Mcp-Session-Id") or "", None)
        if server is None:
            return self._empty(405)
        server.close()
        self._empty(200)

    def _server(self, message, session):
        with self.lock:
            if session is None:
                # A process uses the revision of its first message, so each stateless version has its own process.
                meta = (message.get("params") or {}).get("_meta") or {}
                version = meta.get("io.modelcontextprotocol/protocolVersion", "")
                session = uuid.uuid4().hex if message.get("method") == "initialize" else f"none {version}"
                if session not in self.servers or self.servers[session].process.poll() is not None:
                    self.servers[session] = Server(self.behind)
            return self.servers.get(session), session

    def _forgets(self, message):
        with self.lock:
            called = message["method"] == "tools/call" and message["params"]["name"] == self.forget
            if called:
                Gateway.forget = None
            return called

    def _stream(self, messages, session):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        if session and not session.startswith("none"):
            self.send_header("Mcp-Session-Id", session)
        self.end_headers()
        self.wfile.flush()
        self.close_connection = True
        try:
            while (message := messages.get(timeout=IDLE)) is not None:
                self.wfile.write(f"event: message\ndata: {json.dumps(message)}\n\n".encode())
                self.wfile.flush()
        except (queue.Empty, OSError):
            pass

    def _empty(self, status):
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


class Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def main():
    split = sys.argv.index("--")
    options, Gateway.behind = sys.argv[1:split], sys.argv[split + 1 :]
    if "--forget" in options:
        Gateway.forget = options[options.index("--forget") + 1]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    listener = Listener(("127.0.0.1", int(options[0])), Gateway)
    print(json.dumps({"port": listener.server_port}), flush=True)
    try:
        listener.serve_forever()
    finally:
        for server in Gateway.servers.values():
            server.process.kill()
            server.process.wait()


main()
