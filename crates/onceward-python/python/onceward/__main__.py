"""Starts the program `once`, which the wheel contains: `uvx onceward …`, `python -m onceward …`."""

import os
import sys
import sysconfig
from pathlib import Path


def main() -> None:
    """Replaces this process by the program, so that streams, signals and exit codes are the program's own."""
    user = sysconfig.get_preferred_scheme("user")
    folders = [sysconfig.get_path("scripts"), sysconfig.get_path("scripts", user), os.path.dirname(sys.argv[0])]
    for folder in folders:
        program = Path(folder) / "once"
        if program.is_file():
            os.execv(program, [str(program), *sys.argv[1:]])
    sys.exit("onceward: the program `once` is not installed with this package; build it with cargo")


if __name__ == "__main__":
    main()
