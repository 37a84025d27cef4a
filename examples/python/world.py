"""What the examples happen to: a world that counts, processes that crash, and two callers at once."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

folder = Path(tempfile.mkdtemp(prefix="onceward-example-"))
atexit.register(shutil.rmtree, folder, ignore_errors=True)


def happen(what: str) -> None:
    """An effect that cannot be undone: a line in a file that all processes share."""
    with (folder / "effects").open("a") as effects:
        effects.write(what + "\n")


def happened(what: str) -> int:
    """How often it happened."""
    file = folder / "effects"
    return file.read_text().splitlines().count(what) if file.exists() else 0


def crash() -> None:
    """The process ends here, with no chance to write anything down."""
    os._exit(1)


def in_processes(*works: Callable[[], object]) -> None:
    """Does each in a process of its own, all at the same time, and waits for them."""
    children = []
    for work in works:
        child = os.fork()
        if child == 0:
            try:
                work()
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def show(naive: int, ours: int, what: str) -> None:
    """Prints both counts; ours must be one, and the other must show its failure."""
    print(f"{what}: without a ledger {naive}, with Onceward {ours}")
    assert naive != 1, "the naive code was to show its failure"
    assert ours == 1
