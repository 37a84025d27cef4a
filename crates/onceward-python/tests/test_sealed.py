"""Encryption at rest, configured with the variables that every surface reads."""

from __future__ import annotations

import base64
import os
import sqlite3
from pathlib import Path

import pytest

from onceward import Ledger, LedgerUnavailable, ResultUnavailable

SECRET = "canary-7f3d9e21"


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    key = base64.b64encode(os.urandom(32)).decode()
    file = tmp_path / "once.key"
    file.write_text(key)
    file.chmod(0o600)
    monkeypatch.setenv("ONCE_ENCRYPTION_KEY_FILE", str(file))
    return key


def holds_the_secret(folder: Path) -> list[str]:
    files = [file for file in folder.rglob("*") if file.is_file()]
    return [file.name for file in files if SECRET.encode() in file.read_bytes()]


def test_a_result_is_sealed_and_a_missing_key_runs_nothing(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def pay(ledger: Ledger) -> dict[str, str]:
        @ledger.once(name="pay")
        def pay() -> dict[str, str]:
            calls.append(1)
            return {"token": SECRET}

        return pay()

    for _ in range(2):
        with Ledger(tmp_path / "agent.db") as ledger:
            assert pay(ledger) == {"token": SECRET}
    assert holds_the_secret(tmp_path) == []
    monkeypatch.delenv("ONCE_ENCRYPTION_KEY_FILE")
    with Ledger(tmp_path / "agent.db") as ledger:
        with pytest.raises(ResultUnavailable, match="sealed with the key k_") as unavailable:
            pay(ledger)
        assert (unavailable.value.happened, unavailable.value.ran) == ("yes", False)
        operation = unavailable.value.operation
        assert operation is not None and operation.json is None
    monkeypatch.setenv("ONCE_ENCRYPTION_KEY", key)
    with Ledger(tmp_path / "agent.db") as ledger:
        assert pay(ledger) == {"token": SECRET}
    monkeypatch.setenv("ONCE_ENCRYPTION_KEY", "hunter2")
    with pytest.raises(LedgerUnavailable, match="32 bytes"), Ledger(tmp_path / "agent.db") as ledger:
        pay(ledger)
    assert calls == [1]


def test_the_table_of_atomic_mode_is_sealed(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = sqlite3.connect(tmp_path / "own.db")
    calls = []

    def pay() -> dict[str, str]:
        with Ledger(tmp_path / "agent.db") as ledger:

            @ledger.atomic(connection).once(name="pay")
            def pay() -> dict[str, str]:
                calls.append(1)
                return {"token": SECRET}

            return pay()

    assert pay() == pay() == {"token": SECRET}
    assert holds_the_secret(tmp_path) == []
    monkeypatch.delenv("ONCE_ENCRYPTION_KEY_FILE")
    with pytest.raises(ResultUnavailable):
        pay()
    assert calls == [1]
    connection.close()
