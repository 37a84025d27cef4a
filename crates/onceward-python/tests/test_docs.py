"""Runs the samples of the documentation unchanged."""

from __future__ import annotations

import inspect
import re
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PAGES = ["docs/python.md", "crates/onceward-python/README.md", "README.md"]


def samples(page: str) -> str:
    """All Python blocks of a page in order."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize("page", PAGES)
def test_the_samples_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    effects: list[Any] = []
    connection = sqlite3.connect(tmp_path / "own.db", isolation_level=None)
    connection.execute("create table orders (id integer)")

    def act(*args: Any, **kwargs: Any) -> int:
        effects.append((args, kwargs))
        return len(effects)

    world: dict[str, Any] = {
        "__name__": "sample", "connection": connection, "event": {"id": "evt_1"}, "handle": act,
        "api": SimpleNamespace(charge=act), "stripe": SimpleNamespace(charge=act), "send_mail": lambda to: act(to),
        "carrier": SimpleNamespace(post=act), "bank": SimpleNamespace(pay=act, is_closed=lambda: False),
        "look_up": str, "charge_customer": lambda customer_id: act(customer_id),
        "find_subscription": find_subscription, "create_subscription": create_subscription,
    }  # fmt: skip
    exec(compile(samples(page), page, "exec"), world)
    assert effects and world["ledger"].url == f"sqlite:{tmp_path}/agent.db"
    replay = world["charge"].receipt("cust_1", 100)
    assert replay.replayed and replay.value == 1
    connection.close()
    world["ledger"].close()


def find_subscription(user: str) -> None:
    return None


def create_subscription(user: str) -> str:
    return user


def test_every_option_is_in_the_documentation() -> None:
    from onceward import Ledger

    text = (ROOT / "docs/python.md").read_text().partition("## Options of `once`")[2]
    named = [name for name in inspect.signature(Ledger.once).parameters if name not in ("self", "function")]
    assert not [name for name in named if f"`{name}`" not in text]
