"""Record and effect in one transaction of the caller's own: for effects in his own database, exactly once.

The statements are executed on the caller's connection; what is written is decided by the ledger's rules.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from . import _options, _wrap
from ._guard import in_words
from ._onceward import Receipt, Written, atomic_begin
from .errors import InvalidInput, LedgerUnavailable, as_raised

if TYPE_CHECKING:
    from ._guard import Guard
    from ._ledger import Ledger

# How often a decision is made again because another transaction ended meanwhile.
_TRIES = 16


class Atomic:
    """A ledger whose records are written in the transactions of one connection."""

    def __init__(self, ledger: Ledger, connection: Any) -> None:
        self._ledger = ledger
        self._door: _Sqlite | _Postgres
        if hasattr(connection, "executescript"):
            self._door = _Sqlite(connection)
        elif hasattr(connection, "info") and hasattr(connection, "transaction"):
            self._door = _Postgres(connection, ledger)
        else:
            kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
            raise InvalidInput(f"a {kind} is no connection of sqlite3 or psycopg, which atomic mode works on")

    def call(self, name: str, inputs: object, function: Callable[..., Any], **options: Any) -> Receipt:
        """Lets one call happen exactly once: its effect on this connection and its record are one commit.

        The function must neither commit nor roll back. Where it raises, nothing happened and nothing is on record.
        """
        return self._run(_wrap.single(self._ledger, name, function, inputs, options, waits=False), (inputs,), None)

    def once(self, *functions: Callable[..., Any], **options: Any) -> Any:
        """Guards a function whose effects are all on this connection: see `Ledger.once`."""
        _options.check(options)

        def decorate(function: Callable[..., Any]) -> Any:
            held = _wrap.Guarded(self._ledger, function, options)

            def receipt(*args: Any, **kwargs: Any) -> Receipt:
                return self._run(held.guard, *held.prepared(args, kwargs))

            @functools.wraps(function)
            def guarded(*args: Any, **kwargs: Any) -> Any:
                got = receipt(*args, **kwargs)
                return got if options.get("returns") == "receipt" else got.value

            guarded.receipt = receipt  # type: ignore[attr-defined]
            return guarded

        return decorate(*functions) if functions else decorate

    def _run(self, guard: Guard, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Receipt:
        door = self._door
        door.begin()
        try:
            begun = self._begin(guard, args, kwargs)
            if isinstance(begun, Receipt):
                door.rollback()
                return begun
            door.mark()
            try:
                value = guard.function(*args, **(kwargs or {}))
            except BaseException as error:
                self._refuse_commit(begun, error)
                door.rollback()
                if isinstance(error, Exception):
                    failed: Any = begun.failed(in_words(error))
                    failed.__cause__ = error
                    raise as_raised(failed) from error
                raise
            self._refuse_commit(begun, None)
            ended = begun.done(guard.effect, guard.encode(value), door.now_ms())
            if not door.write(ended):
                raise LedgerUnavailable("this is not the transaction that the operation was begun in")
        except BaseException:
            door.rollback()
            raise
        door.commit(ended)
        return ended.receipt(door.wall_ms(), value)

    def _refuse_commit(self, begun: Written, error: BaseException | None) -> None:
        """A function that ends the transaction itself takes record and effect apart: it is in doubt, and says why."""
        door = self._door
        if door.is_marked():
            return
        door.rollback()
        reason = "the function committed or rolled back the transaction itself, so part of it may have been committed"
        door.begin()
        doubt = begun.in_doubt(reason, door.now_ms())
        if door.write(doubt):
            door.commit(doubt)
        else:
            door.rollback()
        raised: Any = doubt.doubted(f"{reason}; let the ledger commit, or guard it with ledger.once")
        raise raised from error

    def _begin(self, guard: Guard, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Receipt | Written:
        _, _, id = guard.spec.identity(args, kwargs)
        for _ in range(_TRIES):
            found, now_ms = self._door.load(id)
            step = atomic_begin(guard.spec, args, kwargs, found, now_ms)
            if isinstance(step, Receipt) or self._door.write(step):
                return step
        raise LedgerUnavailable("others change this operation without end; nothing was run")


class _Sqlite:
    """The table `onceward` beside the caller's own, in a transaction that is begun as IMMEDIATE."""

    TABLE = """CREATE TABLE IF NOT EXISTS onceward (
        id     TEXT    PRIMARY KEY,
        due_ms INTEGER,
        record TEXT    NOT NULL,
        body   BLOB
    ) STRICT;
    CREATE INDEX IF NOT EXISTS onceward_due ON onceward (due_ms) WHERE due_ms IS NOT NULL"""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.refuse_open_transaction()
        for statement in self.TABLE.split(";"):
            connection.execute(statement)
        if connection.in_transaction:
            connection.commit()

    def refuse_open_transaction(self) -> None:
        if self.connection.in_transaction:
            raise InvalidInput("the connection is in a transaction; commit it first, and leave autocommit as it is")

    def begin(self) -> None:
        self.refuse_open_transaction()
        # Taken at once: whoever reads first and writes later may find that he must not.
        self.connection.execute("BEGIN IMMEDIATE")

    def mark(self) -> None:
        """Notes which transaction this is."""
        self.connection.execute("SAVEPOINT onceward_guard")

    def is_marked(self) -> bool:
        """Whether it is the same transaction still."""
        try:
            self.connection.execute("RELEASE onceward_guard")
        except Exception:
            return False
        return bool(self.connection.in_transaction)

    def rollback(self) -> None:
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")

    def commit(self, _ended: Written) -> None:
        try:
            self.connection.execute("COMMIT")
        except Exception:
            self.rollback()
            raise

    def load(self, id: str) -> tuple[str | None, int]:
        row = self.connection.execute("SELECT record FROM onceward WHERE id = ?", (id,)).fetchone()
        return (row[0] if row else None), self.wall_ms()

    def write(self, step: Written) -> bool:
        if step.expected is not None and not self._stands(step):
            return False
        change = "INSERT INTO onceward (id, due_ms, record) VALUES (?1, ?2, ?3) "
        change += "ON CONFLICT (id) DO UPDATE SET due_ms = ?2, record = ?3, body = NULL"
        self.connection.execute(change, (step.id, step.due_ms, step.json))
        return True

    def _stands(self, step: Written) -> bool:
        found, _ = self.load(step.id)
        return found is not None and json.loads(found)["version"] == step.expected

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    now_ms = wall_ms


class _Postgres:
    """The ledger's own schema, which must be in the caller's database: what is done here is seen there."""

    NOW = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
    NEW = tuple("id scope name key origin state version attempt created_ms updated_ms due_ms detail outcome".split())
    OLD = ("id", "expected", "state", "version", "attempt", "created_ms", "updated_ms", "due_ms", "detail", "outcome")
    WHOLE = frozenset({"version", "attempt", "created_ms", "updated_ms", "due_ms", "expected"})

    def __init__(self, connection: Any, ledger: Ledger) -> None:
        if not ledger.url.startswith(("postgres:", "postgresql:")):
            raise InvalidInput(
                "for a psycopg connection the ledger must be in the same database: Ledger('postgres://…')"
            )
        schema = parse_qs(urlsplit(ledger.url).query).get("schema", ["onceward"])[0]
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", schema):
            raise InvalidInput(f"the schema {schema!r} is not a plain name")
        self.connection, self.schema = connection, schema
        # Makes the tables where there are none.
        ledger.open()
        self.refuse_open_transaction()

    def refuse_open_transaction(self) -> None:
        if self.connection.info.transaction_status.name != "IDLE":
            raise InvalidInput("the connection is in a transaction; commit it first")

    def begin(self) -> None:
        self.refuse_open_transaction()
        if self.connection.autocommit:
            self.connection.execute("BEGIN")

    def mark(self) -> None:
        """Notes which transaction this is."""
        self._marked = self._transaction()

    def is_marked(self) -> bool:
        """Whether it is the same transaction still. One that is broken can only be rolled back."""
        status = self.connection.info.transaction_status.name
        return bool(status == "INERROR" or (status == "INTRANS" and self._transaction() == self._marked))

    def _transaction(self) -> Any:
        return self.connection.execute("SELECT txid_current()").fetchone()[0]

    def rollback(self) -> None:
        if not self.connection.closed and self.connection.info.transaction_status.name != "IDLE":
            self.connection.execute("ROLLBACK")

    def commit(self, ended: Written) -> None:
        try:
            self.connection.execute("COMMIT")
        except Exception as error:
            code = getattr(error, "sqlstate", None) or ""
            # The server's own word that it was not committed.
            if code[:2] in ("23", "25", "40", "55") and code != "40003":
                self.rollback()
                raise
            raise ended.unanswered(str(error).strip()) from error

    def load(self, id: str) -> tuple[str | None, int]:
        columns = [*self.NEW[1:], "replays"]
        question = f"SELECT {self.NOW}, {', '.join('o.' + name for name in columns)} FROM (SELECT 1) AS t "
        question += f'LEFT JOIN "{self.schema}".load_1(%s::text[]) AS o ON true'
        now_ms, *cells = self.connection.execute(question, ([id],)).fetchone()
        row = dict(zip(columns, cells, strict=True))
        return (_whole(id, row) if row["version"] is not None else None), int(now_ms)

    def write(self, step: Written) -> bool:
        row = {**step.columns, "id": step.id, "due_ms": step.due_ms, "expected": step.expected}
        new = step.expected is None
        values = [*self._arrays(self.NEW, row if new else None), *self._arrays(self.OLD, None if new else row)]
        some, none = "ARRAY[NULL]::bytea[]", "ARRAY[]::bytea[]"
        places = [*self._places(self.NEW), some if new else none, *self._places(self.OLD), none if new else some]
        change = f'SELECT written FROM "{self.schema}".swap_1(NULL, false, {", ".join(places)})'
        written = self.connection.execute(change, values).fetchone()[0]
        return bool(written)

    def _places(self, names: tuple[str, ...]) -> list[str]:
        return [f"%s::{'bigint' if name in self.WHOLE else 'text'}[]" for name in names]

    def _arrays(self, names: tuple[str, ...], row: Mapping[str, Any] | None) -> list[list[Any]]:
        return [[row[name]] if row is not None else [] for name in names]

    def now_ms(self) -> int:
        return int(self.connection.execute(f"SELECT {self.NOW}").fetchone()[0])

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


def _whole(id: str, row: Mapping[str, Any]) -> str:
    """The record as JSON text, in which detail and outcome stay the texts that they were."""
    names = ("scope", "name", "version", "state", "attempt", "created_ms", "updated_ms", "due_ms", "replays")
    plain = {name: row[name] for name in names}
    plain |= {"id": id, "key": {"text": row["key"], "origin": row["origin"]}}
    return f'{json.dumps(plain)[:-1]}, "detail": {row["detail"]}, "outcome": {row["outcome"] or "null"}}}'
