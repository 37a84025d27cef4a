"""http_server.py [PORT [PEM]]: an MCP server by HTTP that counts: each call leaves a line in `effects`, and does what its
arguments say. Every request leaves one in `seen`. Only what the tests need of the protocol.
"""

import json
import os
import socket
import ssl
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

guard = threading.Lock()
later = {}  # event id -> the answer that a stream which ended early did not give
tools = [
    {"name": "count", "inputSchema": {"type": "object", "properties": {"n": {"x-mcp-header": "N"}}}},
    {"name": "look", "annotations": {"readOnlyHint": True}, "inputSchema": {"type": "object"}},
    {"name": "uncount", "inputSchema": {"type": "object", "properties": {"n": {"x-mcp-header": "N"}}}},
]


def wait_for(name):
    begun = time.time()
    while name and not os.path.exists(name) and time.time() - begun < 30:
        time.sleep(0.005)


def read(name):
    try:
        with open(name) as file:
            return file.read()
    except FileNotFoundError:
        return ""


def effects():
    return read("effects")


def note(file, text):
    with guard, open(file, "a") as out:
        out.write(text + "\n")


def text(words, **more):
    return {"content": [{"type": "text", "text": words}], **more}


class Server(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.see(body)
        if self.headers.get("Authorization", "") in ("Bearer bad", *read("revoked").split("\n")[:-1]):
            return self.message(401, {"error": "invalid_token"}, {"WWW-Authenticate": 'Bearer error="invalid_token"'})
        try:
            message = json.loads(body)
        except ValueError:
            return self.message(400, {"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "no JSON"}})
        if not isinstance(message, dict) or "id" not in message or "method" not in message:
            return self.plain(202, b"")
        id, method, params = message["id"], message["method"], message.get("params") or {}
        answer = {"jsonrpc": "2.0", "id": id}
        if method == "initialize":
            info = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
            info["serverInfo"] = {"name": "counting", "version": "1"}
            return self.message(200, {**answer, "result": info}, {"Mcp-Session-Id": "s-1"})
        if method == "tools/list":
            listed = {**answer, "result": {"tools": tools, "unknown": 12345678901234567890123}}
            if self.headers.get("X-Events"):
                self.stream()
                return self.event(listed)
            return self.message(200, listed)
        if method == "tools/call":
            return self.call(answer, params)
        return self.message(200, {**answer, "result": {"echo": message}}, {"X-Answer": "yes"})

    def call(self, answer, params):
        args = params.get("arguments") or {}
        if params["name"] == "look":
            return self.message(200, {**answer, "result": text(effects())})
        if args.get("reject"):
            words = "Invalid arguments for tool {}: bad".format(params["name"])
            return self.message(400, {**answer, "error": {"code": -32602, "message": words}})
        line = json.dumps(args, sort_keys=True)
        note("effects", line)
        if args.get("events"):
            self.stream()
            token = (params.get("_meta") or {}).get("progressToken")
            self.progress(token, 1)
            while args.get("ticks") and not os.path.exists(args["hold"]):
                time.sleep(0.02)
                self.progress(token, 2)
        wait_for(args.get("hold"))
        if args.get("late"):
            if not args.get("events"):
                self.stream()
            later["7"] = {**answer, "result": text("late")}
            return self.wfile.write(b"id: 7\nretry: 10\ndata:\n\n")
        if args.get("die"):
            os._exit(args["die"])
        if args.get("reset"):
            self.close_connection = True
            return self.connection.shutdown(socket.SHUT_RDWR)
        if args.get("coded"):
            # The Python SDK maps the codes of errors to statuses, also of those that a tool raises.
            status, code, words = args["coded"]
            return self.message(status, {**answer, "error": {"code": code, "message": words}})
        if args.get("status"):
            return self.plain(args["status"], b"so sorry", {"X-Why": "tired"})
        if args.get("cut"):
            return None
        runs = effects().splitlines().count(line)
        words = "x" * args["size"] if args.get("size") else "run %d" % runs
        result = {**answer, "result": text(words, structuredContent={"run": runs, "big": 12345678901234567890123})}
        # What is not the result of this call.
        result.update(args.get("instead") or {})
        if args.get("events"):
            return self.event(result)
        self.message(200, result)

    def progress(self, token, progress):
        params = {"progressToken": token, "progress": progress}
        self.event({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})

    def do_GET(self):
        self.see(b"")
        answer = later.pop(self.headers.get("Last-Event-ID") or "", None)
        if self.path.startswith("/plain"):
            return self.plain(203, b"as it is", {"X-Answer": "yes"})
        self.stream()
        if answer:
            return self.event(answer)
        self.event({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "hello"}})
        wait_for("bye")

    def do_DELETE(self):
        self.see(b"")
        self.plain(200, b"")

    def see(self, body):
        headers = {name.lower(): value for name, value in self.headers.items()}
        seen = {"method": self.command, "path": self.path, "headers": headers, "body": body.decode()}
        note("seen", json.dumps(seen))

    def message(self, status, message, headers={}):
        self.plain(status, json.dumps(message).encode(), {"Content-Type": "application/json", **headers})

    def plain(self, status, body, headers={}):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": len(body)}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def event(self, message):
        self.wfile.write(b"event: message\ndata: %s\n\n" % json.dumps(message).encode())
        self.wfile.flush()

    def log_message(self, *_):
        pass


class Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_):
        pass


listener = Listener(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 0), Server)
if len(sys.argv) > 2:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[2])
    listener.socket = context.wrap_socket(listener.socket, server_side=True)
print(listener.server_port, flush=True)
listener.serve_forever()
