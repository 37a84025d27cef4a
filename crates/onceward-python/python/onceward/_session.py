"""A session: keys that are shared within it, and with nobody else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._ledger import Ledger
    from ._onceward import Receipt, Record


class Session:
    """The ledger within one session, run or conversation: its id is the scope of every key."""

    def __init__(self, ledger: Ledger, id: str) -> None:
        self.ledger = ledger
        self.id = id

    def call(self, name: str, inputs: object, function: Callable[..., Any], **options: Any) -> Receipt:
        """Lets one call happen once in this session: see `Ledger.call`."""
        return self.ledger.call(name, inputs, function, **{"scope": self.id, **options})

    async def acall(self, name: str, inputs: object, function: Callable[..., Any], **options: Any) -> Receipt:
        """The same for a coroutine function."""
        return await self.ledger.acall(name, inputs, function, **{"scope": self.id, **options})

    def once(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Guards a function in this session: see `Ledger.once`."""
        decorate: Any = self.ledger.once(**{"scope": self.id, **options})
        return decorate if function is None else decorate(function)

    def operations(self, **filters: Any) -> Iterator[Record]:
        """The operations of this session: see `Ledger.operations`."""
        return self.ledger.operations(**{**filters, "scope": self.id})

    def __repr__(self) -> str:
        return f"Session({self.id!r})"
