"""The command line of a rig, its rows, its last line, and the end of everything that it has started."""

import argparse
import contextlib
import ctypes
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from .install import install

SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
# A program whose client has left may still finish what it has begun.
ENDING_S = 30
BUILDS = "a rig builds nothing: name a program that is built"


@dataclass
class Row:
    """One check: what was seen, and whether that is expected."""

    rig: str
    case: str
    seen: str
    holds: bool

    def line(self):
        return f"{'ok  ' if self.holds else 'FAIL'} {self.rig}: {self.case}: {self.seen}"


@dataclass
class Rig:
    """A part of a run that `--only` can choose."""

    rows: Callable
    """Gives its rows; it is called with its name and the session."""
    parts: list = field(default_factory=list)
    """What it needs of `versions.toml`."""
    quick: bool = True
    """Whether `--quick` runs it."""
    quick_parts: list | None = None
    """What `--quick` needs of `versions.toml`, if that is less."""
    alone: bool = True
    """Whether no other rig may run at the same time."""

    def needs(self, quick):
        return self.quick_parts if quick and self.quick_parts is not None else self.parts


class Session:
    """One run: its temporary folder, its rows, and its processes."""

    def __init__(self, name, options, cache=None):
        self.name, self.options, self.cache = name, options, cache
        self.quick = getattr(options, "quick", False)
        self.once = getattr(options, "once", None)
        self.rows = []
        self.lock = threading.Lock()

    def __enter__(self):
        self.begun = time.monotonic()
        self.work = Path(tempfile.mkdtemp(prefix=f"{self.name}-"))
        tempfile.tempdir = str(self.work)
        os.environ.update(HOME=str(self.work), TMPDIR=str(self.work))
        # Processes whose parents have ended become children of this one, so none is overlooked.
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._interrupted)
        return self

    def _interrupted(self, number, _frame):
        """Stops everything at once. Threads may wait for processes, so they are not asked."""
        for number_ in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number_, signal.SIG_IGN)
        while found := descendants():
            _kill(found)
            time.sleep(0.01)
        shutil.rmtree(self.work, ignore_errors=True)
        _kill(descendants())
        os._exit(128 + number)

    def add(self, row):
        with self.lock:
            self.rows.append(row)
            print(row.line(), flush=True)

    def tried(self, name, rows):
        """Adds all rows. An error is a row that does not hold; other rigs still run."""
        try:
            for row in rows:
                self.add(row)
        except Exception as error:
            traceback.print_exc()
            self.add(Row(name, "the rig broke", f"{type(error).__name__}: {error}"[:300], False))

    def __exit__(self, kind, error, _trace):
        if isinstance(error, Exception):
            traceback.print_exc()
            self.add(Row(self.name, "the rig broke", f"{kind.__name__}: {error}"[:300], False))
        end = time.monotonic() + ENDING_S
        while (left := descendants()) and time.monotonic() < end:
            time.sleep(0.02)
        for pid in left:
            self.add(Row(self.name, "a process is left behind", f"{pid} {_command(pid)}", False))
        _kill(left)
        shutil.rmtree(self.work, ignore_errors=True)
        right = sum(row.holds for row in self.rows)
        print(f"{right} of {len(self.rows)} as expected in {time.monotonic() - self.begun:.0f} s", flush=True)
        return isinstance(error, Exception)

    @property
    def exit_code(self):
        return 0 if self.rows and all(row.holds for row in self.rows) else 1


def main(doc, rigs, programs=("once",), versions=None, add=None, jobs=1, cache=None, prepare=None):
    """Runs the rigs that the command line names. `prepare` gets the names of the parts that are installed."""
    parser = options_of(doc, programs, add)
    parser.add_argument("--only", action="append", choices=rigs, help="this rig; may be given again")
    options = parsed(parser, programs)
    name = Path(sys.argv[0]).resolve().parent.name
    cache = cache or target() / name
    chosen = options.only or [each for each, rig in rigs.items() if rig.quick or not options.quick]
    if not chosen:
        parser.error("there is no quick form")
    parts = list(dict.fromkeys(part for each in chosen for part in rigs[each].needs(options.quick)))
    if versions:
        install(cache, versions, parts)
    if prepare:
        prepare(cache, parts, options)
    if options.install:
        return 0
    with Session(name, options, cache) as session:
        together = [each for each in chosen if not rigs[each].alone]
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(lambda each: session.tried(each, rigs[each].rows(each, session)), together))
        for each in chosen:
            if rigs[each].alone:
                session.tried(each, rigs[each].rows(each, session))
    return session.exit_code


def options_of(doc, programs, add=None):
    """The options that every rig has."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the form for every change (scripts/test)")
    parser.add_argument("--install", action="store_true", help="install what is needed, and nothing else")
    for program in programs:
        # Not resolved: an interpreter of a virtual environment is a link.
        parser.add_argument(f"--{program}", type=lambda name: Path(name).absolute(), help="the program under test")
    if add:
        add(parser)
    return parser


def parsed(parser, programs):
    options = parser.parse_args()
    for program in programs if not options.install else ():
        file = getattr(options, program)
        if file is None:
            parser.error(f"--{program} FILE is needed; {BUILDS}")
        if not file.exists():
            parser.error(f"--{program}: there is no {file}; {BUILDS}")
    return options


def target():
    """Where parts are installed."""
    return Path(os.environ.get("CARGO_TARGET_DIR", Path(__file__).resolve().parents[2] / "target")).resolve()


def descendants():
    """All processes that this one has started, and theirs, that have not ended."""
    parents, states = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            pid = int(stat.parent.name)
            parents[pid], states[pid] = int(fields[1]), fields[0]
    found, new = set(), {os.getpid()}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new} - found
        found |= new
    return [pid for pid in found if states[pid] not in "ZX"]


def _kill(pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _command(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return "?"
