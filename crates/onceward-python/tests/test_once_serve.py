"""The package on the ledger of a running `once serve`: over HTTP and over a Unix socket."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from servers import OnceServe, free_port
from test_processes import in_child

from onceward import Ledger, LedgerUnavailable


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnceServe]:
    started = OnceServe.start(tmp_path_factory.mktemp("once"))
    yield started
    started.stop()


@pytest.fixture(params=["http", "unix"])
def url(request: pytest.FixtureRequest, server: OnceServe) -> str:
    return server.url if request.param == "http" else server.socket_url()


def test_a_call_happens_once(url: str) -> None:
    runs: list[int] = []
    with Ledger(url) as ledger:

        @ledger.once(name=f"charge {url}")
        def charge(amount: int) -> dict[str, int]:
            runs.append(amount)
            time.sleep(0.02)  # the other callers arrive meanwhile
            return {"charged": amount}

        @ledger.once(name=f"mail {url}")
        async def mail(n: int) -> int:
            runs.append(n)
            await asyncio.sleep(0.02)
            return n

        async def mails() -> list[int]:
            return await asyncio.gather(*(mail(5) for _ in range(10)))

        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(charge, [7] * 16)) == [{"charged": 7}] * 16
        assert asyncio.run(mails()) == [5] * 10
    assert runs == [7, 5]


def test_another_process_gets_the_same_answer(url: str) -> None:
    parent = os.getpid()
    with Ledger(url) as ledger:

        @ledger.once(name=f"order {url}")
        def order(number: int) -> int:
            return number if os.getpid() == parent else 99

        assert order(7) == 7
        assert in_child(order, 7) == 7


def test_a_client_and_a_process_with_the_file_open_share_the_ledger(url: str, server: OnceServe) -> None:
    name = f"shared {url}"
    with Ledger(url) as remote, Ledger(server.folder / "once.db") as local:

        @remote.once(name=name)
        def there() -> str:
            return "there"

        @local.once(name=name)
        def here() -> str:
            return "here"

        assert (there(), here()) == ("there", "there")


def test_nothing_runs_without_the_server(tmp_path: Path) -> None:
    for url in (f"http://127.0.0.1:{free_port()}?timeout=200ms", f"unix:{tmp_path / 'no.sock'}?timeout=200ms"):
        ledger = Ledger(url)

        @ledger.once
        def charge() -> None:
            raise AssertionError("it ran")

        with pytest.raises(LedgerUnavailable, match="once serve"):
            charge()
