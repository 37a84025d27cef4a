"""The action of every surface but the shop's: what it does, the file `how` in its folder says.

As a command (`once run`) it ends with exit 3 for a definite failure and 1 for a lost reply.
"""

import os
import sys
import time
from pathlib import Path


class Refused(Exception):
    """It is certain that nothing happened."""


class Lost(Exception):
    """It may have happened."""


def act(folder: Path) -> dict:
    how = (folder / "how").read_text()
    if how == "refuse":
        raise Refused("declined")
    if how == "lose":
        raise Lost("no reply")
    if how == "stall":
        wait_for(folder / "never")
    if how == "hold":
        (folder / "held").touch()
        wait_for(folder / "go")
    return {"id": 1}


def wait_for(file: Path, seconds: float = 600) -> None:
    end = time.monotonic() + seconds
    while not file.exists():
        if time.monotonic() > end:
            os._exit(99)
        time.sleep(0.02)


if __name__ == "__main__":
    try:
        act(Path.cwd())
        print("done")
    except Refused:
        sys.exit(3)
    except Lost:
        sys.exit(1)
