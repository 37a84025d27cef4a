"""flood.py PORT COUNT LENGTH SENT: opens connections that say a body of LENGTH bytes comes, send SENT of them, and no more.
Says `ready` when nothing more can be sent, and ends with its standard input.
"""

import resource
import socket
import sys
import time

port, count, length, sent = map(int, sys.argv[1:])
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
head = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % length
piece = b"x" * 65536
left = {}
for _ in range(count):
    connection = socket.create_connection(("127.0.0.1", port))
    connection.sendall(head)
    connection.setblocking(False)
    left[connection] = sent
done, moved = [], time.time()
while left and time.time() - moved < 1:
    for connection in list(left):
        try:
            left[connection] -= connection.send(piece[: left[connection]])
            moved = time.time()
        except BlockingIOError:
            continue
        except OSError:
            left[connection] = 0
        if not left[connection]:
            done.append(connection)
            del left[connection]
    time.sleep(0.001)
print("ready", flush=True)
sys.stdin.read()
