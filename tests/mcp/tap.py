"""tap.py FILE COMMAND…: runs a command and records each line in both directions, with its time.

For `hosts --wire`, which shows what each host really sends. Runs that count effects do not use it.
"""

import json
import subprocess
import sys
import threading
import time


def main():
    with open(sys.argv[1], "a", buffering=1) as notes:
        child = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        out = (child.stdout, sys.stdout.buffer, "server", notes)
        threading.Thread(target=_pump, args=(sys.stdin.buffer, child.stdin, "host", notes), daemon=True).start()
        _pump(*out)
    # The other thread may still read the host's side; nothing more will be forwarded.
    return child.wait()


def _pump(source, sink, who, notes):
    try:
        for line in source:
            notes.write(json.dumps({"at": time.time(), "from": who, "line": line.decode()}) + "\n")
            sink.write(line)
            sink.flush()
        sink.close()
    except (OSError, ValueError):
        return


sys.exit(main())
