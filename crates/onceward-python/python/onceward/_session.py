"""A session: keys that are shared only within it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from uuid import UUID

from .errors import InvalidInput

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._ledger import Ledger
    from ._onceward import Receipt, Record
    from ._options import CallOptions


class Session:
    """The ledger within one session, run or conversation: its id is the scope of every key.

    Results are kept for 30 days, and a key whose result has expired is refused, so that a resumed run repeats nothing.
    """

    def __init__(self, ledger: Ledger, id: str | int | UUID) -> None:
        if isinstance(id, bool) or not isinstance(id, (str, int, UUID)) or str(id) == "":
            raise InvalidInput(
                f"the id of the session is {id!r}; give text that a restarted run uses again and no other run has"
            )
        self.ledger = ledger
        self.id = str(id)

    def call(self, name: str, inputs: object, function: Callable[..., Any], **options: Unpack[CallOptions]) -> Receipt:
        """Makes one call once in this session: see `Ledger.call`."""
        return self.ledger.call(name, inputs, function, **self._within(options))

    async def acall(
        self, name: str, inputs: object, function: Callable[..., Any], **options: Unpack[CallOptions]
    ) -> Receipt:
        """The same for a coroutine function."""
        return await self.ledger.acall(name, inputs, function, **self._within(options))

    if TYPE_CHECKING:

        @property
        def once(self) -> _Once:
            """Guards a function in this session: see `Ledger.once`."""
    else:

        def once(self, *functions, **options):
            """Guards a function in this session: see `Ledger.once`."""
            decorate = self.ledger.once(**self._within(options))
            return decorate(*functions) if functions else decorate

    def operations(self, **filters: Any) -> Iterator[Record]:
        """The operations of this session: see `Ledger.operations`."""
        return self.ledger.operations(**{**filters, "scope": self.id})

    def _within(self, options: Any) -> Any:
        return {"scope": self.id, **{name: value for name, value in options.items() if name != "scope" or value}}

    def __repr__(self) -> str:
        return f"Session({self.id!r})"


if TYPE_CHECKING:
    from ._once import Once as _Once
