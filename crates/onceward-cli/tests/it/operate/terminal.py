"""terminal.py ROWS COLUMNS STEPS COMMAND…: runs a command in a pseudo-terminal and types into it.

STEPS is JSON: a list of [text to wait for, keys to send]; the key `signal:N` sends a signal. Prints JSON: the exit
code, the text of the screen at each step, whether the settings of the terminal are restored, and whether the
alternate screen was left.
"""

import fcntl
import json
import os
import pty
import re
import select
import struct
import sys
import termios
import time

rows, columns, steps, command = int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4:]
leader, follower = pty.openpty()
fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
before = termios.tcgetattr(follower)
process = os.fork()
if process == 0:
    os.close(leader)
    os.login_tty(follower) if hasattr(os, "login_tty") else None
    if not hasattr(os, "login_tty"):
        os.setsid()
        fcntl.ioctl(follower, termios.TIOCSCTTY, 0)
        for number in range(3):
            os.dup2(follower, number)
    os.environ["TERM"] = "xterm-256color"
    os.execvp(command[0], command)

seen = b""


def read(seconds: float) -> bool:
    """Reads what there is; whether there was something."""
    global seen
    ready, _, _ = select.select([leader], [], [], seconds)
    if not ready:
        return False
    try:
        part = os.read(leader, 65536)
    except OSError:
        return False
    seen += part
    # The program asks where the cursor is.
    if b"\x1b[6n" in part:
        os.write(leader, b"\x1b[1;1R")
    return bool(part)


def screen() -> str:
    """What the screen shows now. Only what `once top` uses is understood: moves, text and clearing."""
    cells, row, column = [[" "] * columns for _ in range(rows)], 0, 0
    for code, kind, text in re.findall(r"\x1b\[([0-9;?]*)([A-Za-z])|([^\x1b])", seen.decode("utf-8", "replace")):
        if kind == "H":
            place = [int(part or 1) for part in (code or "1;1").split(";")]
            row, column = place[0] - 1, place[-1] - 1
        elif kind == "J":
            cells = [[" "] * columns for _ in range(rows)]
        elif text == "\r":
            column = 0
        elif text == "\n":
            row += 1
        elif text and row < rows and column < columns:
            cells[row][column] = text
            column += 1
    return "\n".join("".join(line).rstrip() for line in cells)


end = time.monotonic() + 30
shown = ""
for wanted, keys in steps:
    # `!text` waits until the text is gone.
    while wanted.startswith("!") == (wanted.lstrip("!") in screen()):
        if time.monotonic() > end:
            sys.exit(f"waited 30 s for {wanted!r}; the screen has:\n{screen()}")
        read(0.1)
    shown += screen()
    if keys.startswith("signal:"):
        os.kill(process, int(keys.removeprefix("signal:")))
    else:
        os.write(leader, keys.encode())

status = None
while status is None:
    read(0.05)
    ended, code = os.waitpid(process, os.WNOHANG)
    if ended:
        status = os.waitstatus_to_exitcode(code)
    elif time.monotonic() > end:
        os.kill(process, 9)
        sys.exit(f"it does not end; the screen has:\n{screen()}")
while read(0.1):
    pass
print(
    json.dumps(
        {
            "exit": status,
            "text": shown,
            "restored": termios.tcgetattr(follower) == before,
            "left": seen.count(b"\x1b[?1049l") == seen.count(b"\x1b[?1049h") > 0,
            "colours": bool(re.search(rb"\x1b\[3[0-9];?|\x1b\[38;", seen)),
        }
    )
)
