#!/usr/bin/env python3
"""One booking flow under kills, on Restate, on DBOS and with Onceward, against a service that counts.

A trip has five steps. The last one, the payment, is declined, so the four bookings must be taken back. The worker
process is killed with SIGKILL at random moments and started again, until it was killed often enough; then it finishes
its trips. The service takes no keys: it books and cancels as often as it is asked.
"""

import argparse
import collections
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

HERE = Path(__file__).resolve().parent
STEPS = ["flight", "hotel", "car", "insurance", "payment"]
DECLINED = "payment"
PATIENCE = 180
# A kill comes up to this long after a worker's first request.
SPREAD = 0.4


class Service:
    """Counts what really happens. It takes up to 15 ms before and after each effect."""

    def __init__(self, seed):
        self.lock = threading.Lock()
        self.books = collections.Counter()
        self.cancels = collections.Counter()
        self.requests = 0
        self.random = random.Random(seed)
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                service.pause()
                place, action = self.place()
                with service.lock:
                    service.requests += 1
                    if action == "book" and place[1] != DECLINED:
                        service.books[place] += 1
                    elif action == "cancel":
                        service.cancels[place] += 1
                service.pause()
                self.answer(402 if action == "book" and place[1] == DECLINED else 200, place)

            def do_GET(self):
                place, _ = self.place()
                with service.lock:
                    there = service.books[place] > service.cancels[place]
                self.answer(200 if there else 404, place)

            def place(self):
                url = urlsplit(self.path)
                asked = parse_qs(url.query)
                return (asked["trip"][0], asked["step"][0]), url.path.strip("/")

            def answer(self, status, place):
                body = json.dumps({"id": "-".join(place)}).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)
                except OSError:
                    pass  # The client was killed.

            def log_message(self, *_):
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass  # The client was killed.

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def pause(self):
        with self.lock:
            seconds = self.random.uniform(0, 0.015)
        time.sleep(seconds)


class System:
    """What runs the flow."""

    def leave(self):
        pass


class Once(System):
    """Commands of `once run`, and `once undo`."""

    def __init__(self, options, mode):
        self.mode, self.options = mode, options
        self.name = "onceward" if mode == "none" else "onceward, with a probe"

    def prepare(self, folder, service):
        (folder / "onceward.toml").write_text('[defaults]\nquarantine = "1s"\nverify_deadline = "0s"\n')
        self.environment = {
            "PATH": f"{self.options.once.parent}:{os.environ['PATH']}",
            "HOME": str(folder),
            "ONCE_LEDGER": f"sqlite:{folder}/once.db",
            "ONCE_CONFIG": str(folder / "onceward.toml"),
        }
        self.command = [str(HERE / "saga_once.sh"), service.url, str(folder), self.mode]

    def report(self, trips):
        for trip in trips:
            said = subprocess.run(
                [str(self.options.once), "report", "--scope", trip, "--json"],
                check=True,
                env=self.environment,
                capture_output=True,
                text=True,
            ).stdout
            fates = dict.fromkeys(STEPS, "not done")
            fates.update((line["key"], line["fate"]) for line in json.loads(said)["data"]["settlement"]["lines"])
            yield trip, fates


class Dbos(System):
    """Steps of a workflow on SQLite; an unfinished workflow is recovered when the program starts."""

    name = "DBOS"

    def __init__(self, options):
        self.python = options.dbos

    def prepare(self, folder, service):
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
        self.command = [str(self.python), str(HERE / "saga_dbos.py"), str(folder / "dbos.db"), service.url, str(folder)]

    def report(self, trips):
        said = subprocess.run(
            [*self.command, "report"], check=True, env=self.environment, capture_output=True, text=True
        )
        for line in said.stdout.splitlines():
            told = json.loads(line)
            yield told["trip"], told["fates"]


class Restate(System):
    """A handler with `ctx.run`; the server, which is not killed, calls it again."""

    name = "Restate"

    def __init__(self, options):
        self.folder = options.restate

    def prepare(self, folder, service):
        self.ingress, self.admin, node, self.port = (free_port() for _ in range(4))
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "RESTATE_DISABLE_TELEMETRY": "true",
            "RESTATE_INGRESS__BIND_PORT": str(self.ingress),
            "RESTATE_ADMIN__BIND_PORT": str(self.admin),
            "RESTATE_LOG_FILTER": "off",
            # A worker that was killed is called again soon, so that the kills take minutes.
            "RESTATE_DEFAULT_RETRY_POLICY__INITIAL_INTERVAL": "50ms",
            "RESTATE_DEFAULT_RETRY_POLICY__MAX_INTERVAL": "200ms",
        }
        server = [
            str(self.folder / "node_modules/.bin/restate-server"),
            "--no-logo",
            "--base-dir",
            str(folder / "restate"),
            "--node-name",
            "sagas",
            "--listen-mode",
            "tcp",
            "--bind-ip",
            "127.0.0.1",
            "--bind-port",
            str(node),
        ]
        self.server = start(server, self.environment)
        # The packages are found from the folder of the program.
        program = self.folder / "saga.mjs"
        program.write_text((HERE / "saga.mjs").read_text())
        self.command = ["node", str(program), str(self.port), service.url]
        self.files = folder
        worker = start(self.command, self.environment)
        body = json.dumps({"uri": f"http://127.0.0.1:{self.port}"})
        patiently("Restate accepts the service", lambda: post(self.admin, "/deployments", body) in (200, 201))
        end(worker)
        self.over = threading.Event()
        self.asking = threading.Thread(target=self.client, daemon=True)
        self.asking.start()

    def leave(self):
        self.over.set()
        end(self.server)
        self.asking.join(PATIENCE)

    def client(self):
        """Asks for one trip after the other, and waits for the end of each."""
        number = 0
        while not self.over.is_set():
            if number >= int((self.files / "limit").read_text()):
                time.sleep(0.05)
                continue
            trip = f"trip-{number}"
            # The handler throws the refusal again when everything is compensated.
            if post(self.ingress, "/booking/run", json.dumps({"trip": trip}), trip) == 402:
                with (self.files / "done").open("a") as file:
                    file.write(trip + "\n")
                number += 1

    def report(self, trips):
        """An invocation that ended has run every compensation."""
        for trip in trips:
            yield trip, {step: "failed" if step == DECLINED else "undone" for step in STEPS}


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def post(port, path, body, key=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    headers = {"Content-Type": "application/json", **({"Idempotency-Key": key} if key else {})}
    try:
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except OSError:
        time.sleep(0.05)
        return None
    finally:
        connection.close()


def start(command, environment):
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, env=environment, start_new_session=True, **quiet)


def end(process):
    """Kills a process and all that it has started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def patiently(what, is_so):
    until = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > until:
            sys.exit(f"waited {PATIENCE} s: {what}")
        time.sleep(0.01)


def torture(system, kills, seed):
    service, moments = Service(seed), random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="sagas-") as folder:
        folder = Path(folder)
        (folder / "limit").write_text(str(kills * 100))
        (folder / "done").write_text("")
        system.prepare(folder, service)

        def done():
            return (folder / "done").read_text().split()

        try:
            for number in range(kills):
                before = service.requests
                worker = start(system.command, system.environment)
                patiently(f"{system.name} works", lambda before=before: service.requests > before)
                time.sleep(moments.uniform(0, SPREAD))
                end(worker)
                print(f"\r{system.name}: {number + 1} kills, {len(done())} trips", end="", file=sys.stderr, flush=True)
            # The trip that was interrupted last, and no other one.
            (folder / "limit").write_text(str(len(done()) + 1))
            worker = start(system.command, system.environment)
            patiently(f"{system.name} finishes", lambda: len(done()) >= int((folder / "limit").read_text()))
            end(worker)
            # Nothing is on its way any more.
            time.sleep(1)
            print(file=sys.stderr)
            return judge(system, service, dict(system.report(done())), kills)
        finally:
            system.leave()


def judge(system, service, reports, kills):
    figures = collections.Counter(kills=kills, trips=len(reports))
    for trip, fates in reports.items():
        true = True
        for step in STEPS:
            books, cancels, fate = service.books[trip, step], service.cancels[trip, step], fates[step]
            figures["effects"] += books
            figures["booked twice"] += books > 1
            figures["cancelled twice"] += cancels > 1
            figures["more cancellations than bookings"] += cancels > books
            figures["standing, not reported"] += books > cancels and fate not in ("standing", "in_doubt")
            figures["reported as in doubt"] += fate == "in_doubt"
            # A cancellation of something that was never booked has a column of its own.
            seen = (books, cancels if books else 0)
            told = {"standing": (1, 0), "undone": (1, 1)}.get(fate, (0, 0))
            true = true and (seen == told or (fate == "in_doubt" and books <= 1 and cancels <= books))
        figures["true reports"] += true
    return system.name, figures


COLUMNS = [
    "kills",
    "trips",
    "effects",
    "booked twice",
    "cancelled twice",
    "more cancellations than bookings",
    "standing, not reported",
    "reported as in doubt",
    "true reports",
]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--once", type=Path, required=True, help="the program")
    parser.add_argument("--dbos", type=Path, help="a python with the package dbos; without: left out")
    parser.add_argument("--restate", type=Path, help="a folder with Restate's packages; without: left out")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    systems = [Once(options, "none"), Once(options, "probe")]
    systems += [Restate(options)] if options.restate else []
    systems += [Dbos(options)] if options.dbos else []
    print(f"seed {options.seed}", file=sys.stderr)
    rows = [torture(system, options.kills, options.seed) for system in systems]
    print(f"| | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 1)}")
    for name, figures in rows:
        print(f"| {name} | {' | '.join(str(figures[column]) for column in COLUMNS)} |")
    ours = [figures for name, figures in rows if name.startswith("onceward")]
    wrong = ("booked twice", "cancelled twice", "more cancellations than bookings", "standing, not reported")
    sound = all(
        figures["true reports"] == figures["trips"] and not any(figures[one] for one in wrong) for figures in ours
    )
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
