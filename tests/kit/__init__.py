"""What the rigs share: `main` runs them, `install` their pinned parts, `Serve` is `once serve`, and so on.

# Layout

- `session.py`: the command line, rows, the last line, and the end of everything that a rig has started
- `processes.py`: programs with a home of their own, waiting, free ports, `once serve`
- `install.py`: pinned versions from the ordinary registries
- `kills.py`: kill it, start it again, retry everything, then ask the judge
- `servers.py`: private PostgreSQL and Redis servers

A rig never builds: `--once FILE` and the like name the programs under test.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Needs `tomllib`.
if sys.version_info < (3, 11):
    sys.exit("the rigs need Python 3.11")

from .install import install  # noqa: E402
from .kills import judged, torment  # noqa: E402
from .processes import Serve, environment, execute, folder, free_port, launch, listens, until  # noqa: E402
from .session import Rig, Row, Session, descendants, main, options_of, target  # noqa: E402

__all__ = [
    "ROOT", "Rig", "Row", "Serve", "Session", "descendants", "environment", "execute", "folder", "free_port", "install",
    "judged", "launch", "listens", "main", "options_of", "target", "torment", "until",
]  # fmt: skip
