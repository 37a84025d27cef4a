"""Record and effect in one transaction of the caller's own connection: exactly once, for effects in that database.

The statements run on the caller's connection; the ledger's rules decide what is written.
"""

from __future__ import annotations

import functools
import json
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import parse_qs, urlsplit

from . import _options, _watch, _wrap
from ._guard import in_words
from ._onceward import Receipt, Written, atomic_begin
from .errors import InvalidInput, LedgerReplaced, LedgerUnavailable, Stopped
from .failures import judge

if TYPE_CHECKING:
    from ._guard import Guard
    from ._ledger import Ledger

# How often to decide again because another transaction has changed the record in between.
_TRIES = 16


class Atomic:
    """A ledger whose records are written in the transactions of one connection."""

    def __init__(self, ledger: Ledger, connection: Any) -> None:
        self._ledger = ledger
        self._database: _Sqlite | _Postgres
        if hasattr(connection, "executescript"):
            self._database = _Sqlite(connection)
        elif hasattr(connection, "info") and hasattr(connection, "transaction"):
            self._database = _Postgres(connection, ledger)
        else:
            kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
            raise InvalidInput(f"a {kind} is not a connection of sqlite3 or psycopg, which atomic mode needs")

    def call(self, name: str, inputs: object, function: Callable[..., Any], **options: Any) -> Receipt:
        """Makes one call exactly once: its effect on this connection and its record are one commit.

        The function must neither commit nor roll back. If it raises, nothing happened and nothing is recorded, unless
        it had an effect elsewhere: after a request, a process or a file that was observed, the operation is in doubt.
        """
        return self._ended(_wrap.single(self._ledger, name, function, inputs, options, waits=False), (inputs,), None)

    def once(self, *functions: Callable[..., Any], **options: Any) -> Any:
        """Guards a function all of whose effects are on this connection: see `Ledger.once`."""
        _options.check(options)

        def decorate(function: Callable[..., Any]) -> Any:
            held = _wrap.Guarded(self._ledger, function, options)

            def receipt(*args: Any, **kwargs: Any) -> Receipt:
                return self._ended(held.guard, *held.prepared(args, kwargs))

            @functools.wraps(function)
            def guarded(*args: Any, **kwargs: Any) -> Any:
                got = receipt(*args, **kwargs)
                return got if options.get("returns") == "receipt" else got.value

            guarded.receipt = receipt  # type: ignore[attr-defined]
            return guarded

        return decorate(*functions) if functions else decorate

    def _ended(self, guard: Guard, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Receipt:
        return guard.ended(lambda: self._run(guard, args, kwargs))

    def _run(self, guard: Guard, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Receipt:
        database = self._database
        database.begin()
        try:
            begun = self._begin(guard, args, kwargs)
            if isinstance(begun, Receipt):
                database.rollback()
                return begun
            database.mark()
            elsewhere = _Elsewhere(database.connection)
            try:
                with elsewhere:
                    value = guard.function(*args, **(kwargs or {}))
            except BaseException as error:
                self._refuse_commit(begun, error)
                database.rollback()
                if elsewhere.happened(error, guard):
                    self._doubt(begun, in_words(error), error)
                if isinstance(error, Exception):
                    raise begun.failed(in_words(error)) from error
                raise
            self._refuse_commit(begun, None)
            ended = begun.done(guard.effect, guard.encode(value), database.now_ms())
            if not database.write(ended):
                raise LedgerUnavailable("this is not the transaction in which the operation was begun")
        except BaseException:
            database.rollback()
            raise
        try:
            database.commit(ended)
        except Exception as error:
            if elsewhere.seen and not database.is_open():
                self._doubt(begun, f"the commit failed after an effect elsewhere: {in_words(error)}", error)
            raise
        return ended.receipt(database.wall_ms(), value)

    def _refuse_commit(self, begun: Written, error: BaseException | None) -> None:
        """Puts the operation in doubt if the function ended the transaction itself: part of it may be committed."""
        if self._database.is_marked():
            return
        reason = "the function committed or rolled back the transaction itself, so part of it may have been committed"
        self._doubt(begun, reason, error, "; let the ledger commit, or guard it with ledger.once")

    def _doubt(self, begun: Written, reason: str, error: BaseException | None, advice: str = "") -> NoReturn:
        """Records the doubt in a transaction of its own, and raises it."""
        database = self._database
        doubt = begun.in_doubt(reason, database.now_ms())
        try:
            database.rollback()
            database.begin()
            # A rollback has removed the record of the attempt. Then the doubt replaces what was there before it.
            if database.write(doubt) or database.write(doubt.replacing(begun.expected)):
                database.commit(doubt)
            else:
                database.rollback()
        except Exception as problem:
            advice = f"{advice}; the doubt could not be recorded ({problem})"
            with suppress(Exception):
                database.rollback()
        if error is not None and not isinstance(error, Exception):
            raise error
        raise doubt.doubted(f"{reason}{advice}") from error

    def _begin(self, guard: Guard, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> Receipt | Written:
        database = self._database
        id = database.id(guard, args, kwargs)
        for _ in range(_TRIES):
            found = database.load(id)
            step = atomic_begin(guard.spec, args, kwargs, found, database.now_ms(), database.ledger)
            if isinstance(step, Receipt) or database.write(step):
                return step
        raise LedgerUnavailable("other callers keep changing this operation; nothing was run")


class _Elsewhere:
    """Observes effects of the function that are not on the caller's connection: no rollback takes them back."""

    def __init__(self, connection: Any) -> None:
        self.seen = False
        self._trace = _watch.Trace(self._notice, own=connection)

    def _notice(self) -> None:
        self.seen = True

    def __enter__(self) -> None:
        self._token = _watch.enter(self._trace)

    def __exit__(self, *_: object) -> None:
        _watch.leave(self._trace, self._token)

    def happened(self, error: BaseException, guard: Guard) -> bool:
        """Whether such an effect may have happened, although the function failed with that error."""
        if not self.seen and not self._trace.goes_on:
            return False
        known = guard.known_failures
        return judge(error, self._trace, no_effect=guard.no_effect, known_failures=known) in ("in_doubt", "timed_out")


class _Sqlite:
    """The table `onceward` beside the caller's tables, in a transaction that begins as IMMEDIATE."""

    TABLE = """CREATE TABLE IF NOT EXISTS onceward (
        id     TEXT    PRIMARY KEY,
        due_ms INTEGER,
        record TEXT    NOT NULL,
        body   BLOB
    ) STRICT;
    CREATE INDEX IF NOT EXISTS onceward_due ON onceward (due_ms) WHERE due_ms IS NOT NULL"""
    ledger = None

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.refuse_open_transaction()
        for statement in self.TABLE.split(";"):
            connection.execute(statement)
        if connection.in_transaction:
            connection.commit()

    def refuse_open_transaction(self) -> None:
        if self.connection.in_transaction:
            raise InvalidInput("the connection is in a transaction; commit it first, and do not change autocommit")

    def begin(self) -> None:
        self.refuse_open_transaction()
        # Take the write lock at once. A transaction that reads first may be refused the lock when it writes.
        self.connection.execute("BEGIN IMMEDIATE")

    def mark(self) -> None:
        """Marks the current transaction."""
        self.connection.execute("SAVEPOINT onceward_guard")

    def is_marked(self) -> bool:
        """Whether the marked transaction is still the current one."""
        try:
            self.connection.execute("RELEASE onceward_guard")
        except Exception:
            return False
        return bool(self.connection.in_transaction)

    def is_open(self) -> bool:
        """Whether the transaction may still be open, or committed."""
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

    def id(self, guard: Guard, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> str:
        return guard.spec.identity(args, kwargs)[2]

    def load(self, id: str) -> str | None:
        row = self.connection.execute("SELECT record FROM onceward WHERE id = ?", (id,)).fetchone()
        return row[0] if row else None

    def write(self, step: Written) -> bool:
        if not self._replaces(step):
            return False
        change = "INSERT INTO onceward (id, due_ms, record) VALUES (?1, ?2, ?3) "
        change += "ON CONFLICT (id) DO UPDATE SET due_ms = ?2, record = ?3, body = NULL"
        self.connection.execute(change, (step.id, step.due_ms, step.json))
        return True

    def _replaces(self, step: Written) -> bool:
        found = self.load(step.id)
        return (json.loads(found)["version"] if found is not None else None) == step.expected

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    now_ms = wall_ms


class _Postgres:
    """The ledger's schema, which must be in the caller's database, so that both see the same transaction."""

    OLD = tuple("id expected open_until state version attempt created_ms updated_ms due_ms detail outcome".split())
    NEW = ("id", "kind", "action", "number", "open_until", "scope", "name", "key", "origin", *OLD[3:])
    WHOLE = frozenset("number open_until version attempt created_ms updated_ms due_ms expected".split())

    def __init__(self, connection: Any, ledger: Ledger) -> None:
        if not ledger.url.startswith(("postgres:", "postgresql:")):
            raise InvalidInput(
                "for a psycopg connection the ledger must be in the same database: Ledger('postgres://…')"
            )
        schema = parse_qs(urlsplit(ledger.url).query).get("schema", ["onceward"])[0]
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", schema):
            raise InvalidInput(f"the schema {schema!r} is not a plain name")
        self.connection, self.schema = connection, schema
        # Creates the tables if necessary. The handle knows the ledger's time and the secret that keys its hashes.
        self.ledger = ledger.open()._handle
        self.refuse_open_transaction()
        # Every write compares this: whether the ledger is still the one that was opened.
        opened = f"SELECT concat_ws(' ', value, tableoid, xmin) FROM \"{schema}\".meta WHERE name = 'ledger'"
        self.opened = (connection.execute(opened).fetchone() or ("none",))[0]
        self.rollback()

    def refuse_open_transaction(self) -> None:
        if self.connection.info.transaction_status.name != "IDLE":
            raise InvalidInput("the connection is in a transaction; commit it first")

    def begin(self) -> None:
        self.refuse_open_transaction()
        if self.connection.autocommit:
            self.connection.execute("BEGIN")

    def mark(self) -> None:
        """Marks the current transaction."""
        self._marked = self._transaction()

    def is_marked(self) -> bool:
        """Whether the marked transaction is still the current one. A broken one can only be rolled back."""
        status = self.connection.info.transaction_status.name
        return bool(status == "INERROR" or (status == "INTRANS" and self._transaction() == self._marked))

    def _transaction(self) -> Any:
        return self.connection.execute("SELECT txid_current()").fetchone()[0]

    def is_open(self) -> bool:
        """Whether the transaction may still be open, or committed."""
        return bool(self.connection.closed or self.connection.info.transaction_status.name != "IDLE")

    def rollback(self) -> None:
        if not self.connection.closed and self.connection.info.transaction_status.name != "IDLE":
            self.connection.execute("ROLLBACK")

    def commit(self, ended: Written) -> None:
        try:
            self.connection.execute("COMMIT")
        except Exception as error:
            code = getattr(error, "sqlstate", None) or ""
            # The server confirms that it was not committed.
            if code[:2] in ("23", "25", "40", "55") and code != "40003":
                self.rollback()
                raise
            raise ended.unanswered(str(error).strip()) from error

    def id(self, guard: Guard, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> str:
        return self.ledger.identity(guard.spec, args, kwargs)[2]

    def load(self, id: str) -> str | None:
        columns = [*self.NEW[1:], "replays"]
        question = f'SELECT {", ".join(columns)} FROM "{self.schema}".load(%s::text[])'
        cells = self.connection.execute(question, ([id],)).fetchone()
        return _whole(id, dict(zip(columns, cells, strict=True))) if cells else None

    def write(self, step: Written) -> bool:
        row = {**step.columns, "id": step.id, "due_ms": step.due_ms, "expected": step.expected}
        new = step.expected is None
        values = [*self._arrays(self.NEW, row if new else None), *self._arrays(self.OLD, None if new else row)]
        some, none = "ARRAY[NULL]::bytea[]", "ARRAY[]::bytea[]"
        places = [*self._places(self.NEW), some if new else none, *self._places(self.OLD), none if new else some]
        # Only a beginning can be refused by the barrier of a stopped scope, or of one that it is a part of.
        scopes = _scopes(step.columns["scope"]) if step.columns["state"] == "running" else []
        values += [[step.id] * len(scopes), scopes]
        places += ["%s::text[]", "%s::text[]"]
        change = f'SELECT written, detail FROM "{self.schema}".swap(NULL, false, %s, NULL, NULL, {", ".join(places)})'
        try:
            written, barriers = self.connection.execute(change, [self.opened, *values]).fetchone()
        except Exception as error:
            if getattr(error, "sqlstate", None) == "OW001":
                raise LedgerReplaced(f"this is not the ledger that was opened ({error}); nothing was run") from error
            raise
        if not written and barriers is not None:
            raise Stopped(f'the scope "{json.loads(barriers)[step.id]["scope"]}" is stopped; nothing was run')
        return bool(written)

    def _places(self, names: tuple[str, ...]) -> list[str]:
        return [f"%s::{'bigint' if name in self.WHOLE else 'text'}[]" for name in names]

    def _arrays(self, names: tuple[str, ...], row: Mapping[str, Any] | None) -> list[list[Any]]:
        return [[row[name]] if row is not None else [] for name in names]

    def now_ms(self) -> int:
        return self.ledger.clock_ms()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


def _scopes(scope: str) -> list[str]:
    """The scopes whose barriers cover this scope: itself, and each part of it that ends before a `~`."""
    parts = scope.split("~")
    return ["~".join(parts[:count]) for count in range(len(parts), 0, -1)]


def _whole(id: str, row: Mapping[str, Any]) -> str:
    """The record as JSON text. Detail and outcome keep their stored text."""
    names = "kind action number scope name version state attempt created_ms updated_ms due_ms replays".split()
    plain = {name: row[name] for name in names if row[name] is not None}
    plain |= {"id": id, "key": {"text": row["key"], "origin": row["origin"]}}
    return f'{json.dumps(plain)[:-1]}, "detail": {row["detail"]}, "outcome": {row["outcome"] or "null"}}}'
