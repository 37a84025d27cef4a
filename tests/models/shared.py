"""What the rigs take from those of the gateway: the installation, the start of `once serve`, and free ports."""

import sys
from importlib import import_module
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "gateway"))

install = import_module("install").install
free_port = import_module("sdks").free_port
start = import_module("sdks").start
