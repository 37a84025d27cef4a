"""An upstream that records, byte for byte, which requests reached it."""

import socketserver
import threading


class Origin:
    """Answers every request with 200, and keeps the raw bytes of each connection."""

    def __init__(self):
        self.connections = []
        self.lock = threading.Lock()
        origin = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self):
                raw = bytearray()
                with origin.lock:
                    origin.connections.append(raw)
                while True:
                    head = self.head(raw)
                    if head is None:
                        return
                    self.body(raw, head)
                    self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: text/plain\r\n\r\nok")

            def head(self, raw):
                lines = []
                while True:
                    line = self.rfile.readline(65536)
                    raw.extend(line)
                    if not line:
                        return None
                    if line == b"\r\n":
                        return lines
                    lines.append(line)

            def body(self, raw, head):
                fields = [line.split(b":", 1) for line in head[1:]]
                fields = {name.strip().lower(): value.strip() for name, value in fields}
                if fields.get(b"transfer-encoding", b"").lower() == b"chunked":
                    while True:
                        size = self.rfile.readline()
                        chunk = self.rfile.read(int(size.split(b";")[0], 16) + 2)
                        raw.extend(size + chunk)
                        if size.strip() == b"0":
                            return
                raw.extend(self.rfile.read(int(fields.get(b"content-length", 0))))

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = daemon_threads = True

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def taken(self):
        """What has arrived since the last call, joined."""
        with self.lock:
            seen, self.connections[:] = b"\n".join(bytes(raw) for raw in self.connections), []
        return seen

    def close(self):
        self.server.shutdown()
        self.server.server_close()
