"""Record and effect in one transaction of the caller's connection."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import requests
from loopback import Server, http
from servers import Postgres, free_port

from onceward import Failed, InDoubt, InvalidInput, KeyReused, Ledger, Stopped


class Database:
    """SQLite or PostgreSQL, with a table of orders."""

    def __init__(self, kind: str, ledger: Ledger, place: str) -> None:
        self.kind, self.ledger, self.place = kind, ledger, place
        self.connection = self.connect()
        self.connection.execute("create table orders (id integer, item text)")
        self.connection.commit()

    def connect(self) -> Any:
        if self.kind == "sqlite":
            return sqlite3.connect(self.place, timeout=30, check_same_thread=False)
        return psycopg.connect(self.place, options=f"-c search_path={self.ledger.url.rpartition('=')[2]}")

    def insert(self, id: int, connection: Any = None) -> dict[str, int]:
        mark = "?" if self.kind == "sqlite" else "%s"
        (connection or self.connection).execute(f"insert into orders (id) values ({mark})", (id,))
        return {"id": id}

    def orders(self) -> list[int]:
        with self.connect() as connection:
            rows = connection.execute("select id from orders order by id").fetchall()
        connection.close()
        return [row[0] for row in rows]


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    if request.param == "sqlite":
        ledger, place = Ledger(tmp_path / "agent.db"), str(tmp_path / "own.db")
    else:
        server: Postgres = request.getfixturevalue("postgres")
        ledger, place = Ledger(server.fresh()), server.dsn
    with ledger:
        database = Database(request.param, ledger, place)
        yield database
        database.connection.close()


def test_an_effect_happens_with_its_record_or_not_at_all(database: Database) -> None:
    atomic = database.ledger.atomic(database.connection)

    @atomic.once(key=["id"], effect="created", returns="receipt")
    def order(id: int, item: str = "", fails: bool = False) -> Any:
        database.insert(id)
        if fails:
            raise ValueError("after the insert")
        return {"id": id}

    with pytest.raises(Failed, match="after the insert") as failed:
        order(1, fails=True)
    assert failed.value.happened == "no" and isinstance(failed.value.__cause__, ValueError)
    assert database.orders() == []
    first, retry = order(1), order(1)
    assert (first.effect, first.value, retry.effect, retry.value) == ("created", {"id": 1}, "noop", {"id": 1})
    assert retry.replayed and database.orders() == [1]
    with pytest.raises(KeyReused, match="item"):
        order(1, item="another")
    assert database.orders() == [1]


def test_a_process_that_dies_before_the_commit_leaves_nothing(database: Database) -> None:
    if database.kind == "sqlite":
        connect = f"import sqlite3; own = sqlite3.connect({database.place!r})"
    else:
        schema = database.ledger.url.rpartition("=")[2]
        connect = f"import psycopg; own = psycopg.connect({database.place!r}, options='-c search_path={schema}')"
    script = f"""
import os
from onceward import Ledger
{connect}
def work():
    own.execute("insert into orders (id) values (7)")
    os._exit(9)
Ledger({database.ledger.url!r}).atomic(own).call("order", {{"id": 7}}, work)
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == 9
    receipt = database.ledger.atomic(database.connection).call("order", {"id": 7}, lambda: database.insert(7))
    assert not receipt.replayed and database.orders() == [7]


def test_of_many_callers_one_has_the_effect(database: Database) -> None:
    replayed: list[bool] = []
    database.ledger.atomic(database.connection)

    def caller() -> None:
        connection = database.connect()
        receipt = database.ledger.atomic(connection).call("order", {"id": 3}, lambda: database.insert(3, connection))
        replayed.append(receipt.replayed)
        connection.close()

    threads = [threading.Thread(target=caller) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(replayed) == [False] + [True] * 5 and database.orders() == [3]


def test_a_transaction_that_is_open_is_refused(database: Database) -> None:
    atomic = database.ledger.atomic(database.connection)
    database.insert(1)
    with pytest.raises(InvalidInput, match="in a transaction"):
        atomic.call("order", {}, lambda: None)
    database.connection.rollback()
    assert database.orders() == []


def test_what_is_done_on_postgres_is_seen_by_the_ledger(postgres: Postgres) -> None:
    with Ledger(postgres.fresh()) as ledger, psycopg.connect(postgres.dsn, autocommit=True) as connection:
        ledger.atomic(connection).call("order", {"id": 1}, lambda: {"by": os.getpid()}, key="order-1")
        assert [record.key for record in ledger.operations()] == ["order-1"]
        assert ledger.call("order", {"id": 1}, lambda: None, key="order-1").value == {"by": os.getpid()}


def test_nothing_begins_in_a_stopped_scope_of_postgres(postgres: Postgres) -> None:
    with Ledger(postgres.fresh()) as ledger, psycopg.connect(postgres.dsn, autocommit=True) as connection:
        atomic = ledger.atomic(connection)
        ledger.stop("run-7")
        with pytest.raises(Stopped, match="run-7"):
            atomic.call("order", {"id": 1}, lambda: pytest.fail("it must not run"), scope="run-7")
        assert ledger.resume("run-7")
        assert atomic.call("order", {"id": 1}, lambda: 1, scope="run-7").value == 1


def test_other_connections_are_refused(ledger: Ledger, postgres: Postgres) -> None:
    with pytest.raises(InvalidInput, match="not a connection of sqlite3 or psycopg"):
        ledger.atomic(object())
    with psycopg.connect(postgres.dsn) as connection, pytest.raises(InvalidInput, match="same database"):
        ledger.atomic(connection)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_a_function_that_commits_by_itself_is_told(database: Database, fails: bool, again: bool) -> None:
    atomic = database.ledger.atomic(database.connection)

    @atomic.once(name="order")
    def order(id: int) -> None:
        database.insert(id)
        database.connection.commit()
        if again:
            database.insert(id + 1)
        if fails:
            raise ValueError("after the commit")

    with pytest.raises(InDoubt, match="committed or rolled back") as doubt:
        order(1)
    assert doubt.value.operation is not None and doubt.value.operation.state == "in_doubt"
    with pytest.raises(InDoubt):
        order(1)
    assert database.orders() == [1], "it does not run again"


def test_a_function_that_rolls_back_by_itself_is_told(database: Database) -> None:
    atomic = database.ledger.atomic(database.connection)

    def order() -> None:
        database.insert(1)
        database.connection.rollback()

    for _ in range(2):
        with pytest.raises(InDoubt, match="committed or rolled back"):
            atomic.call("order", {}, order)
    assert database.orders() == []


@pytest.mark.parametrize("again", [False, True])
def test_a_commit_after_a_rollback_is_recorded_as_a_doubt(database: Database, again: bool) -> None:
    atomic = database.ledger.atomic(database.connection)

    def order() -> None:
        database.connection.rollback()
        database.insert(1)
        database.connection.commit()
        if again:
            database.insert(2)

    for _ in range(3):
        with pytest.raises(InDoubt, match="committed or rolled back"):
            atomic.call("order", {}, order)
    assert database.orders() == [1], "it does not run again"


def test_an_effect_elsewhere_leaves_a_doubt(database: Database) -> None:
    atomic = database.ledger.atomic(database.connection)
    answering = Server("answer", http(200))
    url = f"http://127.0.0.1:{answering.port}/"

    def order(method: str, then: str) -> None:
        database.insert(1)
        requests.request(method, url if then != "refused" else f"http://127.0.0.1:{free_port()}/")
        raise ValueError("after the request")

    try:
        with pytest.raises(InDoubt, match="after the request") as doubt:
            atomic.call("charge", {"method": "POST", "then": "raise"}, order)
        assert isinstance(doubt.value, ValueError) and doubt.value.operation is not None
        with pytest.raises(InDoubt):
            atomic.call("charge", {"method": "POST", "then": "raise"}, order)
        assert len(answering.requests) == 1, "it does not run again"
        for inputs in ({"method": "GET", "then": "raise"}, {"method": "POST", "then": "refused"}):
            for _ in range(2):
                with pytest.raises(Failed):
                    atomic.call("charge", inputs, order)
    finally:
        answering.close()
    assert database.orders() == []


def test_a_commit_that_fails_after_an_effect_elsewhere_leaves_a_doubt(ledger: Ledger, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "own.db")
    connection.executescript(
        "pragma foreign_keys = on; create table a (id integer primary key);"
        "create table b (a integer references a deferrable initially deferred);"
    )
    atomic = ledger.atomic(connection)
    answering = Server("answer", http(200))

    def order() -> None:
        requests.post(f"http://127.0.0.1:{answering.port}/")
        connection.execute("insert into b values (7)")

    try:
        for _ in range(2):
            with pytest.raises(InDoubt, match="the commit failed"):
                atomic.call("order", {}, order)
        assert len(answering.requests) == 1
    finally:
        answering.close()
        connection.close()


def test_what_the_policy_redacts_is_not_stored(database: Database, tmp_path: Path) -> None:
    policy = tmp_path / "onceward.toml"
    policy.write_text('[defaults]\nredact = ["re:sk_[a-z]+", "json:/token"]\n')
    with Ledger(database.ledger.url, policy=policy) as ledger:
        atomic = ledger.atomic(database.connection)

        @atomic.once(key=["id"], returns="receipt")
        def order(id: int) -> Any:
            return {**database.insert(id), "token": "hidden", "url": "?k=sk_abc"}

        first = order(1)
        assert first.value == {"id": 1, "token": "hidden", "url": "?k=sk_abc"}
        again = order(1)
        assert (again.replayed, database.orders()) == (True, [1])
        assert again.value == {"id": 1, "token": "[redacted]", "url": "?k=[redacted]"}
    table = "onceward" if database.kind == "sqlite" else "operation"
    with database.connect() as connection:
        rows = str(connection.execute(f"select * from {table}").fetchall())
    connection.close()
    assert "[redacted]" in rows and "hidden" not in rows and "sk_abc" not in rows
