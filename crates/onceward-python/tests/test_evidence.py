"""An effect is never recorded as "no": functions that send a few requests with real clients and fail anywhere."""

from __future__ import annotations

import asyncio
import os
import queue
import random
import socket
import subprocess
import sys
import threading
import urllib.request
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from pathlib import Path
from types import ModuleType
from typing import Any

import aiohttp
import boto3
import botocore.config
import grpc
import httpx
import pytest
import requests
import requests.adapters
import stripe
import urllib3
from counting import AFTER, BEFORE, REFUSED, RETRIED, Rpc, Server

from onceward import Failed, InDoubt, Ledger, NotDispatched, OncewardError, current_operation, failures

WAIT_S = 3
Step = tuple[str, str]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def rpc(server: Server) -> Iterator[Rpc]:
    rpc = Rpc(server.effects)
    yield rpc
    rpc.stop()


def by_requests(url: str) -> None:
    requests.post(url, data=b"x", timeout=WAIT_S).raise_for_status()


def by_requests_with_retries(url: str) -> None:
    retry = urllib3.Retry(2, allowed_methods=None, status_forcelist=[500, 503], backoff_factor=0, raise_on_status=False)
    with requests.Session() as session:
        session.mount("http://", requests.adapters.HTTPAdapter(max_retries=retry))
        session.post(url, data=b"x", timeout=WAIT_S).raise_for_status()


def by_httpx(url: str) -> None:
    httpx.post(url, content=b"x", timeout=WAIT_S, trust_env=False, follow_redirects=True).raise_for_status()


def by_httpx_async(url: str) -> None:
    async def post() -> None:
        transport = httpx.AsyncHTTPTransport(retries=1)
        async with httpx.AsyncClient(transport=transport, timeout=WAIT_S, follow_redirects=True) as client:
            (await client.post(url, content=b"x")).raise_for_status()

    asyncio.run(post())


def by_aiohttp(url: str) -> None:
    async def send() -> None:
        timeout = aiohttp.ClientTimeout(total=60, sock_read=WAIT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session, session.post(url, data=b"x") as response:
            response.raise_for_status()
            await response.read()

    asyncio.run(send())


def by_aiohttp_on_a_kept_connection(url: str) -> None:
    async def send() -> None:
        timeout = aiohttp.ClientTimeout(total=60, sock_read=WAIT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            for _ in range(2):
                async with session.delete(url) as response:
                    response.raise_for_status()
                    await response.read()

    asyncio.run(send())


def by_urllib(url: str) -> None:
    urllib.request.urlopen(url, data=b"x", timeout=WAIT_S).close()


def by_urllib3(url: str) -> None:
    with urllib3.PoolManager(retries=urllib3.Retry(2, backoff_factor=0, status_forcelist=[500])) as pool:
        answer = pool.request("PUT", url, body=b"x", timeout=WAIT_S)
        if answer.status >= 400:
            raise requests.HTTPError(response=answer)


def by_boto3(url: str) -> None:
    retries: Any = {"total_max_attempts": 2, "mode": "legacy"}
    config = botocore.config.Config(read_timeout=WAIT_S, connect_timeout=WAIT_S, retries=retries)
    client = boto3.client(
        "sqs", region_name="eu-central-1", endpoint_url=url, config=config,
        aws_access_key_id="test", aws_secret_access_key="test",
    )  # fmt: skip
    try:
        client.send_message(QueueUrl=url, MessageBody="x")
    finally:
        client.close()


def by_stripe(url: str) -> None:
    requestor = stripe.RequestsClient(timeout=WAIT_S)
    client = stripe.StripeClient("sk_test_x", http_client=requestor, base_addresses={"api": url}, max_network_retries=1)
    try:
        client.v1.customers.create({"name": "x"})
    finally:
        requestor.close()


HTTP: dict[str, Callable[[str], None]] = {
    function.__name__.removeprefix("by_"): function
    for function in (
        by_requests, by_requests_with_retries, by_httpx, by_httpx_async, by_aiohttp, by_aiohttp_on_a_kept_connection,
        by_urllib, by_urllib3, by_boto3, by_stripe,
    )
}  # fmt: skip
SLOW = ("boto3", "stripe")


def by_grpc(target: str, run: str, how: str) -> None:
    with grpc.insecure_channel(target) as channel:
        call = channel.unary_unary(f"/{run}/{how}", request_serializer=bytes, response_deserializer=bytes)
        call(b"x", timeout=30)


def perform(step: Step, run: str, server: Server, rpc: Rpc) -> None:
    client, how = step
    if client == "raise":
        raise ValueError(how)
    if client == "grpc":
        by_grpc("127.0.0.1:1" if how == "refused" else f"127.0.0.1:{rpc.port}", run, how)
    elif how == "refused":
        HTTP[client](f"{REFUSED}/")
    elif how == "dns":
        HTTP[client]("http://nowhere.invalid/")
    else:
        HTTP[client](f"{server.url}/{run}/{how}")


def a_step(chance: random.Random) -> Step:
    client = chance.choice([*HTTP, *(name for name in HTTP if name not in SLOW), "grpc", "raise"])
    if client == "raise":
        return client, "of its own"
    if client == "grpc":
        return client, chance.choice([*Rpc.AFTER, *Rpc.BEFORE, "refused"])
    failing = (*sorted(BEFORE), *AFTER, *RETRIED, "refused", "dns")
    return client, chance.choice(["201", "201", "refused", *failing])


def functions() -> list[tuple[int, list[Step], bool]]:
    chance = random.Random(20260713)
    made: list[tuple[int, list[Step], bool]] = []
    for number in range(200):
        steps = [a_step(chance) for _ in range(chance.choice([1, 1, 2, 2, 3]))]
        made.append((number, steps, chance.random() < 0.25))
    return made


def named(case: Any) -> str:
    number, steps, swallows = case
    return f"{number}-" + "+".join(f"{client}:{how}" for client, how in steps) + ("-swallows" if swallows else "")


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("case", functions(), ids=named)
def test_no_effect_is_recorded_as_no(ledger: Ledger, server: Server, rpc: Rpc, case: Any) -> None:
    number, steps, swallows = case
    run = f"run{number}"

    def function() -> None:
        for place, step in enumerate(steps):
            try:
                perform(step, run, server, rpc)
            except Exception:
                # A function may continue after a failure, except after the last one.
                if not swallows or place == len(steps) - 1:
                    raise

    guarded = ledger.once(name=run)(function)
    error: OncewardError | None = None
    try:
        guarded()
    except OncewardError as raised:
        error = raised
    (record,) = ledger.operations()
    happened = server.effects[run]
    if record.state == "failed":
        assert happened == 0, f"{happened} effects are recorded as none: {error!r}"
    if error is not None and error.happened == "no":
        assert record.state == "failed"
    alone = len(steps) == 1 and steps[0][0] not in ("grpc", "raise")
    if alone and steps[0][1] in ("refused", "dns"):
        assert isinstance(error, Failed) and error.retryable, repr(error)


@pytest.mark.parametrize("client", [*HTTP])
@pytest.mark.parametrize("how", ["refused", "dns"])
def test_one_request_that_could_not_be_sent_is_certain(ledger: Ledger, client: str, how: str) -> None:
    guarded = ledger.once(name="send")(HTTP[client])
    with pytest.raises(Failed) as failed:
        guarded(f"{REFUSED}/" if how == "refused" else "http://nowhere.invalid/")
    assert failed.value.retryable and failed.value.ran


@pytest.mark.parametrize("client", ["requests", "httpx", "httpx_async", "aiohttp", "urllib"])
@pytest.mark.parametrize("how", ["422", "429"])
def test_one_request_that_was_rejected_is_certain(ledger: Ledger, server: Server, client: str, how: str) -> None:
    with pytest.raises(Failed) as failed:
        ledger.once(name="send")(HTTP[client])(f"{server.url}/rejected/{how}")
    cause: Any = failed.value.__cause__
    getattr(cause, "close", lambda: None)()


def refused() -> None:
    requests.post(REFUSED)


def in_a_thread(url: str) -> None:
    thread = threading.Thread(target=requests.post, args=(url,))
    thread.start()
    thread.join()


def in_an_executor(url: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(requests.post, url).result()


def in_to_thread(url: str) -> None:
    asyncio.run(asyncio.to_thread(requests.post, url))


def in_a_process(url: str) -> None:
    code = f"import urllib.request; urllib.request.urlopen({url!r}, data=b'x').close()"
    subprocess.run([sys.executable, "-c", code], check=True)


def by_a_socket(url: str) -> None:
    host, port = url.split("/")[2].split(":")
    path = url.split("/", 3)[3]
    with socket.create_connection((host, int(port))) as line:
        line.sendall(f"POST /{path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode())
        line.recv(10)


pool = ThreadPool(1)
workers = ThreadPoolExecutor(1)


@pytest.fixture(scope="module", autouse=True)
def closed() -> Iterator[None]:
    yield
    pool.terminate()
    pool.join()
    workers.shutdown()
    session.close()


def in_a_pool_of_others(url: str) -> None:
    pool.apply(requests.post, (url,))


def in_workers_of_others(url: str) -> None:
    workers.submit(requests.post, url).result()


def by_a_session_of_others(url: str) -> None:
    session.post(url)


session = requests.Session()
BESIDES = [
    in_a_thread, in_an_executor, in_to_thread, in_a_process, by_a_socket, in_a_pool_of_others, in_workers_of_others,
    by_a_session_of_others, *HTTP.values(),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("first", BESIDES, ids=lambda function: function.__name__)
def test_an_effect_by_whatever_way_leaves_a_later_refusal_in_doubt(
    ledger: Ledger, server: Server, first: Callable[[str], object]
) -> None:
    # Connections and workers from before the call are used, too.
    workers.submit(int).result()
    pool.apply(int)
    session.post(f"{server.url}/warm/201")
    run = f"besides-{first.__name__}"

    def function() -> None:
        first(f"{server.url}/{run}/201")
        refused()

    for _ in range(3):
        with pytest.raises(InDoubt):
            ledger.once(name="f")(function)()
    assert server.effects[run] in (1, 2) and (server.effects[run] == 1 or "kept" in run)


def test_a_task_that_goes_on_leaves_it_in_doubt(ledger: Ledger, server: Server) -> None:
    async def main() -> None:
        done = asyncio.Event()

        async def later() -> None:
            await asyncio.sleep(0.05)  # after the other one has failed
            async with aiohttp.ClientSession() as session, session.post(f"{server.url}/gather/201"):
                done.set()

        async def fails() -> None:
            async with aiohttp.ClientSession() as session, session.post(REFUSED):
                pass

        async def both() -> None:
            await asyncio.gather(later(), fails())

        with pytest.raises(InDoubt):
            await ledger.once(name="f")(both)()
        await asyncio.wait_for(done.wait(), 20)
        await asyncio.sleep(0)

    asyncio.run(main())
    assert server.effects["gather"] == 1


def test_a_file_that_was_written_leaves_it_in_doubt(ledger: Ledger, tmp_path: Path) -> None:
    def function() -> None:
        with open(tmp_path / "effects", "a") as file:
            file.write("x\n")
        refused()

    for _ in range(2):
        with pytest.raises(InDoubt):
            ledger.once(name="f")(function)()
    assert (tmp_path / "effects").read_text() == "x\n"


def test_retries_of_the_ledger_never_repeat_an_effect(ledger: Ledger, server: Server) -> None:
    @ledger.once(name="order", retries=3, backoff=0.01)
    def order() -> None:
        requests.post(f"{server.url}/order/201").raise_for_status()
        refused()

    for _ in range(2):
        with pytest.raises(InDoubt):
            order()
    assert server.effects["order"] == 1


def test_an_exception_that_no_request_raised_is_in_doubt(ledger: Ledger) -> None:
    for error in (ConnectionRefusedError(), httpx.ConnectError("x"), requests.ConnectTimeout(), KeyError("x")):

        def function(error: Exception = error) -> None:
            raise error

        with pytest.raises(InDoubt):
            ledger.once(name=type(error).__name__, volatile=["error"])(function)()


def test_the_table_can_be_turned_off(ledger: Ledger) -> None:
    with pytest.raises(InDoubt):
        ledger.once(known_failures=False)(refused)()
    with pytest.raises(Failed):
        ledger.once(name="g", known_failures=False, no_effect=requests.ConnectionError)(refused)()


def test_after_a_mark_only_the_functions_own_word_counts(ledger: Ledger) -> None:
    def marked(word: bool) -> None:
        with current_operation().dispatched():
            if word:
                raise NotDispatched
            refused()

    for dispatch in ("begin", "marked"):
        guarded: Any = ledger.once(name=dispatch, dispatch=dispatch)(marked)  # type: ignore[call-overload]
        with pytest.raises(InDoubt):
            guarded(False)
        with pytest.raises(Failed):
            guarded(True)


def test_a_mark_that_was_forgotten_makes_nothing_certain(ledger: Ledger, server: Server) -> None:
    def forgets() -> None:
        requests.post(f"{server.url}/forgot/201")
        raise ValueError

    def looks_up() -> None:
        requests.get(f"{server.url}/forgot/201")
        raise ValueError

    for _ in range(2):
        with pytest.raises(InDoubt):
            ledger.once(name="forgets", dispatch="marked")(forgets)()
    with pytest.raises(Failed):
        ledger.once(name="looks up", dispatch="marked")(looks_up)()
    assert server.effects["forgot"] == 1


def test_a_guarded_call_within_another(ledger: Ledger, server: Server) -> None:
    inner = ledger.once(name="inner")(refused)
    charge = ledger.once(name="charge")(lambda run: by_requests(f"{server.url}/{run}/201"))

    @ledger.once(name="outer")
    def outer(run: str, charges: bool) -> None:
        if charges:
            charge(run)
        inner()

    with pytest.raises(Failed) as failed:
        outer("nested", False)
    assert failed.value.retryable
    for _ in range(2):
        with pytest.raises(InDoubt):
            outer("nested", True)
    assert server.effects["nested"] == 1


def test_transports_without_a_network(ledger: Ledger) -> None:
    """Effects in this process, behind a client."""
    effects: list[int] = []

    def act(request: httpx.Request) -> httpx.Response:
        effects.append(1)
        return httpx.Response(201)

    def function() -> None:
        with httpx.Client(transport=httpx.MockTransport(act)) as client:
            client.post("http://x/")
        refused()

    for _ in range(2):
        with pytest.raises(InDoubt):
            ledger.once(name="f")(function)()
    assert effects == [1]


# What was open before the call, and what is sent without the interpreter's sockets.

POST = b"POST /raw/201 HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx"
CHILD = "import sys\nfor line in sys.stdin: print('done', flush=True)"


def in_doubt(ledger: Ledger, name: str, function: Callable[[], object], **options: Any) -> None:
    with pytest.raises(InDoubt):
        ledger.once(name=name, **options)(function)()


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("directly", [False, True])
def test_a_pipe_to_a_process_that_was_already_running(ledger: Ledger, text: bool, directly: bool) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=pipe, stdout=pipe, text=text) as child:
        assert child.stdin is not None and child.stdout is not None

        def asks() -> None:
            if directly:
                os.write(child.stdin.fileno(), b"charge\n")
            else:
                child.stdin.write("charge\n" if text else b"charge\n")
                child.stdin.flush()
            child.stdout.readline()
            refused()

        in_doubt(ledger, "asks", asks)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("text", [False, True])
def test_a_pipe_that_is_dropped_is_closed_at_once(ledger: Ledger, text: bool) -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, text=text)
    alive = weakref.ref(child.stdin)
    child.stdin = None
    assert alive() is None
    child.wait()


@pytest.mark.parametrize("by_a_task", [False, True])
def test_a_pipe_of_asyncio_that_was_already_open(ledger: Ledger, by_a_task: bool) -> None:
    """As in a session of an MCP client over stdio, whose writer is a task of its own."""

    async def main() -> None:
        pipe = subprocess.PIPE
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", CHILD, stdin=pipe, stdout=pipe)
        assert child.stdin is not None and child.stdout is not None
        lines: asyncio.Queue[bytes] = asyncio.Queue()

        async def write() -> None:
            while True:
                child.stdin.write(await lines.get())

        writer = asyncio.create_task(write())

        @ledger.once(name="charge")
        async def charge() -> None:
            if by_a_task:
                lines.put_nowait(b"charge\n")
            else:
                child.stdin.write(b"charge\n")
            await child.stdout.readline()
            async with httpx.AsyncClient() as client:
                await client.post(REFUSED)

        with pytest.raises(InDoubt):
            await charge()
        writer.cancel()
        child.stdin.close()
        await child.wait()

    asyncio.run(main())


def test_a_socket_of_a_thread_that_was_already_running(ledger: Ledger, server: Server) -> None:
    """As in a client of a queue, whose connection belongs to a thread or task of its own."""
    open_before = socket.create_connection(server.server_address[:2])
    work: queue.Queue[bytes] = queue.Queue()
    done: queue.Queue[bytes] = queue.Queue()

    def write() -> None:
        open_before.sendall(work.get())
        done.put(open_before.recv(1000))

    thread = threading.Thread(target=write)
    thread.start()

    def order() -> None:
        work.put(POST)
        done.get()
        refused()

    in_doubt(ledger, "order", order)
    thread.join()
    open_before.close()


def test_a_file_that_was_open_before(ledger: Ledger, tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)

    def order() -> None:
        os.write(descriptor, b"x")
        refused()

    in_doubt(ledger, "order", order)
    os.close(descriptor)


def test_a_client_with_a_network_stack_of_its_own(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    assert {"curl_cffi", "pycurl", "duckdb"} <= failures.UNOBSERVED
    monkeypatch.setitem(sys.modules, "own_stack", ModuleType("own_stack"))
    with pytest.raises(Failed):
        ledger.once(name="before")(refused)()
    failures.UNOBSERVED.add("own_stack")
    try:
        in_doubt(ledger, "loaded", refused)
        with pytest.raises(Failed):
            ledger.once(name="known", known_failures=True)(refused)()
    finally:
        failures.UNOBSERVED.discard("own_stack")


def test_every_way_to_send_without_the_mark_counts_as_the_mark(ledger: Ledger, server: Server, tmp_path: Path) -> None:
    open_before = socket.create_connection(server.server_address[:2])
    work: queue.Queue[str] = queue.Queue()
    done: queue.Queue[int] = queue.Queue()
    threading.Thread(target=lambda: done.put(requests.post(work.get()).status_code)).start()

    def raw() -> None:
        with requests.Session() as session:
            for _ in range(2):
                session.get(f"{server.url}/marked/201")
            open_before.sendall(POST)
        raise ValueError

    async def streams() -> None:
        _, writer = await asyncio.open_connection(*server.server_address[:2])
        writer.write(POST)
        writer.close()
        raise ValueError

    def file() -> None:
        (tmp_path / "written").write_text("x")
        raise ValueError

    def by_another_thread() -> None:
        work.put(f"{server.url}/marked/201")
        done.get()
        raise ValueError

    for function in (raw, file, by_another_thread):
        in_doubt(ledger, function.__name__, function, dispatch="marked")
    with pytest.raises(InDoubt):
        asyncio.run(ledger.once(name="streams", dispatch="marked")(streams)())
    open_before.close()


def test_looking_up_is_not_the_mark(ledger: Ledger, server: Server) -> None:
    async def looks_up() -> None:
        async with httpx.AsyncClient() as client, aiohttp.ClientSession() as session:
            for _ in range(2):
                await client.get(f"{server.url}/looked-up/201")
                await session.get(f"{server.url}/looked-up/201")
        with requests.Session() as plain:
            plain.get(f"{server.url}/looked-up/201")
            plain.get(f"{server.url}/looked-up/201")
        raise ValueError

    with pytest.raises(Failed):
        asyncio.run(ledger.once(name="looks up", dispatch="marked")(looks_up)())
