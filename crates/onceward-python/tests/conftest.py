"""Shared fixtures: a ledger in its own folder, and servers that are started once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import Postgres, Redis

from onceward import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "agent.db") as ledger:
        yield ledger


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    server = Postgres.start(tmp_path_factory.mktemp("postgres"))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    server = Redis.start(tmp_path_factory.mktemp("redis"))
    yield server
    server.stop()
