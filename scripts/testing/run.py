"""Runs the parts of scripts/test and scripts/soak (parts.toml): compiles once, runs parts beside each other, prints one table.

    scripts/test                     everything
    scripts/test rust python         these parts
    scripts/test rust -- -E 'test(=redis::a_ledger_is_found)'     one test of a part
    scripts/test --repeat 10         the tests ten times: quiet, with 16 busy loops beside them, on one core, in turn

Each part has a HOME and a folder for temporary files of its own. What it leaves there, and processes that outlive it, count
as a failure.
"""

import argparse
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as xml
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
LOGS = TARGET / "test-logs"
TOOLS = ["uv==0.13.7", "maturin==1.16.0", "ruff==0.17.4"]
BUILD = ["cargo", "build", "--locked", "--workspace", "--all-features", "--all-targets"]
RELEASED = ["-p", "onceward-cli", "-p", "onceward-sim", "-p", "shop", "--bins"]
# Parts that run at the same time. Most of what they do is waiting.
BESIDE = 3
# What the folders of the parts begin with. Short, because the path of a socket must be.
FOLDERS = f"{tempfile.gettempdir()}/{os.getpid()}-"
# The conditions of repeated runs, in turn.
CONDITIONS = ["quiet", "busy", "one core"]
BUSY_LOOPS = 16
# How long a process may take to end after its part.
GRACE = 20
# How often progress is shown where the output is no terminal.
SHOWN_EVERY = 30
SLOWEST = 12
STARTED = time.monotonic()

# How the runners tell what passed and failed, and how far they are.
COUNTS = [
    (r"Summary \[.*?\] +\d+ tests? run: (\d+) passed", r"Summary \[.*\] .*?, (\d+) (?:failed|timed out)"),
    (r"^(?:=+ )?(?:\d+ failed, )?(\d+) passed", r"^(?:=+ )?(\d+) failed"),
    (r"^test result: \w+\. (\d+) passed", r"^test result: \w+\. \d+ passed; (\d+) failed"),
]
AS_EXPECTED = r"^(\d+) of (\d+) as expected"
PROGRESS = [r"\( *(\d+)/(\d+)\)", r"\[ *(\d+)(%)\]"]


def main():
    options = arguments()
    parts = [Part(name, about) for name, about in table().items() if name in options.parts]
    LOGS.mkdir(parents=True, exist_ok=True)
    for old in LOGS.glob("run-*"):
        shutil.rmtree(old)
    build(options.tier, parts)
    for ends in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ends, interrupted)
    runs = []
    for number in range(options.repeat):
        condition = CONDITIONS[number % len(CONDITIONS)]
        results = test(parts, condition, options.more)
        runs.append((condition, results))
        report(results, options)
        if options.repeat > 1:
            summary(runs, options.repeat)
            kept = LOGS / f"run-{number + 1}"
            for result in (result for result in results if result.failed):
                kept.mkdir(exist_ok=True)
                shutil.copy(result.log, kept)
    failed = sum(result.failed for _, results in runs for result in results)
    print(f"\n{sum(result.passed for _, results in runs for result in results)} passed, {failed} failed")
    return 1 if failed else 0


def table():
    return tomllib.loads(Path(__file__).with_name("parts.toml").read_text())


def arguments():
    parser = argparse.ArgumentParser(
        prog=f"scripts/{'soak' if sys.argv[1:2] == ['soak'] else 'test'}",
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("tier", choices=["quick", "soak"], help=argparse.SUPPRESS)
    parser.add_argument("parts", nargs="*", metavar="PART", help="only these parts")
    parser.add_argument("--list", action="store_true", help="name the parts")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="run the tests N times")
    words, more = sys.argv[1:], []
    if "--" in words:
        words, more = words[: words.index("--")], words[words.index("--") + 1 :]
    options = parser.parse_args(words)
    known = {name: about for name, about in table().items() if about["tier"] == options.tier}
    if options.list:
        print("\n".join(f"{name:12} {about['says']}" for name, about in known.items()))
        sys.exit(0)
    if wrong := [name for name in options.parts if name not in known]:
        parser.error(f"there is no part {wrong[0]}: one of {', '.join(known)}")
    if more and len(options.parts) != 1:
        parser.error("what stands behind `--` is for one part: name it")
    options.parts, options.more = options.parts or list(known), more
    return options


class Part:
    """An entry of parts.toml."""

    def __init__(self, name, about):
        self.name, self.limit, self.alone = name, about.get("minutes", 60) * 60, about.get("alone", False)
        self.run, self.install = about["run"], about.get("install", [])


def filled(command):
    """The words of a command, with the places of what is built."""
    wheels = sorted((TARGET / "wheels").glob("*.whl")) or [TARGET / "wheels/none.whl"]
    places = {
        "bin": TARGET / "debug", "release": TARGET / "release", "target": TARGET, "wheel": wheels[-1],
        "python": TARGET / "python/venv/bin/python", "tools": TARGET / "python/tools/bin",
        "ruff": ROOT / "crates/onceward-python/pyproject.toml",
    }  # fmt: skip
    return [word.format(**places) for word in shlex.split(command)]


def build(tier, parts):
    """Compiles everything once, with the lints of clippy, and installs what the parts need meanwhile."""
    os.environ["ONCE_TEST_PART"] = f"{os.getpid()}-building"  # by which `interrupted` finds the compiler
    environment = {**os.environ, "RUSTC_WORKSPACE_WRAPPER": "clippy-driver"}
    with ThreadPoolExecutor(1) as pool:
        installed = pool.submit(install, parts)
        step("compiling, with lints", BUILD, environment)
        # Cargo repeats the warnings of what is built already.
        again = subprocess.run([*BUILD, "--quiet"], env=environment, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        if again.stderr.strip():
            sys.exit(f"{again.stderr}\nwarnings are errors: nothing was tested")
        if tier == "soak":
            step("compiling for release", ["cargo", "build", "--locked", "--release", *RELEASED], None)
        listed = ["--workspace", "--all-features", "--list-type", "binaries-only", "--message-format", "json"]
        keep("nextest/binaries.json", ["cargo", "nextest", "list", *listed], environment)
        keep("nextest/cargo.json", ["cargo", "metadata", "--format-version", "1", "--all-features"], environment)
        shutil.rmtree(TARGET / "wheels", ignore_errors=True)
        built = ["--library", TARGET / "debug/lib_onceward.so", "--once", TARGET / "debug/once"]
        step("packing the wheel", ["scripts/assemble-wheel", *built, "--out", TARGET / "wheels"], None)
        say("waiting for installations") if not installed.done() else None
        if trouble := installed.result():
            sys.exit(f"{trouble}\nit could not be installed: nothing was tested")
    venv = {**os.environ, "VIRTUAL_ENV": str(TARGET / "python/venv")}
    wheel = next((TARGET / "wheels").glob("*.whl"))
    uv = [TARGET / "python/tools/bin/uv", "pip", "install", "--quiet", "--no-deps", "--reinstall", wheel]
    step("installing the wheel", uv, venv)


def install(parts):
    """Installs what needs a registry; returns what went wrong."""
    tools, venv = TARGET / "python/tools", TARGET / "python/venv"
    environment = {**os.environ, "VIRTUAL_ENV": str(venv)}
    pip = [tools / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *TOOLS]
    uv = tools / "bin/uv"
    commands = [] if uv.exists() else [[sys.executable, "-m", "venv", tools], pip]
    commands += [
        [uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, venv],
        [uv, "pip", "sync", "--quiet", ROOT / "crates/onceward-python/tests/requirements.lock"],
        *(filled(command) for part in parts for command in part.install),
    ]
    with (LOGS / "install.log").open("w") as log:
        for command in commands:
            log.write(f"$ {' '.join(map(str, command))}\n")
            log.flush()
            if subprocess.run(command, cwd=ROOT, env=environment, stdout=log, stderr=log).returncode:
                log.flush()
                return tail(LOGS / "install.log", 30)
    return None


def step(what, command, environment):
    say(what)
    if subprocess.run(command, cwd=ROOT, env=environment).returncode:
        sys.exit(f"{what} failed: nothing was tested")


def keep(name, command, environment):
    (TARGET / name).parent.mkdir(parents=True, exist_ok=True)
    with (TARGET / name).open("w") as file:
        if subprocess.run(command, cwd=ROOT, env=environment, stdout=file).returncode:
            sys.exit(f"{' '.join(command)} failed: nothing was tested")


class Result:
    """What became of a part."""

    def __init__(self, part, seconds, processor, status, left):
        self.part, self.seconds, self.processor = part, seconds, processor
        self.log = LOGS / f"{part.name}.log"
        text = re.sub(r"\x1b\[[0-9;]*m", "", self.log.read_text(errors="replace"))
        self.passed, self.failed = counted(text)
        self.broken = [*failures(part, text), *left]
        self.failed = max(self.failed + len(left), 1 if status or left else 0)
        self.passed = max(self.passed, 0 if status else 1)


def counted(text):
    passed = failed = 0
    for good, bad in COUNTS:
        passed += sum(int(number) for number in re.findall(good, text, re.M))
        failed += sum(int(number) for number in re.findall(bad, text, re.M))
    for good, whole in re.findall(AS_EXPECTED, text, re.M):
        passed, failed = passed + int(good), failed + int(whole) - int(good)
    return passed, failed


def failures(part, text):
    """What failed, each with the command that repeats it."""
    rust = dict.fromkeys(re.findall(r"(?:FAIL|TIMEOUT|SIG\w+|ABORT|LEAK-FAIL) \[.*?\] \(.*?\) (\S+ \S+)", text))
    for name in rust:
        yield f"{name}    scripts/test {part.name} -- -E 'test(={name.split()[-1]})'"
    for name in dict.fromkeys(re.findall(r"^(?:FAILED|ERROR) (tests/\S+)", text, re.M)):
        yield f"{name}    scripts/test {part.name} -- '{name}'"
    for line in re.findall(r"^.*\b(?:BROKEN|VIOLATED|DOES NOT HOLD)\b.*$", text, re.M):
        yield line.strip()


def test(parts, condition, more):
    """Runs the parts under a condition and returns their results in the order of the table."""
    with tempfile.TemporaryDirectory(prefix=Path(FOLDERS).name, ignore_cleanup_errors=True) as folder, load(condition):
        # PostgreSQL refuses to run as root, and its user must reach its folders.
        Path(folder).chmod(0o755)
        memory = segments()
        state = State(parts, condition)
        ended = threading.Event()
        shown = threading.Thread(target=state.show, args=(ended,))
        shown.start()
        try:
            beside = [part for part in parts if not part.alone]
            with ThreadPoolExecutor(BESIDE) as pool:
                results = list(pool.map(lambda part: run(part, Path(folder), condition, more, state), beside))
            results += [run(part, Path(folder), condition, more, state) for part in parts if part.alone]
        finally:
            ended.set()
            shown.join()
    if left := segments() - memory:
        results[-1].broken.append(f"the tests left {len(left)} segments of shared memory: ipcs -m")
        results[-1].failed += 1
    return results


def segments():
    """The segments of shared memory that no process uses. The machine has room for a few thousand."""
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
    return {line.split()[1] for line in lines if line.split()[6] == "0"}


@contextlib.contextmanager
def load(condition):
    """Busy loops beside the tests, if the condition says so."""
    environment = {**os.environ, "ONCE_TEST_PART": f"{os.getpid()}-load"}
    loop = ["sh", "-c", "while :; do :; done"]
    loops = [subprocess.Popen(loop, env=environment) for _ in range(BUSY_LOOPS * (condition == "busy"))]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run(part, folder, condition, more, state):
    """Runs the commands of a part one after the other, until one fails to end in time."""
    place = folder / part.name
    home = place / "home"
    home.mkdir(parents=True)
    mark = f"{os.getpid()}-{part.name}\0"
    environment = private(place, home, mark)
    begun, processor, status, left = time.monotonic(), 0, 0, []
    state.begin(part)
    cores = {min(os.sched_getaffinity(0))} if condition == "one core" else os.sched_getaffinity(0)
    with (LOGS / f"{part.name}.log").open("w") as log:
        commands = [filled(command) for command in part.run]
        commands[-1] += more
        for command in commands:
            log.write(f"$ {shlex.join(command)}\n")
            log.flush()
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, preexec_fn=lambda: os.sched_setaffinity(0, cores),
            )  # fmt: skip
            late = threading.Timer(part.limit - (time.monotonic() - begun), os.killpg, (process.pid, signal.SIGKILL))
            late.start()
            _, ended, used = os.wait4(process.pid, 0)
            late.cancel()
            process.returncode = os.waitstatus_to_exitcode(ended)
            status |= process.returncode
            processor += used.ru_utime + used.ru_stime
            if late.finished.is_set() and time.monotonic() - begun >= part.limit:
                left.append(f"{part.name}: it was stopped after {part.limit // 60} minutes")
                break
    left += leftovers(part, place, home, mark)
    state.end(part)
    return Result(part, time.monotonic() - begun, processor, status, left)


def private(place, home, mark):
    """The environment of a part: only caches of installed things are shared."""
    user = Path.home()
    # A shim of a version manager would look for its versions in the private HOME.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {
        "CARGO_HOME": os.environ.get("CARGO_HOME", str(user / ".cargo")),
        "RUSTUP_HOME": os.environ.get("RUSTUP_HOME", str(user / ".rustup")),
        "UV_CACHE_DIR": os.environ.get("UV_CACHE_DIR", str(user / ".cache/uv")),
    }
    own = {"HOME": str(home), "TMPDIR": str(place), "PATH": path, "ONCE_TEST_PART": mark.rstrip("\0"), "NO_COLOR": "1"}
    own |= {"PYTHONDONTWRITEBYTECODE": "1", "CARGO_TARGET_DIR": str(TARGET), "RUSTC_WORKSPACE_WRAPPER": "clippy-driver"}
    return {**os.environ, **kept, **own}


def leftovers(part, place, home, mark):
    """Processes and files of a part that has ended. The processes are stopped."""
    until = time.monotonic() + GRACE
    while (alive := processes(place, mark)) and time.monotonic() < until:
        time.sleep(0.2)
    for pid in alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    files = [path for path in place.rglob("*") if not path.is_dir() and home not in path.parents]
    found = [f"{part.name}: it left process {pid}: {command}" for pid, command in alive.items()]
    if files:
        found.append(f"{part.name}: it left {len(files)} files, such as {files[0].relative_to(place)}")
    return found


def processes(place, mark):
    """The processes that a part started, or that use its folder. A mark without its end stands for all parts."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            started = f"ONCE_TEST_PART={mark}".encode() in (entry / "environ").read_bytes() + b"\0"
            if command and (started or str(place) in command):
                found[int(entry.name)] = command[:100]
    return found


def interrupted(number, _frame):
    """Ctrl-C, or the end of a job: what the parts have started ends too."""
    until = time.monotonic() + GRACE
    while alive := processes(FOLDERS, f"{os.getpid()}-"):
        for pid, command in alive.items():
            # A shell that waits for the end of a test removes its folder then.
            if "rm -rf" not in command or time.monotonic() > until:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.2)
    for folder in Path(tempfile.gettempdir()).glob(f"{Path(FOLDERS).name}*"):
        for place in re.findall(rf" ({re.escape(str(folder))}/\S+) ", Path("/proc/mounts").read_text()):
            subprocess.run(["umount", "-l", place], check=False)
        shutil.rmtree(folder, ignore_errors=True)
    say("interrupted; every process of the tests has been stopped")
    os._exit(128 + number)


class State:
    """What is running, for the line of progress."""

    def __init__(self, parts, condition):
        self.waiting, self.running, self.ended = [part.name for part in parts], {}, 0
        self.all, self.condition = len(parts), condition

    def begin(self, part):
        self.waiting.remove(part.name)
        self.running[part.name] = time.monotonic()

    def end(self, part):
        begun = self.running.pop(part.name)
        self.ended += 1
        say(f"{part.name} has ended after {clock(time.monotonic() - begun)}; {self.ended} of {self.all} parts")

    def show(self, ended):
        say(f"testing ({self.condition}); logs in {LOGS}")
        terminal = sys.stderr.isatty()
        while not ended.wait(1 if terminal else SHOWN_EVERY):
            line = f"{clock(time.monotonic() - STARTED)}  " + ", ".join(map(progress, list(self.running)))
            line += f"; {len(self.waiting)} parts wait" if self.waiting else ""
            print(
                f"\r{line[:150]:150}" if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True
            )


def progress(name):
    """How far a part is, from the end of its log."""
    log = LOGS / f"{name}.log"
    text = tail(log, 60) if log.exists() else ""
    for pattern in PROGRESS:
        if found := re.findall(pattern, text):
            done, whole = found[-1]
            return f"{name} {done}%" if whole == "%" else f"{name} {done}/{whole}"
    with contextlib.suppress(OSError):
        return f"{name} ({len(log.read_bytes().splitlines())} lines)"
    return name


def report(results, options):
    """One table, what failed, and what was slow."""
    width = max(len(result.part.name) for result in results)
    print(f"\n{'part':{width}}  passed  failed    time  processor")
    for result in results:
        times = f"{clock(result.seconds):>7} {clock(result.processor):>10}"
        print(f"{result.part.name:{width}} {result.passed:7} {result.failed:7} {times}")
    for result in results:
        if result.failed:
            print(f"\n== {result.part.name} failed: {result.log}    scripts/{script(options)} {result.part.name}")
            print("\n".join(result.broken) or tail(result.log, 60))
    slow = sorted(durations(results), reverse=True)[:SLOWEST]
    if slow:
        print("\nthe slowest tests:\n" + "\n".join(f"{seconds:7.1f} s  {name}" for seconds, name in slow))
    sys.stdout.flush()


def durations(results):
    """The time of each test of the runners that write it down."""
    for result in results:
        for file in (TARGET / "nextest/default/junit.xml", LOGS / "python.xml"):
            own = "rust" if "nextest" in str(file) else "python"
            if result.part.name == own and file.exists():
                for case in xml.parse(file).iter("testcase"):
                    yield float(case.get("time", 0)), f"{case.get('classname', '')} {case.get('name')}"


def summary(runs, whole):
    print(f"\nrun {len(runs)} of {whole}")
    for number, (condition, results) in enumerate(runs, 1):
        passed, failed = sum(one.passed for one in results), sum(one.failed for one in results)
        longest = max(one.seconds for one in results)
        print(f"  {number:2} {condition:9} {passed} passed, {failed} failed; the longest part took {clock(longest)}")
    sys.stdout.flush()


def script(options):
    return "soak" if options.tier == "soak" else "test"


def tail(file, lines):
    return "\n".join(file.read_text(errors="replace").splitlines()[-lines:])


def clock(seconds):
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def say(text):
    print(f"== {clock(time.monotonic() - STARTED)} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
