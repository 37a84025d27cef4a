"""An upstream that records, byte for byte, which requests reached it."""

import array
import fcntl
import io
import socketserver
import termios
import threading

import kit


class Origin:
    """Answers every request with 200, and keeps the raw bytes of each connection, as they arrive."""

    def __init__(self):
        self.connections = []
        self.lock = threading.Lock()
        origin = self

        class Handler(socketserver.StreamRequestHandler):
            def setup(self):
                super().setup()
                recorded = Recorded(self.connection)
                self.rfile = io.BufferedReader(recorded)
                with origin.lock:
                    origin.connections.append(recorded)

            def handle(self):
                while (head := self.head()) is not None:
                    self.body(head)
                    self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: text/plain\r\n\r\nok")

            def head(self):
                lines = []
                while True:
                    line = self.rfile.readline(65536)
                    if not line:
                        return None
                    if line == b"\r\n":
                        return lines
                    lines.append(line)

            def body(self, head):
                fields = [line.split(b":", 1) for line in head[1:]]
                fields = {name.strip().lower(): value.strip() for name, value in fields}
                if fields.get(b"transfer-encoding", b"").lower() == b"chunked":
                    while True:
                        size = self.rfile.readline()
                        self.rfile.read(int(size.split(b";")[0], 16) + 2)
                        if size.strip() == b"0":
                            return
                self.rfile.read(int(fields.get(b"content-length", 0)))

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = daemon_threads = True

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def taken(self):
        """The lines that have arrived, once nothing more is on its way to this process."""
        kit.until("the origin has read all", lambda: all(one.is_read() for one in self.connections))
        return [line for one in self.connections for line in bytes(one.raw).split(b"\n")]

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class Recorded(io.RawIOBase):
    """The reading side of a connection, which keeps all bytes."""

    def __init__(self, connection):
        self.connection, self.raw, self.is_over = connection, bytearray(), False

    def readable(self):
        return True

    def readinto(self, buffer):
        size = self.connection.recv_into(buffer)
        self.raw += bytes(buffer[:size])
        self.is_over = size == 0
        return size

    def is_read(self):
        """Whether nothing has arrived that is not in `raw`."""
        if self.is_over or self.connection.fileno() < 0:
            return True
        waiting = array.array("i", [0])
        fcntl.ioctl(self.connection, termios.FIONREAD, waiting)
        return waiting[0] == 0
