"""Runs bench/serve: one JSON line per measurement, and the tables of BENCHMARKS.md at the end."""

import argparse
import http.client
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

CONNECTIONS = 64
# How many operations the replays are of.
KEYS = 256
SCRIPT = Path(__file__).parent / "load" / "requests.lua"
RESTATE_VERSION = "1.7.12"
RESTATE = "node_modules/@restatedev/restate-server-linux-x64/bin/restate-server"
# Every operation has content of its own: an equal request with another key can be a retry.
CHARGE = '{"order":"%s","amount":100,"currency":"eur"}'
# A vendor that honours keys. Requests to it use connections again.
KEYED = 'class = "keyed"\nkey = { in = "header", name = "Idempotency-Key" }\nwindow = "24h"\n'
BEGIN = '{"name":"charge","key":"%s","input":{"amount":100,"currency":"eur"}}'
# How often the start of the server is measured.
STARTS = 20
HOST = "127.0.0.1"


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=Path, required=True, help="where ledgers are made")
    parser.add_argument("--once", required=True, help="the program `once`")
    parser.add_argument("--servers", required=True, help="the benchmark `serve` of onceward-http")
    parser.add_argument("--restate", type=Path, help="the folder of bench/load with its packages; without: left out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--only", default="", help="a pattern for what to measure")
    return parser.parse_args()


def free_port():
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return listener.getsockname()[1]


def answers(port, path="/", timeout=5.0):
    """The status of a GET, or None if there is no answer."""
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except OSError:
        return None
    finally:
        connection.close()


def wait_for(port, path="/", seconds=30, pause=0.02):
    until = time.monotonic() + seconds
    while answers(port, path) is None:
        if time.monotonic() > until:
            sys.exit(f"nothing answers on port {port}")
        time.sleep(pause)


@contextmanager
def running(command, **options):
    process = subprocess.Popen(command, start_new_session=True, **options)
    try:
        yield process
    finally:
        if process.stdin:
            process.stdin.close()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def other(options, *words):
    """A server of crates/onceward-http/benches/serve.rs; gives its address."""
    command = [options.servers, *words]
    with running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process.stdout.readline().strip()


@contextmanager
def folder_in(options):
    folder = Path(tempfile.mkdtemp(dir=options.dir, prefix="serve-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def serve_command(options, folder, port, upstream=None, rules=""):
    policy = folder / "onceward.toml"
    policy.write_text(f'[upstream.bank]\nurl = "{upstream}"\nallow_private = true\n{rules}' if upstream else "")
    return [
        options.once,
        "--config",
        str(policy),
        "--ledger",
        f"sqlite:{folder}/once.db",
        "serve",
        "--listen",
        f"{HOST}:{port}",
    ]


def private(folder):
    return {**os.environ, "HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}


@contextmanager
def once_serve(options, upstream=None, rules=""):
    """`once serve` with a new ledger and one upstream; gives its address."""
    with folder_in(options) as folder:
        port = free_port()
        command = serve_command(options, folder, port, upstream, rules)
        with running(command, env=private(folder), stderr=subprocess.DEVNULL):
            wait_for(port, "/healthz")
            yield f"http://{HOST}:{port}"


@contextmanager
def restate(options):
    with folder_in(options) as folder:
        ingress, admin, node, service = (free_port() for _ in range(4))
        environment = {
            **private(folder),
            "RESTATE_INGRESS__BIND_PORT": str(ingress),
            "RESTATE_ADMIN__BIND_PORT": str(admin),
            "RESTATE_DISABLE_TELEMETRY": "true",
            "RESTATE_LOG_FILTER": "off",
        }
        handler = ["node", str(options.restate / "restate.mjs"), str(service)]
        server = [
            str(options.restate / RESTATE),
            "--no-logo",
            "--base-dir",
            str(folder),
            "--node-name",
            "bench",
            "--listen-mode",
            "tcp",
            "--bind-ip",
            HOST,
            "--bind-port",
            str(node),
        ]
        quiet = {
            "env": {**environment, "RESTATE_LOGGING": "ERROR"},
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.DEVNULL,
        }
        with running(handler, **quiet), running(server, **quiet):
            wait_for(admin, "/health")
            until = time.monotonic() + 30
            body = json.dumps({"uri": f"http://{HOST}:{service}"})
            while post(admin, "/deployments", body) not in (200, 201):
                if time.monotonic() > until:
                    sys.exit("Restate does not accept the service")
                time.sleep(0.1)
            yield f"http://{HOST}:{ingress}"


def post(port, path, body, key=None):
    connection = http.client.HTTPConnection(HOST, port, timeout=20)
    headers = {"Content-Type": "application/json", **({"Idempotency-Key": key} if key else {})}
    try:
        connection.request("POST", path, body, headers)
        response = connection.getresponse()
        response.read()
        return response.status
    except OSError:
        return None
    finally:
        connection.close()


def port_of(url):
    return int(url.rsplit(":", 1)[1])


def keys():
    return [f"order-{number}" for number in range(KEYS)]


def fill(url, target):
    """Creates what the replays are of."""
    with ThreadPoolExecutor(16) as callers:
        statuses = callers.map(lambda key: post(port_of(url), target, CHARGE % key, key), keys())
        if any(status not in (200, 201) for status in statuses):
            sys.exit(f"{url}{target} does not create")


def fill_api(url):
    """The same by the ledger API: begin and finish."""
    port = port_of(url)
    for key in keys():
        connection = http.client.HTTPConnection(HOST, port, timeout=20)
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/operations", BEGIN % key, headers)
        begun = json.load(connection.getresponse())
        ended = {"attempt": begun["attempt"], "token": begun["token"], "data": {"id": "ch_1"}}
        path = f"/v1/operations/{begun['operation']['id']}/finish"
        connection.request("POST", path, json.dumps(ended), headers)
        if connection.getresponse().status != 200:
            sys.exit("the ledger API does not finish")
        connection.close()


def wrk(options, url, mode, target, body=CHARGE, connections=CONNECTIONS, header=None, headers=None):
    # The ledger API has the key in its body alone, but the requests are of one length.
    header = header or ("Idempotency-Key" if body == CHARGE else "X-Request-Key")
    environment = {
        **os.environ,
        "MODE": mode,
        "TARGET": target,
        "BODY": body,
        "HEADER": header,
        "KEYS": str(KEYS),
        "THREADS": "1",
    }
    more = [word for name, value in (headers or {}).items() for word in ("-H", f"{name}: {value}")]
    command = ["wrk", "-t1", f"-c{connections}", f"-d{options.seconds}s", *more, "-s", str(SCRIPT), url]
    output = subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, text=True, timeout=options.seconds + 30
    ).stdout
    return json.loads(output.splitlines()[-1])


def replays_axum(options):
    with other(options, "axum") as url:
        return wrk(options, url, "replay", "/charges")


def replays_gateway(options):
    with other(options, "axum") as api, once_serve(options, api) as url:
        fill(url, "/gw/bank/charges")
        return wrk(options, url, "replay", "/gw/bank/charges")


def replays_api(options):
    with once_serve(options) as url:
        fill_api(url)
        return wrk(options, url, "replay", "/v1/operations", BEGIN)


def replays_layer(options):
    with folder_in(options) as folder, other(options, "layer", f"{folder}/once.db") as url:
        fill(url, "/charges")
        return wrk(options, url, "replay", "/charges")


def replays_restate(options):
    with restate(options) as url:
        fill(url, "/charges/create")
        return wrk(options, url, "replay", "/charges/create")


def in_process(options, url):
    command = [options.servers, "ledger", url, str(CONNECTIONS), str(options.seconds)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=options.seconds + 30)
    return {**json.loads(output.stdout), "errors": 0}


def firsts_ledger(options):
    with folder_in(options) as folder:
        return in_process(options, f"sqlite:{folder}/once.db")


def firsts_remote(options):
    with once_serve(options) as url:
        return in_process(options, url)


def firsts_layer(options):
    with folder_in(options) as folder, other(options, "layer", f"{folder}/once.db") as url:
        return wrk(options, url, "first", "/charges")


def firsts_gateway(options, rules=""):
    with other(options, "axum") as api, once_serve(options, api, rules) as url:
        return wrk(options, url, "first", "/gw/bank/charges")


def firsts_proxy(options, *words):
    """The same requests, API and load generator without a ledger: what the sharing of processors leaves."""
    with other(options, "axum") as api, other(options, "proxy", api, *words) as url:
        return wrk(options, url, "first", "/charges")


def firsts_restate(options):
    with restate(options) as url:
        return wrk(options, url, "first", "/charges/create")


def reads_proxy(options, connections):
    with other(options, "axum") as api, other(options, "proxy", api) as url:
        return wrk(options, url, "read", "/charges", connections=connections)


def reads_gateway(options, connections):
    with other(options, "axum") as api, once_serve(options, api) as url:
        return wrk(options, url, "read", "/gw/bank/charges", connections=connections)


def start(options):
    """Milliseconds from the start of `once serve` to its first answer: a new ledger, then one that exists."""
    with folder_in(options) as folder:
        took = []
        for _ in range(STARTS):
            port = free_port()
            command = serve_command(options, folder, port)
            begun = time.monotonic()
            with running(command, env=private(folder), stderr=subprocess.DEVNULL):
                wait_for(port, "/healthz", pause=0.0005)
                took.append((time.monotonic() - begun) * 1e3)
    return {
        "new_ms": round(took[0], 1),
        "p50_ms": round(statistics.median(took[1:]), 1),
        "max_ms": round(max(took[1:]), 1),
    }


MEASURED = {
    "replay: bare axum": replays_axum,
    "replay: once serve, gateway": replays_gateway,
    "replay: once serve, ledger API": replays_api,
    "replay: idempotency layer on axum": replays_layer,
    f"replay: Restate {RESTATE_VERSION}": replays_restate,
    "first: ledger in process": firsts_ledger,
    "first: idempotency layer on axum": firsts_layer,
    "first: once serve, ledger over HTTP": firsts_remote,
    "first: once serve, gateway": firsts_gateway,
    "first: once serve, gateway, vendor with keys": lambda options: firsts_gateway(options, KEYED),
    "first: bare proxy": firsts_proxy,
    "first: bare proxy, a connection each": lambda options: firsts_proxy(options, "fresh"),
    f"first: Restate {RESTATE_VERSION}": firsts_restate,
    "read, 1 connection: bare proxy": lambda options: reads_proxy(options, 1),
    "read, 1 connection: once serve, gateway": lambda options: reads_gateway(options, 1),
    "read: bare proxy": lambda options: reads_proxy(options, CONNECTIONS),
    "read: once serve, gateway": lambda options: reads_gateway(options, CONNECTIONS),
}


def tables(measured):
    def median(what, field):
        return statistics.median(line[field] for line in measured if line["what"] == what)

    def base(what):
        kind = what.split(":")[0]
        reference = {"replay": "bare axum", "first": "ledger in process"}.get(kind, "bare proxy")
        return f"{kind}: {reference}"

    print("\n| what | per second | p50 µs | p99 µs | errors | relative to |", file=sys.stderr)
    print("|---|---|---|---|---|---|", file=sys.stderr)
    names = list(dict.fromkeys(line["what"] for line in measured))
    for what in names:
        rate, errors = median(what, "per_second"), sum(line["errors"] for line in measured if line["what"] == what)
        compared = base(what)
        ratio = f"{rate / median(compared, 'per_second'):.2f} × {compared.split(': ')[1]}" if compared in names else ""
        print(
            f"| {what} | {rate:,.0f} | {median(what, 'p50_us'):,.0f} | {median(what, 'p99_us'):,.0f} "
            f"| {errors} | {ratio} |",
            file=sys.stderr,
        )


def main():
    options = arguments()
    options.dir.mkdir(parents=True, exist_ok=True)
    wanted = {what: measure for what, measure in MEASURED.items() if re.search(options.only, what)}
    if not options.restate:
        wanted = {what: measure for what, measure in wanted.items() if "Restate" not in what}
    measured = []
    for round_ in range(1, options.rounds + 1):
        for what, measure in wanted.items():
            load = float(Path("/proc/loadavg").read_text().split()[0])
            measured.append({"what": what, **measure(options), "round": round_, "load": load})
            print(json.dumps(measured[-1]), flush=True)
    if re.search(options.only, "start"):
        print(json.dumps({"what": "start", **start(options)}), flush=True)
    tables(measured)


if __name__ == "__main__":
    main()
