"""What the rigs share: the world that effects change, scenarios with and without the ledger, and rows."""

import asyncio
import inspect
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from onceward import Ledger, Session


@dataclass
class World:
    """What effects change: a file with one line for each. It is independent of the ledger."""

    file: Path

    def change(self, what: str) -> str:
        """The effect."""
        with open(self.file, "a") as file:
            file.write(what + "\n")
            file.flush()
            os.fsync(file.fileno())
        return f"{what} is number {self.effects}"

    @property
    def effects(self) -> int:
        """How many there were."""
        return len(self.file.read_text().splitlines()) if self.file.exists() else 0


@dataclass
class Run:
    """One run of a scenario: the world, and the ledger if there is one."""

    folder: Path
    ledger: Ledger | None
    world: World
    notes: list[str] = field(default_factory=list)

    @property
    def guarded(self) -> bool:
        """Whether there is a ledger."""
        return self.ledger is not None

    @property
    def session(self) -> Session:
        """The run's session."""
        assert self.ledger is not None
        return self.ledger.session("run-1")


@dataclass
class Scenario:
    """A way in which a framework repeats a call, and how many effects that has."""

    what: str
    bare: int | None
    guarded: int
    function: Callable


scenarios: list[Scenario] = []


def scenario(what: str, *, bare: int | None, guarded: int = 1):
    """Marks a function of a `Run`: `bare` effects without the ledger (None: not run without), `guarded` with it."""

    def mark(function):
        scenarios.append(Scenario(what, bare, guarded, function))
        return function

    return mark


def once(run: Run, scenario: Scenario) -> tuple[int, str]:
    """The effects of one run, and what went wrong with it."""
    wrong = ""
    try:
        ended = scenario.function(run)
        if inspect.isawaitable(ended):
            asyncio.run(_awaited(ended))
    except Exception as error:  # every error is reported; without the ledger it may be the expected one
        wrong = f"{type(error).__name__}: {error}"[:200]
        if run.guarded:
            traceback.print_exc(limit=-4)
    if run.ledger is not None:
        run.ledger.close()
    return run.world.effects, wrong


async def _awaited(work):
    return await asyncio.wait_for(work, 600)


def main(rig: str) -> None:
    """Runs the rig's scenarios and prints a line of JSON for each."""
    only = sys.argv[1:]
    for one in scenarios:
        if only and not any(word in one.what for word in only):
            continue
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="onceward-") as folder:
            row = {"rig": rig, "what": one.what, "expected_bare": one.bare, "expected": one.guarded}
            if one.bare is not None:
                row["bare"], row["bare_wrong"] = once(_run(Path(folder) / "bare", None), one)
            guarded = _run(Path(folder) / "guarded", "agent.db")
            row["guarded"], row["wrong"] = once(guarded, one)
            row["notes"] = guarded.notes
        row["seconds"] = round(time.monotonic() - start, 1)
        row["holds"] = row["guarded"] == one.guarded and not row["wrong"] and row.get("bare") == one.bare
        print("ROW " + json.dumps(row), flush=True)


def _run(folder: Path, database: str | None) -> Run:
    folder.mkdir()
    ledger = Ledger(folder / database) if database else None
    return Run(folder, ledger, World(folder / "world"))
